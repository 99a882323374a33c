"""Asks Kafka for what no database knows: when a message was published, and whether one that nobody received is there.

A record whose place is known is read by itself; one that is looked for, from the time it was appended on, in all
partitions, for a bounded time. Nothing is committed and no group is joined.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ferryman.evidence.messages import COMMANDS, RESULTS
from ferryman.evidence.trace.model import Known, Seen, Side
from ferryman.runtime.kafka import client_config, headers_of, translate
from ferryman.runtime.settings import Kafka
from ferryman.schemas import headers

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

SECONDS = 3.0
_EARLIER = timedelta(seconds=10)
"""The relay's clock, which Kafka's times are of, may be behind the database's."""
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Sought:
    """A message, and where it stands; where nobody knows that, since when it may, and whose group is to read it."""

    id: UUID
    topic: str
    since: datetime
    reader: str
    place: tuple[int, int] | None = None


def sought(known: Known) -> list[Sought]:
    """Commands and results that were published, as far as the databases tell."""
    found: list[Sought] = []
    ways: list[tuple[Side | None, Side | None, str, tuple[str, ...]]] = [
        (known.orchestrator, known.wallet, "wallet", COMMANDS),
        (known.wallet, known.orchestrator, "payments", RESULTS),
    ]
    for sender, receiver, reader, types in ways:
        ids: dict[UUID, Sought] = {}
        for entry in sender.entries if sender else ():
            if entry.type in types and entry.status == "PUBLISHED":
                ids.setdefault(entry.id, Sought(entry.id, entry.topic, entry.created_at, reader))
        for rejection in receiver.rejections if receiver else ():
            spot = (rejection.partition, rejection.offset)
            ids[rejection.id] = Sought(rejection.id, rejection.topic, rejection.rejected_at, reader, spot)
        for receipt in receiver.receipts if receiver else ():
            spot = (receipt.partition, receipt.offset)
            ids.setdefault(receipt.id, Sought(receipt.id, receipt.topic, receipt.received_at, reader, spot))
            ids[receipt.id] = replace(ids[receipt.id], topic=receipt.topic, place=ids[receipt.id].place or spot)
        found += ids.values()
    return found


def look(settings: Kafka, wanted: Sequence[Sought], seconds: float = SECONDS) -> dict[UUID, list[Seen]]:
    """The copies of each that were found, in the order of their offsets; of one that is not there, none.

    One that was still being looked for when the time was over is left out.
    """
    from confluent_kafka import Consumer, KafkaException

    given = client_config(settings, "trace", **{"group.id": "ferryman-trace", "enable.auto.commit": False})
    given |= {"auto.offset.reset": "error", "enable.partition.eof": False, "fetch.wait.max.ms": 50}
    try:
        client = Consumer(given)
        try:
            return _Look(client, settings, time.monotonic() + seconds).all(wanted)
        finally:
            client.close()
    except KafkaException as error:
        raise translate(error) from error


@dataclass(slots=True)
class _Span:
    """What is to be read of a partition."""

    topic: str
    partition: int
    offset: int
    end: int
    done: bool = False


@dataclass(slots=True)
class _Look:
    client: "Consumer"
    settings: Kafka
    until: float
    found: dict[UUID, list[Seen]] = field(default_factory=lambda: defaultdict(list))

    @property
    def left(self) -> float:
        return max(0.1, self.until - time.monotonic())

    def all(self, wanted: Sequence[Sought]) -> dict[UUID, list[Seen]]:
        self.client.list_topics(timeout=self.left)
        ids = {each.id for each in wanted}
        known = [each for each in wanted if each.place is not None]
        unknown = [each for each in wanted if each.place is None]
        spans = [_Span(each.topic, *each.place, each.place[1] + 1) for each in known if each.place is not None]
        searched = {each.id: list(self._since(each)) for each in unknown}
        self._read(spans + [span for each in searched.values() for span in each], ids)
        for each in unknown:
            if self.found.get(each.id):
                self.found[each.id] = self._compared(each, self.found[each.id])
            elif all(span.done for span in searched[each.id]):
                self.found[each.id] = []
        return {identity: sorted(seen, key=lambda each: each.offset) for identity, seen in self.found.items()}

    def _since(self, each: Sought) -> Iterator[_Span]:
        """From when it was appended to the end, of every partition: which one has it only the producer knew."""
        from confluent_kafka import TopicPartition

        metadata = self.client.list_topics(each.topic, timeout=self.left).topics[each.topic]
        at = int((each.since - _EARLIER).timestamp() * 1000)
        times = [TopicPartition(each.topic, number, at) for number in metadata.partitions]
        for found in self.client.offsets_for_times(times, timeout=self.left) if times else ():
            _, end = self.client.get_watermark_offsets(found, timeout=self.left)
            if 0 <= found.offset < end:
                yield _Span(each.topic, found.partition, found.offset, end)

    def _read(self, spans: Sequence[_Span], ids: set[UUID]) -> None:
        """Of a partition one span at a time."""
        of: dict[tuple[str, int], list[_Span]] = defaultdict(list)
        for span in spans:
            of[span.topic, span.partition].append(span)
        for together in zip_longest(*of.values()):
            self._round({(each.topic, each.partition): each for each in together if each is not None}, ids)

    def _round(self, spans: dict[tuple[str, int], _Span], ids: set[UUID]) -> None:
        from confluent_kafka import TopicPartition

        self.client.assign([TopicPartition(*place, span.offset) for place, span in spans.items()])
        while any(not each.done for each in spans.values()) and time.monotonic() < self.until:
            for message in self.client.consume(_BATCH, 0.1):
                place = (str(message.topic()), int(message.partition() or 0))
                if (span := spans.get(place)) is not None:
                    self._taken(message, span, ids)

    def _taken(self, message: "Message", span: _Span, ids: set[UUID]) -> None:
        offset = message.offset()
        if message.error() is not None or offset is None or span.done:
            span.done = True  # its offset is not there any more
            return
        span.done = offset >= span.end - 1
        identity = _identity(message)
        if identity in ids and offset < span.end and all(each.offset != offset for each in self.found[identity]):
            kind, milliseconds = message.timestamp()
            at = datetime.fromtimestamp(milliseconds / 1000, UTC) if kind else None
            self.found[identity].append(Seen(span.partition, offset, at))

    def _compared(self, each: Sought, seen: Sequence[Seen]) -> list[Seen]:
        """With whether its reader's group is past it."""
        from confluent_kafka import Consumer, TopicPartition

        client = Consumer(client_config(self.settings, "trace", **{"group.id": each.reader}))
        try:
            wanted = [TopicPartition(each.topic, one.partition) for one in seen]
            committed = {one.partition: one.offset for one in client.committed(wanted, timeout=self.left)}
        finally:
            client.close()
        return [Seen(one.partition, one.offset, one.at, committed[one.partition] > one.offset) for one in seen]


def _identity(message: "Message") -> UUID | None:
    try:
        given: Any = dict(headers_of(message))
        return UUID((given.get(headers.ID) or b"").decode())
    except ValueError:
        return None
