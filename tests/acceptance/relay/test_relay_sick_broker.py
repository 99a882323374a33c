"""One broker of two dies: what lives on the other is as quick as before (N10).

Slow, because two brokers are started, and because percentiles take some seconds.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from ferryman import Message, append_many
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from support.launch import Launcher
from support.pace import in_time
from support.published import metric, poll_until, readyz
from support.topics import Crossing

pytestmark = [pytest.mark.real_kafka, pytest.mark.serial("stacks"), pytest.mark.slow]

A_SECOND = 100
NOISE_SECONDS = 0.2


@pytest.fixture
def brokers() -> Iterator[tuple[LocalKafka, LocalKafka]]:
    first = started(LocalKafka())
    second = started(LocalKafka(beside=first))
    yield first, second
    second.close()
    first.close()


def place(kafka: str, topic: str, *brokers: int) -> None:
    """Create a topic with a partition on each of these brokers."""
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka})
    poll_until(lambda: len(admin.list_topics(timeout=5).brokers) == 2, "second broker")
    wanted = NewTopic(topic, len(brokers), replica_assignment=[[each] for each in brokers])
    admin.create_topics([wanted])[topic].result(30)
    poll_until(lambda: len(admin.list_topics(topic, 5).topics[topic].partitions) == len(brokers), "partitions")


class Delays:
    """Entries that are appended to some topics at a steady rate, and how long each took to a reader."""

    def __init__(self, database_url: str, kafka: str, watched: list[TopicPartition], topics: list[str]) -> None:
        self._database_url, self._topics = database_url, topics
        self._reader = Consumer({"bootstrap.servers": kafka, "group.id": "delays", "enable.auto.commit": False})
        self._reader.assign([TopicPartition(each.topic, each.partition, 0) for each in watched])
        self._stopping = threading.Event()
        self.at: list[tuple[str, float, float]] = []
        """The topic, the time of the append and the delay of each entry that arrived."""

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=each) for each in (self._write, self._read)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()
            self._reader.close()

    def p99(self, topic: str, since: float, until: float) -> float:
        delays = sorted(delay for name, at, delay in list(self.at) if name == topic and since <= at < until)
        assert len(delays) > 50, f"{len(delays)} of {topic} arrived"
        return delays[math.ceil(len(delays) * 0.99) - 1]

    def _write(self) -> None:
        with psycopg.connect(self._database_url, autocommit=True) as db:
            began, number = time.monotonic(), 0
            while not self._stopping.wait(max(0.0, began + number / A_SECOND - time.monotonic())):
                number += 1
                with db.transaction():
                    append_many(db, [self._message(topic, number) for topic in self._topics])

    def _message(self, topic: str, number: int) -> Message:
        return Message("t", b"%f" % time.monotonic(), key=f"k{number % 200}", topic=topic)

    def _read(self) -> None:
        while not self._stopping.is_set():
            record: Any = self._reader.poll(0.1)
            if record is not None and record.error() is None:
                at = float(record.value())
                self.at.append((record.topic(), at, time.monotonic() - at))


def test_dead_broker_slows_neither_other_topics_nor_healthy_partitions(
    ferryman: Launcher, ferryman_database_url: str, brokers: tuple[LocalKafka, LocalKafka]
) -> None:
    """N10, N8, N16: p99 is at most three times what it was, nothing is lost, and SIGTERM stays quick."""
    first, second = brokers
    for topic, where in {"good": (1, 1), "bad": (2, 2), "mixed": (1, 1, 1, 1, 2)}.items():
        place(first.url, topic, *where)
    crossing = Crossing(ferryman_database_url, first.url)
    environment = {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": f"{first.url},{second.url}",
    }
    relay = ferryman.start("run", "relay", env=environment)
    relay.until(lambda: readyz(relay) == "ready", "readiness")
    healthy = [TopicPartition("good", n) for n in (0, 1)] + [TopicPartition("mixed", n) for n in range(4)]
    delays = Delays(ferryman_database_url, first.url, healthy, ["good", "bad", "mixed"])
    with delays.running():
        poll_until(lambda: len(delays.at) > 200, "warm relay")
        began = time.monotonic()
        poll_until(lambda: time.monotonic() > began + 5, "five seconds")
        second.kill()
        killed = time.monotonic()
        poll_until(lambda: crossing.statuses("bad").get("PARKED"), "parked entries")
        poll_until(lambda: metric(relay, "ferryman_relay_breaker_open") >= 1, "an open breaker")
        poll_until(lambda: time.monotonic() > killed + 12, "some seconds")
        assert readyz(relay) == "ready"
        now = time.monotonic()
        relay.send(signal.SIGTERM)
        assert relay.wait(10) == 0
        assert in_time(time.monotonic() - now, 3)
        ended = now
    for topic in ("good", "mixed"):
        before, beside = delays.p99(topic, began, killed - 1), delays.p99(topic, killed, ended - 1)
        print(f"{topic}: p99 {before:.3f} s before, {beside:.3f} s while the broker is away")
        assert beside <= 3 * max(before, NOISE_SECONDS), topic
    assert crossing.most_attempts() == 0
    second.start()
    ferryman.start("run", "relay", env=environment)
    poll_until(lambda: set(crossing.statuses()) == {"PUBLISHED"}, "an end", 60)
    total = sum(crossing.statuses().values()) // 3
    for topic in ("good", "bad", "mixed"):
        assert in_order(crossing, topic) == total


def in_order(crossing: Crossing, topic: str) -> int:
    """Return how many entries of the topic arrived, each key's first occurrences in order."""
    seen: dict[str, None] = {}
    newest: dict[str, float] = {}
    for record in crossing.arrived(topic):
        if record.id not in seen:
            assert newest.get(record.key, 0.0) < float(record.value), (topic, record.key)
            newest[record.key] = float(record.value)
        seen[record.id] = None
    return len(seen)
