"""The testing kit: `prove`, real servers, and servers that fail on demand.

`prove` runs a consumer's handlers with a crash at every point where a process can die. It loads on first use, so that
the pytest plugin costs milliseconds.

A server is looked for in this order: a given URL, Docker, this machine's own programs, Python wheels. It is said which
one was taken, and why the ones before it were not. Servers of our own can be stopped, killed, paused and restarted.

`proxy`, `receiver` and `mail` are the fault kit: a TCP proxy, an HTTP server and an SMTP server that misbehave as told.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferryman.testing.proving.proof import NotProven
    from ferryman.testing.proving.prove import prove

_HOMES = {"NotProven": "ferryman.testing.proving.proof", "prove": "ferryman.testing.proving.prove"}

__all__ = ["NotProven", "prove"]


def __getattr__(name: str) -> Any:
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'ferryman.testing' has no attribute {name!r}")
