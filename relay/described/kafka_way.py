"""Kafka as a way out for described tables: a batch is sent whole, and has ended when it was begun."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ferryman.channels.outcome import Delivered, Rejected
from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.delivery import Delivery
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.way_out import Room, SentRow
from ferryman.relay.kafka import Publisher
from ferryman.relay.policy import Waits
from ferryman.relay.store.kafka_cluster import check_cluster
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

_PROBE_SECONDS = 2.0
# A batch may be sent, taken apart, sent singly, and sent again: all of that fits into a lease.
_DEADLINES_OF_A_LEASE = 6


@dataclass(slots=True)
class KafkaWay:
    """The relay's cluster. While it is away nothing is claimed, unless outages count as attempts."""

    outbox: Outbox
    cluster: Cluster
    publisher: Publisher
    deadline_seconds: float
    allowed: Sequence[str] | None
    """The patterns of the topics that the source may publish to; None: all."""
    label: str
    many_lost: bool = False
    """A record that ends its relay would end it again, with all that are sent beside it."""
    _met: Connection | None = None
    """The connection whose database knows this Kafka cluster."""
    _ended: list[SentRow] = field(default_factory=list)

    def why_not(self) -> str | None:
        if not self.cluster.probe(_PROBE_SECONDS) and self._waits:
            return self.cluster.why_not() or "Kafka is away"
        return None

    def error(self) -> FerrymanError:
        return self.cluster.error()

    def meet(self, connection: Connection) -> None:
        """Refuse a Kafka cluster that is not the one of the database's outbox. While Kafka is away, it cannot tell."""
        if connection is self._met or self.cluster.why_not():
            return
        try:
            here = self.cluster.topics.cluster_id(_PROBE_SECONDS)
        except FerrymanError as error:
            self.cluster.lost(str(error))
        else:
            check_cluster(connection, here)
            self._met = connection

    def room(self) -> Room:
        self.cluster.examine()
        avoided = self.cluster.shut() if self._waits else ()
        return Room(0 if self.outbox.topic in avoided else self.outbox.batch_rows, avoided)

    @property
    def _waits(self) -> bool:
        """True if nothing is claimed while Kafka is away: outages do not count as attempts."""
        return not self.outbox.retry.count_outages

    def label_of(self, destination: str) -> str:
        return destination

    def begin(self, rows: Sequence[Claimed], _items: Sequence[Any]) -> None:
        began = time.monotonic()
        refused = {number: Rejected(why) for number, row in enumerate(rows) if (why := _missing(row))}
        entries = [row.entry(number) for number, row in enumerate(rows) if number not in refused]
        delivery = Delivery(
            publisher=self.publisher,
            cluster=self.cluster,
            seconds=min(self.deadline_seconds, self.outbox.lease.seconds / _DEADLINES_OF_A_LEASE),
            avoided={},
            allowed=self.allowed,
            unordered={entry.topic for entry in entries},  # a claim has no two rows of a key that must keep their order
        )
        delivery.send(entries)
        delivery.finish()
        seconds = time.monotonic() - began
        metrics.BATCH_ENTRIES.labels(self.label).observe(len(rows))
        metrics.PUBLISH_SECONDS.labels(self.label).observe(seconds)
        outcomes = {**refused, **delivery.outcomes}
        for number, row in enumerate(rows):
            outcome = outcomes.get(number, Delivered())
            self._ended.append(SentRow(row, None if isinstance(outcome, Waits) else outcome, seconds))

    def ended(self, _seconds: float) -> list[SentRow]:
        ended, self._ended = self._ended, []
        return ended

    def recall(self) -> list[Claimed]:
        return []

    @property
    def under_way(self) -> int:
        return 0

    def close(self) -> None:
        self.publisher.close()


def _missing(row: Claimed) -> str | None:
    """Return what the message lacks: a user's table may leave it empty."""
    needed = ("topic", row.destination), ("type", row.type)
    return next((f"it has no {what}" for what, text in needed if not text), None)
