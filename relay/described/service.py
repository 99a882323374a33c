"""Described outboxes as services: each in a thread of its own, beside the journal's relay and over the same cluster.

A turn claims rows, sends them outside any transaction, and settles them in one statement. Any number of relays take
such turns. When one dies, another finds the expired leases of its rows, and sends each row again, alone, with the same
id and bytes.
"""

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import psycopg
import structlog

from ferryman.channels.outcome import Code, Delivered, Rejected, Retry, Unknown
from ferryman.relay import metrics
from ferryman.relay.described.held import HeldDestinations
from ferryman.relay.described.hooks import Hooks, NotTried
from ferryman.relay.described.housekeeping import RowHousekeeping
from ferryman.relay.described.indexes import lacking
from ferryman.relay.described.reports import Reports
from ferryman.relay.described.rows import Claimed, RowEnd, Settling, released, settling
from ferryman.relay.described.table import Table, check_log, needed_role, open_table, refusals_are_the_tables
from ferryman.relay.described.way_out import Room, SentRow, WayOut
from ferryman.relay.lanes import Turn
from ferryman.relay.policy import Waits
from ferryman.relay.source import SourceDatabase
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.life import Before, Life
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.supervised import supervise, waiting

log = structlog.get_logger(__name__)

_AWAY_SECONDS = 0.1
_SHORTEST_REST_SECONDS = 0.01
_LOST_SECONDS = 1.0
_MOST_REASONS = 10
"""The most reasons of failed rows that a turn logs."""


