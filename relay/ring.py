"""The journal's space: the ring turns, what is settled and past its retention goes, what is behind everybody goes too.

The relay's loop calls `RingKeeper.run_once` about once a second, on a connection of its own; of several replicas one
keeps at a time. It never stops a writer: while nothing can be truncated, the current segment grows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from ferryman.relay.model import LANES, SEGMENTS
from ferryman.relay.store import lanes, ring, tidy
from ferryman.relay.store.lanes import Connection
from ferryman.relay.store.ring import Count, Ring

# Somebody uses the segment, or counting took too long: it is tried again later.
_BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class Space:
    """How long things are kept, and how much of the database's time keeping them in bounds may take.

    `retention_seconds` must cover how far back a replay may reach.
    """

    rotate_seconds: float = 3600.0
    rotate_bytes: int = 2**30
    retention_seconds: float = 86_400.0
    key_retention_seconds: float = 30 * 86_400.0
    tidy_seconds: float = 5.0
    batch: int = 10_000
    most_moved: int = 100_000
    lock_seconds: float = 0.02
    lane_wait_seconds: float = 0.5
    statement_seconds: float = 120.0
    longest_pause_seconds: float = 60.0
    alarm_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Truncation:
    """A segment that was emptied; `moved` of its entries wait in `held` for what an exception still needs of them."""

    segment: int
    entries: int
    moved: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A segment that is left as it is, with the numbers that say why and what to do."""

    segment: int
    entries: int
    settled: int
    needed: int

    @property
    def message(self) -> str:
        if self.entries == self.settled:
            return f"segment {self.segment} of the outbox is kept: {self.needed} of its entries wait or failed"
        return (
            f"segment {self.segment} of the outbox is kept: it holds {self.entries} entries, the cursors settled "
            f"{self.settled}"
        )

    @property
    def remedy(self) -> str:
        if self.entries == self.settled:
            return "let them be published, or discard them: `ferryman outbox list --status FAILED`"
        return (
            "publish its entries again with `ferryman outbox replay` (consumers drop what they know), then count anew "
            "with `ferryman outbox rebase --kept-xids --force`"
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What one run did. `full`: it is time to rotate and no segment is empty, so that the current one grows.

    `busy` is a segment that could go and that somebody is using.
    """

    rotated: tuple[int, int] | None = None
    full: bool = False
    truncated: Truncation | None = None
    busy: int | None = None
    alarm: Alarm | None = None
    windows: int = 0
    keys: int = 0
    held: int = 0


def next_segment(state: Ring) -> int | None:
    """The empty segment that comes next in the ring, if there is one."""
    others = [(state.segment + step) % SEGMENTS for step in range(1, SEGMENTS)]
    return next((segment for segment in others if state.empty[segment]), None)


def must_rotate(state: Ring, space: Space) -> bool:
    """By age, so that the ring spans the retention; by size, while that leaves half of the ring for what comes by age.

    A current segment that nothing was written to may stay.
    """
    if state.empty[state.segment]:
        return False
    if state.age_seconds >= max(space.rotate_seconds, space.retention_seconds / (SEGMENTS - 2)):
        return True
    return state.bytes[state.segment] >= space.rotate_bytes and sum(state.empty) >= SEGMENTS // 2


@dataclass(slots=True)
class _Patience:
    """When a segment may be tried again, and how often that failed. A hint: who knows nothing tries at once."""

    again_at: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class _Marks:
    """How far the last looks came."""

    since: float
    window: int = 0
    key: datetime | None = None
    held: int = 0


@dataclass
class RingKeeper:
    """Takes turns on any connection that is not in autocommit mode; what it remembers only saves the database work."""

    space: Space = field(default_factory=Space)
    clock: Callable[[], float] = time.monotonic
    _patience: dict[int, _Patience] = field(default_factory=dict)
    _counts: dict[int, Count] = field(default_factory=dict)
    _marks: _Marks = field(default_factory=lambda: _Marks(since=-1e9))
    _tidy_at: float = -1e9

    def run_once(self, connection: Connection) -> Kept:
        """Rotates when it is time, truncates at most one segment, now and then deletes what is behind everybody.

        Raises what psycopg raises, but not for locks that others have.
        """
        try:
            with connection.transaction():
                if not self._keep(connection):
                    return Kept()
                state, rotated, full = self._rotate(connection)
        except _BUSY:
            return Kept()
        truncated, busy, alarm = self._empty(connection, state)
        windows, keys, held = self._tidy(connection)
        return Kept(rotated, full, truncated, busy, alarm, windows, keys, held)

    def _keep(self, connection: Connection) -> bool:
        space = self.space
        return ring.keep(connection, lock_seconds=space.lock_seconds, statement_seconds=space.statement_seconds)

    def _rotate(self, connection: Connection) -> tuple[Ring, tuple[int, int] | None, bool]:
        state = ring.read_ring(connection)
        if not must_rotate(state, self.space):
            return state, None, False
        into = next_segment(state)
        if into is None:
            return state, None, True
        rotated = ring.rotate(connection, state.segment, into)
        return state, (state.segment, into) if rotated else None, False

    def _empty(self, connection: Connection, state: Ring) -> tuple[Truncation | None, int | None, Alarm | None]:
        """The first segment that may go, in the order of the ring."""
        for step in range(1, SEGMENTS):
            segment = (state.segment + step) % SEGMENTS
            patience = self._patience.setdefault(segment, _Patience())
            if state.empty[segment] or self.clock() < patience.again_at:
                continue
            try:
                counted = self._counted(connection, segment)
                if counted is None:
                    continue
                if alarm := self._alarm(counted):
                    patience.again_at = self.clock() + self.space.alarm_seconds
                    return None, None, alarm
                if (truncated := self._truncate(connection, counted)) is None:
                    continue
            except _BUSY:
                self._postpone(patience)
                return None, segment, None
            del self._patience[segment]
            return truncated, None, None
        return None, None, None

    def _counted(self, connection: Connection, segment: int) -> Count | None:
        """The segment's entries, when all of them are past the retention and behind their lane's `done`."""
        if segment in self._counts:
            return self._counts[segment]
        with connection.transaction():
            if not self._keep(connection):
                return None
            if not ring.may_go(connection, segment, self.space.retention_seconds):
                self._patience[segment].again_at = self.clock() + min(10.0, self.space.retention_seconds / 100)
                return None
            counted = ring.count(connection, segment)
        if counted.pending:
            self._postpone(self._patience[segment])
            return None
        self._counts[segment] = counted
        return counted

    def _alarm(self, counted: Count) -> Alarm | None:
        if counted.entries == counted.settled and counted.needed <= self.space.most_moved:
            return None
        del self._counts[counted.segment]
        return Alarm(counted.segment, counted.entries, counted.settled, counted.needed)

    def _truncate(self, connection: Connection, counted: Count) -> Truncation | None:
        """Holds all the lanes: so no exception changes, and no worker is in the segment or waits behind our lock."""
        with connection.transaction():
            if not self._keep(connection):
                return None
            lanes.hold(connection, range(LANES), wait_seconds=self.space.lane_wait_seconds)
            ring.lock(connection, counted.segment, wait_seconds=self.space.lock_seconds)
            self._counts.pop(counted.segment)
            if not ring.unchanged(connection, counted):
                return None
            moved = ring.truncate(connection, counted)
        return Truncation(counted.segment, counted.entries, moved)

    def _postpone(self, patience: _Patience) -> None:
        """Twice as long each time: who waits for the lock keeps publishers waiting too."""
        patience.again_at = self.clock() + min(self.space.longest_pause_seconds, 2.0**patience.failures)
        patience.failures = min(patience.failures + 1, 10)

    def _tidy(self, connection: Connection) -> tuple[int, int, int]:
        """Goes on where the last look ended, and once an hour from the beginning."""
        now, space = self.clock(), self.space
        if now < self._tidy_at + space.tidy_seconds:
            return 0, 0, 0
        if now > self._marks.since + 3600:
            self._marks = _Marks(since=now)
        marks, self._tidy_at = self._marks, now
        try:
            with connection.transaction():
                if not self._keep(connection):
                    return 0, 0, 0
                tidy.by_index(connection)
                windows, marks.window = tidy.delete_windows(connection, marks.window, space.batch)
                keys, key = tidy.delete_keys(connection, marks.key, space.batch, space.key_retention_seconds)
                marks.key = key or marks.key
                held, marks.held = tidy.delete_held(
                    connection, marks.held, space.batch, space.retention_seconds,
                    statement_seconds=space.statement_seconds,
                )  # fmt: skip
        except _BUSY:
            return 0, 0, 0
        return windows, keys, held
