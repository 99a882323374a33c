"""How long a duplicate may still come, against how long its receipt is kept: a contract, checked and not hoped for."""

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from ferryman.consumer.api import Consumer
from ferryman.consumer.retries import retry_topic
from ferryman.runtime import kafka
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Settings

_FOR_EVER = -1


def check(settings: Settings, consumer: Consumer) -> bool:
    """Refuses to go on where a receipt would be forgotten before its last duplicate can come.

    Whether the cluster told of every topic.
    """
    kept = settings.consumer.receipts_retention_seconds
    if not kept:
        return True
    retries = [retry_topic(each, consumer.name) for each in consumer.topics]
    told = _configurations(settings, [*consumer.topics, *retries])
    for topic, configuration in told.items():
        if problem := too_short(topic, configuration, settings):
            raise problem
    return told.keys() >= set(consumer.topics)


def too_short(topic: str, configuration: Mapping[str, str], settings: Settings) -> Misconfigured | None:
    """The numbers, and what would mend them."""
    ours = settings.consumer
    retention, segment = (int(configuration.get(name, _FOR_EVER)) for name in ("retention.ms", "segment.ms"))
    if retention == _FOR_EVER or "delete" not in configuration.get("cleanup.policy", "delete"):
        return Misconfigured(
            f"topic {topic} keeps its messages for ever, and receipts are kept for "
            f"{ours.receipts_retention_seconds:,.0f} s: a message could come again that nobody remembers",
            setting="consumer.receipts_retention_seconds",
            remedy="set it to 0 (for ever), or the topic's retention.ms and cleanup.policy=delete",
        )  # fmt: skip
    needed = (retention + segment) / 1000 + ours.replay_seconds + ours.dead_letter_seconds
    if needed <= ours.receipts_retention_seconds:
        return None
    return Misconfigured(
        f"receipts are kept for {ours.receipts_retention_seconds:,.0f} s, and a message of {topic} may come again for "
        f"{needed:,.0f} s: retention.ms {retention / 1000:,.0f} s + segment.ms {segment / 1000:,.0f} s + replays "
        f"{ours.replay_seconds:,.0f} s + dead letters {ours.dead_letter_seconds:,.0f} s",
        setting="consumer.receipts_retention_seconds", remedy=f"set it to {needed:.0f} or more, or to 0 (for ever)",
    )  # fmt: skip


def _configurations(settings: Settings, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Empty for a topic that is not there, or where the cluster does not tell."""
    client = kafka.admin(settings.kafka, "window")  # a client that nobody holds would end before it has its answer
    asked = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, topic) for topic in topics], request_timeout=settings.kafka.timeout_seconds
    )
    found = {}
    for resource, answer in asked.items():
        try:
            entries = answer.result(2 * settings.kafka.timeout_seconds)
        except KafkaException:
            continue
        found[str(resource.name)] = {each.name: each.value for each in entries.values() if each.value is not None}
    return {topic: each for topic, each in found.items() if "retention.ms" in each}
