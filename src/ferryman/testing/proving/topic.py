"""Kafka in memory: records in partitions, offsets that outlive a worker, and a feed that a worker reads them by."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

from ferryman.consumer.api import Consumer
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Partition, Record
from ferryman.message import Message, stored
from ferryman.relay.model import Entry
from ferryman.relay.record import headers
from ferryman.runtime.settings import Kafka
from ferryman.schemas import active

_SOURCE = "/prove"
_A_LITTLE = 0.001


class Clock:
    """A worker's time: whoever waits is there at once."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def wait(self, seconds: float) -> None:
        self._ahead += seconds + _A_LITTLE


class Sent(NamedTuple):
    """A message as the relay would have published it, but for its place."""

    topic: str
    key: str
    value: bytes
    headers: list[tuple[str, bytes | None]]
    type: str
    id: str


def sent(consumer: Consumer, messages: Sequence[Message]) -> list[Sent]:
    """Encoded as the outbox does. A message without an id gets one that is the same each time."""
    return [_sent(consumer, message, number) for number, message in enumerate(messages)]


def _sent(consumer: Consumer, message: Message, number: int) -> Sent:
    codecs = active.codecs()
    if message.topic is None and (codecs is None or codecs.topic_of(message.type, None) is None):
        message = replace(message, topic=consumer.topics[0])
    made = stored(message)
    identity = str(message.id or uuid5(NAMESPACE_OID, f"prove/{number}"))
    entry = Entry(
        number, identity, made.topic, made.key, made.type, made.payload, made.headers, made.content_type,
        time.time_ns() // 1000, 0,
    )  # fmt: skip
    texts = headers(entry, _SOURCE)
    raw = [(name, value.encode() if isinstance(value, str) else value) for name, value in texts]
    return Sent(made.topic, made.key, made.payload, raw, made.type, identity)


@dataclass(slots=True)
class Topics:
    """What stands in Kafka, and how far the group is. It outlives its workers."""

    records: dict[Partition, list[Record]] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[Sent], *, by_key: bool = False) -> "Topics":
        """In one partition of each topic; or each key in one of its own, in the order in which keys first come."""
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


class MemoryFeed(Feed):
    """One worker's: it begins at what is committed, and is lost with the worker."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        super().__init__("prove", [], Kafka(bootstrap_servers="in-memory:9092"))
        self._topics = topics
        self._clock = clock
        self._next = {place: topics.committed.get(place, 0) for place in topics.records}
        self._held: set[Partition] = set()

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        """Where nothing is there, the time that it would have waited is over at once."""
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

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._held |= set(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._held -= set(partitions)

    def lag(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        return {place: len(self._topics.records[place]) - position for place, position in positions.items()}


def described(messages: Sequence[Sent]) -> str:
    return "\n".join(
        f"    {message.type} {message.id} (key {message.key}) {_short(message.value)}" for message in messages
    )


def _short(value: bytes) -> str:
    try:
        return json.dumps(json.loads(value))[:100]
    except ValueError:
        return f"{len(value)} bytes"
