"""Ask Kafka for what no database knows: when a message was published, whether it is still there, and how far behind a
group is. Nothing is committed, and no group is joined.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from ferryman.consumer.model import BY_ID, BY_SOURCE_AND_ID
from ferryman.consumer.wire import identity, record_of
from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka
from ferryman.runtime.times import span

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition
    from confluent_kafka.admin import AdminClient

SECONDS = 3.0
_EARLIER = timedelta(seconds=10)
"""The relay's clock, which Kafka's times come from, may be behind the database's."""
_BATCH = 1000

_ASK_AGAIN_SECONDS = 0.2
# Kept until the command ends: a client that ends while it is asked something may take the process with it.
_asked: "list[AdminClient]" = []


@dataclass(frozen=True, slots=True)
class SoughtRecord:
    """A message to look for: since when it may be there, and its place if a receipt tells it."""

    id: UUID
    topic: str
    since: datetime
    readers: tuple[str, ...]
    """The groups that read its topic and have no verdict on it."""
    place: tuple[int, int] | None = None


class SeenRecord(NamedTuple):
    """A record as it stands in a topic, and the groups that are past it, of those that have no verdict on it."""

    partition: int
    offset: int
    at: datetime | None
    past: frozenset[str] = frozenset()


class Lag(NamedTuple):
    """The lag of a group, in words; how much of that is older than an answer may take (None if Kafka does not
    say); and the command that resets its offsets, if Kafka deleted messages that it had not read.
    """

    said: str
    overdue: int | None = None
    resets: str | None = None


def look(settings: Kafka, wanted: Sequence[SoughtRecord], seconds: float = SECONDS) -> dict[UUID, list[SeenRecord]]:
    """Return the copies of each message, in the order of their offsets: none if it is not there. A message that was
    still being looked for when the time was over is left out.

    A record whose place is known is read by itself. Any other is looked for from the time it was appended on, in all
    partitions.
    """
    from confluent_kafka import Consumer, KafkaException

    given = {"group.id": "ferryman-trace", "enable.auto.commit": False, "auto.offset.reset": "error",
             "enable.partition.eof": False, "fetch.wait.max.ms": 50}  # fmt: skip
    try:
        client = Consumer(kafka.client_config(settings, "trace", **given))
        try:
            return _Look(client, settings, time.monotonic() + seconds).all(wanted)
        finally:
            client.close()
    except KafkaException as error:
        raise kafka.translate(error) from error


def groups_gone(
    settings: Kafka, wanted: Collection[tuple[str, str]], seconds: float = SECONDS
) -> frozenset[tuple[str, str]]:
    """Return those of these groups that have no offset of their topic, or only such whose records were deleted."""
    from confluent_kafka import KafkaException

    until = time.monotonic() + seconds
    try:
        return frozenset(each for each in wanted if not _reads_on(settings, *each, until))
    except KafkaException as error:
        raise kafka.translate(error) from error


def _reads_on(settings: Kafka, group: str, topic: str, until: float) -> bool:
    """Return True if a group has an offset at which it could go on."""
    from confluent_kafka import TopicPartition

    def left() -> float:
        return max(0.1, until - time.monotonic())

    client = kafka.group_client(settings, "trace", group)
    try:
        numbers = client.list_topics(topic, timeout=left()).topics[topic].partitions
        read = kafka.committed(client, [(topic, number) for number in numbers], left()) if numbers else {}
        for place, offset in read.items():
            if offset >= 0 and offset >= client.get_watermark_offsets(TopicPartition(*place), timeout=left())[0]:
                return True
    finally:
        client.close()
    return False


