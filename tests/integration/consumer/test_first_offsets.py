"""Groups that start in partitions without a known leader: nothing is skipped, and nothing stops."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, Producer

from ferryman import Consumer, Done, Outcome, Received
from ferryman.consumer.service import ConsumerService
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from support.mockcluster import LIST_OFFSETS, MockCluster
from support.published import poll_until

Database = psycopg.Connection[tuple[Any, ...]]

_TOPIC = "orders"


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as made:
        made.create(_TOPIC, 2)
        yield made


def produce(cluster: MockCluster, partition: int, *ids: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.url, "log_level": 0})
    for each in ids:
        headers: Any = [("ce_type", b"t"), ("ce_id", f"00000000-0000-0000-0000-{each:>012}".encode())]
        producer.produce(_TOPIC, b"x", each, partition, None, None, 0, headers)
    assert producer.flush(10) == 0


@contextmanager
def running(cluster: MockCluster, url: str, **consumer: Any) -> Iterator[None]:
    """Run a member of the group, which must not end by itself."""
    failed: list[BaseException] = []
    reader, life = Consumer("first-offsets", [_TOPIC]), Life("first-offsets")

    @reader.handles("t")
    def handle(_db: Database, _message: Received) -> Outcome:
        return Done()

    kafka = {"bootstrap_servers": cluster.url, "session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}
    settings = Settings.model_validate({"database_url": url, "kafka": kafka, "consumer": consumer})

    def run() -> None:
        try:
            ConsumerService(reader, settings).run(life)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        life.stopping.set()
        thread.join(20)
    assert failed == []
    assert not thread.is_alive()


def handled(db: Database, *keys: str) -> bool:
    rows = db.execute("SELECT right(id::text, 12)::integer::text FROM ferryman.inbox ORDER BY 1").fetchall()
    return [row[0] for row in rows] == sorted(keys)


def test_a_partition_without_a_leader_is_read_once_it_has_one(
    cluster: MockCluster, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N10: its neighbour is read meanwhile, and a restart finds where the group began."""
    produce(cluster, 0, "1", "2", "3")
    cluster.delete_records(_TOPIC, before=2)
    produce(cluster, 1, "11")
    cluster.lead(_TOPIC, leader=False)
    with running(cluster, ferryman_database_url):
        poll_until(lambda: handled(ferryman_db, "11"), "the partition that has a leader")
        cluster.lead(_TOPIC, leader=True)
        poll_until(lambda: handled(ferryman_db, "3", "11"), "the partition that had none")


def test_an_old_partition_without_records_stops_no_restart(
    cluster: MockCluster, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: the group had owned it without committing an offset, which looked as if offsets had expired."""
    produce(cluster, 0, "1", "2")
    cluster.delete_records(_TOPIC, before=2)
    cluster.lead(_TOPIC, leader=False)
    produce(cluster, 1, "11")
    with running(cluster, ferryman_database_url):
        poll_until(lambda: handled(ferryman_db, "11"), "the partition that has a leader")
        cluster.lead(_TOPIC, leader=True)
        poll_until(lambda: committed(cluster) == 2, "the first offset")
    produce(cluster, 0, "3")
    with running(cluster, ferryman_database_url):
        poll_until(lambda: handled(ferryman_db, "3", "11"), "what came since")


def committed(cluster: MockCluster) -> int:
    from confluent_kafka import Consumer as Client
    from confluent_kafka import TopicPartition

    client = Client({"bootstrap.servers": cluster.url, "group.id": "first-offsets", "enable.auto.commit": False})
    try:
        [found] = client.committed([TopicPartition(_TOPIC, 0)], 10)
    finally:
        client.close()
    return int(found.offset)


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize(
    "error",
    [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE],
)
def test_brokers_that_do_not_know_a_new_partition_yet_stop_no_group(
    cluster: MockCluster, ferryman_database_url: str, ferryman_db: Database, start: str, error: int
) -> None:
    """A fresh broker under load answers so for a moment: it ended the process, as if records were gone."""
    cluster.fail([error] * 6, LIST_OFFSETS)
    with running(cluster, ferryman_database_url, start=start):
        poll_until(lambda: owned(ferryman_db) == 2, "partitions")
        produce(cluster, 0, "1")
        poll_until(lambda: handled(ferryman_db, "1"), "a verdict")


def owned(db: Database) -> int:
    row = db.execute("SELECT count(*) FROM ferryman.inbox_start WHERE owned").fetchone()
    assert row is not None
    return int(row[0])


def test_restart_without_a_leader_holds_up_nothing_and_loses_nothing(
    cluster: MockCluster, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N10: a group that was assigned a leaderless partition has not read it."""
    produce(cluster, 0, "1", "2")
    cluster.delete_records(_TOPIC, before=1)
    cluster.lead(_TOPIC, leader=False)
    produce(cluster, 1, "11")
    with running(cluster, ferryman_database_url):
        poll_until(lambda: handled(ferryman_db, "11"), "the partition that has a leader")
    produce(cluster, 1, "12")
    with running(cluster, ferryman_database_url):
        poll_until(lambda: handled(ferryman_db, "11", "12"), "the partition that has a leader")
        cluster.lead(_TOPIC, leader=True)
        poll_until(lambda: handled(ferryman_db, "2", "11", "12"), "the partition that had none")
