"""Services on the engines, each in a package of its own, written on what `import ferryman` offers and nothing else."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ferryman import System


@cache
def systems() -> tuple[System, ...]:
    """Return the descriptor of every system in this folder, in the order of their names."""
    packages = sorted(each.name for each in iter_modules(__path__) if each.ispkg)
    return tuple(import_module(f"{__name__}.{name}").SYSTEM for name in packages)