@dataclass(slots=True)
class _Span:
    """The part of a partition that is to be read."""

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
    found: dict[UUID, list[SeenRecord]] = field(default_factory=lambda: defaultdict(list))

    @property
    def left(self) -> float:
        return max(0.1, self.until - time.monotonic())

    def all(self, wanted: Sequence[SoughtRecord]) -> dict[UUID, list[SeenRecord]]:
        self.client.list_topics(timeout=self.left)
        searched = {each.id: list(self._spans(each)) for each in wanted}
        self._read([one for each in searched.values() for one in each], {each.id for each in wanted})
        for each in wanted:
            if self.found.get(each.id):
                self.found[each.id] = self._compared(each, self.found[each.id])
            elif each.readers and all(one.done for one in searched[each.id]):
                self.found[each.id] = []
        return {identity: sorted(seen, key=lambda each: each.offset) for identity, seen in self.found.items()}

    def _spans(self, each: SoughtRecord) -> Iterator[_Span]:
        """Yield its place, or else every partition from when the message was appended to the end: only the producer
        knew its partition.
        """
        from confluent_kafka import TopicPartition

        if each.place is not None:
            yield _Span(each.topic, *each.place, each.place[1] + 1)
            return
        metadata = self.client.list_topics(each.topic, timeout=self.left).topics[each.topic]
        at = int((each.since - _EARLIER).timestamp() * 1000)
        times = [TopicPartition(each.topic, number, at) for number in metadata.partitions]
        for found in self.client.offsets_for_times(times, timeout=self.left) if times else ():
            _, end = self.client.get_watermark_offsets(found, timeout=self.left)
            if 0 <= found.offset < end:
                yield _Span(each.topic, found.partition, found.offset, end)

    def _read(self, spans: Sequence[_Span], ids: set[UUID]) -> None:
        of: dict[tuple[str, int], list[_Span]] = defaultdict(list)
        for each in spans:
            of[each.topic, each.partition].append(each)
        for together in zip_longest(*of.values()):  # one span of a partition at a time
            self._round({(each.topic, each.partition): each for each in together if each is not None}, ids)

    def _round(self, spans: dict[tuple[str, int], _Span], ids: set[UUID]) -> None:
        from confluent_kafka import TopicPartition

        self.client.assign([TopicPartition(*place, each.offset) for place, each in spans.items()])
        while any(not each.done for each in spans.values()) and time.monotonic() < self.until:
            for message in self.client.consume(_BATCH, 0.1):
                place = (str(message.topic()), int(message.partition() or 0))
                if (each := spans.get(place)) is not None:
                    self._taken(message, each, ids)

    def _taken(self, message: "Message", of: _Span, ids: set[UUID]) -> None:
        offset = message.offset()
        if message.error() is not None or offset is None or of.done:
            of.done = True  # its offset is not there any more
            return
        of.done = offset >= of.end - 1
        known = next((each for each in _identities(message) if each in ids), None)
        if known and offset < of.end and all(each.offset != offset for each in self.found[known]):
            kind, milliseconds = message.timestamp()
            at = datetime.fromtimestamp(milliseconds / 1000, UTC) if kind else None
            self.found[known].append(SeenRecord(of.partition, offset, at))

    def _compared(self, each: SoughtRecord, seen: Sequence[SeenRecord]) -> list[SeenRecord]:
        """Add which groups are past each copy."""
        places = [(each.topic, one.partition) for one in seen]
        read = {group: _committed(places, group, self.settings, self.left) for group in each.readers}
        return [
            one._replace(past=frozenset(group for group in read if read[group][one.partition] > one.offset))
            for one in seen
        ]  # fmt: skip


def _identities(message: "Message") -> Iterator[UUID]:
    """Yield the ids that receipts may have for a record: `Consumer(id_from=...)` chooses one."""
    record = record_of(message)
    yield identity(record, BY_ID)
    yield identity(record, BY_SOURCE_AND_ID)