@dataclass(slots=True)
class DescribedOutbox:
    """The service of one `[outbox.NAME]`. Its table is checked on every connection to its database.

    Rows that a turn could not settle are settled first in the next one.
    """

    outbox_name: str
    outbox: Outbox
    source: SourceDatabase
    way: WayOut
    before: Before
    label: str
    """Its source in metrics: its own name, or its table's where a source of the relay is called the same."""
    hooks: Hooks = field(default_factory=Hooks)
    most_content_bytes: int | None = None
    """Larger contents are not read: `prepare` rejects their rows."""
    lost_at: float = 0.0
    """The time of the next look for rows that other processes left behind."""
    _unsettled: Sequence[Settling] = ()
    _interrupted: Collection[str] = ()
    """The rows that were claimed when `prepare` lost the connection. If they lose it again, their leases must end."""
    _rest_seconds: float = _SHORTEST_REST_SECONDS
    """The wait until the next look while nothing happens: it doubles up to `poll_seconds`."""
    _claimed_at: float = 0.0
    """The time just before the last claim: the leases of its rows end later than `lease.seconds` after it."""
    _after: str | None = None
    """The destination that the last claim ended at, if it did not reach the last."""
    _fruitful: bool = False
    """True if this walk over the destinations has found rows."""
    _walks: bool = False
    """True if the last claim found nothing, and did not look everywhere."""
    _full: bool = False
    """True if there was no room for a claim."""
    _lost_twice: list[Claimed] = field(default_factory=list)
    """A row that was lost twice running: claimed, and not begun before all that is under way has ended."""
    _alone: bool = False
    """True while such a row is under way: nothing else is."""
    _others_first: bool = False
    """True after such a row has ended, until due rows were claimed: they do not wait for the next such row as well."""
    _warned: bool = False
    held: HeldDestinations = field(init=False)
    reports: Reports = field(init=False)

    def __post_init__(self) -> None:
        self.held = HeldDestinations(self.outbox_name, self.label, self.hooks)
        self.reports = Reports(self.outbox_name, self.outbox, self.hooks, self.before)

    @property
    def name(self) -> str:
        return f"outbox {self.outbox_name}"

    def run(self, life: Life) -> None:
        """Send rows until told to stop; then what is under way ends and is settled. A table that never fit ends it."""
        housekeeping = partial(self.opened, f"housekeeping of {self.name}")
        with closing(self.way), self.housekeeping.beside(life, housekeeping, self.opened) as opened:
            interrupted = waiting(life, outbox=self.outbox_name)
            supervise(life.stopping, opened, partial(self._take_turns, life), interrupted)
            if self._unsettled or self.reports.unreported or self._lost_twice or self.way.under_way:
                self._finish_anew(life)

    @property
    def housekeeping(self) -> RowHousekeeping:
        """The housekeeping, which runs beside the turns and after a drain."""
        return RowHousekeeping(self.outbox_name, self.outbox, self.label, self.source.settings.relay.backlog_seconds)

    @contextmanager
    def opened(self, process: str | None = None) -> Iterator[Table]:
        """Connect, and check the table. `process` is the name of the connection, unless it is the one of the turns."""
        settings, kafka = self.source.settings, self.outbox.channel == "kafka"
        with (
            postgres.naming(self.source.setting),
            postgres.connect(
                settings, process or self.name, autocommit=True, writes=True, role=needed_role(self.outbox)
            ) as connection,
        ):
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            if not kafka:
                check_log(connection, self.outbox_name)
                self.hooks.check(connection)
            table = open_table(
                connection, self.outbox_name, self.outbox, settings.database, self.most_content_bytes,
                provider=settings.email.provider,
            )  # fmt: skip
            self._warn_once(table)
            yield table

    def _warn_once(self, table: Table) -> None:
        """Log the indexes that claims lack, at the first connection."""
        with postgres.translated():
            for flaw in () if self._warned else lacking(table.connection, self.outbox, table.layout):
                log.warning("index missing", outbox=self.outbox_name, why=flaw.why, mend=flaw.ddl)
        self._warned = True

    def drain(self, stopping: threading.Event, observe: Callable[[Turn], None]) -> Sequence[Backlog]:
        """Send what is due now. Return what is left. Raise when the database is away, or the way out and rows wait."""
        with closing(self.way), refusals_are_the_tables(self.outbox_name), self.opened() as table:
            self._refuse_to_wait()
            while not stopping.is_set() and not self.way.why_not():
                turn = self.run_once(table, stopping)
                observe(turn)
                if turn.published or turn.failed or self.way.under_way or self._walks:
                    continue
                if not self._full:
                    break
                stopping.wait(self._rest)
            self._finish(table, observe)
            if self.reports.unreported and self.reports.last:
                raise self.reports.last
            while not stopping.is_set() and self.housekeeping.forget(table):
                pass
            left = self.housekeeping.measure(table)
            if any(each.waiting for each in left):
                self._refuse_to_wait()
            return left

    def _refuse_to_wait(self) -> None:
        if self.way.why_not():
            raise self.way.error()

    def _take_turns(self, life: Life, table: Table, succeeded: Callable[[], None]) -> None:
        while not life.stopping.is_set():
            life.progress()
            if why_not := self.way.why_not():
                life.not_ready(why_not)
                life.wait(_AWAY_SECONDS)
                continue
            with refusals_are_the_tables(self.outbox_name):
                turn = self.run_once(table, life.stopping)
            succeeded()
            if self.reports.problem:
                life.not_ready(str(self.reports.problem))
            else:
                life.ready()
            if not (turn.published or turn.failed or self.way.under_way or self._walks):
                life.wait(self._rest)
        with refusals_are_the_tables(self.outbox_name):
            self._finish(table, lambda _: life.progress())

    def _finish_anew(self, life: Life) -> None:
        """Settle on a new connection what is in our hands: the last one broke as the service stopped. Try it once."""
        try:
            with postgres.translated(), self.opened() as table, refusals_are_the_tables(self.outbox_name):
                self._finish(table, lambda _: life.progress())
        except FerrymanError as error:
            log.warning("rows wait for their leases", outbox=self.outbox_name, error=str(error)[:500])

    def _finish(self, table: Table, observe: Callable[[Turn], None]) -> None:
        """Release the rows that only wait, and settle those under way as they end."""
        if self._unsettled:
            self._settle(table, self._unsettled)
        waiting, self._lost_twice = [*self.way.recall(), *self._lost_twice], []
        if waiting:
            self._settle(table, [released(row) for row in waiting])
        while self.way.under_way and not self.way.why_not():
            observe(self._settle_ended(table, self._ended(self.outbox.poll_seconds)))
        observe(self._report_again(table, self.reports.take()))
        if left := self.reports.unreported:
            log.warning("rows wait for their leases", outbox=self.outbox_name, rows=len(left),
                        error=str(self.reports.last)[:500])  # fmt: skip

    # --- a turn

    def run_once(self, table: Table, stopping: threading.Event) -> Turn:
        """Take one turn: claim as many rows as there is room for, begin them, and settle what ended."""
        if self._unsettled:
            self._settle(table, self._unsettled)
        reported = self._report_again(table, self.reports.again())
        self.way.meet(table.connection)
        self.before("claim rows")
        rows = self._claim(table)
        if rows and stopping.is_set():
            self._settle(table, [released(row) for row in rows])
            return Turn()
        unsent = self._begin(table, rows) if rows else []
        ended = self._ended(0.0 if unsent or self._walks else self._rest)
        if any(each.row.lost for each in ended):
            self.lost_at = 0.0  # there is room for the next one of its destination
        if rows or ended:
            self._rest_seconds = _SHORTEST_REST_SECONDS
        elif not (self._full or self._walks):
            self._rest_seconds = min(self.outbox.poll_seconds, self._rest_seconds * 2)
        turn = self._settle_ended(table, [*unsent, *ended])
        return replace(turn, published=turn.published + reported.published, failed=turn.failed + reported.failed)

    def _report_again(self, table: Table, rows: Sequence[Settling]) -> Turn:
        """Settle rows whose report failed before for a reason that may have passed."""
        if not rows:
            return Turn()
        settled = self._settle(table, rows, again=True)
        return self._count([each for each in rows if each.row.id in settled], [])

    @property
    def _rest(self) -> float:
        """The time until the next turn, while nothing ends."""
        return min(self.outbox.poll_seconds, _SHORTEST_REST_SECONDS if self._full else self._rest_seconds)

    def _claim(self, table: Table) -> list[Claimed]:
        """Claim due rows, or rows that another process left behind: these are looked for once a second."""
        self._walks = self._full = False
        if self._alone and not self.way.under_way:
            self._alone, self._others_first = False, True
        self.held.look(table)
        if self._alone or self._lost_twice:
            return self._next_alone()
        room = self.way.room()
        self._full = not (room.most or self.held.paused)
        if self._full or self.held.paused or not (most := self.reports.room(room.most)):
            return []
        self._claimed_at = began = time.monotonic()
        begun = [*room.begun, *(each.row.id for each in self.reports.unreported)]
        room = replace(room, most=most, avoided={*room.avoided, *self.held.avoided}, begun=begun)
        rows = self._claim_lost(table, room) if began >= self.lost_at else []
        if not rows and not self._lost_twice:
            rows = self._claim_due(table, room)
            if self._others_first:
                self._others_first, self._walks = self._walks, not rows
        metrics.CLAIM_SECONDS.labels(self.label).observe(time.monotonic() - began)
        return rows

    def _claim_due(self, table: Table, room: Room) -> list[Claimed]:
        if "claim_fair" not in table.statements:
            return table.claim(room.most, room.avoided, room.begun)
        rows, self._after = table.claim_fair(room, self._after)
        self._fruitful = self._fruitful or bool(rows)
        self._walks = not rows and (self._after is not None or self._fruitful)
        self._fruitful = self._fruitful and self._after is not None
        return rows

    def _claim_lost(self, table: Table, room: Room) -> list[Claimed]:
        """Claim rows that another process left behind. One that was lost twice running goes with nothing beside it."""
        now = time.monotonic()
        if given_up := self.reports.bury(table, room.begun):
            metrics.dead(self.label, [self.way.label_of(row.destination) for row in given_up])
            log.error("given up", outbox=self.outbox_name, rows=len(given_up), error="their process ended each time")
        rows = table.claim_lost(room.most if self.way.many_lost else 1, room)
        if not rows and not self._others_first:
            self._lost_twice = table.claim_lost(1, room, twice=True)
        found = rows or self._lost_twice
        self.lost_at = now if found or self._others_first else now + _LOST_SECONDS
        if found:
            log.warning("leases expired", outbox=self.outbox_name, rows=len(found), row=found[0].id,
                        attempt=found[0].attempts)  # fmt: skip
        return rows or self._next_alone()

    def _next_alone(self) -> list[Claimed]:
        """Return the row that goes with nothing beside it, once nothing is under way."""
        if self.way.under_way or not self._lost_twice:
            return []
        rows, self._lost_twice, self._alone = self._lost_twice, [], True
        return rows

    def _begin(self, table: Table, rows: Sequence[Claimed]) -> list[SentRow]:
        """Prepare the rows, and begin to send them. Return those that are not to be sent."""
        unsent = [SentRow(row, Rejected(row.flaw, Code.HEADER_INVALID), 0.0) for row in rows if row.flaw]
        rows = [row for row in rows if not row.flaw]
        try:
            made = list(zip(rows, self.hooks.prepared(table, self.outbox_name, rows) if rows else (), strict=True))
        except Exception:
            lost = table.connection.broken
            self._unsettled = [released(row) for row in rows if not lost or row.id not in self._interrupted]
            self._interrupted = {row.id for row in rows} if lost else ()
            raise
        self._interrupted = ()
        unsent += [
            SentRow(row, None if isinstance(item, NotTried) else item, 0.0)
            for row, item in made if isinstance(item, Retry | Rejected | NotTried)
        ]  # fmt: skip
        fit = [(row, item) for row, item in made if not isinstance(item, Retry | Rejected | NotTried)]
        self.before("send rows")
        if fit and time.monotonic() - self._claimed_at >= self.outbox.lease.seconds:
            log.warning("leases expired before the send", outbox=self.outbox_name, rows=len(fit))
            unsent += [SentRow(row, None, 0.0) for row, _ in fit]  # another process may have sent them meanwhile
        elif fit:
            self.way.begin([row for row, _ in fit], [item for _, item in fit])
        return unsent

    def _ended(self, seconds: float) -> list[SentRow]:
        """Return the rows that ended, and show them in the metrics."""
        if self.outbox.channel == "kafka":
            return self.way.ended(seconds)
        metrics.IN_FLIGHT.labels(self.label).set(self.way.under_way)
        ended = self.way.ended(seconds)
        metrics.answers(self.label, [(each.outcome, each.seconds) for each in ended])
        metrics.IN_FLIGHT.labels(self.label).set(self.way.under_way)
        return ended

    def _settle_ended(self, table: Table, sent: Sequence[SentRow]) -> Turn:
        if not sent:
            return Turn()
        now = time.time()
        settlings = [
            settling(self.outbox, each.row, each.outcome, each.content, each.seconds, dice=random.random(), now=now)
            for each in sent
        ]
        self.before("settle rows")
        settled = self._settle(table, settlings)
        return self._count([each for each in settlings if each.row.id in settled], sent)

    def _settle(self, table: Table, settlings: Sequence[Settling], *, again: bool = False) -> set[str]:
        """Settle the rows, and remember them until that succeeded. Return the ids of those that were still ours."""
        self._unsettled = settlings
        settled = self.reports.settle(table, settlings, again=again)
        self._unsettled = ()
        if lost := len({each.row.id for each in settlings} - settled - self.reports.ids):
            log.warning("lease lost", outbox=self.outbox_name, rows=lost)
        return settled

    def _count(self, ours: Sequence[Settling], sent: Sequence[SentRow]) -> Turn:
        """Count and log what became of the rows; `ours` are those that were settled."""
        label_of = self.way.label_of
        done = [
            each.row.entry(0)._replace(topic=label_of(each.row.destination)) for each in ours if each.end is RowEnd.DONE
        ]
        failed = [each for each in ours if each.counts]
        dead = [label_of(each.row.destination) for each in failed if each.end is RowEnd.GIVEN_UP]
        metrics.published(self.label, done)
        metrics.outcomes(self.label, [
            (label_of(each.row.destination), Waits() if each.outcome is None else each.outcome)
            for each in sent if not isinstance(each.outcome, Delivered)
        ])  # fmt: skip
        metrics.dead(self.label, dead)
        self._log_failed(failed)
        unknown = sum(isinstance(each.outcome, Unknown) for each in sent)
        return Turn(published=len(done), failed=len(failed), unknown=unknown)

    def _log_failed(self, failed: Sequence[Settling]) -> None:
        """Log each reason once, with the number of its rows and one of them."""
        event = "publishing failed" if self.outbox.channel == "kafka" else "sending failed"
        reasons: dict[str | None, list[Settling]] = {}
        for each in failed:
            reasons.setdefault(each.error, []).append(each)
        for error, rows in list(reasons.items())[:_MOST_REASONS]:
            given_up = sum(each.end is RowEnd.GIVEN_UP for each in rows)
            log.warning(event, outbox=self.outbox_name, rows=len(rows), given_up=given_up, row=rows[0].row.id,
                        code=getattr(rows[0].outcome, "code", None), error=error)  # fmt: skip
