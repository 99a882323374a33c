"""A consumer's side of Kafka: what it is assigned, what comes, how far it is. Offsets are a hint; the inbox knows."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from ferryman.consumer.beginnings import Beginnings, OffsetsGone
from ferryman.consumer.ends import Ends
from ferryman.consumer.kafka_errors import fatal, is_fatal, words
from ferryman.consumer.model import Partition, Record
from ferryman.consumer.retries import is_retry_topic
from ferryman.runtime.kafka import client_config, headers_of, translate
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka import Message

log = structlog.get_logger(__name__)

# What the guarantees stand on; a user's property does not change it.
_INSISTED: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # it stops, and does not skip what it has not seen
    "partition.assignment.strategy": "cooperative-sticky",
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
}
_PROBE_SECONDS = 0.5
_PROBE_AGAIN_SECONDS = 1.0
_SAY_AGAIN_SECONDS = 30.0
_RETURNING_SECONDS = 30.0
_DEFAULTS: Mapping[str, Any] = {
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 8_192,
    "fetch.queue.backoff.ms": 10,
    "max.poll.interval.ms": 300_000,
    "topic.metadata.refresh.interval.ms": 10_000,  # how soon a topic is seen that is made for what is requeued
    "session.timeout.ms": 45_000,
}


@dataclass(slots=True)
class Feed:
    """One member of the group. Its callbacks run inside `take`, in the caller's thread."""

    group: str
    topics: Collection[str]
    settings: Kafka
    start: str = "earliest"
    member: str | None = None
    assigned: Callable[[set[Partition]], None] = lambda _partitions: None
    revoked: Callable[[set[Partition]], None] = lambda _partitions: None
    lost: Callable[[set[Partition]], None] = lambda _partitions: None
    read_before: Callable[[set[Partition]], set[Partition]] = lambda _partitions: set()
    """Which of these the group has had: their offsets may have expired."""
    problem: str | None = None
    broken: bool = False
    """A callback failed: what came with it is forgotten, and partitions may be missing. `open` it again."""
    _probe_at: float = 0.0
    _say_at: float = 0.0
    _lost_at: float = -math.inf
    _client: Client | None = None
    _failure: BaseException | None = None
    _paused: set[Partition] = field(default_factory=set)
    _ends: Ends = field(default_factory=Ends)

    def open(self) -> None:
        """Joins the group, anew where it was a member: from what was committed."""
        self.close()
        self.broken, self._failure, self._lost_at = False, None, -math.inf
        self._paused.clear()
        self._ends = Ends()
        name = {"group.instance.id": self.member} if self.member else {}
        self._client = member(self.settings, self.group, error_cb=self._heard, on_commit=self._on_commit, **name)
        self._client.subscribe(
            list(self.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def close(self) -> None:
        """Leaves the group; what was committed stays."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        """What is there; waits so long for the first, and until so long from now for more."""
        until = time.monotonic() + gather_seconds
        client = self._open()
        first = client.poll(seconds)
        if self._failure is not None:
            self.broken = True
            raise self._failure
        if first is None:
            return []
        left = max(0.0, until - time.monotonic())
        found = [first, *(client.consume(most - 1, left) if most > 1 else ())]
        return [_record(message) for message in found if self._good(message)]

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None:
        """How far each partition is. One that fails costs duplicates, which the inbox knows."""
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        if not offsets:
            return
        try:
            if wait:
                self._open().commit(offsets=offsets, asynchronous=False)
            else:
                self._open().commit(offsets=offsets)
        except KafkaException as error:
            self._not_committed(error.args[0])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What became of a commit that nobody waited for."""
        found = [error, *(each.error for each in partitions)]
        if refused := [each for each in found if each is not None and each.name() != "_NO_OFFSET"]:
            self._not_committed(refused[0])

    def _not_committed(self, error: KafkaError) -> None:
        """Each turn would say the same."""
        if time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + _SAY_AGAIN_SECONDS
            log.warning("offsets not committed", consumer=self.group, error=str(translate(error)))

    def pause(self, partitions: Iterable[Partition]) -> None:
        if wanted := set(partitions) - self._paused:
            self._open().pause([TopicPartition(*each) for each in wanted])
            self._paused |= wanted

    def resume(self, partitions: Iterable[Partition]) -> None:
        if wanted := set(partitions) & self._paused:
            self._open().resume([TopicPartition(*each) for each in wanted])
            self._paused -= wanted

    def lag(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """How many messages are behind each position, as far as the brokers tell. While they are away none is asked."""
        return self._ends.behind(self._open(), positions, self._paused if self.problem is None else set())

    def _open(self) -> Client:
        assert self._client is not None, "the feed is not open"
        return self._client

    def _good(self, message: "Message") -> bool:
        error = message.error()
        if error is None:
            return True
        if error.name() == "_AUTO_OFFSET_RESET":
            raise OffsetsGone(
                f"{message.topic()}[{message.partition()}]: what {self.group} has to read next is not there any more "
                f"({error.str()})",
                remedy="see what was lost; then reset the group's offsets (kafka-consumer-groups --reset-offsets)",
            )
        if is_fatal(error):
            self.broken = True
            raise fatal(error, back=self._is_back)
        if is_retry_topic(message.topic() or "", self.group):
            if error.name() != "UNKNOWN_TOPIC_OR_PART":  # it is made when something is requeued for the first time
                log.warning("what is requeued cannot be read", consumer=self.group, error=str(translate(error)))
            return False
        self._heard(error)
        return False

    def _on_assign(self, client: Client, partitions: list[TopicPartition]) -> None:
        try:
            known = client.committed(partitions, timeout=self.settings.timeout_seconds)
            if failed := [each.error for each in known if each.error]:
                raise KafkaException(failed[0])
            begun = self._beginnings.of(client, [each for each in known if each.offset < 0])
            if fixed := [each for each in begun if each.offset >= 0]:
                client.commit(offsets=fixed, asynchronous=False)  # who comes after it begins there, and skips nothing
            self.assigned(_places(partitions))
            client.incremental_assign([each for each in known if each.offset >= 0] + begun)
        except KafkaException as error:
            self._failure = translate(error)
        except Exception as error:  # the client swallows what a callback raises: `take` raises it
            self._failure = error

    def _on_revoke(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._given_up(client, self.revoked, partitions)

    def _on_lost(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._lost_at = time.monotonic()
        self._given_up(client, self.lost, partitions)

    def _given_up(
        self, client: Client, tell: Callable[[set[Partition]], None], partitions: list[TopicPartition]
    ) -> None:
        gone = _places(partitions)
        try:
            if held := gone & self._paused:  # the client would remember it, and never fetch them when they come back
                client.resume([TopicPartition(*each) for each in held])
            self._paused -= gone
            self._ends.forget(gone)
            tell(gone)
        except Exception as error:
            self._failure = error

    def _heard(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._failure = fatal(error, back=self._is_back)
            return
        said = words(error)
        if self.problem is None:
            log.warning("Kafka does not serve us", consumer=self.group, error=said)
        self.problem = said

    @property
    def _beginnings(self) -> Beginnings:
        return Beginnings(self.group, self.start, self.settings.timeout_seconds, self.read_before)

    @property
    def _is_back(self) -> bool:
        """Whether it lost its partitions a moment ago, and may be on its way back."""
        return time.monotonic() - self._lost_at < _RETURNING_SECONDS

    def probe(self) -> None:
        """Asks whether it is well again, each of the topics too: what still comes may have been fetched before."""
        if self.problem is None or time.monotonic() < self._probe_at:
            return
        try:
            refused = self._refused()
        except KafkaException:
            refused = self.problem
        if refused is not None:
            self.problem = refused
            self._probe_at = time.monotonic() + _PROBE_AGAIN_SECONDS
            return
        log.info("Kafka is back", consumer=self.group)
        self.problem = None

    def _refused(self) -> str | None:
        """What the cluster says of a topic that it does not let us read."""
        for topic in self.topics:
            found = self._open().list_topics(topic, timeout=_PROBE_SECONDS).topics.get(topic)
            if found is not None and found.error is not None and not is_retry_topic(topic, self.group):
                return words(found.error, f"topic {topic}: ")
        return None


def member(settings: Kafka, group: str, **ours: Any) -> Client:
    """A client that may join the group, and has not yet."""
    config = {**_DEFAULTS, **client_config(settings, group, **{"group.id": group}), **_INSISTED, **ours}
    try:
        return Client(config)
    except KafkaException as error:
        raise translate(error) from error


def _places(partitions: list[TopicPartition]) -> set[Partition]:
    return {(each.topic, each.partition) for each in partitions}


def _record(message: "Message") -> Record:
    given, fault = [], None
    try:
        given = headers_of(message)
    except ValueError as error:
        fault = str(error)
    return Record(
        message.topic() or "", message.partition() or 0, message.offset() or 0, _raw(message.key()),
        _raw(message.value()), given, message.timestamp()[1], fault,
    )  # fmt: skip


def _raw(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
