"""HTTP: each post is sent once, signed, to an address that is allowed; whatever comes back is an outcome."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferryman.channels.http.guard import AddressGuard, literal_address
from ferryman.channels.model import InvalidEndpoint
from ferryman.channels.outcome import Rejected
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_http import Http

if TYPE_CHECKING:
    from ferryman.channels.http.client import HttpChannel


def http_channel(settings: Http, slots: int) -> "HttpChannel":
    """Return the channel for these settings and so many requests at once.

    Raise `Misconfigured` if the extra that it needs is not installed.
    """
    try:
        from ferryman.channels.http.client import HttpChannel
    except ModuleNotFoundError as error:
        raise _lacking(error) from error
    return HttpChannel(settings, slots=slots)


def check_endpoint(url: str, allow: Sequence[str] = (), *, http: bool = False) -> None:
    """Raise `InvalidEndpoint` if no request could go to this URL, so that its writer knows at once.

    `allow` is what `http.allow` opens; with `http`, a URL may begin with http:// too. A name is not resolved: it may
    mean another address a moment later, so each address is judged when it is connected to.
    """
    try:
        from ferryman.channels.http.request import parsed
    except ModuleNotFoundError as error:
        raise _lacking(error) from error
    found = parsed(url)
    if isinstance(found, Rejected):
        raise InvalidEndpoint(found.error)
    if found.scheme != "https" and not http:
        raise InvalidEndpoint("the URL does not begin with https://")
    address = literal_address(found.raw_host or "")
    if address is not None and (reason := AddressGuard(allow).why_refused(address)):
        raise InvalidEndpoint(f"the URL has an address that no request may go to: {reason}")


def _lacking(error: ModuleNotFoundError) -> Exception:
    """Return what to raise where an extra is not installed."""
    if error.name not in ("aiohttp", "yarl"):
        return error
    return Misconfigured(f"sending by HTTP needs the package {error.name}", remedy="pip install 'ferryman[http]'")
