"""What Kafka says of whoever is to read commands and results: how far its group is behind."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ferryman.evidence.reconcile.model import Lag
from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka
from ferryman.runtime.times import span

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
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
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    seconds = settings.timeout_seconds
    known = admin.list_topics(topic, timeout=seconds).topics[topic]
    if known.error:
        return Lag(f"Kafka has no topic {topic}")
    places = [TopicPartition(topic, number) for number in known.partitions]
    offsets: Any = OffsetSpec
    old = datetime.now(UTC) - timedelta(seconds=answer_seconds)
    first = _offsets(admin, dict.fromkeys(places, offsets.earliest()), seconds)
    ends = _offsets(admin, dict.fromkeys(places, offsets.latest()), seconds)
    due = _offsets(admin, dict.fromkeys(places, offsets.for_timestamp(int(old.timestamp() * 1000))), seconds)
    read = _committed(places, group, settings)
    start = {number: max(low, read[number]) for number, low in first.items()}
    behind = {number: max(0, end - start[number]) for number, end in ends.items()}
    overdue = {number: max(0, (ends[number] if at < 0 else at) - start[number]) for number, at in due.items()}
    said = f"the group {group} has read all of {topic}"
    if many := sum(behind.values()):
        said = f"the group {group} is {many:,} messages behind in {topic}"
    lag = Lag(f"Kafka: {said}", sum(min(behind[number], overdue[number]) for number in behind))
    lost = {number: low - read[number] for number, low in first.items() if 0 <= read[number] < low}
    return _stopped(lag, topic, group, lost, settings) if lost else lag


def _stopped(lag: Lag, topic: str, group: str, lost: Mapping[int, int], settings: Kafka) -> Lag:
    """Its consumer ends with an error where what it was to read next is not there any more."""
    where = ",".join(str(number) for number in sorted(lost))
    said = f"of {topic}, partition {where}, {sum(lost.values()):,} messages were deleted before it read them"
    resets = (
        f"kafka-consumer-groups --bootstrap-server {settings.bootstrap_servers} --group {group} "
        f"--topic {topic}:{where} --reset-offsets --to-earliest --execute"
    )
    return Lag(f"{lag.said}; {said}: it stops there until a person resets its offsets", lag.overdue, resets)


def _committed(places: "Sequence[TopicPartition]", group: str, settings: Kafka) -> dict[int, int]:
    """By partition; negative where there is none. Asked as one of the group, which does not join it: an admin client
    may take the process with it when it asks a broker that is not the group's coordinator, or not yet.
    """
    from confluent_kafka import Consumer, KafkaException

    client = Consumer(kafka.client_config(settings, "reconcile", **{"group.id": group, "enable.auto.commit": False}))
    try:
        found = client.committed(list(places), settings.timeout_seconds)
    finally:
        client.close()
    if failed := [each.error for each in found if each.error]:
        raise KafkaException(failed[0])
    return {each.partition: each.offset for each in found}


def _offsets(admin: "AdminClient", wanted: Mapping[Any, Any], seconds: float) -> dict[int, int]:
    """By partition; negative where none is that young."""
    found = admin.list_offsets(dict(wanted))
    return {each.partition: answer.result(seconds).offset for each, answer in found.items()}
