"""Housekeeping of one source: the journal's ring turns, old rows are deleted, and metrics of the backlog are taken.

The ring keeper rotates segments, truncates settled ones past their retention, and deletes windows and keys that no
cursor needs. Of several replicas one works at a time. It never stops a writer: while nothing can be truncated, the
current segment grows.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from ferryman.relay import metrics
from ferryman.relay.model import LANES, SEGMENTS
from ferryman.relay.source import SourceDatabase
from ferryman.relay.store import backlog, claims, segments
from ferryman.relay.store.segments import Marks, RingBusy, RingState, SegmentCount
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.life import Before, no_hook
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_relay import RelayRing
from ferryman.runtime.supervised import supervise

log = structlog.get_logger(__name__)

_ROUND_SECONDS = 1.0
_AFTER_ERROR_SECONDS = 5.0
# For this long publishers may wait with us: a segment is locked under all lanes.
_LANE_WAIT_SECONDS = 0.5
# Old rows are looked for from the beginning again after this time.
_FROM_THE_BEGINNING_SECONDS = 3600
# The sums over a large backlog take long: they get at most this share of the time.
_SHARE_OF_TIME = 20


@dataclass(frozen=True, slots=True)
class RingTurn:
    """The result of one turn. `full`: it is time to rotate and no segment is empty, so the current one grows.

    `truncated` is a segment that was emptied, except for `moved` entries that exceptions still need; `busy` is one that
    could be emptied and that somebody is using, for too long if `in_use_by` says who; `alarm` is one that is kept, with
    the numbers that explain why.
    """

    rotated: tuple[int, int] | None = None
    full: bool = False
    truncated: SegmentCount | None = None
    moved: int = 0
    busy: int | None = None
    in_use_by: str = ""
    alarm: SegmentCount | None = None
    windows: int = 0
    keys: int = 0
    held: int = 0


def others(state: RingState) -> list[int]:
    """Return the segments that are not the current one, in the order of the ring."""
    return [(state.segment + step) % SEGMENTS for step in range(1, SEGMENTS)]


def next_segment(state: RingState) -> int | None:
    """Return the next empty segment in the ring, if there is one."""
    return next((segment for segment in others(state) if state.empty[segment]), None)


def must_rotate(state: RingState, settings: RelayRing) -> bool:
    """Return True if the current segment is too old or too large; an empty one may stay.

    By age, so that the ring spans the retention; by size, while that leaves half of the ring for rotation by age.
    """
    if state.empty[state.segment]:
        return False
    if state.age_seconds >= max(settings.rotate_seconds, settings.retention_seconds / (SEGMENTS - 2)):
        return True
    return state.bytes[state.segment] >= settings.rotate_bytes and sum(state.empty) >= SEGMENTS // 2


def alarm_texts(counted: SegmentCount) -> tuple[str, str]:
    """Return why a segment is kept, and the remedy."""
    if counted.entries == counted.settled:
        problem = f"{counted.needed} of its entries wait or failed"
        remedy = "let them be published, or discard them: `ferryman outbox list --status FAILED`"
    else:
        problem = f"it holds {counted.entries} entries, the cursors settled {counted.settled}"
        remedy = (
            "publish its entries again with `ferryman outbox replay` (consumers drop what they know), then count anew "
            "with `ferryman outbox rebase --kept-xids --force`"
        )
    return f"segment {counted.segment} of the outbox is kept: {problem}", remedy


def busy_texts(segment: int, in_use_by: str) -> tuple[str, str]:
    """Return why a segment that could be emptied is kept, and the remedy."""
    remedy = "end these transactions: pg_stat_activity shows sessions, ROLLBACK PREPARED ends a prepared transaction"
    return f"segment {segment} of the outbox is kept: it is in use by {in_use_by}", remedy


@dataclass(slots=True)
class _Attempts:
    """The last count of a segment, while it is right; the time of its next try, and the number of failures.

    `busy_since` is the first of the tries in a row that somebody was in the way of.
    """

    counted: SegmentCount | None = None
    again_at: float = -math.inf
    failures: int = 0
    busy_since: float | None = None


@dataclass
class RingKeeper:
    """A keeper that turns the ring, on any connection. Its memory between turns only saves the database work."""

    settings: RelayRing
    clock: Callable[[], float] = time.monotonic
    before: Before = no_hook
    tidy_seconds: float = 5.0
    batch: int = 10_000
    most_moved: int = 100_000
    longest_pause_seconds: float = 60.0
    alarm_seconds: float = 600.0
    _attempts: defaultdict[int, _Attempts] = field(default_factory=lambda: defaultdict(_Attempts))
    _marks: Marks = field(default_factory=Marks)
    _tidy_at: float = -math.inf
    _began_at: float = -math.inf

    def run_once(self, connection: Connection) -> RingTurn:
        """Rotate when it is time, truncate at most one segment, and delete old rows now and then.

        Raise what psycopg raises, except for locks that others hold.
        """
        try:
            with segments.keeping(connection):
                state, rotated, full = self._rotate(connection)
        except RingBusy:
            return RingTurn()
        emptied = self._empty(connection, state)
        windows, keys, held = self._delete_old_rows(connection)
        return replace(emptied, rotated=rotated, full=full, windows=windows, keys=keys, held=held)

    def _rotate(self, connection: Connection) -> tuple[RingState, tuple[int, int] | None, bool]:
        state = segments.read_ring(connection)
        if not must_rotate(state, self.settings):
            return state, None, False
        into = next_segment(state)
        if into is None:
            return state, None, True
        self.before("rotate")
        rotated = segments.rotate(connection, state.segment, into)
        self.before("commit rotation")
        return state, (state.segment, into) if rotated else None, False

    def _empty(self, connection: Connection, state: RingState) -> RingTurn:
        """Truncate the first segment that may be emptied, in the order of the ring."""
        for segment in others(state):
            if state.empty[segment] or self.clock() < self._attempts[segment].again_at:
                continue
            try:
                counted = self._attempts[segment].counted or self._count(connection, segment)
                if counted is None:
                    self._attempts[segment].busy_since = None
                if counted and (turn := self._judge(counted) or self._truncate(connection, counted)):
                    return turn
            except RingBusy:
                self._postpone(segment)
                return RingTurn(busy=segment, in_use_by=self._in_use_by(connection, segment))
        return RingTurn()

    def _in_use_by(self, connection: Connection, segment: int) -> str:
        """Return who uses the segment, if it is used for too long; else nothing."""
        attempts, now = self._attempts[segment], self.clock()
        if attempts.busy_since is None:
            attempts.busy_since = now
        if now - attempts.busy_since < self.alarm_seconds:
            return ""
        return ", ".join(segments.users(connection, segment))

    def _count(self, connection: Connection, segment: int) -> SegmentCount | None:
        """Count the segment's entries, if all of them are past the retention and behind their lane's `done`."""
        retention = self.settings.retention_seconds
        with segments.keeping(connection):
            if not segments.may_go(connection, segment, retention):
                self._attempts[segment].again_at = self.clock() + min(10.0, retention / 100)
                return None
            counted = segments.count(connection, segment)
        if counted.pending:
            self._postpone(segment)
            return None
        self._attempts[segment].counted = counted
        return counted

    def _judge(self, counted: SegmentCount) -> RingTurn | None:
        """Return an alarm if the segment must not be emptied: it is counted anew after a while."""
        if counted.entries == counted.settled and counted.needed <= self.most_moved:
            return None
        attempts = self._attempts[counted.segment]
        attempts.counted, attempts.again_at = None, self.clock() + self.alarm_seconds
        return RingTurn(alarm=counted)

    def _truncate(self, connection: Connection, counted: SegmentCount) -> RingTurn | None:
        """Truncate under all lanes: no exception changes, and no worker is in the segment or waits behind our lock."""
        with segments.keeping(connection):
            claims.hold(connection, range(LANES), wait_seconds=_LANE_WAIT_SECONDS)
            self.before("lock segment")
            segments.lock(connection, counted.segment)
            self.before("compare")
            self._attempts[counted.segment].counted = None
            if not segments.unchanged(connection, counted):
                return None
            self.before("truncate")
            moved = segments.truncate(connection, counted)
            self.before("commit truncation")
        del self._attempts[counted.segment]
        return RingTurn(truncated=counted, moved=moved)

    def _postpone(self, segment: int) -> None:
        """Wait twice as long each time: while we wait for the lock, publishers wait too."""
        attempts = self._attempts[segment]
        attempts.again_at = self.clock() + min(self.longest_pause_seconds, 2.0**attempts.failures)
        attempts.failures = min(attempts.failures + 1, 10)

    def _delete_old_rows(self, connection: Connection) -> tuple[int, int, int]:
        """Continue where the last search ended, and once an hour from the beginning."""
        now, settings = self.clock(), self.settings
        if now < self._tidy_at + self.tidy_seconds:
            return 0, 0, 0
        if now > self._began_at + _FROM_THE_BEGINNING_SECONDS:
            self._marks, self._began_at = Marks(), now
        self._tidy_at = now
        try:
            with segments.keeping(connection):
                return segments.delete_old_rows(
                    connection, self._marks, self.batch, settings.retention_seconds, settings.key_retention_seconds
                )
        except RingBusy:
            return 0, 0, 0


@dataclass(slots=True)
class Housekeeper:
    """The thread that looks after one source beside its workers: the ring, and the metrics of the backlog."""

    source: SourceDatabase
    ring: RingKeeper
    stopping: threading.Event
    _look_at: float = 0.0
    _was_interrupted: bool = False
    _alarms: dict[int, tuple[str, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Work until told to stop. The workers say first what is wrong with the source."""
        supervise(self.stopping, self.source.connect, self._serve, self._interrupted, patient=True)

    def run_once(self, connection: Connection) -> None:
        """Turn the ring once; take the metrics when it is time."""
        self._report(self.ring.run_once(connection))
        began = time.monotonic()
        if began >= self._look_at:
            metrics.backlog(self.source.name, backlog.read(connection))
            metrics.WINDOW_AGE.labels(self.source.name).set(backlog.window_age_seconds(connection))
            metrics.SEGMENTS.labels(self.source.name).set(backlog.segments_in_use(connection))
            now = time.monotonic()
            self._look_at = now + max(self.source.settings.relay.backlog_seconds, _SHARE_OF_TIME * (now - began))

    def _serve(self, connection: Connection, succeeded: Callable[[], None]) -> None:
        while not self.stopping.wait(_ROUND_SECONDS):
            self.run_once(connection)
            succeeded()
            self._was_interrupted = False

    def _interrupted(self, problem: FerrymanError, seconds: float) -> None:
        if not self._was_interrupted:
            log.warning("housekeeping interrupted", source=self.source.name, error=str(problem))
        self._was_interrupted = True
        self.stopping.wait(max(seconds, _AFTER_ERROR_SECONDS))

    def _report(self, turn: RingTurn) -> None:
        name = self.source.name
        if turn.rotated:
            log.info("ring rotated", source=name, segment=turn.rotated[1])
        if turn.truncated:
            log.info("segment truncated", source=name, segment=turn.truncated.segment,
                     entries=turn.truncated.entries, moved=turn.moved)  # fmt: skip
            self._alarms.pop(turn.truncated.segment, None)
        if turn.alarm:
            self._alarm(turn.alarm.segment, *alarm_texts(turn.alarm))
        if turn.busy is not None and turn.in_use_by:
            self._alarm(turn.busy, *busy_texts(turn.busy, turn.in_use_by))
        # An alarm that is not raised again is over: another replica emptied the segment.
        oldest = time.monotonic() - 2 * self.ring.alarm_seconds
        self._alarms = {segment: each for segment, each in self._alarms.items() if each[1] > oldest}
        metrics.RING_ALARMS.labels(name).set(len(self._alarms))

    def _alarm(self, segment: int, problem: str, remedy: str) -> None:
        if self._alarms.get(segment, ("", 0.0))[0] != problem:
            log.error("segment kept", source=self.source.name, problem=problem, remedy=remedy)
        self._alarms[segment] = (problem, time.monotonic())
