"""The default demo: append orders, roll some back, let the relay publish, and compare the topic with the journal."""

import random
import threading
import time
from dataclasses import dataclass

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import NewTopic

from ferryman.message import Message
from ferryman.outbox import append, append_many
from ferryman.relay.service import drain
from ferryman.runtime import kafka
from ferryman.runtime.settings import Kafka, Settings

TOPIC = "orders"
ORDERS = 10_000
_CUSTOMERS = 50
_PARTITIONS = 3
_SECONDS = 10.0

Order = tuple[str, int]
"""A customer, which is the message's key, and the number of the order."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """The differences between what was committed and what is in the topic."""

    committed: int
    rolled_back: int
    read: int
    missing: int
    doubled: int
    of_rolled_back: int
    out_of_order: int
    seconds: float

    @property
    def good(self) -> bool:
        """True if the topic has every committed order once, in order, and nothing else."""
        return self.committed == self.read and not (
            self.missing or self.doubled or self.of_rolled_back or self.out_of_order
        )


def cross(settings: Settings, database_url: str) -> Crossing:
    """Append, publish and read back. The seconds are those of the relay."""
    admin = kafka.admin(settings.kafka, "demo")
    kafka.create_topics(admin, [NewTopic(TOPIC, _PARTITIONS, 1)], _SECONDS)
    committed, rolled_back = _append(database_url)
    began = time.monotonic()
    drain(settings, threading.Event())
    seconds = time.monotonic() - began
    read = [((each.key() or b"").decode(), int(each.value() or b"")) for each in _records(settings.kafka)]
    last: dict[str, int] = {}
    out_of_order = 0
    for customer, number in read:
        out_of_order += number < last.get(customer, 0)
        last[customer] = number
    return Crossing(
        committed=len(committed),
        rolled_back=len(rolled_back),
        read=len(read),
        missing=len(committed - set(read)),
        doubled=len(read) - len(set(read)),
        of_rolled_back=len(rolled_back & set(read)),
        out_of_order=out_of_order,
        seconds=seconds,
    )


def _append(database_url: str) -> tuple[set[Order], set[Order]]:
    """Append orders in transactions. Return the committed orders, and those that were rolled back."""
    committed, rolled_back = set[Order](), set[Order]()
    dice = random.Random(1)
    with psycopg.connect(database_url) as connection:
        for first in range(0, ORDERS, 100):
            batch = [(f"customer-{dice.randrange(_CUSTOMERS)}", number) for number in range(first, first + 100)]
            append_many(connection, [_message(each) for each in batch])
            connection.commit()
            committed |= set(batch)
            lost = (f"customer-{dice.randrange(_CUSTOMERS)}", ORDERS + first)
            append(connection, _message(lost))
            connection.rollback()
            rolled_back.add(lost)
    return committed, rolled_back


def _message(order: Order) -> Message:
    customer, number = order
    return Message("order.placed", str(number).encode(), key=customer, topic=TOPIC)


def _records(settings: Kafka) -> list[KafkaMessage]:
    """Return every record of the topic, each partition in its order."""
    ours = {"group.id": "demo", "enable.auto.commit": False}
    consumer = Consumer(kafka.client_config(settings, "demo", **ours))
    try:
        numbers = consumer.list_topics(TOPIC, timeout=_SECONDS).topics[TOPIC].partitions
        partitions = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in numbers]
        ends = [consumer.get_watermark_offsets(each, timeout=_SECONDS)[1] for each in partitions]
        consumer.assign(partitions)
        return [each for each in consumer.consume(sum(ends), timeout=_SECONDS) if each.error() is None]
    finally:
        consumer.close()
