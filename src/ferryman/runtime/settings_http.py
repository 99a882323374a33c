"""The settings under [http]."""

from ipaddress import ip_network
from typing import Self

from pydantic import field_validator, model_validator

from ferryman.runtime.setting import InvalidSetting, Seconds, Section, setting


class Http(Section):
    """The settings of requests to destinations that rows name: what may be reached, and how long it may take."""

    allow: list[str] = setting(
        [], "Ranges of addresses that may be reached although they are private or reserved: `10.1.0.0/16`.",
        danger="whoever writes a row's URL can send requests to every host in these ranges",
    )  # fmt: skip
    connect_timeout_seconds: Seconds = setting(
        5.0, "How long it may take to resolve a name and to connect, TLS included.", unit="seconds"
    )
    timeout_seconds: Seconds = setting(
        15.0, "How long a request may take in all.", unit="seconds",
        danger="a request that takes longer is sent again although the receiver may have handled it; "
        "it must be below service.drain_seconds, and twice it and 15 s at most the lease of each outbox",
    )  # fmt: skip
    max_body_bytes: int = setting(
        1 << 20, "A larger body is not sent: its row is rejected.", unit="bytes", ge=1024, le=64 << 20,
        danger="twice as many bodies as there are slots are in memory at once",
    )  # fmt: skip
    retry_after_cap_seconds: float = setting(
        3600.0, "The longest wait that a receiver may ask for with Retry-After.", unit="seconds", ge=0, le=604_800,
        danger="if too high, one answer holds a row back that long",
    )  # fmt: skip

    @field_validator("allow")
    @classmethod
    def _are_ranges(cls, ranges: list[str]) -> list[str]:
        for each in ranges:
            try:
                ip_network(each)
            except ValueError as error:
                raise InvalidSetting(
                    f"{each!r} is not a valid range of addresses: {error}", remedy=f"write it as {_like(each)}"
                ) from error
        return ranges

    @model_validator(mode="after")
    def _connects_within_its_time(self) -> Self:
        if self.connect_timeout_seconds > self.timeout_seconds:
            raise ValueError("connect_timeout_seconds must not be longer than timeout_seconds")
        return self


def _like(text: str) -> str:
    """Return the range that an address with a mask is in, or an example of one."""
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        return "10.1.0.0/16, or 10.1.2.3 for one address; names are not ranges"
