"""The topics of a consumer: what they keep, its dead letters, and retry topics, created at the first requeue."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from ferryman.consumer.api import Consumer
from ferryman.runtime import kafka
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Kafka, Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicMetadata

_RETRY = ".retry."
_DEAD_LETTERS = ".dlt"
_LONGEST_NAME = 249
_FOR_EVER = -1
# The settings that decide how long a message may come again, and how large it may be.
_LIKE_THE_ORIGINAL = ("retention.ms", "segment.ms", "max.message.bytes")


def retry_topic(topic: str, consumer: str) -> str:
    """Return the topic for requeued messages, which no other group reads. A retry topic is its own retry topic."""
    return topic if is_retry_topic(topic, consumer) else _with_suffix(topic, _RETRY + consumer)


def is_retry_topic(topic: str, consumer: str) -> bool:
    return topic.endswith(_RETRY + consumer)


def dead_letter_topic(topic: str, consumer: str) -> str:
    """Return the topic for the dead letters of a topic; those of a retry topic go where the original's go."""
    return _with_suffix(topic.removesuffix(_RETRY + consumer), _DEAD_LETTERS)


def _with_suffix(topic: str, suffix: str) -> str:
    """Return the name with a suffix. Names that would be too long are cut, and told apart by a hash."""
    if len(topic) + len(suffix) <= _LONGEST_NAME:
        return topic + suffix
    mark = sha256(topic.encode()).hexdigest()[:16]
    return f"{topic[: _LONGEST_NAME - len(suffix) - len(mark) - 1]}-{mark}{suffix}"


class RetryTopics:
    """Retry topics in a cluster. `wanted` maps the name of each to the topic that it is modelled on."""

    def __init__(self, settings: Kafka, wanted: Mapping[str, str]) -> None:
        self._seconds = settings.timeout_seconds
        self._wanted = wanted
        self._heard = kafka.Hearing()
        self._admin: AdminClient = kafka.admin(settings, "inbox", error_cb=self._heard)

    def missing(self) -> list[str]:
        return [name for name in self._wanted if self._topic(name) is None]

    def create(self) -> list[str]:
        """Create the missing topics and return their names. Existing ones are not changed."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        made = self.missing()
        for name in made:
            like = self._topic(self._wanted[name])
            partitions = len(like.partitions) if like else 1
            topic = NewTopic(name, partitions, -1, config=self._configuration(self._wanted[name]))
            try:
                kafka.create_topics(self._admin, [topic], self._seconds)
            except KafkaException as error:
                why = self._heard.translate(error, self._admin)
                raise Misconfigured(
                    f"topic {name} does not exist and could not be created: {why.message}",
                    remedy=f"create it with {partitions} partitions; nothing was requeued",
                ) from error
        return made

    def _topic(self, name: str) -> "TopicMetadata | None":
        from confluent_kafka import KafkaException

        try:
            found = self._admin.list_topics(topic=name, timeout=self._seconds).topics.get(name)
        except KafkaException as error:
            raise self._heard.translate(error, self._admin) from error
        return None if found is None or found.error is not None else found

    def _configuration(self, original: str) -> dict[str, str]:
        """Return the original's settings, or nothing if the cluster does not tell: the broker's defaults apply then."""
        told = _told(self._admin, [original], self._seconds).get(original, {})
        return {name: value for name, value in told.items() if name in _LIKE_THE_ORIGINAL}


def check_dedupe_window(settings: Settings, consumer: Consumer) -> bool:
    """Refuse settings by which a receipt is forgotten before its last duplicate can come.

    Return True if the cluster told the settings of every topic that exists.
    """
    if not settings.consumer.receipts_retention_seconds:
        return True
    retries = [retry_topic(each, consumer.name) for each in consumer.topics]
    told = _topic_settings(settings, [*consumer.topics, *retries])
    for topic, configuration in told.items():
        if configuration is not None and (problem := window_problem(topic, configuration, settings)):
            raise problem
    return told.keys() >= set(consumer.topics)


def window_problem(topic: str, configuration: Mapping[str, str], settings: Settings) -> Misconfigured | None:
    """Return how the settings of a topic and of the inbox contradict each other, with the numbers that would do."""
    ours = settings.consumer
    retained, segment = (int(configuration.get(name, _FOR_EVER)) for name in ("retention.ms", "segment.ms"))
    if retained == _FOR_EVER or "delete" not in configuration.get("cleanup.policy", "delete"):
        return Misconfigured(
            f"topic {topic} keeps its messages for ever, and receipts are kept for "
            f"{ours.receipts_retention_seconds:,.0f} s: a message could come again after its receipt is gone",
            setting="consumer.receipts_retention_seconds",
            remedy="set it to 0 (for ever), or the topic's retention.ms and cleanup.policy=delete",
        )  # fmt: skip
    needed = (retained + segment) / 1000 + ours.replay_seconds + ours.dead_letter_seconds
    if needed <= ours.receipts_retention_seconds:
        return None
    return Misconfigured(
        f"receipts are kept for {ours.receipts_retention_seconds:,.0f} s, and a message of {topic} may come again for "
        f"{needed:,.0f} s: retention.ms {retained / 1000:,.0f} s + segment.ms {segment / 1000:,.0f} s + replays "
        f"{ours.replay_seconds:,.0f} s + dead letters {ours.dead_letter_seconds:,.0f} s",
        setting="consumer.receipts_retention_seconds", remedy=f"set it to {needed:.0f} or more, or to 0 (for ever)",
    )  # fmt: skip


def _topic_settings(settings: Settings, topics: Sequence[str]) -> dict[str, dict[str, str] | None]:
    """Return the settings of the topics, as far as the cluster tells them. A topic that does not exist yet has None."""
    from confluent_kafka import KafkaError, KafkaException

    client = kafka.admin(settings.kafka, "window")  # held in a variable: it would end before it has its answer
    try:
        told, refused = kafka.topic_settings(client, topics, settings.kafka.timeout_seconds)
    except KafkaException:
        return {}
    absent = [topic for topic, error in refused.items() if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART]
    return {topic: each for topic, each in told.items() if "retention.ms" in each} | dict.fromkeys(absent)


def _told(client: "AdminClient", topics: Sequence[str], seconds: float) -> dict[str, dict[str, str]]:
    from confluent_kafka import KafkaException

    try:
        told, _ = kafka.topic_settings(client, topics, seconds)
    except KafkaException:
        return {}
    return told
