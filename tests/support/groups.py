"""A consumer whose service runs in this process, and its topic, group and receipts."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ferryman import Consumer, Done, Outcome, Received
from ferryman.consumer.api import Mode
from ferryman.consumer.service import ConsumerService
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from support.published import poll_until
from support.topics import create

Database = psycopg.Connection[tuple[Any, ...]]


class Group:
    """A consumer of one topic that handles everything; its service runs in this process."""

    def __init__(self, kafka: str, url: str, mode: Mode = "effectively_once", **consumer: Any) -> None:
        self.topic = create(kafka, partitions=3)
        self.consumer = Consumer(f"feed-{self.topic}", [self.topic], mode=mode)
        self.settings = Settings.model_validate(
            {
                "database_url": url,
                "kafka": {"bootstrap_servers": kafka, "heartbeat.interval.ms": "300"},
                "consumer": consumer,
            }
        )
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.producer = Producer(
            {"bootstrap.servers": kafka, "log_level": 0, "topic.metadata.refresh.interval.ms": 200}
        )

        @self.consumer.handles("t")
        def handle(_db: Database, _message: Received) -> Outcome:
            return Done()

    def send(self, many: int, partition: int = -1, topic: str = "") -> None:
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers, "log_level": 0})
        for number in range(many):
            headers: Any = [("ce_type", b"t"), ("ce_id", str(uuid.uuid4()).encode())]
            producer.produce(topic or self.topic, b"x", str(number), partition, None, None, 0, headers)
        assert producer.flush(10) == 0

    def run(self) -> None:
        """Run the service until it raises; stop it after 20 s."""
        life = Life(self.consumer.name)
        enough = threading.Timer(20, life.stopping.set)
        enough.start()
        try:
            ConsumerService(self.consumer, self.settings).run(life)
        finally:
            enough.cancel()

    def forget_offsets(self) -> None:
        """Delete the offsets, as Kafka does some days after the last member left."""
        [deleted] = self.admin.delete_consumer_groups([self.consumer.name]).values()
        deleted.result(30)

    def delete_records(self, partition: int, before: int) -> None:
        """Delete records, as retention does."""
        [deleted] = self.admin.delete_records([TopicPartition(self.topic, partition, before)]).values()
        deleted.result(30)

    def recreate(self) -> None:
        """Delete the topic, and make one with its name."""
        [deleted] = self.admin.delete_topics([self.topic]).values()
        deleted.result(30)
        poll_until(lambda: self.topic not in self.admin.list_topics(timeout=10).topics, "a cluster without the topic")
        create(self.settings.kafka.bootstrap_servers or "", self.topic, partitions=3)

    def set_offset(self, offset: int, partition: int = 1) -> None:
        """Set the group's offset while it has no members, as kafka-consumer-groups --reset-offsets does."""
        places = [TopicPartition(self.topic, partition, offset)]
        asked = [ConsumerGroupTopicPartitions(self.consumer.name, places)]

        def done() -> bool:
            [answer] = self.admin.alter_consumer_group_offsets(asked).values()
            try:
                return not any(place.error for place in answer.result(30).topic_partitions)
            except KafkaException:
                return False

        poll_until(done, "the offsets", 30)

    @contextmanager
    def running(self) -> Iterator[Life]:
        life = Life(self.consumer.name)
        running = threading.Thread(target=ConsumerService(self.consumer, self.settings).run, args=(life,))
        running.start()
        try:
            yield life
        finally:
            life.stopping.set()
            running.join(20)
        assert not running.is_alive()


def owned(db: Database) -> int:
    return _count(db, "SELECT count(*) FROM ferryman.inbox_start WHERE owned")


def verdicts(db: Database) -> int:
    return _count(db, "SELECT count(*) FROM ferryman.inbox WHERE status = 'HANDLED'")


def _count(db: Database, query: str) -> int:
    row = db.execute(query).fetchone()
    assert row is not None
    return int(row[0])
