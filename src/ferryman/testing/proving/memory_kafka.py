"""Kafka in memory: records in partitions, offsets that outlive a process, and the feed that a process reads."""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

from ferryman.consumer.api import Consumer
from ferryman.consumer.model import Partition, Record
from ferryman.message import Message, stored
from ferryman.relay.kafka import record_headers as headers
from ferryman.relay.model import Entry
from ferryman.schemas import active

_SOURCE = "/prove"
_A_LITTLE = 0.001


class ImpatientClock:
    """The time of one process: every wait is over at once."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def wait(self, seconds: float) -> None:
        self._ahead += seconds + _A_LITTLE


class SentMessage(NamedTuple):
    """A message as the relay would publish it, without a place."""

    topic: str
    key: str
    value: bytes
    headers: list[tuple[str, bytes | None]]
    type: str
    id: str


def sent(consumer: Consumer, message: Message, number: int) -> SentMessage:
    """Encode a message as the outbox does. Without an id, it gets one that is the same each time."""
    codecs = active.codecs()
    if message.topic is None and (codecs is None or codecs.topic_of(message.type, None) is None):
        message = replace(message, topic=consumer.topics[0])
    made, identity = stored(message), str(message.id or uuid5(NAMESPACE_OID, f"prove/{number}"))
    entry = Entry(
        number, identity, made.topic, made.key, made.type, made.payload, made.headers, made.content_type,
        time.time_ns() // 1000, 0,
    )  # fmt: skip
    texts = headers(entry, _SOURCE)
    raw = [(name, value.encode() if isinstance(value, str) else value) for name, value in texts]
    return SentMessage(made.topic, made.key, made.payload, raw, made.type, identity)


@dataclass(slots=True)
class MemoryTopics:
    """The records and committed offsets. They outlive the processes."""

    records: dict[Partition, list[Record]] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[SentMessage], *, by_key: bool = False) -> "MemoryTopics":
        """Put the messages into one partition per topic, or one per key, in the order in which the keys first come."""
        topics, keys = cls(), dict[str, int]()
        for message in messages:
            place = message.topic, keys.setdefault(message.key, len(keys)) if by_key else 0
            records = topics.records.setdefault(place, [])
            records.append(
                Record(
                    *place, len(records), message.key.encode(), message.value, message.headers, time.time_ns() // 10**6
                )
            )
        return topics

    def rewind(self) -> None:
        self.committed.clear()


class MemoryFeed:
    """The feed of one process: it starts at the committed offsets."""

    def __init__(self, topics: MemoryTopics, clock: ImpatientClock) -> None:
        self._topics = topics
        self._clock = clock
        self._next = {place: topics.committed.get(place, 0) for place in topics.records}
        self._held: set[Partition] = set()

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        """Return the next records. If there are none, the wait is over at once."""
        found: list[Record] = []
        for place, records in self._topics.records.items():
            if place not in self._held:
                came = records[self._next[place] :][: most - len(found)]
                self._next[place] += len(came)
                found += came
        if not found:
            self._clock.wait(seconds)
        return found

    @property
    def at_the_end(self) -> bool:
        return all(self._next[place] == len(records) for place, records in self._topics.records.items())

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None:
        self._topics.committed.update(positions)

    def hold(self, partitions: Collection[Partition]) -> None:
        self._held = set(partitions)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self._next.update(offsets)


def described(messages: Sequence[SentMessage]) -> str:
    return "\n".join(
        f"    {message.type} {message.id} (key {message.key}) {_short(message.value)}" for message in messages
    )


def _short(value: bytes) -> str:
    try:
        return json.dumps(json.loads(value))[:100]
    except ValueError:
        return f"{len(value)} bytes"
