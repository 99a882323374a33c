"""Checks of Kafka: it answers, its version, and broker settings that do harm."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ferryman.doctor.model import Check, failed, from_error, ok, skipped, warning
from ferryman.doctor.postgres import clusters
from ferryman.runtime import kafka
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka, Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

OLDEST = (2, 8)
_VERSION = "inter.broker.protocol.version"  # a broker setting that Kafka 4.0 removed


def checks(settings: Settings) -> Iterator[Check]:
    if not settings.kafka.bootstrap_servers:
        yield skipped("kafka.reached", "no cluster is named (kafka.bootstrap_servers)")
        return
    from confluent_kafka import KafkaException

    began, heard = time.monotonic(), kafka.Hearing()
    try:
        admin = kafka.admin(settings.kafka, "doctor", error_cb=heard)
    except FerrymanError as error:
        yield from_error("kafka.reached", error)
        return
    try:
        metadata = admin.list_topics(timeout=settings.kafka.timeout_seconds)
    except KafkaException as error:
        yield from_error("kafka.reached", _unreached(settings.kafka, heard.translate(error, admin)))
        return
    milliseconds = (time.monotonic() - began) * 1000
    brokers = ", ".join(f"{broker.host}:{broker.port}" for broker in metadata.brokers.values())
    yield ok("kafka.reached", f"{len(metadata.brokers)} broker(s): {brokers}, in {milliseconds:.0f} ms")
    cluster: Any = metadata.cluster_id  # confluent-kafka's types say that there is none
    yield from clusters(settings, cluster or "")
    if kafka.is_built_in(admin, settings.kafka.timeout_seconds):
        yield ok("kafka.version", "librdkafka's built-in broker: in memory, for trials and tests only")
        yield skipped("kafka.settings", "librdkafka's built-in broker has none")
        return
    try:
        values = _broker_settings(admin, metadata, settings.kafka.timeout_seconds)
    except KafkaException as error:
        reason = f"the broker does not show its settings: {kafka.translate(error).message}"
        yield from (skipped("kafka.version", reason), skipped("kafka.settings", reason))
    else:
        yield _version(values.get(_VERSION))
        yield _harmful(values, len(metadata.brokers))


def _unreached(settings: Kafka, error: FerrymanError) -> FerrymanError:
    """Name the brokers that were asked: librdkafka only says that no metadata came."""
    return type(error)(
        f"no broker of {settings.bootstrap_servers} answered within {settings.timeout_seconds:g} s: {error.message}",
        setting=error.setting or "kafka.bootstrap_servers",
        remedy=error.remedy,
    )


def _broker_settings(admin: "AdminClient", metadata: "ClusterMetadata", seconds: float) -> dict[str, str]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.BROKER, str(next(iter(metadata.brokers))))
    future = admin.describe_configs([resource], request_timeout=seconds)[resource]
    return {entry.name: entry.value for entry in kafka.answered(future, seconds).values()}


def _version(protocol: str | None) -> Check:
    """Judge a version such as `3.7-IV4`."""
    name = "kafka.version"
    if protocol is None:
        return ok(name, "4.0 or newer, or not Apache Kafka")
    shown = protocol.partition("-")[0]
    if tuple(map(int, shown.split("."))) < OLDEST:
        return failed(name, shown, f"upgrade the brokers to {'.'.join(map(str, OLDEST))} or newer")
    return ok(name, shown)


def _harmful(values: dict[str, str], brokers: int) -> Check:
    name = "kafka.settings"
    if values.get("auto.create.topics.enable") == "true":
        return warning(
            name,
            "auto.create.topics.enable is true: a misspelt topic is created, and nobody reads it",
            "set auto.create.topics.enable=false on the brokers",
        )
    if brokers > 2 and values.get("min.insync.replicas") == "1":
        return warning(
            name,
            "min.insync.replicas is 1: a message acknowledged by one broker is lost with it",
            "set min.insync.replicas=2 on the brokers or the topics",
        )
    return ok(name, f"none that does harm; message.max.bytes is {values.get('message.max.bytes', 'unknown')}")
