"""Watch whether everybody listens: a saga's time counts only while its commands and results are read.

Every second the ends of the topics are noted. Once the groups have committed up to the ends of some moment, everything
that was sent before it has been read. Only Kafka is asked, so a participant may be anybody's. If the database of a
participant is named, it is asked too: a result that waits in its outbox is in no topic yet.
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from ferryman.runtime import kafka, postgres
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Kafka, Settings
from ferryman.saga.results import ResultSource
from ferryman.saga.store import unpublished_seconds

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

_LOOK_SECONDS = 1.0
_MOST_MOMENTS = 60

Place = tuple[str, str, int]
"""A group, a topic and a partition of it."""


@dataclass(slots=True)
class ParticipantOutbox:
    """The outbox in a participant's database that a topic of results comes from."""

    topic: str
    url: SecretStr
    settings: Settings
    _connection: Connection | None = None

    def waiting_seconds(self) -> float:
        """Return how long the first entry has waited to be published, by its own clock; 0 if none waits.

        A standby is refused: it may not know yet of what waits.
        """
        try:
            if self._connection is None:
                theirs = self.settings.model_copy(update={"database_url": self.url})
                self._connection = postgres.connect(theirs, "saga", autocommit=True, writes=True)
            with postgres.transaction(self._connection, self.settings.database):
                return unpublished_seconds(self._connection, [self.topic])
        except FerrymanError:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(slots=True)
class Listeners:
    """The groups that must have read everything, each with its topic; a thread watches them."""

    machine: str
    readers: Sequence[ResultSource]
    settings: Kafka
    outboxes: Sequence[ParticipantOutbox] = ()
    _moments: deque[tuple[float, dict[Place, int]]] = field(default_factory=lambda: deque(maxlen=_MOST_MOMENTS))
    _heard_at: float = float("-inf")
    _bug: Exception | None = None
    why: str = "it is not known yet who listens"
    """The reason why something is not read."""
    _clients: "dict[str, Consumer]" = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    @property
    def age(self) -> float:
        """The seconds since the moment up to which everything has been read; infinite if that is not known yet."""
        if self._bug is not None:
            raise self._bug
        return time.monotonic() - self._heard_at

    def watch(self, stopping: threading.Event) -> None:
        """Look every second until it should stop."""
        from confluent_kafka import KafkaException

        admin = kafka.admin(self.settings, "saga")
        while not stopping.wait(_LOOK_SECONDS):
            try:
                self._look(admin)
            except KafkaException as error:
                self.why = f"Kafka does not tell who listens: {kafka.translate(error).message}"
            except FerrymanError as error:
                self.why = f"a participant's database does not tell what waits to be published: {error.message}"
            except Exception as error:
                self._bug = error
                break
        for client in self._clients.values():
            client.close()
        for outbox in self.outboxes:
            outbox.close()

    def _look(self, admin: "AdminClient") -> None:
        """Note the ends of the topics, and find the last moment up to which all groups have read.

        The outboxes are asked before Kafka: a result that was published in between is before the ends.
        """
        now = time.monotonic()
        waiting = max((each.waiting_seconds() for each in self.outboxes), default=0.0)
        first, end = self._offsets(admin)
        self._moments.append((now - waiting, end))
        read = self._committed(first)
        for at, ends in self._moments:
            if all(read.get(place, offset) >= offset for place, offset in ends.items()):
                self._heard_at = max(self._heard_at, at)
        behind = [place for place, offset in end.items() if read[place] < offset]
        if behind:
            group, topic, number = behind[0]
            self.why = f"the group {group} has not read all of {topic}, partition {number}"
        elif waiting:
            self.why = "a participant's results wait to be published"

    def _offsets(self, admin: "AdminClient") -> tuple[dict[Place, int], dict[Place, int]]:
        """Return the first offset and the end of each partition."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        seconds, spec = self.settings.timeout_seconds, OffsetSpec
        topics = dict.fromkeys(topic for _, topic in self.readers)
        wanted = [TopicPartition(topic, number) for topic in topics for number in self._partitions(admin, topic)]
        if not wanted:
            return {}, {}
        found: list[dict[tuple[str, int], int]] = []
        for which in (spec.earliest(), spec.latest()):  # type: ignore[no-untyped-call]
            asked: Mapping[Any, Any] = admin.list_offsets(dict.fromkeys(wanted, which), request_timeout=seconds)
            found.append({(at.topic, at.partition): kafka.answered(each, seconds).offset for at, each in asked.items()})
        first, end = (
            {(group, of, number): offset
             for group, topic in self.readers for (of, number), offset in each.items() if of == topic}
            for each in found
        )  # fmt: skip
        return first, end

    def _partitions(self, admin: "AdminClient", topic: str) -> Collection[int]:
        """Return the partitions of a topic: none if it does not exist. Raise if that is not certain.

        A cluster that starts may not know its topics yet, and one that names no brokers knows nothing. A topic that was
        there is missed: what it held is lost or will be back, so time stands still until it is there again.
        """
        from confluent_kafka import KafkaError, KafkaException

        cluster = admin.list_topics(topic, timeout=self.settings.timeout_seconds)
        found = cluster.topics[topic]
        if found.partitions and not found.error:
            self._seen.add(topic)
            return found.partitions
        refused = found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"{topic} has no partitions")
        if refused.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and cluster.brokers and topic not in self._seen:
            return ()
        raise KafkaException(refused)

    def _committed(self, first: Mapping[Place, int]) -> dict[Place, int]:
        """Return how far each partition is read: what is deleted counts as read."""
        read = dict(first)
        for group in {group for group, _, _ in first}:
            if group not in self._clients:
                self._clients[group] = kafka.group_client(self.settings, "saga", group)
            wanted = [(topic, number) for of, topic, number in first if of == group]
            found = kafka.committed(self._clients[group], wanted, self.settings.timeout_seconds)
            read |= {(group, *place): max(read[group, *place], offset) for place, offset in found.items()}
        return read
