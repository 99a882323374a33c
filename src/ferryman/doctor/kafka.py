"""Checks of Kafka: reached, its version, broker settings that hurt."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ferryman.doctor import api_versions
from ferryman.doctor.model import Check, failed, from_error, ok, skipped, warning
from ferryman.runtime import kafka
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka, Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

OLDEST = (2, 8)


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
    yield _version(settings.kafka, metadata)
    try:
        yield _settings(admin, metadata, settings.kafka.timeout_seconds)
    except KafkaException as error:
        yield skipped("kafka.settings", f"the broker does not tell: {kafka.translate(error).message}")


def _unreached(settings: Kafka, error: FerrymanError) -> FerrymanError:
    """librdkafka says only that metadata did not come; which brokers were asked helps more."""
    return type(error)(
        f"no broker of {settings.bootstrap_servers} answered within {settings.timeout_seconds:g} s: {error.message}",
        setting=error.setting or "kafka.bootstrap_servers",
        remedy=error.remedy,
    )


def _version(settings: Kafka, metadata: "ClusterMetadata") -> Check:
    name = "kafka.version"
    broker = next(iter(metadata.brokers.values()))
    try:
        version = api_versions.broker_version(settings, str(broker.host), broker.port)
    except (OSError, ValueError) as error:
        return skipped(name, f"the broker does not tell: {error}")
    shown = f"{'.'.join(map(str, version))}" if version else "older than 3.3, or not Apache Kafka in KRaft mode"
    if version and version < OLDEST:
        return failed(name, shown, f"upgrade the brokers to {'.'.join(map(str, OLDEST))} or newer")
    return ok(name, shown)


def _settings(admin: "AdminClient", metadata: "ClusterMetadata", seconds: float) -> Check:
    from confluent_kafka.admin import ConfigResource, ResourceType

    name = "kafka.settings"
    resource = ConfigResource(ResourceType.BROKER, str(next(iter(metadata.brokers))))
    future = admin.describe_configs([resource], request_timeout=seconds)[resource]
    values = {entry.name: entry.value for entry in future.result().values()}
    if values.get("auto.create.topics.enable") == "true":
        return warning(
            name,
            "auto.create.topics.enable is true: a misspelt topic is created, and nobody reads it",
            "set auto.create.topics.enable=false on the brokers",
        )
    if len(metadata.brokers) > 2 and values.get("min.insync.replicas") == "1":
        return warning(
            name,
            "min.insync.replicas is 1: a message acknowledged by one broker is lost with it",
            "set min.insync.replicas=2 on the brokers or the topics",
        )
    return ok(name, f"none that hurts; message.max.bytes is {values.get('message.max.bytes', 'unknown')}")
