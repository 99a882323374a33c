"""The topics that requeued messages go to: made when something is requeued for the first time, like their originals."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from ferryman.runtime import kafka
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicMetadata

# What decides how long a message may come again, and how large it may be.
_LIKE_THE_ORIGINAL = ("retention.ms", "segment.ms", "max.message.bytes")


class RetryTopics:
    """Of one cluster. `wanted` says of each retry topic which one it is like."""

    def __init__(self, settings: Kafka, wanted: Mapping[str, str]) -> None:
        self._seconds = settings.timeout_seconds
        self._wanted = wanted
        self._heard = kafka.Hearing()
        ours: dict[str, Any] = {"allow.auto.create.topics": False, "error_cb": self._heard}
        self._admin: AdminClient = kafka.admin(settings, "inbox", **ours)

    def missing(self) -> list[str]:
        return [name for name in self._wanted if self._topic(name) is None]

    def create(self) -> list[str]:
        """Those that were missing; nothing is changed about those that are there."""
        from confluent_kafka.admin import NewTopic

        made = self.missing()
        for name in made:
            like = self._wanted[name]
            topic = NewTopic(name, self._partitions(like), -1, config=self._configuration(like))
            try:
                kafka.create_topics(self._admin, [topic], self._seconds)
            except KafkaException as error:
                raise self._not_created(name, error) from error
        return made

    def _not_created(self, name: str, error: KafkaException) -> Misconfigured:
        why = self._heard.translate(error, self._admin)
        partitions = self._partitions(self._wanted[name])
        return Misconfigured(
            f"topic {name} is not there and could not be created: {why.message}",
            remedy=f"create it with {partitions} partitions; nothing was requeued",
        )

    def _partitions(self, original: str) -> int:
        topic = self._topic(original)
        return len(topic.partitions) if topic else 1

    def _topic(self, name: str) -> "TopicMetadata | None":
        try:
            found = self._admin.list_topics(topic=name, timeout=self._seconds).topics.get(name)
        except KafkaException as error:
            raise self._heard.translate(error, self._admin) from error
        return None if found is None or found.error is not None else found

    def _configuration(self, original: str) -> dict[str, str]:
        """Empty where the cluster does not tell: it then has the broker's defaults."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        asked: dict[Any, Any] = self._admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, original)], request_timeout=self._seconds
        )
        try:
            entries = next(iter(asked.values())).result(2 * self._seconds)
        except KafkaException:
            return {}
        known = {name: entries[name].value for name in _LIKE_THE_ORIGINAL if name in entries}
        return {name: value for name, value in known.items() if value is not None}
