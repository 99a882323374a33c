"""What Kafka says of whoever is to read the commands: how far its group is behind. Evidence in words, and no more."""

from typing import TYPE_CHECKING, Any

from ferryman.evidence.messages import COMMANDS
from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_READERS = {"payments.commands": "wallet"}


def lags(settings: Kafka) -> dict[str, str]:
    """By the type of each command. A cluster that does not answer is no reason not to look at the databases."""
    from confluent_kafka import KafkaException

    try:
        admin = kafka.admin(settings, "reconcile")
        said = {topic: _lag(admin, topic, group, settings.timeout_seconds) for topic, group in _READERS.items()}
    except KafkaException as error:
        return dict.fromkeys(COMMANDS, f"Kafka does not say how far it is read: {kafka.translate(error).message}")
    return dict.fromkeys(COMMANDS, "; ".join(said.values()))


def _lag(admin: "AdminClient", topic: str, group: str, seconds: float) -> str:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    known = admin.list_topics(topic, timeout=seconds).topics[topic]
    if known.error:
        return f"Kafka has no topic {topic}"
    places = [TopicPartition(topic, number) for number in known.partitions]
    latest: Any = OffsetSpec
    ends = {each.partition: answer.result(seconds).offset
            for each, answer in admin.list_offsets({each: latest.latest() for each in places}).items()}  # fmt: skip
    [asked] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    read = {each.partition: max(each.offset, 0) for each in asked.result(seconds).topic_partitions}
    behind = sum(max(0, end - read.get(number, 0)) for number, end in ends.items())
    if behind:
        return f"Kafka: the group {group} is {behind:,} messages behind in {topic}: is `ferryman run {group}` running?"
    return f"Kafka: the group {group} has read all of {topic}"
