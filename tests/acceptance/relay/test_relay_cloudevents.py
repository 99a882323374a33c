"""Every record of the relay is a CloudEvent in Kafka's binary mode, as the official SDK reads it."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event, to_binary_event
from cloudevents.core.v1.event import CloudEvent

from ferryman.schemas import OURS
from ferryman.schemas.catalogue import load
from ferryman.schemas.registry.local import CatalogueRegistry
from support.appended import Appended
from support.launch import Launcher
from support.published import Record, read_topic
from support.topics import create

pytestmark = pytest.mark.real_kafka


def as_message(record: Record) -> KafkaMessage:
    return KafkaMessage(headers=dict(record.headers), key=record.key, value=record.value)


def test_every_record_is_a_cloudevent_to_the_official_sdk(
    ferryman: Launcher,
    ferryman_db: psycopg.Connection[tuple[Any, ...]],
    ferryman_database_url: str,
    ferryman_kafka: str,
) -> None:
    catalogue = load(OURS)
    appended = Appended(ferryman_db, create(ferryman_kafka, partitions=3), CatalogueRegistry(catalogue))
    for kind in catalogue.types.values():
        for sample in kind.samples:
            appended.sample(kind, sample, key=f"ключ-{kind.name}")
    appended.append("in.json", b'{"number": 7}', {"number": 7}, content_type="application/json")
    appended.append("in.octets", b"\xff", b"\xff", key="")
    environment = {
        "FERRYMAN_DATABASE_URL": ferryman_database_url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": ferryman_kafka
    }  # fmt: skip
    for again in (False, True):
        if again:
            replay = ("outbox", "replay", "--topic", appended.topic, "--yes", "--reason", "to see them again")
            assert ferryman.run(*replay, env=environment).wait() == 0
        assert ferryman.run("drain", env=environment).wait() == 0
    records = read_topic(ferryman_kafka, appended.topic)
    assert len(records) == 2 * len(appended.expected)
    for record in records:
        check(record, appended)


def check(record: Record, appended: Appended) -> None:
    event = from_kafka_event(as_message(record))
    assert isinstance(event, CloudEvent)
    identity = event.get_id()
    expected = appended.expected[identity]["headers"]
    assert str(UUID(identity)) == identity
    assert event.get_specversion() == "1.0"
    assert event.get_source() == expected["ce_source"]
    assert event.get_type() == expected["ce_type"]
    assert event.get_datacontenttype() == expected["content-type"]
    at = event.get_time()
    assert at is not None
    assert (at.utcoffset(), at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")) == (timedelta(0), expected["ce_time"])
    assert event.get_extension("partitionkey") == record.key
    assert data(event) == appended.payloads[identity]
    # What the SDK writes of it are our own headers.
    written = to_binary_event(event).headers
    assert written.items() >= {name: value for name, value in record.headers if name.startswith("ce_")}.items()
    assert written["content-type"] == dict(record.headers)["content-type"]


def data(event: CloudEvent) -> bytes:
    """Return its bytes: the SDK parses JSON, and decodes anything that could be text."""
    found = event.get_data()
    if isinstance(found, dict):
        return json.dumps(found).encode()
    return found.encode() if isinstance(found, str) else found or b""
