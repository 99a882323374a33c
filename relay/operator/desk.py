"""Where an operator of the outbox stands: a desk that reads the journal, and waits for lanes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ferryman.relay.store import listing
from ferryman.relay.store.lanes import Connection
from ferryman.runtime import desk, postgres


@dataclass(frozen=True, slots=True)
class Desk(desk.Desk):
    """A connection in autocommit mode, with the limits of each transaction on it."""

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A short transaction that goes through the journal by its indexes."""
        with postgres.transaction(self.connection, self.limits):
            listing.prepare(self.connection)
            yield self.connection

    @property
    def lane_wait_seconds(self) -> float:
        """Longer than for a row: a relay keeps its lanes for seconds while its broker is silent."""
        return 3 * self.limits.lock_timeout_seconds
