"""Partitions without an owner, which groups with static members can have.

A static member that returns gets its former assignment back without a rebalance; if it leads the group, no other member
looks for new partitions either. Topics and partitions created while it was away then have no owner until the next
rebalance. We force one: a dynamic member joins and leaves.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ferryman.consumer.kafka.group import group_client, leave
from ferryman.consumer.model import Partition
from ferryman.runtime import kafka
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka

log = structlog.get_logger(__name__)

# The time before the first look, and between two that must agree: a rebalance takes less.
_LOOK_SECONDS = 3.0
_LONGEST_SECONDS = 120.0
_JOIN_SECONDS = 30.0
# Long enough for a broker that restarts to answer at last: if such a request times out while the group's coordinator is
# looked for, librdkafka may end the whole process (an assertion in rdkafka_queue.h).
_ANSWER_SECONDS = 600.0


@dataclass(slots=True)
class OrphanWatch:
    """A thread that looks for partitions without an owner after each assignment of this process."""

    group: str
    topics: Collection[str]
    settings: Kafka
    _came: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def look_soon(self) -> None:
        """Start a look, and return at once."""
        self._came.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self.group}-orphans", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._came.set()
        if self._thread is not None:
            self._thread.join(self.settings.timeout_seconds)

    def _run(self) -> None:
        client = None  # one for the whole life of the thread: a client must not end while it is asked something
        while self._came.wait() and not self._closing.is_set():
            self._came.clear()
            wait = _LOOK_SECONDS
            while not self._closing.wait(wait):
                try:
                    client = client or kafka.admin(self.settings, "orphans")
                    if kafka.is_built_in(client, self.settings.timeout_seconds) or not self._rebalance_orphans(client):
                        break
                    wait = min(2 * wait, _LONGEST_SECONDS)  # back off if rebalances do not help
                except (KafkaException, FerrymanError) as error:
                    log.info("the group's division is not known", consumer=self.group, error=str(error))
                    wait = _LONGEST_SECONDS

    def _rebalance_orphans(self, client: AdminClient) -> bool:
        """Force a rebalance if two looks find the same partitions without an owner. Return True if it did."""
        client.list_topics(next(iter(self.topics)), timeout=self.settings.timeout_seconds)  # raises if Kafka is away
        left = self.orphans(client)
        if not left or self._closing.wait(_LOOK_SECONDS):
            return False
        left &= self.orphans(client)
        if left:
            log.warning("partitions without an owner", consumer=self.group, partitions=sorted(left))
            self._force_rebalance()
        return bool(left)

    def orphans(self, client: AdminClient) -> set[Partition]:
        """Return the partitions without an owner: none during a rebalance."""
        [answer] = client.describe_consumer_groups([self.group], request_timeout=_ANSWER_SECONDS).values()
        found = answer.result()
        if found.state != ConsumerGroupState.STABLE:
            return set()
        owned = {(each.topic, each.partition) for one in found.members for each in one.assignment.topic_partitions}
        return {(topic, number) for topic in self.topics for number in self._partitions(client, topic)} - owned

    def _partitions(self, client: AdminClient, topic: str) -> Collection[int]:
        """Return a topic's partitions: none if it does not exist, as retry topics before the first requeue."""
        found = client.list_topics(topic, timeout=self.settings.timeout_seconds).topics[topic]
        return () if found.error else found.partitions

    def _force_rebalance(self) -> None:
        """Join the group, wait for an assignment, and leave without reading."""
        joined = threading.Event()

        def on_assign(client: Consumer, partitions: list[TopicPartition]) -> None:
            client.incremental_assign(partitions)
            joined.set()

        guest = group_client(self.settings, self.group)
        try:
            guest.subscribe(list(self.topics), on_assign=on_assign)
            waited = 0.0
            while not joined.is_set() and waited < _JOIN_SECONDS and not self._closing.is_set():
                guest.poll(0.1)
                waited += 0.1
        finally:
            leave(guest)
