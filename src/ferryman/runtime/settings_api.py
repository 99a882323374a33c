"""The settings under [api]."""

from typing import Literal

from ferryman.runtime.setting import Port, Section, setting


class Token(Section):
    """One client of the API: what it shows, and what it may do. The token itself stands nowhere."""

    sha256: str = setting(
        ..., "The SHA-256 of its token, in hexadecimal; no token stands here.",
        pattern="^[0-9a-f]{64}$", danger="a token that can be guessed is found from it: make one with `openssl rand`",
    )  # fmt: skip
    scopes: list[Literal["payments:write", "payments:read", "internal:results"]] = setting(
        ..., "What it may do: `payments:write`, `payments:read`, `internal:results`.", min_length=1
    )


class Api(Section):
    """How `ferryman run api` answers over HTTP."""

    host: str = setting(
        "127.0.0.1", "The address to listen on; in a container, 0.0.0.0.",
        danger="it speaks no TLS, and tokens are in the open on the way: put a proxy that does in front",
    )  # fmt: skip
    port: Port = setting(8080, "The port to listen on; 0 takes a free one, which the log names.")
    max_body_bytes: int = setting(65536, "A request with a larger body is refused.", unit="bytes", ge=1024, le=16 << 20)
    open: bool = setting(
        False, "Lets everyone do everything without a token; there must be none then.",
        danger="whoever reaches the port makes payments and ends them",
    )  # fmt: skip
    tokens: dict[str, Token] = setting({}, "Clients by a name of yours, each with its token. It needs at least one.")
