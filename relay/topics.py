"""What the relay has to know of a topic before it produces: that it is there, its largest message, its policy."""

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

BROKERS_OWN_LIMIT = 1_048_588
"""What a broker takes when nobody set `max.message.bytes`: for clusters that do not tell."""

NO_TOPIC = "__ferryman"
"""Asked about when only the answer counts: an answer about all topics may be large."""

_FRESH_SECONDS = 300.0
# Some clusters, and librdkafka's built-in broker, have nobody to ask.
_CONFIGS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that may be published to."""

    name: str
    max_message_bytes: int = BROKERS_OWN_LIMIT


class TopicRefusedError(Exception):
    """Nothing can be published to this topic for now: its words say why and what to do."""


class ClusterAwayError(Exception):
    """The cluster does not answer."""


class Topics:
    """Asks the cluster once, and again when what it said is old or was proven wrong. Shared by the workers."""

    def __init__(self, settings: Kafka, compacted: Collection[str] = ()) -> None:
        self._settings = settings
        self._compacted = frozenset(compacted)
        self._known: dict[str, tuple[Topic, float]] = {}
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._tells_configs = True
        self._heard = kafka.Hearing()

    def get(self, name: str) -> Topic:
        """The topic as the cluster knows it; raises when it is refused, or when nobody answers."""
        known = self._known.get(name)
        if known and time.monotonic() - known[1] < _FRESH_SECONDS:
            return known[0]
        with self._lock:
            topic = self._ask(name)
            self._known[name] = (topic, time.monotonic())
            return topic

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    @property
    def smallest_limit(self) -> int:
        """Of all the topics known: no batch may be larger, since librdkafka does not look at a topic's limit."""
        return min((topic.max_message_bytes for topic, _ in list(self._known.values())), default=BROKERS_OWN_LIMIT)

    def answers(self, seconds: float) -> str | None:
        """Asks the cluster for a sign of life; None when it gives one, else the reason in words."""
        try:
            with self._lock:
                self._admin().list_topics(topic=NO_TOPIC, timeout=seconds)
        except KafkaException as error:
            return str(self._heard.translate(error, self._admin()))
        return None

    def _ask(self, name: str) -> Topic:
        try:
            found = self._admin().list_topics(topic=name, timeout=self._settings.timeout_seconds).topics.get(name)
        except KafkaException as error:
            raise ClusterAwayError(str(self._heard.translate(error, self._admin()))) from error
        if found is None:
            raise TopicRefusedError(f"Kafka does not know the topic {name}")
        if found.error is not None:
            raise TopicRefusedError(str(kafka.translate(found.error)))
        return self._checked(name, self._configuration(name))

    def _checked(self, name: str, configuration: dict[str, str]) -> Topic:
        if "compact" in configuration.get("cleanup.policy", "") and name not in self._compacted:
            raise TopicRefusedError(
                f"topic {name} is compacted: a late duplicate would overwrite a newer value. Remedy: set its "
                "cleanup.policy to delete, or name it in relay.compacted_topics if its readers compare positions"
            )
        return Topic(name, int(configuration.get("max.message.bytes", BROKERS_OWN_LIMIT)))

    def _configuration(self, name: str) -> dict[str, str]:
        """Empty where the cluster does not tell: the broker then refuses by itself what is too large."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        if not self._tells_configs:
            return {}
        asked: dict[Any, Any] = self._admin().describe_configs(
            [ConfigResource(ResourceType.TOPIC, name)], request_timeout=_CONFIGS_SECONDS
        )
        try:
            entries = next(iter(asked.values())).result(2 * _CONFIGS_SECONDS)
        except KafkaException as error:
            self._tells_configs = error.args[0].name() not in {"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"}
            return {}
        except TimeoutError:
            return {}
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}

    def _admin(self) -> "AdminClient":
        if self._client is None:
            ours: dict[str, Any] = {"allow.auto.create.topics": False, "error_cb": self._heard}
            self._client = kafka.admin(self._settings, "relay", **ours)
        return self._client
