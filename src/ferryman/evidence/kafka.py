"""Ask Kafka for what no database knows: when a message was published, whether it is still there, and how far behind a
group is. Nothing is committed, and no group is joined.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from ferryman.consumer.model import BY_ID, BY_SOURCE_AND_ID
from ferryman.consumer.wire import identity, record_of
from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka

SECONDS = 3.0
_EARLIER = timedelta(seconds=10)
"""The relay's clock, which Kafka's times come from, may be behind the database's."""
_BATCH = 1000

_ASK_AGAIN_SECONDS = 0.2


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
    given = {"group.id": "ferryman-trace", "enable.auto.commit": False, "auto.offset.reset": "error",
             "enable.partition.eof": False, "fetch.wait.max.ms": 50}  # fmt: skip
    with kafka.translated(), closing(Consumer(kafka.client_config(settings, "trace", **given))) as client:
        return _Look(client, settings, time.monotonic() + seconds).all(wanted)


def groups_gone(
    settings: Kafka, wanted: Collection[tuple[str, str]], seconds: float = SECONDS
) -> frozenset[tuple[str, str]]:
    """Return those of these groups that have no offset of their topic, or only such whose records were deleted."""
    until = time.monotonic() + seconds

    def gone(group: str, topic: str) -> bool:
        with closing(kafka.group_client(settings, "trace", group)) as client:
            numbers = client.list_topics(topic, timeout=_left(until)).topics[topic].partitions
            read = {
                number: offset for number, offset in _committed(client, topic, numbers, until).items() if offset >= 0
            }
            first = _offsets(client, topic, read, OFFSET_BEGINNING, until)
        return all(offset < first[number] for number, offset in read.items())

    with kafka.translated():
        return frozenset(each for each in wanted if gone(*each))


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
    client: Consumer
    settings: Kafka
    until: float
    found: dict[UUID, list[SeenRecord]] = field(default_factory=lambda: defaultdict(list))

    @property
    def left(self) -> float:
        return _left(self.until)

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
        if each.place is not None:
            yield _Span(each.topic, *each.place, each.place[1] + 1)
            return
        numbers = self.client.list_topics(each.topic, timeout=self.left).topics[each.topic].partitions
        at = int((each.since - _EARLIER).timestamp() * 1000)
        ends = _offsets(self.client, each.topic, numbers, OFFSET_END, self.until)
        for number, offset in _offsets(self.client, each.topic, numbers, at, self.until).items():
            if 0 <= offset < ends[number]:
                yield _Span(each.topic, number, offset, ends[number])

    def _read(self, spans: Sequence[_Span], ids: set[UUID]) -> None:
        of: dict[tuple[str, int], list[_Span]] = defaultdict(list)
        for each in spans:
            of[each.topic, each.partition].append(each)
        for together in zip_longest(*of.values()):  # one span of a partition at a time
            self._round({(each.topic, each.partition): each for each in together if each is not None}, ids)

    def _round(self, spans: dict[tuple[str, int], _Span], ids: set[UUID]) -> None:
        self.client.assign([TopicPartition(*place, each.offset) for place, each in spans.items()])
        while any(not each.done for each in spans.values()) and time.monotonic() < self.until:
            for message in self.client.consume(_BATCH, 0.1):
                place = (str(message.topic()), int(message.partition() or 0))
                if (each := spans.get(place)) is not None:
                    self._taken(message, each, ids)

    def _taken(self, message: Message, of: _Span, ids: set[UUID]) -> None:
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
        read = dict[str, dict[int, int]]()
        for group in each.readers:
            with closing(kafka.group_client(self.settings, "trace", group)) as client:
                read[group] = _committed(client, each.topic, [one.partition for one in seen], self.until)
        return [
            one._replace(past=frozenset(group for group in read if read[group][one.partition] > one.offset))
            for one in seen
        ]


def _identities(message: Message) -> Iterator[UUID]:
    """Yield the ids that receipts may have for a record: `Consumer(id_from=...)` chooses one."""
    record = record_of(message)
    yield identity(record, BY_ID)
    yield identity(record, BY_SOURCE_AND_ID)


def _committed(client: Consumer, topic: str, numbers: Iterable[int], until: float) -> dict[int, int]:
    """Return the offset that the client's group has committed of each partition, negative if there is none."""
    places = [(topic, number) for number in numbers]
    read = kafka.committed(client, places, _left(until)) if places else {}
    return {number: offset for (_, number), offset in read.items()}


def _offsets(client: Consumer, topic: str, numbers: Iterable[int], at: int, until: float) -> dict[int, int]:
    """Return the first offset of each partition from a time on, negative if there is none; or that of its beginning or
    its end, which the protocol asks for as a time too.
    """
    places = [TopicPartition(topic, number, at) for number in numbers]
    found = client.offsets_for_times(places, timeout=_left(until)) if places else []
    if failed := [each.error for each in found if each.error]:
        raise KafkaException(failed[0])
    return {each.partition: each.offset for each in found}


def _left(until: float) -> float:
    return max(0.1, until - time.monotonic())


def lags(settings: Kafka, topics: Mapping[str, str], answer_seconds: float) -> dict[str, Lag]:
    """Return how far each group is behind in its topic, if a cluster is named. If it does not answer, say so and do not
    fail.

    A leader or coordinator that is just being elected is asked again, for as long as an answer may take.
    """
    if not settings.bootstrap_servers:
        return {}
    until = time.monotonic() + settings.timeout_seconds
    while True:
        try:
            return {group: _lag(settings, topic, group, answer_seconds) for group, topic in topics.items()}
        except KafkaException as error:
            why = kafka.translate(error).message
        if time.monotonic() > until:
            return dict.fromkeys(topics, Lag(f"Kafka does not say how far it is read: {why}"))
        time.sleep(_ASK_AGAIN_SECONDS)


def _lag(settings: Kafka, topic: str, group: str, answer_seconds: float) -> Lag:
    """Compare offsets. What is younger than an answer may take is on its way, however much of it there is."""
    until = time.monotonic() + settings.timeout_seconds
    old = int((datetime.now(UTC) - timedelta(seconds=answer_seconds)).timestamp() * 1000)
    with closing(kafka.group_client(settings, "reconcile", group)) as client:
        cluster = client.list_topics(topic, timeout=_left(until))
        if cluster.topics[topic].error:
            return Lag(f"Kafka has no topic {topic}")
        numbers = cluster.topics[topic].partitions
        read = _committed(client, topic, numbers, until)
        first, ends, due = (_offsets(client, topic, numbers, at, until) for at in (OFFSET_BEGINNING, OFFSET_END, old))
    start = {number: max(low, read[number]) for number, low in first.items()}
    behind = {number: max(0, end - start[number]) for number, end in ends.items()}
    overdue = {number: max(0, (ends[number] if at < 0 else at) - start[number]) for number, at in due.items()}
    many = sum(behind.values())
    said = f"is {many:,} messages behind in {topic}" if many else f"has read all of {topic}"
    if many and kafka.is_built_in_id(str(cluster.cluster_id)):
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
