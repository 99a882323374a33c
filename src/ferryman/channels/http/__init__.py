"""HTTP: each post is sent once, signed, to an address that is allowed; whatever comes back is an outcome."""

from typing import TYPE_CHECKING

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
        if error.name not in ("aiohttp", "yarl"):
            raise
        raise Misconfigured(
            f"sending by HTTP needs the package {error.name}", remedy="pip install 'ferryman[http]'"
        ) from error
    return HttpChannel(settings, slots=slots)
