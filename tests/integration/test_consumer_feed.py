"""A consumer's service in this process, with what Kafka's client may fail at."""

import threading
import uuid
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Producer

from ferryman import Consumer, Done, Outcome, Received
from ferryman.consumer import kafka
from ferryman.consumer.service import ConsumerService
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from support.published import poll_until
from support.topics import create

pytestmark = pytest.mark.real_kafka

Database = psycopg.Connection[tuple[Any, ...]]


class Forgetful(Client):
    """Cannot say how far the group is, the first times that it is asked."""

    times = 2

    def committed(self, *arguments: Any, **named: Any) -> Any:
        if Forgetful.times:
            Forgetful.times -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return super().committed(*arguments, **named)


def test_a_group_that_cannot_say_how_far_it_is_is_joined_again_and_nothing_is_lost(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, N9, N11: without an answer the partitions were never assigned, and what came meanwhile was passed over."""
    monkeypatch.setattr(kafka, "Client", Forgetful)
    topic = create(ferryman_kafka, partitions=3)
    consumer = Consumer(f"feed-{topic}", [topic])

    @consumer.handles("t")
    def handle(_db: Database, _message: Received) -> Outcome:
        return Done()

    producer = Producer({"bootstrap.servers": ferryman_kafka, "log_level": 0})
    for number in range(60):
        headers: Any = [("ce_type", b"t"), ("ce_id", str(uuid.uuid4()).encode())]
        producer.produce(topic, b"x", str(number), headers=headers)
    assert producer.flush(10) == 0
    settings = Settings.model_validate(
        {"database_url": ferryman_database_url, "kafka": {"bootstrap_servers": ferryman_kafka}}
    )
    life = Life(consumer.name)
    running = threading.Thread(target=ConsumerService(consumer, settings).run, args=(life,))
    running.start()
    try:
        poll_until(lambda: _verdicts(ferryman_db) == 60, "verdicts", 30)
    finally:
        life.stopping.set()
        running.join(20)
    assert Forgetful.times == 0
    assert not running.is_alive()


def _verdicts(db: Database) -> int:
    row = db.execute("SELECT count(*) FROM ferryman.inbox WHERE status = 'HANDLED'").fetchone()
    assert row is not None
    return int(row[0])
