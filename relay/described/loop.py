"""One turn of a described outbox: claim rows, send them outside any transaction, settle them in one statement.

Any number of relays take such turns. One that dies leaves its rows to whoever finds their lease expired: they are sent
again, alone, with the same ids and bytes.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.delivery import Delivery
from ferryman.relay.described.model import Row, Settling
from ferryman.relay.described.policy import End, Judge, Verdict, judge_of
from ferryman.relay.described.store import Connection, Table
from ferryman.relay.kafka import Publisher
from ferryman.relay.lanes import Turn
from ferryman.relay.model import Entry
from ferryman.relay.policy import Outcome, Rejected, Unknown
from ferryman.runtime.settings_outbox import Outbox

log = structlog.get_logger(__name__)

_LOST_SECONDS = 1.0
# A batch may be sent, taken apart, sent singly, and sent again: all of that fits into a lease.
_DEADLINES_OF_A_LEASE = 6


@dataclass(slots=True)
class RowWorker:
    """Takes turns for one outbox. What could not be settled is settled first, next time."""

    name: str
    outbox: Outbox
    cluster: Cluster
    publisher: Publisher
    stopping: threading.Event
    most_deadline_seconds: float = 10.0
    lost_at: float = 0.0
    """When to look next for what other relays left behind."""
    _judge: Judge = field(init=False)
    _unsettled: Sequence[Settling] = ()

    def __post_init__(self) -> None:
        self._judge = judge_of(self.outbox)

    @property
    def waits_for_kafka(self) -> bool:
        """While Kafka is away nothing is claimed, unless that is to count."""
        return not self.outbox.retry.count_outages

    def run_once(self, connection: Connection, table: Table) -> Turn:
        if self._unsettled:
            self._settle(connection, table, self._unsettled)
        rows = self._claim(connection, table)
        if not rows:
            return Turn()
        if self.stopping.is_set():
            self._settle(connection, table, [self._judge.settling(row, Verdict(End.RELEASED)) for row in rows])
            return Turn()
        outcomes = self._deliver(rows)
        verdicts = [self._judge.of(row, outcomes.get(number)) for number, row in enumerate(rows)]
        settlings = [self._judge.settling(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)]
        settled = self._settle(connection, table, settlings)
        return self._count(rows, outcomes, verdicts, settled)

    def _claim(self, connection: Connection, table: Table) -> list[Row]:
        """What may have ended a relay comes alone, and not with every turn."""
        avoided: Collection[str] = self.cluster.blocked() if self.waits_for_kafka else ()
        if self.outbox.topic in avoided:
            return []
        began = time.monotonic()
        rows = []
        if began >= self.lost_at:
            topics = table.bury(connection)
            metrics.dead(self.name, topics)
            if topics:
                log.error("given up", outbox=self.name, rows=len(topics), error="their relay ended each time")
            rows = table.claim(connection, 1, avoided, lost=True)
            self.lost_at = began if rows else began + _LOST_SECONDS
            if rows:
                log.warning("lease expired", outbox=self.name, row=rows[0].id, attempt=rows[0].attempts)
        rows = rows or table.claim(connection, self.outbox.batch_rows, avoided)
        metrics.CLAIM_SECONDS.labels(self.name).observe(time.monotonic() - began)
        return rows

    def _deliver(self, rows: Sequence[Row]) -> Mapping[int, Outcome]:
        """By the number of the row; what is missing was delivered."""
        began = time.monotonic()
        refused = {number: Rejected(why) for number, row in enumerate(rows) if (why := _missing(row.entry))}
        entries = [row.entry._replace(position=number) for number, row in enumerate(rows) if number not in refused]
        delivery = Delivery(
            publisher=self.publisher,
            cluster=self.cluster,
            seconds=min(self.most_deadline_seconds, self.outbox.lease.seconds / _DEADLINES_OF_A_LEASE),
            avoided={},
            unordered={entry.topic for entry in entries},  # a claim has no two rows of a key that must keep their order
        )
        delivery.send(entries)
        delivery.finish()
        metrics.BATCH_ENTRIES.labels(self.name).observe(len(rows))
        metrics.PUBLISH_SECONDS.labels(self.name).observe(time.monotonic() - began)
        return {**refused, **delivery.outcomes}

    def _settle(self, connection: Connection, table: Table, settlings: Sequence[Settling]) -> set[str]:
        self._unsettled = settlings
        settled = table.settle(connection, settlings)
        self._unsettled = ()
        if lost := len(settlings) - len(settled):
            log.warning("lease lost", outbox=self.name, rows=lost)
        return settled

    def _count(
        self, rows: Sequence[Row], outcomes: Mapping[int, Outcome], verdicts: Sequence[Verdict], settled: set[str]
    ) -> Turn:
        ends: dict[End, list[Row]] = {end: [] for end in End}
        for row, verdict in zip(rows, verdicts, strict=True):
            if row.id in settled:
                ends[verdict.end].append(row)
        metrics.published(self.name, [row.entry for row in ends[End.DONE]])
        metrics.outcomes(self.name, [(rows[number].entry.topic, outcome) for number, outcome in outcomes.items()])
        metrics.dead(self.name, [row.entry.topic for row in ends[End.GIVEN_UP]])
        why = next((verdict.error for verdict in verdicts if verdict.end in (End.FAILED, End.GIVEN_UP)), None)
        if failed := len(ends[End.FAILED]) + len(ends[End.GIVEN_UP]):
            log.warning("publishing failed", outbox=self.name, rows=failed, given_up=len(ends[End.GIVEN_UP]), error=why)
        return Turn(
            published=len(ends[End.DONE]),
            failed=failed,
            unknown=sum(isinstance(outcome, Unknown) for outcome in outcomes.values()),
        )


def _missing(entry: Entry) -> str | None:
    """What a user's table may leave out, and a message cannot."""
    return next(
        (f"it has no {what}" for what, text in (("topic", entry.topic), ("type", entry.type)) if not text), None
    )
