"""Where a registry server is, and who we are there: read once from its URL, whose password goes no further."""

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from ferryman.schemas.registry import answers

_BLANK = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Address:
    """Of a server with Confluent's API."""

    scheme: str
    hostname: str
    port: int | None
    path: str
    host: str
    """As errors say it."""
    login: str | None = field(repr=False)
    """`user:password`, decoded."""

    @property
    def url(self) -> str:
        """Without the login."""
        return f"{self.host}{self.path}"


def read(url: str) -> Address:
    """Refuses what is no address in words of its own: a library's would show the pieces of a password."""
    try:
        parts = urlsplit(url)
        hostname, port = parts.hostname or "", parts.port
        hostname.encode("idna")
    except ValueError:
        raise _none() from None
    beyond = f"{parts.path}{parts.query}{parts.fragment}"
    if parts.scheme not in {"http", "https"} or not hostname or "@" in beyond or _BLANK.search(url):
        raise _none()
    if parts.query or parts.fragment:
        raise answers.setting("the registry's URL has a query or a fragment", "leave out what begins with ? or #")
    login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return Address(parts.scheme, hostname, port, quote(parts.path.rstrip("/"), safe="/%:;,=+~!$&'()*"), host, login)


def _none() -> Exception:
    return answers.setting(
        "the registry's URL is none",
        "write http://host:port/..., or file:///folder; what is not a letter or digit in a password, as %40",
    )
