"""One worker's turn: claim lanes, read what came, publish it, settle, commit.

Any number of workers and replicas run the same turns, with no leader. A worker that dies frees its lanes with its
session; what it published and did not settle is published again, with the same ids and bytes.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferryman.relay.model import LANES, Cursor, Entry, Walk, walks
from ferryman.relay.store import lanes, reading

Publish = Callable[[Sequence[Entry]], None]
"""Returns when all the entries were acknowledged, in their order; raises otherwise."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """How much of the journal one claim may take, and for how long."""

    most_lanes: int = LANES // 2
    batch_entries: int = 1000
    seconds: float = 0.05
    idle_seconds: float = 10.0
    statement_seconds: float = 30.0


class LaneWorker:
    """Takes turns on one connection, which is not in autocommit mode."""

    def __init__(self, connection: lanes.Connection, publish: Publish, tenure: Tenure | None = None) -> None:
        self._connection = connection
        self._publish = publish
        self._tenure = tenure or Tenure()
        self._preferred = random.sample(range(LANES), LANES)

    def run_once(self) -> int:
        """One turn; returns how many entries were published and settled."""
        with self._connection.transaction():
            claimed = walks(self._claim())
            published = self._walk(claimed)
            if moved := [walk for walk in claimed if walk.moved]:
                lanes.settle(self._connection, [cursor for walk in moved for cursor in walk.new_cursors()])
        return published

    def _claim(self) -> Sequence[Cursor]:
        """At most half of the lanes, so that others find some: first those that it left unfinished."""
        tenure = self._tenure
        return lanes.claim(
            self._connection, self._preferred, tenure.most_lanes,
            idle_seconds=tenure.idle_seconds, statement_seconds=tenure.statement_seconds,
        )  # fmt: skip

    def _prefer(self, claimed: Sequence[Walk], unfinished: Sequence[Walk]) -> None:
        """Next time: what is unfinished, then the lanes it has not looked at for longest."""
        first = [lane for walk in unfinished for lane in walk.lanes]
        last = [lane for walk in claimed for lane in walk.lanes if lane not in first]
        self._preferred = [*first, *(lane for lane in self._preferred if lane not in {*first, *last}), *last]

    def _walk(self, claimed: Sequence[Walk]) -> int:
        """Batch after batch of each group of lanes, until there is nothing more or the tenure is over."""
        published, until = 0, time.monotonic() + self._tenure.seconds
        unfinished = list(claimed)
        while unfinished:
            counts = [self._step(walk) for walk in unfinished]
            published += sum(counts)
            full = self._tenure.batch_entries
            unfinished = [walk for walk, count in zip(unfinished, counts, strict=True) if count == full]
            if time.monotonic() > until:
                break
        self._prefer(claimed, unfinished)
        return published

    def _step(self, walk: Walk) -> int:
        most = self._tenure.batch_entries
        entries, target = reading.read(self._connection, walk, most)
        if entries:
            self._publish(entries)
        if entries or walk.target is not None:
            walk.advance(entries, target, more=len(entries) == most)
        return len(entries)