def lags(settings: Kafka, topics: Mapping[str, str], answer_seconds: float) -> dict[str, Lag]:
    """Return how far each group is behind in its topic, if a cluster is named. If it does not answer, say so and do not
    fail.

    A leader or coordinator that is just being elected is asked again, for as long as an answer may take.
    """
    from confluent_kafka import KafkaException

    if not settings.bootstrap_servers:
        return {}
    until = time.monotonic() + settings.timeout_seconds
    admin = kafka.admin(settings, "reconcile")
    _asked.append(admin)
    while True:
        try:
            return {group: _lag(admin, topic, group, settings, answer_seconds) for group, topic in topics.items()}
        except KafkaException as error:
            why = kafka.translate(error).message
        except TimeoutError:
            why = f"no answer within {span(settings.timeout_seconds)}"
        if time.monotonic() > until:
            break
        time.sleep(_ASK_AGAIN_SECONDS)
    return dict.fromkeys(topics, Lag(f"Kafka does not say how far it is read: {why}"))


def _lag(admin: "AdminClient", topic: str, group: str, settings: Kafka, answer_seconds: float) -> Lag:
    """Compare offsets. What is younger than an answer may take is on its way, however much of it there is."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    seconds = settings.timeout_seconds
    known = admin.list_topics(topic, timeout=seconds).topics[topic]
    if known.error:
        return Lag(f"Kafka has no topic {topic}")
    places = [TopicPartition(topic, number) for number in known.partitions]
    offsets: Any = OffsetSpec
    old = datetime.now(UTC) - timedelta(seconds=answer_seconds)
    first = _offsets(admin, dict.fromkeys(places, offsets.earliest()), seconds)
    ends = _offsets(admin, dict.fromkeys(places, offsets.latest()), seconds)
    due = _offsets(admin, dict.fromkeys(places, offsets.for_timestamp(int(old.timestamp() * 1000))), seconds)
    read = _committed([(topic, number) for number in first], group, settings, seconds)
    start = {number: max(low, read[number]) for number, low in first.items()}
    behind = {number: max(0, end - start[number]) for number, end in ends.items()}
    overdue = {number: max(0, (ends[number] if at < 0 else at) - start[number]) for number, at in due.items()}
    many = sum(behind.values())
    said = f"is {many:,} messages behind in {topic}" if many else f"has read all of {topic}"
    if many and kafka.is_built_in(admin, seconds):
        said += ", all of which count as old: librdkafka's built-in broker does not tell their age"
    lag = Lag(f"Kafka: the group {group} {said}", sum(min(behind[number], overdue[number]) for number in behind))
    lost = {number: low - read[number] for number, low in first.items() if 0 <= read[number] < low}
    return _stopped(lag, topic, group, lost, settings) if lost else lag


def _stopped(lag: Lag, topic: str, group: str, lost: Mapping[int, int], settings: Kafka) -> Lag:
    """Add that the consumer ends with an error, because the next message that it was to read is gone."""
    where = ",".join(str(number) for number in sorted(lost))
    said = f"of {topic}, partition {where}, {sum(lost.values()):,} messages were deleted before it read them"
    resets = (
        f"kafka-consumer-groups --bootstrap-server {settings.bootstrap_servers} --group {group} "
        f"--topic {topic}:{where} --reset-offsets --to-earliest --execute"
    )
    return Lag(f"{lag.said}; {said}: it stops there until a person resets its offsets", lag.overdue, resets)


def _committed(places: Sequence[tuple[str, int]], group: str, settings: Kafka, seconds: float) -> dict[int, int]:
    """Return the committed offset of each partition of a topic, negative if there is none."""
    client = kafka.group_client(settings, "evidence", group)
    try:
        found = kafka.committed(client, places, seconds)
    finally:
        client.close()
    return {number: offset for (_, number), offset in found.items()}


def _offsets(admin: "AdminClient", wanted: "Mapping[TopicPartition, Any]", seconds: float) -> dict[int, int]:
    """Return an offset of each partition; negative if no message is that young."""
    found = admin.list_offsets(dict(wanted))
    return {each.partition: answer.result(seconds).offset for each, answer in found.items()}
