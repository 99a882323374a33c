"""Ferryman: what was committed gets across, and takes effect once.

The public names. They load on first use, so that `import ferryman` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable
    from ferryman.runtime.version import __version__

_HOMES = {
    "FerrymanError": "ferryman.runtime.errors",
    "Misconfigured": "ferryman.runtime.errors",
    "Permanent": "ferryman.runtime.errors",
    "Transient": "ferryman.runtime.errors",
    "Unreachable": "ferryman.runtime.errors",
    "__version__": "ferryman.runtime.version",
}

__all__ = ["FerrymanError", "Misconfigured", "Permanent", "Transient", "Unreachable", "__version__"]


def __getattr__(name: str) -> Any:
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'ferryman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
