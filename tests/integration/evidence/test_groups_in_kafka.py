"""Kafka tells which groups are past a message, and which are gone."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ferryman.consumer.model import BY_SOURCE_AND_ID
from ferryman.consumer.wire import identity as identity_of
from ferryman.consumer.wire import record_of
from ferryman.evidence.kafka import SoughtRecord, groups_gone, look
from ferryman.runtime.settings import Kafka
from support.published import poll_until
from support.topics import create

pytestmark = pytest.mark.real_kafka
AN_HOUR = timedelta(hours=1)


def sent(kafka: str, topic: str, headers: Mapping[str, str], many: int = 1) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(many):
        producer.produce(topic, b"v", headers=dict(headers))
    assert producer.flush(20) == 0


def committed(kafka: str, group: str, topic: str, offset: int) -> None:
    """Let a group have read up to an offset, without joining it."""
    client = Consumer({"bootstrap.servers": kafka, "group.id": group, "enable.auto.commit": False})

    def done() -> bool:
        try:
            client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        except KafkaException as error:
            if error.args[0].retriable():
                return False
            raise
        return True

    poll_until(done, "commit")
    client.close()


def test_each_group_is_past_a_record_by_its_own_offset(ferryman_kafka: str) -> None:
    """Also if another consumer's receipt tells where the record is."""
    topic, identity = create(ferryman_kafka), uuid4()
    sent(ferryman_kafka, topic, {"ce_id": str(identity)})
    committed(ferryman_kafka, f"ahead-{topic}", topic, 1)
    committed(ferryman_kafka, f"behind-{topic}", topic, 0)
    groups = tuple(f"{name}-{topic}" for name in ("ahead", "behind", "never"))
    for place in (None, (0, 0)):
        wanted = SoughtRecord(identity, topic, datetime.now(UTC) - AN_HOUR, groups, place)
        [seen] = look(Kafka(bootstrap_servers=ferryman_kafka), [wanted], 20)[identity]
        assert seen.past == {f"ahead-{topic}"}


def test_group_without_an_offset_that_it_could_go_on_at_is_gone(ferryman_kafka: str) -> None:
    topic, settings = create(ferryman_kafka), Kafka(bootstrap_servers=ferryman_kafka)
    sent(ferryman_kafka, topic, {}, many=3)
    there, never = (f"there-{topic}", topic), (f"never-{topic}", topic)
    committed(ferryman_kafka, there[0], topic, 1)
    assert groups_gone(settings, [there, never], 20) == {never}
    admin = AdminClient({"bootstrap.servers": ferryman_kafka})
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    deleted.result(30)
    assert groups_gone(settings, [there, never], 20) == {there, never}


def test_record_is_found_by_the_id_that_its_source_belongs_to(ferryman_kafka: str) -> None:
    """A receipt of `Consumer(id_from=("ce_source", "ce_id"))` tells the place and this id."""
    topic, given = create(ferryman_kafka), {"ce_id": "12", "ce_source": "/there"}
    sent(ferryman_kafka, topic, given)
    identity = _read(ferryman_kafka, topic)
    wanted = SoughtRecord(identity, topic, datetime.now(UTC), (), (0, 0))
    [seen] = look(Kafka(bootstrap_servers=ferryman_kafka), [wanted], 20)[identity]
    assert (seen.partition, seen.offset) == (0, 0)


def _read(kafka: str, topic: str) -> UUID:
    client = Consumer({"bootstrap.servers": kafka, "group.id": topic, "auto.offset.reset": "earliest"})
    client.assign([TopicPartition(topic, 0, 0)])
    try:
        message = client.poll(20)
        assert message is not None
        return identity_of(record_of(message), BY_SOURCE_AND_ID)
    finally:
        client.close()
