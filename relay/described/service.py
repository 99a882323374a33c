"""Described outboxes as services: each in a thread of its own, beside the journal's relay and over the same cluster.

A turn claims rows, sends them outside any transaction, and settles them in one statement. Any number of relays take
such turns. When one dies, another finds the expired leases of its rows, and sends each row again, alone, with the same
id and bytes.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
import structlog

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.delivery import Delivery
from ferryman.relay.described.rows import ClaimedRow, RowEnd, Settling, released, settling
from ferryman.relay.described.table import Table, open_table
from ferryman.relay.kafka import Publisher
from ferryman.relay.lanes import Turn
from ferryman.relay.model import Entry
from ferryman.relay.policy import Outcome, Rejected, Unknown
from ferryman.relay.source import SourceDatabase
from ferryman.relay.store.backlog import Backlog
from ferryman.relay.store.kafka_cluster import check_cluster
from ferryman.runtime import postgres, roles
from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient
from ferryman.runtime.life import Before, Life
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.supervised import supervise

log = structlog.get_logger(__name__)

_CLUSTER_WAIT_SECONDS = 0.1
_PROBE_SECONDS = 2.0
_LOST_SECONDS = 1.0
# A batch may be sent, taken apart, sent singly, and sent again: all of that fits into a lease.
_DEADLINES_OF_A_LEASE = 6


@dataclass(slots=True)
class DescribedOutbox:
    """The service of one `[outbox.NAME]`. Its table is checked on every connection to its database.

    Rows that a turn could not settle are settled first in the next one.
    """

    outbox_name: str
    outbox: Outbox
    source: SourceDatabase
    cluster: Cluster
    publisher: Publisher
    before: Before
    label: str
    """Its source in metrics: its own name, or its table's where a source of the relay is called the same."""
    lost_at: float = 0.0
    """The time of the next look for rows that other relays left behind."""
    _knows_cluster: bool = False
    """True if the Kafka cluster was compared with the one that the connected database knows."""
    _unsettled: Sequence[Settling] = ()
    _backlog_at: float = 0.0

    @property
    def name(self) -> str:
        return f"outbox {self.outbox_name}"

    def run(self, life: Life) -> None:
        """Send rows until told to stop: then the batch in hand is settled. A table that was never right ends it."""

        def interrupted(problem: FerrymanError, seconds: float) -> None:
            life.not_ready(str(problem))
            log.warning("interrupted", outbox=self.outbox_name, error=str(problem))
            life.wait(seconds)
            life.progress()

        supervise(life.stopping, self.opened, partial(self._take_turns, life), interrupted)

    @contextmanager
    def opened(self) -> Iterator[Table]:
        """Connect, and check the table."""
        settings, role = self.source.settings, roles.needed(roles.RUN_RELAY)
        with (
            closing(self.publisher),
            postgres.naming(self.source.setting),
            postgres.connect(settings, self.name, autocommit=True, writes=True, role=role) as connection,
        ):
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._knows_cluster = False
            yield open_table(connection, self.outbox_name, self.outbox, settings.database)

    def drain(self, stopping: threading.Event, observe: Callable[[Turn], None]) -> int:
        """Send what is due now. Return how much is left for later. Raise when the database or Kafka is away."""
        with postgres.translated(), self.opened() as table:
            while not stopping.is_set():
                self.cluster.probe(_PROBE_SECONDS)
                self._refuse_to_wait()
                turn = self.run_once(table, stopping)
                observe(turn)
                self._refuse_to_wait()
                if not (turn.published or turn.failed):
                    break
            return sum(each.pending + each.retrying for each in self._measure(table))

    def _refuse_to_wait(self) -> None:
        if self._waits_for_kafka and self.cluster.why_not():
            raise self.cluster.error()

    @property
    def _waits_for_kafka(self) -> bool:
        """True if nothing is claimed while Kafka is away: outages do not count as attempts."""
        return not self.outbox.retry.count_outages

    def _take_turns(self, life: Life, table: Table, succeeded: Callable[[], None]) -> None:
        while not life.stopping.is_set():
            life.progress()
            if not self.cluster.probe(_PROBE_SECONDS) and self._waits_for_kafka:
                life.not_ready(self.cluster.why_not() or "Kafka is away")
                life.wait(_CLUSTER_WAIT_SECONDS)
                continue
            life.ready()
            with _refusals_are_the_tables(self.outbox_name):
                turn = self.run_once(table, life.stopping)
            succeeded()
            if time.monotonic() >= self._backlog_at:
                self._measure(table)
            if not (turn.published or turn.failed):
                life.wait(self.outbox.poll_seconds)

    def _measure(self, table: Table) -> Sequence[Backlog]:
        """Set the metrics of the backlog."""
        found = table.backlog()
        metrics.backlog(self.label, found)
        self._backlog_at = time.monotonic() + self.source.settings.relay.backlog_seconds
        return found

    # --- a turn

    def run_once(self, table: Table, stopping: threading.Event) -> Turn:
        """Take one turn."""
        if self._unsettled:
            self._settle(table, self._unsettled)
        self._compare_cluster(table)
        self.before("claim rows")
        rows = self._claim(table)
        if not rows:
            return Turn()
        if stopping.is_set():
            self._settle(table, [released(row) for row in rows])
            return Turn()
        self.before("send rows")
        outcomes = self._deliver(rows)
        settlings = [settling(self.outbox, row, outcomes.get(number)) for number, row in enumerate(rows)]
        self.before("settle rows")
        settled = self._settle(table, settlings)
        return self._count([each for each in settlings if each.row.id in settled], rows, outcomes)

    def _compare_cluster(self, table: Table) -> None:
        """Refuse a Kafka cluster that is not the one of the database's outbox. While Kafka is away, it cannot tell."""
        if self._knows_cluster or self.cluster.why_not():
            return
        try:
            here = self.cluster.topics.cluster_id(_PROBE_SECONDS)
        except FerrymanError as error:
            self.cluster.lost(str(error))
        else:
            check_cluster(table.connection, here)
            self._knows_cluster = True

    def _claim(self, table: Table) -> list[ClaimedRow]:
        """Claim due rows. Rows that may have ended a relay come one at a time, and not in every turn."""
        self.cluster.examine()
        avoided: Collection[str] = self.cluster.shut() if self._waits_for_kafka else ()
        if self.outbox.topic in avoided:
            return []
        began = time.monotonic()
        rows = []
        if began >= self.lost_at:
            topics = table.bury()
            metrics.dead(self.label, topics)
            if topics:
                log.error("given up", outbox=self.outbox_name, rows=len(topics), error="their relay ended each time")
            rows = table.claim(1, avoided, lost=True)
            self.lost_at = began if rows else began + _LOST_SECONDS
            if rows:
                log.warning("lease expired", outbox=self.outbox_name, row=rows[0].id, attempt=rows[0].attempts)
        rows = rows or table.claim(self.outbox.batch_rows, avoided)
        metrics.CLAIM_SECONDS.labels(self.label).observe(time.monotonic() - began)
        return rows

    def _deliver(self, rows: Sequence[ClaimedRow]) -> Mapping[int, Outcome]:
        """Send the rows. Return the outcomes by the number of the row; a missing one means delivered."""
        began = time.monotonic()
        refused = {number: Rejected(why) for number, row in enumerate(rows) if (why := _missing(row.entry))}
        entries = [row.entry._replace(position=number) for number, row in enumerate(rows) if number not in refused]
        delivery = Delivery(
            publisher=self.publisher,
            cluster=self.cluster,
            seconds=min(self.source.settings.relay.deadline_seconds, self.outbox.lease.seconds / _DEADLINES_OF_A_LEASE),
            avoided={},
            allowed=self.source.settings.relay.topics_of(self.source.name),
            unordered={entry.topic for entry in entries},  # a claim has no two rows of a key that must keep their order
        )
        delivery.send(entries)
        delivery.finish()
        metrics.BATCH_ENTRIES.labels(self.label).observe(len(rows))
        metrics.PUBLISH_SECONDS.labels(self.label).observe(time.monotonic() - began)
        return {**refused, **delivery.outcomes}

    def _settle(self, table: Table, settlings: Sequence[Settling]) -> set[str]:
        """Settle the rows, and remember them until that succeeded. Return the ids of those that were still ours."""
        self._unsettled = settlings
        settled = table.settle(settlings)
        self._unsettled = ()
        if lost := len(settlings) - len(settled):
            log.warning("lease lost", outbox=self.outbox_name, rows=lost)
        return settled

    def _count(self, ours: Sequence[Settling], rows: Sequence[ClaimedRow], outcomes: Mapping[int, Outcome]) -> Turn:
        """Count and log what became of the rows; `ours` are those that were settled."""
        done = [each.row.entry for each in ours if each.end is RowEnd.DONE]
        failed = [each for each in ours if each.counts]
        dead = [each.row.entry.topic for each in failed if each.end is RowEnd.GIVEN_UP]
        metrics.published(self.label, done)
        metrics.outcomes(self.label, [(rows[n].entry.topic, outcome) for n, outcome in outcomes.items()])
        metrics.dead(self.label, dead)
        if failed:
            log.warning(
                "publishing failed", outbox=self.outbox_name, rows=len(failed), given_up=len(dead),
                error=failed[0].error,
            )  # fmt: skip
        unknown = sum(isinstance(outcome, Unknown) for outcome in outcomes.values())
        return Turn(published=len(done), failed=len(failed), unknown=unknown)


def _missing(entry: Entry) -> str | None:
    """Return what the message lacks: a user's table may leave it empty."""
    return next(
        (f"it has no {what}" for what, text in (("topic", entry.topic), ("type", entry.type)) if not text), None
    )


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
