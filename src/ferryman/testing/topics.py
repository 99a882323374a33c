"""Topics on a cluster of the tests: made, and read back whole."""

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ferryman.runtime.kafka import create_topics

_SECONDS = 10.0


def new_topic(bootstrap: str, name: str, *, partitions: int = 3) -> None:
    """Makes a topic; librdkafka's built-in broker cannot be told to, and makes it when it is asked for one."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "allow.auto.create.topics": True, "log_level": 0})
    if admin.list_topics(topic=name, timeout=_SECONDS).topics[name].error is not None:
        create_topics(admin, [NewTopic(name, partitions, 1)], _SECONDS)


def read_topic(bootstrap: str, name: str) -> Iterator[Message]:
    """Every record that was in it when it was asked, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(name, timeout=_SECONDS).topics[name].partitions
        ends = {
            each: consumer.get_watermark_offsets(TopicPartition(name, each), timeout=_SECONDS) for each in partitions
        }
        left = {each for each, (low, high) in ends.items() if high > low}
        consumer.assign([TopicPartition(name, each, ends[each][0]) for each in left])
        until = time.monotonic() + _SECONDS
        while left and time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is None or message.error():
                continue
            until = time.monotonic() + _SECONDS
            if (message.offset() or 0) + 1 >= ends[message.partition() or 0][1]:
                left.discard(message.partition() or 0)
            yield message
    finally:
        consumer.close()
