"""Whether every partition has an owner, where members keep their names over restarts.

Who comes back under its own name is given what it had, and is not asked what there is: when it leads the group, no
other member looks either. What was made while it was away, a topic or more partitions of one, then has no owner until
the group divides its work again, for whatever reason. This is the reason: a member without a name that comes and goes.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from ferryman.consumer.kafka import member
from ferryman.consumer.model import Partition
from ferryman.runtime import kafka
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka

log = structlog.get_logger(__name__)

# Before the first look, and between two that must say the same: a group that divides its work takes less.
_LOOK_SECONDS = 3.0
_LONGEST_SECONDS = 120.0
_PASSING_SECONDS = 30.0
# So long that a broker that restarts gives its answer at last: where such a question times out while the group's
# coordinator is looked for, librdkafka may end the whole process (an assertion in rdkafka_queue.h).
_ANSWER_SECONDS = 600.0


@dataclass(slots=True)
class Division:
    """Looks after each time that this process comes into the group, in a thread of its own."""

    group: str
    topics: Collection[str]
    settings: Kafka
    look_seconds: float = _LOOK_SECONDS
    _came: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def look_soon(self) -> None:
        """Returns at once."""
        self._came.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self.group}-division", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._came.set()
        if self._thread is not None:
            self._thread.join(self.settings.timeout_seconds)

    def _run(self) -> None:
        """With one client for its whole life: none ends while it is asked something."""
        client = None
        while self._came.wait() and not self._closing.is_set():
            self._came.clear()
            wait = self.look_seconds
            while not self._closing.wait(wait):
                try:
                    client = client or kafka.admin(self.settings, "division")
                    if not self._mend(client):
                        break
                    wait = min(2 * wait, _LONGEST_SECONDS)  # a group that leaves it so each time is left in peace
                except (KafkaException, FerrymanError) as error:
                    log.info("the group's division is not known", consumer=self.group, error=str(error))
                    wait = _LONGEST_SECONDS

    def _mend(self, client: AdminClient) -> bool:
        """Whether there was something to mend. A cluster that is away is not asked."""
        client.list_topics(next(iter(self.topics)), timeout=self.settings.timeout_seconds)
        left = self.unowned(client)
        if not left or self._closing.wait(self.look_seconds):
            return False
        left &= self.unowned(client)
        if left:
            log.warning("partitions without an owner", consumer=self.group, partitions=sorted(left))
            self._pass_by()
        return bool(left)

    def unowned(self, client: AdminClient) -> set[Partition]:
        """None, too, while the group divides its work."""
        [answer] = client.describe_consumer_groups([self.group], request_timeout=_ANSWER_SECONDS).values()
        found = answer.result()
        if found.state != ConsumerGroupState.STABLE:
            return set()
        owned = {(each.topic, each.partition) for one in found.members for each in one.assignment.topic_partitions}
        return {(topic, number) for topic in self.topics for number in self._partitions(client, topic)} - owned

    def _partitions(self, client: AdminClient, topic: str) -> Collection[int]:
        """None of a topic that is not there: retry topics are made when something is requeued."""
        found = client.list_topics(topic, timeout=self.settings.timeout_seconds).topics[topic]
        return () if found.error else found.partitions

    def _pass_by(self) -> None:
        """All divide what there is when somebody comes, and again when it goes. It reads nothing."""
        joined = threading.Event()
        passer = member(self.settings, self.group)
        try:
            passer.subscribe(list(self.topics), on_assign=lambda _client, _partitions: joined.set())
            waited = 0.0
            while not joined.is_set() and waited < _PASSING_SECONDS and not self._closing.is_set():
                passer.poll(0.1)
                waited += 0.1
        finally:
            passer.close()
