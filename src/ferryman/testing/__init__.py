"""What tests are written with: `prove`, and real servers for tests, demos and benches.

`prove` tries a consumer's handlers at every point where a process can die. It loads on first use, so that the pytest
plugin costs milliseconds.

Servers are found or started, and can be stopped, killed and paused. Each climbs a ladder: a URL that was given, Docker
when an engine answers, what this machine has, what a wheel brings; and says which rung it took and why the ones above
were not to be had.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferryman.testing.proving.api import prove
    from ferryman.testing.proving.verdict import NotProven

_HOMES = {"NotProven": "ferryman.testing.proving.verdict", "prove": "ferryman.testing.proving.api"}

__all__ = ["NotProven", "prove"]


def __getattr__(name: str) -> Any:
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'ferryman.testing' has no attribute {name!r}")
