"""The descriptor of a system, and the model of a settings file that has the sections of several systems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ferryman.runtime.settings import Settings

Run: TypeAlias = tuple[str, str]
"""The `module:attribute` that `ferryman run NAME` starts, and its line in `ferryman run --help`."""


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """One system: the descriptor that its package exports as `SYSTEM`.

    Parts are named as `module:attribute` and loaded when they are needed. Command line, console, migrations, topics,
    evidence, completion and docs enumerate the systems: adding one edits no list elsewhere.
    """

    name: str
    owner: str
    """The name of its chain of migrations, which is a folder under `migrations/`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Its sections of ferryman.toml, each with its class."""
    runs: Mapping[str, Run] = field(default_factory=dict)
    """The names that `ferryman run` takes: a consumer, a saga, a service, or a function that returns some."""
    routes: str | None = None
    """Its HTTP routes: a function of a `ferryman.routes.Door` and the settings that returns a router."""
    machines: tuple[str, ...] = ()
    """The machines of its sagas."""
    outboxes: str | None = None
    """Its described outboxes: a function of the settings that returns their descriptions by name."""
    outboxes_need: str | None = None
    """The setting without which it describes none."""
    databases: Mapping[str, str] = field(default_factory=dict)
    """Settings that name a database of it, by what the database is called; `database_url` is always known."""
    catalogue: bool = False
    """True if its messages are in Ferryman's own catalogue."""
    evidence: str | None = None
    """Its case file, for `trace`, `reconcile` and `audit`."""
    tracer: str | None = None
    """Its stories for `trace`, if it has no case file."""


def load(target: str) -> Any:
    """Import what `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


@cache
def settings_model(systems: Sequence[System]) -> "type[Settings]":
    """Return the model of a ferryman.toml with the engine's sections and those of these systems."""
    from pydantic import create_model

    from ferryman.runtime.setting import setting
    from ferryman.runtime.settings import Settings

    sections = {name: load(target) for system in systems for name, target in system.settings.items()}
    fields: dict[str, Any] = {name: (kind, setting(kind, kind.__doc__)) for name, kind in sections.items()}
    return create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, **fields)
