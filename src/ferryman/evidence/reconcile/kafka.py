"""What Kafka says of whoever is to read commands and results: how far its group is behind."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ferryman.evidence.reconcile.model import Lag
from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka
from ferryman.runtime.times import span

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# Kept until the command ends: a client that ends while it is asked something may take the process with it.
_asked: "list[AdminClient]" = []

_TOPICS = {"wallet": "payments.commands", "payments": "wallet.results"}
"""By who reads them; the name of a consumer is its group's."""


def lags(settings: Kafka, answer_seconds: float) -> dict[str, Lag]:
    """By the reader. A cluster that does not answer is no reason not to look at the databases."""
    from confluent_kafka import KafkaException

    try:
        admin = kafka.admin(settings, "reconcile")
        _asked.append(admin)
        return {group: _lag(admin, topic, group, settings, answer_seconds) for group, topic in _TOPICS.items()}
    except KafkaException as error:
        return _silence(kafka.translate(error).message)
    except TimeoutError:
        return _silence(f"no answer within {span(settings.timeout_seconds)}")


def _silence(why: str) -> dict[str, Lag]:
    return dict.fromkeys(_TOPICS, Lag(f"Kafka does not say how far it is read: {why}"))


def _lag(admin: "AdminClient", topic: str, group: str, settings: Kafka, answer_seconds: float) -> Lag:
    """What is younger than an answer may take is on its way, however much of it there is."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    seconds = settings.timeout_seconds
    known = admin.list_topics(topic, timeout=seconds).topics[topic]
    if known.error:
        return Lag(f"Kafka has no topic {topic}")
    places = [TopicPartition(topic, number) for number in known.partitions]
    offsets: Any = OffsetSpec
    old = datetime.now(UTC) - timedelta(seconds=answer_seconds)
    ends = _offsets(admin, dict.fromkeys(places, offsets.latest()), seconds)
    due = _offsets(admin, dict.fromkeys(places, offsets.for_timestamp(int(old.timestamp() * 1000))), seconds)
    [told] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    read = {each.partition: max(each.offset, 0) for each in told.result(seconds).topic_partitions}
    behind = {number: max(0, end - read.get(number, 0)) for number, end in ends.items()}
    overdue = sum(
        min(behind[number], max(0, (ends[number] if at < 0 else at) - read.get(number, 0)))
        for number, at in due.items()
    )
    if not any(behind.values()):
        return Lag(f"Kafka: the group {group} has read all of {topic}", 0)
    return Lag(f"Kafka: the group {group} is {sum(behind.values()):,} messages behind in {topic}", overdue)


def _offsets(admin: "AdminClient", wanted: Mapping[Any, Any], seconds: float) -> dict[int, int]:
    """By partition; negative where none is that young."""
    found = admin.list_offsets(dict(wanted))
    return {each.partition: answer.result(seconds).offset for each, answer in found.items()}
