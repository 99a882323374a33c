"""The values of a described outbox: what its table is like, and a row that was claimed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ferryman.relay.model import Entry


class LiveColumn(NamedTuple):
    """A column as the database has it, and whether this role may read and change it."""

    type: str
    readable: bool = True
    changeable: bool = True


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table as the database has it."""

    columns: Mapping[str, LiveColumn]
    unique: frozenset[str] = frozenset()
    """The columns that are unique alone."""
    role: str = "the relay's role"


@dataclass(frozen=True, slots=True)
class Layout:
    """A table that can be worked with: which column plays which role, and of which type it is."""

    table: tuple[str, ...]
    columns: Mapping[str, str]
    types: Mapping[str, str] = field(default_factory=dict)

    def has(self, role: str) -> bool:
        return role in self.columns


class Row(NamedTuple):
    """A row that was claimed, and how it stood before. Its attempts count this one."""

    entry: Entry
    attempts: int
    claimed_at: datetime
    error_before: str | None
    status_before: str
    alone: bool
    """An earlier claim of it was never settled: it may be what ended its relay."""

    @property
    def id(self) -> str:
        return self.entry.id


class Settling(NamedTuple):
    """What is written of a row when its attempt is over. Done is written even when the lease is lost."""

    id: str
    claimed_at: datetime
    status: str
    back: int
    """How many attempts are taken back: 1 where this one does not count."""
    error: str | None
    done: bool = False
    wait_seconds: float | None = None
