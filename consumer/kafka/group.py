"""A member of a consumer group: assignments, records and commits. Offsets are a hint; the inbox knows what was done."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from ferryman.consumer.kafka.consumer_topics import is_retry_topic
from ferryman.consumer.kafka.offsets import EndOffsets, FirstOffsets, OffsetsGone
from ferryman.consumer.kafka.topic_ids import TopicIds
from ferryman.consumer.model import Partition, Position, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Entitlement, Partitions
from ferryman.consumer.wire import record_of
from ferryman.runtime.errors import FerrymanError, Permanent, Transient
from ferryman.runtime.kafka import client_config, translate
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka import Message

log = structlog.get_logger(__name__)

# The guarantees need these: a user's property does not change them.
_REQUIRED: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # it stops instead of skipping what it has not seen
    "partition.assignment.strategy": "cooperative-sticky",
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
    "enable.partition.eof": True,
}
_DEFAULTS: Mapping[str, Any] = {
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 8_192,
    "fetch.queue.backoff.ms": 10,
    "max.poll.interval.ms": 300_000,
    "topic.metadata.refresh.interval.ms": 10_000,  # how soon a new retry topic is seen
    "session.timeout.ms": 45_000,
}
_PROBE_SECONDS = 0.5
_PROBE_AGAIN_SECONDS = 1.0
_LOG_AGAIN_SECONDS = 30.0
_COMMIT_AGAIN_SECONDS = 1.0
_RETURNING_SECONDS = 30.0
_LEAVE_SECONDS = 5.0
"""The longest that a leave waits for a rebalance to end. The other members hear of one by a heartbeat, each 3 s."""


@dataclass(slots=True)
class GroupMember:
    """One member of the group. It may be opened again after it broke."""

    group: str
    topics: Collection[str]
    settings: Kafka
    partitions: Partitions
    """They are told of assignments, in the thread that calls `take`."""
    start: str = "earliest"
    instance: str | None = None
    problem: str | None = None
    broken: bool = False
    """True if a callback failed: what came with it is forgotten, and partitions may be missing. `open` it again."""
    _probe_at: float = 0.0
    _log_at: float = 0.0
    _uncommitted: set[Partition] = field(default_factory=set)
    """The partitions whose last commit failed. If nothing more comes, no other commit follows."""
    _commit_at: float = 0.0
    _lost_at: float = -math.inf
    _client: Client | None = None
    _closing: bool = False
    _failure: BaseException | None = None
    _paused: set[Partition] = field(default_factory=set)
    _read: dict[Partition, int] = field(default_factory=dict)
    """The ends up to which everything came. Aborted records and control records in front of them never come."""
    _gone: "dict[Partition, Message]" = field(default_factory=dict)
    """The partitions whose next record is not there, as it seems, with the error."""
    _firsts: FirstOffsets = field(init=False)
    _ends: EndOffsets = field(init=False)
    _topic_ids: TopicIds = field(init=False)

    def __post_init__(self) -> None:
        self._topic_ids = TopicIds(self.settings)

    def open(self) -> None:
        """Join the group as a new member, from the committed offsets."""
        self.close()
        self.broken, self._failure, self._lost_at, self._closing = False, None, -math.inf, False
        self._paused.clear()
        self._gone.clear()
        self._read.clear()
        self._uncommitted.clear()
        self._firsts = FirstOffsets(self.group, self.start, self.settings.timeout_seconds)
        self._ends = EndOffsets()
        static = {"group.instance.id": self.instance} if self.instance else {}
        self._client = group_client(
            self.settings, self.group, error_cb=self._heard, on_commit=self._on_commit, **static
        )
        self._client.subscribe(
            list(self.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def close(self) -> None:
        """Leave the group."""
        if self._client is not None:
            self._closing = True
            leave(self._client, static=self.instance is not None)
            self._client = None

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        """Return the records that are there. Wait for the first, and gather more until `gather_seconds` from now."""
        until = time.monotonic() + gather_seconds
        client = self._open()
        if self._uncommitted:
            self._commit_again()
        first = client.poll(seconds)
        if self._failure is not None:
            self.broken = True
            raise self._failure
        left = max(0.0, until - time.monotonic())
        found = [] if first is None else [first, *(client.consume(most - 1, left) if most > 1 else ())]
        came = [record_of(message) for message in found if self._is_good(message)]
        if self._gone:
            self._judge_gone(came)
        return came

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None:
        """Commit the next offset of each partition. A failed commit costs duplicates, which the inbox knows."""
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        if not offsets:
            return
        try:
            if wait:
                self._open().commit(offsets=offsets, asynchronous=False)
            else:
                self._open().commit(offsets=offsets)
        except KafkaException as error:
            self._not_committed(error.args[0], offsets)

    def _commit_again(self) -> None:
        """Commit what a rebalance refused, if it is still ours: sagas wait for it, and no record may follow."""
        if time.monotonic() >= self._commit_at:
            self._commit_at = time.monotonic() + _COMMIT_AGAIN_SECONDS
            owned = {place: self.partitions.by_place.get(place) for place in self._uncommitted}
            self._uncommitted.clear()
            self.commit({place: each.position for place, each in owned.items() if each and each.position is not None})

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        refused = [(each, why) for each in partitions if (why := each.error or error) and why.name() != "_NO_OFFSET"]
        if refused:
            self._not_committed(refused[0][1], [each for each, _ in refused])

    def _not_committed(self, error: KafkaError, partitions: list[TopicPartition]) -> None:
        """Remember a failed commit, and log it, at most every 30 s: it would repeat in every turn."""
        self._uncommitted |= _places(partitions)
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + _LOG_AGAIN_SECONDS
            log.warning("offsets not committed", consumer=self.group, error=str(translate(error)))

    def hold(self, partitions: Collection[Partition]) -> None:
        """Fetch nothing of these partitions, and go on with all others."""
        held = set(partitions)
        if new := held - self._paused:
            self._open().pause([TopicPartition(*each) for each in new])
        if gone := self._paused - held:
            self._open().resume([TopicPartition(*each) for each in gone])
        self._paused = held

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Read partitions from these offsets on. The client's own `seek` refuses those whose next record was gone."""
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._read = {place: end for place, end in self._read.items() if place not in offsets}
        try:
            self._open().incremental_unassign(places)
            self._open().incremental_assign(places)
        except KafkaException as error:
            self.broken = True
            raise Transient(f"Kafka: {translate(error)}") from error

    def lag(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many messages are behind each position, as far as known. Brokers that are away are not asked."""
        waiting = {place for place, each in self.partitions.by_place.items() if each.waiting}
        reached = {
            place: at if place in waiting else max(at, self._read.get(place, at)) for place, at in positions.items()
        }
        return self._ends.behind(self._open(), reached, self._paused if self.problem is None else set())

    def _open(self) -> Client:
        assert self._client is not None, "the group member is not open"
        return self._client

    def _is_good(self, message: "Message") -> bool:
        """Return True if the message is a record, and not an error that can be ignored or waited for."""
        error, topic, place = message.error(), message.topic() or "", (message.topic() or "", message.partition() or 0)
        if error is None:
            if place in self._firsts.unknown:
                self._own_late({place: 0})
            return True
        if error.name() == "_PARTITION_EOF":
            self._read[place] = message.offset() or 0
        elif error.name() == "_AUTO_OFFSET_RESET":
            self._gone[place] = message
        else:
            self._failed(error, topic)
        return False

    def _failed(self, error: KafkaError, topic: str) -> None:
        if _is_fatal(error):
            self.broken = True
            raise self._fatal(error)
        if is_retry_topic(topic, self.group):
            if error.name() != "UNKNOWN_TOPIC_OR_PART":  # it is created at the first requeue
                log.warning("what is requeued cannot be read", consumer=self.group, error=str(translate(error)))
            return
        self._heard(error)

    def _on_assign(self, client: Client, partitions: list[TopicPartition]) -> None:
        try:
            if self._closing:
                client.incremental_assign(partitions)
                return
            known = client.committed(partitions, timeout=self.settings.timeout_seconds)
            if failed := [each.error for each in known if each.error]:
                raise KafkaException(failed[0])
            first, leaderless = self._firsts.of(client, [each for each in known if each.offset < 0])
            if first:
                client.commit(offsets=first, asynchronous=False)  # the next owner starts there too, and skips nothing
            committed = [each for each in known if each.offset >= 0]
            self._topic_ids.ask({each.topic for each in partitions})
            # An explicit offset waits for its leader; a logical one (OFFSET_BEGINNING) ends in an error.
            client.incremental_assign(committed + first + leaderless)
            self._own(committed, Entitlement.COMMITTED)
            self._own(first, Entitlement.FIRST)
        except KafkaException as error:
            self._failure = translate(error)
        except Exception as error:  # the client swallows what a callback raises: `take` raises it
            self._failure = error

    def _own(self, places: list[TopicPartition], how: Entitlement) -> None:
        known = self._topic_ids.known
        starts = {(each.topic, each.partition): Position(each.offset, known.get(each.topic)) for each in places}
        if starts:
            self.partitions.assigned(starts, how)

    def _judge_gone(self, came: list[Record]) -> None:
        """Stop if the next record of a partition is gone; nothing is skipped.

        The error may be about an offset that is not the next one any more, or about a topic that was made anew.
        """
        for place, message in list(self._gone.items()):
            buffer = self.partitions.by_place.get(place)
            if buffer is None or place in self._firsts.unknown or self._is_another(place, buffer):
                del self._gone[place]
            elif self.partitions.is_marked(place):
                following = max((each.offset + 1 for each in came if each.place == place), default=buffer.following)
                if message.offset() == following:
                    raise self._skipping(place, message)
                del self._gone[place]
                self.seek({place: following})
        self.partitions.identify(self._topic_ids.changed())

    def _is_another(self, place: Partition, buffer: PartitionBuffer) -> bool:
        """Return True if the topic was made anew since its partition was assigned: `Partitions.mark` begins anew."""
        self._topic_ids.ask([place[0]])
        return buffer.topic_id not in (None, self._topic_ids.known.get(place[0]))

    def _skipping(self, place: Partition, message: "Message") -> OffsetsGone:
        error = message.error()
        return OffsetsGone(
            f"{place[0]}[{place[1]}]: the record that {self.group} reads next, at offset {message.offset()}, is gone "
            f"({error.str() if error else ''})",
            remedy="see what was lost; then reset the group's offsets (kafka-consumer-groups --reset-offsets), and let "
            f"the database follow: `ferryman inbox rebase --consumer {self.group}`",
        )

    def _own_late(self, first: Mapping[Partition, int]) -> None:
        """Own partitions whose first offset is known now. Owned before, they would look as if offsets had expired."""
        if first:
            self._firsts.unknown -= first.keys()
            self._own([TopicPartition(*place, offset) for place, offset in first.items()], Entitlement.FIRST)

    def _on_revoke(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._give_up(client, partitions, lambda gone: self.partitions.revoked(gone, partial(self.commit, wait=True)))

    def _on_lost(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._lost_at = time.monotonic()
        self._give_up(client, partitions, self.partitions.lost)

    def _give_up(
        self, client: Client, partitions: list[TopicPartition], told: Callable[[set[Partition]], None]
    ) -> None:
        gone = _places(partitions)
        try:
            if held := gone & self._paused:  # the client would remember, and not fetch them when they come back
                client.resume([TopicPartition(*each) for each in held])
            self._paused -= gone
            self._firsts.forget(gone)
            self._ends.forget(gone)
            self._read = {place: end for place, end in self._read.items() if place not in gone}
            self._gone = {place: message for place, message in self._gone.items() if place not in gone}
            told(gone)
            client.incremental_unassign(partitions)  # the library would ask the group for its protocol first
        except Exception as error:
            self._failure = error

    def _heard(self, error: KafkaError) -> None:
        if _is_fatal(error):
            self._failure = self._fatal(error)
            return
        said = _described(error)
        if self.problem is None:
            log.warning("Kafka does not serve us", consumer=self.group, error=said)
        self.problem = said

    def _fatal(self, error: KafkaError) -> FerrymanError:
        """Translate an error that ends the client. It is transient if another client under the same name would work.

        A member that lost its partitions and returns may be fenced by its own former life, when a commit of that
        arrives late.
        """
        said = error.str()
        if "fenced" not in said.lower():
            return Permanent(f"Kafka: {said}", remedy="start it again; if it ends so again, see the brokers' logs")
        if time.monotonic() - self._lost_at < _RETURNING_SECONDS:
            return Transient(f"Kafka: {said}: it was away, and came back under its own name")
        return Permanent(
            f"Kafka: {said}", setting="consumer.instance_id",
            remedy="another process has this name: give each its own, and start this one again",
        )  # fmt: skip

    def probe(self) -> None:
        """Ask whether Kafka is back, about each topic too: records that still come may have been fetched before."""
        self._own_late(self._firsts.fix(self._open()))
        self._topic_ids.refresh({topic for topic, _ in self.partitions.by_place})
        self.partitions.identify(self._topic_ids.changed())
        if self.problem is None or time.monotonic() < self._probe_at:
            return
        with suppress(KafkaException):
            self.problem = self._refused()
        self._probe_at = time.monotonic() + _PROBE_AGAIN_SECONDS
        if self.problem is None:
            log.info("Kafka is back", consumer=self.group)

    def _refused(self) -> str | None:
        """Return why the cluster does not let us read one of the topics."""
        for topic in self.topics:
            found = self._open().list_topics(topic, timeout=_PROBE_SECONDS).topics.get(topic)
            if found is not None and found.error is not None and not is_retry_topic(topic, self.group):
                return _described(found.error, f"topic {topic}: ")
        return None


def group_client(settings: Kafka, group: str, **ours: Any) -> Client:
    """Return a client that may join the group, and has not yet."""
    config = {**_DEFAULTS, **client_config(settings, group, **{"group.id": group}), **_REQUIRED, **ours}
    try:
        return Client(config)
    except KafkaException as error:
        raise translate(error) from error


def leave(client: Client, *, static: bool = False) -> None:
    """Leave the group, and close the client. A static member stays: it will be back.

    librdkafka's `close` says nothing to the group if the member has no partition at that moment, and the next rebalance
    then waits for it until its session ends; `unsubscribe` does say it, once a rebalance in progress has ended. And
    `close` hangs for ever, with the interpreter's lock, if an assignment comes only then and its callback asks the
    group for anything: such callbacks must only assign, or only unassign.
    """
    until = time.monotonic() + _LEAVE_SECONDS
    with suppress(KafkaException):  # of a client that has failed
        if not static:
            client.unsubscribe()
        while (client.poll(0) is not None or (not static and client.memberid())) and time.monotonic() < until:
            client.poll(0.02)
    client.close()


def _is_fatal(error: KafkaError) -> bool:
    """Return True if the client cannot be used any more."""
    return error.fatal() or error.name() == "_FATAL"


def _described(error: KafkaError, of: str = "") -> str:
    said = translate(error)
    return f"Kafka {'is away' if isinstance(said, Transient) else 'refuses'}: {of}{said}"


def _places(partitions: list[TopicPartition]) -> set[Partition]:
    return {(each.topic, each.partition) for each in partitions}
