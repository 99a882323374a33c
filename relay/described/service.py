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
from typing import Any

import psycopg
import structlog

from ferryman.channels.outcome import Code, Delivered, Rejected, Retry, Unknown
from ferryman.migrations import chains
from ferryman.relay import metrics
from ferryman.relay.described.rows import Claimed, RowEnd, Settling, released, settling
from ferryman.relay.described.statements import GIVEN_UP
from ferryman.relay.described.table import Table, open_table
from ferryman.relay.described.way_out import Room, SentRow, WayOut
from ferryman.relay.lanes import Turn
from ferryman.relay.policy import Waits
from ferryman.relay.source import SourceDatabase
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime import postgres, roles
from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient
from ferryman.runtime.life import Before, Life
from ferryman.runtime.logs import frames
from ferryman.runtime.postgres import Connection
from ferryman.runtime.redaction import stored_error
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.supervised import supervise

log = structlog.get_logger(__name__)

_AWAY_SECONDS = 0.1
_LOST_SECONDS = 1.0
_HELD_SECONDS = 1.0


def as_they_are(_: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
    return rows


@dataclass(frozen=True, slots=True)
class Hooks:
    """The parts of a service that differ by what is sent. Each is called inside a short transaction."""

    prepare: Callable[[Connection, Sequence[Claimed]], Sequence[Any]] = as_they_are
    """Return what is sent of each row, in order; or an outcome, if the row is not to be sent."""
    settled: Callable[[Connection, Sequence[Settling]], object] | None = None
    """Called with the settled rows, in the transaction that settles them."""
    held: Callable[[Connection], Collection[str]] | None = None
    """Return the destinations that are not to be tried, once a second."""


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
    lost_at: float = 0.0
    """The time of the next look for rows that other relays left behind."""
    _unsettled: Sequence[Settling] = ()
    _backlog_at: float = 0.0
    _after: str | None = None
    """The destination that the last claim ended at, if it did not reach the last."""
    _alone: bool = False
    """True while a row that was lost twice is under way: nothing else is."""
    _held: Collection[str] = ()
    _held_at: float = 0.0

    @property
    def name(self) -> str:
        return f"outbox {self.outbox_name}"

    def run(self, life: Life) -> None:
        """Send rows until told to stop; then what is under way ends and is settled. A table that never fit ends it."""

        def interrupted(problem: FerrymanError, seconds: float) -> None:
            life.not_ready(str(problem))
            log.warning("interrupted", outbox=self.outbox_name, error=str(problem))
            life.wait(seconds)
            life.progress()

        with closing(self.way):
            supervise(life.stopping, self.opened, partial(self._take_turns, life), interrupted)

    @contextmanager
    def opened(self) -> Iterator[Table]:
        """Connect, and check the table."""
        settings, kafka = self.source.settings, self.outbox.channel == "kafka"
        role = roles.needed(roles.RUN_RELAY if kafka else roles.RUN_COURIER)
        with (
            postgres.naming(self.source.setting),
            postgres.connect(settings, self.name, autocommit=True, writes=True, role=role) as connection,
        ):
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            if not kafka:
                chains.check(connection)  # it has the log of attempts
            yield open_table(connection, self.outbox_name, self.outbox, settings.database)

    def drain(self, stopping: threading.Event, observe: Callable[[Turn], None]) -> int:
        """Send what is due now. Return how much is left for later. Raise when the database or the way out is away."""
        with closing(self.way), postgres.translated(), self.opened() as table:
            while not stopping.is_set():
                self._refuse_to_wait()
                turn = self.run_once(table, stopping)
                observe(turn)
                if not (turn.published or turn.failed or self.way.under_way):
                    break
            self._finish(table, observe)
            self._refuse_to_wait()
            return sum(each.pending + each.retrying for each in self._measure(table))

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
            life.ready()
            with _refusals_are_the_tables(self.outbox_name):
                turn = self.run_once(table, life.stopping)
            succeeded()
            if time.monotonic() >= self._backlog_at:
                self._measure(table)
            if not (turn.published or turn.failed or self.way.under_way):
                life.wait(self.outbox.poll_seconds)
        with _refusals_are_the_tables(self.outbox_name):
            self._finish(table, lambda _: life.progress())

    def _finish(self, table: Table, observe: Callable[[Turn], None]) -> None:
        """Release the rows that only wait, and settle those under way as they end."""
        if waiting := self.way.recall():
            self._settle(table, [released(row) for row in waiting])
        while self.way.under_way and not self.way.why_not():
            observe(self._settle_ended(table, self.way.ended(self.outbox.poll_seconds)))

    def _measure(self, table: Table) -> Sequence[Backlog]:
        """Set the metrics of the backlog."""
        found = table.backlog()
        metrics.backlog(self.label, found)
        self._backlog_at = time.monotonic() + self.source.settings.relay.backlog_seconds
        return found

    # --- a turn

    def run_once(self, table: Table, stopping: threading.Event) -> Turn:
        """Take one turn: claim as many rows as there is room for, begin them, and settle what ended."""
        if self._unsettled:
            self._settle(table, self._unsettled)
        self.way.meet(table.connection)
        self.before("claim rows")
        rows = self._claim(table)
        if rows and stopping.is_set():
            self._settle(table, [released(row) for row in rows])
            return Turn()
        unsent = self._begin(table, rows) if rows else []
        ended = self.way.ended(0.0 if unsent else self.outbox.poll_seconds)
        return self._settle_ended(table, [*unsent, *ended])

    def _claim(self, table: Table) -> list[Claimed]:
        """Claim due rows, or rows that another process left behind: these are looked for once a second."""
        room = self.way.room()
        self._alone = self._alone and bool(self.way.under_way)
        if not room.most or self._alone:
            return []
        began = time.monotonic()
        room = replace(room, avoided={*room.avoided, *self._held_destinations(table)})
        rows = self._claim_lost(table, room) if began >= self.lost_at else []
        if not rows and "claim_fair" in table.statements:
            rows, self._after = table.claim_fair(room, self._after)
        elif not rows:
            rows = table.claim(room.most, room.avoided)
        metrics.CLAIM_SECONDS.labels(self.label).observe(time.monotonic() - began)
        return rows

    def _claim_lost(self, table: Table, room: Room) -> list[Claimed]:
        """Claim rows that another process left behind. One that was lost twice running goes with nothing beside it."""
        now = time.monotonic()
        if given_up := self._bury(table):
            metrics.dead(self.label, [self.way.label_of(row.destination) for row in given_up])
            log.error("given up", outbox=self.outbox_name, rows=len(given_up), error="their relay ended each time")
        rows = table.claim_lost(room.most if self.way.many_lost else 1, room.avoided)
        if not rows and not self.way.under_way:
            rows = table.claim_lost(1, room.avoided, twice=True)
            self._alone = bool(rows)
        self.lost_at = now if rows else now + _LOST_SECONDS
        if rows:
            log.warning("leases expired", outbox=self.outbox_name, rows=len(rows), row=rows[0].id,
                        attempt=rows[0].attempts)  # fmt: skip
        return rows

    def _held_destinations(self, table: Table) -> Collection[str]:
        if self.hooks.held is not None and time.monotonic() >= self._held_at:
            with postgres.transaction(table.connection, table.limits):
                self._held = list(self.hooks.held(table.connection))
            self._held_at = time.monotonic() + _HELD_SECONDS
        return self._held

    def _begin(self, table: Table, rows: Sequence[Claimed]) -> list[SentRow]:
        """Prepare the rows, and begin to send them. Return those that are not to be sent."""
        made = list(zip(rows, self._prepared(table, rows), strict=True))
        unsent = [SentRow(row, made_of, 0.0) for row, made_of in made if isinstance(made_of, Retry | Rejected)]
        fit = [(row, item) for row, item in made if not isinstance(item, Retry | Rejected)]
        self.before("send rows")
        if fit:
            self.way.begin([row for row, _ in fit], [item for _, item in fit])
        return unsent

    def _prepared(self, table: Table, rows: Sequence[Claimed]) -> Sequence[Any]:
        """Return what is sent of each row. A bug costs its own row an attempt, and no other."""
        prepare, connection = self.hooks.prepare, table.connection
        if prepare is as_they_are:
            return rows
        try:
            with postgres.transaction(connection, table.limits):
                made = list(prepare(connection, rows))
            if len(made) == len(rows):
                return made
            problem: Exception = ValueError(f"prepare returned {len(made)} items for {len(rows)} rows")
        except Exception as error:  # whatever the user's function raises
            if isinstance(error, Transient) or connection.broken:
                raise
            problem = error
        if len(rows) > 1:
            return [item for row in rows for item in self._prepared(table, [row])]
        log.error("prepare failed", outbox=self.outbox_name, row=rows[0].id, error=type(problem).__name__,
                  where=frames(problem))  # fmt: skip
        return [Retry(stored_error(f"prepare: {type(problem).__name__}"))]

    def _settle_ended(self, table: Table, sent: Sequence[SentRow]) -> Turn:
        if not sent:
            return Turn()
        settlings = [
            settling(self.outbox, each.row, each.outcome, dice=random.random())._replace(
                outcome=each.outcome, content=each.content
            )
            for each in sent
        ]
        self.before("settle rows")
        settled = self._settle(table, settlings)
        return self._count([each for each in settlings if each.row.id in settled], sent)

    def _settle(self, table: Table, settlings: Sequence[Settling]) -> set[str]:
        """Settle the rows, and remember them until that succeeded. Return the ids of those that were still ours."""
        self._unsettled = settlings
        try:
            settled = table.settle(settlings, partial(self._tell, table, settlings))
        except _SettledFailed as failed:
            settled = self._settle_singly(table, settlings, failed)
        self._unsettled = ()
        if lost := len(settlings) - len(settled):
            log.warning("lease lost", outbox=self.outbox_name, rows=lost)
        return settled

    def _tell(self, table: Table, settlings: Sequence[Settling], ours: Collection[str]) -> None:
        """Call the hook with the rows that were still ours."""
        if self.hooks.settled is None or not ours:
            return
        try:
            self.hooks.settled(table.connection, [each for each in settlings if each.row.id in ours])
        except Exception as error:  # whatever the user's function raises
            if isinstance(error, Transient) or table.connection.broken:
                raise
            raise _SettledFailed(type(error).__name__, frames(error)) from error

    def _bury(self, table: Table) -> list[Claimed]:
        """Give up rows that were lost too often, and call the hook with them: without it, if it fails."""
        why, status = Rejected(GIVEN_UP, Code.WORKER_LOST), self.outbox.words.dead or self.outbox.words.pending[-1]

        def told(rows: Sequence[Claimed]) -> None:
            ends = [Settling(row, RowEnd.GIVEN_UP, status, GIVEN_UP, outcome=why) for row in rows]
            self._tell(table, ends, [row.id for row in rows])

        try:
            return table.bury(told)
        except _SettledFailed as failed:
            log.error("settled failed", outbox=self.outbox_name, error=failed.args[0], where=failed.args[1])  # noqa: TRY400
            return table.bury(lambda _: None)

    def _settle_singly(self, table: Table, settlings: Sequence[Settling], failed: "_SettledFailed") -> set[str]:
        """Settle each row alone. The row that the hook fails for is settled without it: it must not be sent again."""
        if len(settlings) > 1:
            return {identity for each in settlings for identity in self._settle(table, [each])}
        kind, where = failed.args
        log.error("settled failed", outbox=self.outbox_name, row=settlings[0].row.id, error=kind, where=where)
        return table.settle(settlings)

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
        if failed:
            log.warning(
                "publishing failed", outbox=self.outbox_name, rows=len(failed), given_up=len(dead),
                error=failed[0].error,
            )  # fmt: skip
        unknown = sum(isinstance(each.outcome, Unknown) for each in sent)
        return Turn(published=len(done), failed=len(failed), unknown=unknown)


class _SettledFailed(Exception):
    """The hook `settled` raised an error: its name, and where."""


@contextmanager
def _refusals_are_the_tables(outbox: str) -> Iterator[None]:
    """Retry what the user's constraint or trigger refuses: one table must not end the relay of the others."""
    try:
        with postgres.translated():
            yield
    except Permanent as error:
        raise Transient(
            f"the table refuses what the relay writes: {error.message}", setting=f"outbox.{outbox}.table",
            remedy="correct its constraint or trigger, or the words under outbox." + outbox,
        ) from error  # fmt: skip


def source_of(name: str, outbox: Outbox, sources: Sequence[SourceDatabase]) -> SourceDatabase:
    """Return the database with the outbox's table: by default the only source, or the one with the outbox's name."""
    by_name = {source.name: source for source in sources}
    wanted = outbox.source or (sources[0].name if len(sources) == 1 else name)
    if wanted not in by_name:
        raise Misconfigured(
            f"the outbox {name} does not say which source of the relay has it", setting=f"outbox.{name}.source",
            remedy="name one of: " + ", ".join(by_name),
        )  # fmt: skip
    return by_name[wanted]
