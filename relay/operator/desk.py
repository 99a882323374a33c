"""Where an operator stands: one connection, used in short transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ferryman.relay.store import listing
from ferryman.relay.store.lanes import Connection
from ferryman.runtime import postgres
from ferryman.runtime.settings import Database


@dataclass(frozen=True, slots=True)
class Act:
    """Who does something by hand, and why."""

    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Desk:
    """A connection in autocommit mode, with the limits of each transaction on it."""

    connection: Connection
    limits: Database

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A short transaction that goes through the journal by its indexes."""
        with postgres.transaction(self.connection, self.limits):
            listing.prepare(self.connection)
            yield self.connection

    @contextmanager
    def acting(self) -> Iterator[Connection]:
        with postgres.transaction(self.connection, self.limits):
            yield self.connection

    @property
    def lane_wait_seconds(self) -> float:
        """Longer than for a row: a relay keeps its lanes for seconds while its broker is silent."""
        return 3 * self.limits.lock_timeout_seconds
