"""A consumer's service in this process, with what Kafka's client may fail at."""

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from psycopg import conninfo

from ferryman import Consumer, Done, Outcome, Received
from ferryman.consumer import ends, kafka, metrics
from ferryman.consumer.beginnings import OffsetsGone
from ferryman.consumer.division import Division
from ferryman.consumer.model import Partition
from ferryman.consumer.retries import retry_topic
from ferryman.consumer.service import ConsumerService
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Kafka, Settings
from ferryman.testing.proxy import FaultProxy
from support.published import poll_until, stays
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


class Group:
    """A consumer of one topic, which handles whatever comes; its service runs in this process."""

    def __init__(self, kafka: str, url: str, **consumer: Any) -> None:
        self.topic = create(kafka, partitions=3)
        self.consumer = Consumer(f"feed-{self.topic}", [self.topic])
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
        """Until it raises what it stops of; if it does not stop, it is stopped."""
        life = Life(self.consumer.name)
        enough = threading.Timer(20, life.stopping.set)
        enough.start()
        try:
            ConsumerService(self.consumer, self.settings).run(life)
        finally:
            enough.cancel()

    def forget_offsets(self) -> None:
        """As Kafka does, some days after the last member left."""
        [deleted] = self.admin.delete_consumer_groups([self.consumer.name]).values()
        deleted.result(30)

    def delete_records(self, partition: int, before: int) -> None:
        """As retention does."""
        [deleted] = self.admin.delete_records([TopicPartition(self.topic, partition, before)]).values()
        deleted.result(30)

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


def test_a_group_that_cannot_say_how_far_it_is_is_joined_again_and_nothing_is_lost(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, N9, N11: without an answer the partitions were never assigned, and what came meanwhile was passed over."""
    monkeypatch.setattr(kafka, "Client", Forgetful)
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(60)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 60, "verdicts", 30)
    assert Forgetful.times == 0


def test_a_group_that_begins_at_the_end_skips_nothing_that_comes_later(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: a partition in which nothing was handled yet had no offset, and began at its end once more; what is requeued
    comes to a topic that is new to the group.
    """
    group = Group(ferryman_kafka, ferryman_database_url, start="latest")
    group.send(5)
    with group.running():
        poll_until(lambda: _owned(ferryman_db) == 3, "partitions")
        group.send(1, partition=0)
        poll_until(lambda: _verdicts(ferryman_db) == 1, "a verdict")
    group.send(2, partition=2)
    retry = create(ferryman_kafka, retry_topic(group.topic, group.consumer.name))
    group.send(4, topic=retry)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 7, "verdicts")


def test_a_group_that_begins_at_the_end_stops_when_its_offsets_are_gone(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: they expire while nobody is there, and the end is not where it was."""
    group = Group(ferryman_kafka, ferryman_database_url, start="latest")
    with group.running():
        poll_until(lambda: _owned(ferryman_db) == 3, "partitions")
    group.forget_offsets()
    group.send(3)
    with pytest.raises(OffsetsGone, match="to begin at the end would skip what came since"):
        group.run()


def test_a_group_stops_when_its_offsets_are_gone_and_so_are_records(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: it began at what was left, and said nothing of what it had never read."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(3, partition=0)
    group.send(3, partition=1)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 6, "verdicts")
    group.forget_offsets()
    group.send(3, partition=1)
    group.delete_records(partition=1, before=5)
    with pytest.raises(OffsetsGone, match=re.escape(f"has read {group.topic}[1] before")):
        group.run()
    assert _verdicts(ferryman_db) == 6


def test_a_group_whose_offsets_are_gone_reads_all_of_it_once_more_where_all_is_there(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """Duplicates cost nothing."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(3, partition=0)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 3, "verdicts")
    group.forget_offsets()
    group.send(2, partition=0)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 5, "verdicts")


def test_a_new_group_begins_at_what_is_left_of_a_topic_also_if_it_has_to_begin_again(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """Nothing came in its first life that it could have committed an offset of."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(5, partition=1)
    group.delete_records(partition=1, before=5)
    with group.running():
        poll_until(lambda: _owned(ferryman_db) == 3, "partitions")
    group.send(2, partition=1)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 2, "verdicts")


@pytest.mark.slow
def test_what_was_made_while_a_member_with_a_name_was_away_gets_an_owner(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N11: it is given what it had, and no member looks at what else there is.

    Slow, because the group is looked at twice, with seconds between.
    """
    group = Group(ferryman_kafka, ferryman_database_url, instance_id="one")
    group.send(1, partition=1)
    with group.running():
        poll_until(lambda: _verdicts(ferryman_db) == 1, "a verdict")
    admin = AdminClient({"bootstrap.servers": ferryman_kafka})
    [made] = admin.create_partitions([NewPartitions(group.topic, 5)]).values()
    made.result(30)
    poll_until(lambda: len(admin.list_topics(group.topic).topics[group.topic].partitions) == 5, "partitions")
    group.send(2, partition=4)
    division = Division(group.consumer.name, [group.topic], group.settings.kafka)
    with group.running():
        poll_until(lambda: division.unowned(admin) == {(group.topic, 3), (group.topic, 4)}, "what nobody owns")
        poll_until(lambda: _verdicts(ferryman_db) == 3, "verdicts", 30)
        poll_until(lambda: not division.unowned(admin) and _owned(ferryman_db) == 5, "owners")


def test_a_partition_that_was_held_when_it_was_taken_away_is_fetched_when_it_comes_back(ferryman_kafka: str) -> None:
    """N10, N11: the client remembers that it was paused, over any number of owners."""
    topic = create(ferryman_kafka, partitions=3)
    settings = Kafka.model_validate({"bootstrap_servers": ferryman_kafka, "heartbeat.interval.ms": "300"})
    first, second = (Member(settings, topic) for _ in range(2))
    with closing(first.feed), closing(second.feed):
        first.feed.open()
        first.until(lambda: len(first.owned) == 3)
        first.feed.pause(first.owned)
        second.feed.open()
        second.until(lambda: bool(second.owned), first)
        moved = set(second.owned)
        second.feed.close()
        first.until(lambda: len(first.owned) == 3)
        producer = Producer({"bootstrap.servers": ferryman_kafka, "log_level": 0})
        for number in range(3):
            producer.produce(topic, b"x", partition=number)
        assert producer.flush(10) == 0
        first.until(lambda: first.came >= moved)
        assert first.came == moved, "what was not taken away is held as before"
        first.feed.resume(first.owned)
        first.until(lambda: len(first.came) == 3)


class Member:
    """A feed, what it owns, and where something came from."""

    def __init__(self, settings: Kafka, topic: str) -> None:
        self.owned: set[Partition] = set()
        self.came: set[Partition] = set()
        self.feed = kafka.Feed(f"held-{topic}", [topic], settings)
        self.feed.assigned = self.owned.update
        self.feed.revoked = self.feed.lost = self.owned.difference_update

    def until(self, condition: Callable[[], bool], *others: "Member") -> None:
        def polled() -> bool:
            for each in (self, *others):
                each.came |= {record.place for record in each.feed.take(100, 0.05)}
            return condition()

        poll_until(polled, "what the group settles on", 30)


@contextmanager
def paused(db: Database, group: Group) -> Iterator[None]:
    """It runs, and takes nothing until somebody resumes it."""
    db.execute(
        "INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES (%s, 'me', 'a test')", (group.consumer.name,)
    )
    with group.running() as life:
        poll_until(lambda: "paused" in str(life.why_not_ready), "a pause")
        yield


def test_what_waits_for_a_paused_consumer_is_seen_to_grow_old(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """A pause that somebody forgot would look as if there were nothing to do."""
    group = Group(ferryman_kafka, ferryman_database_url)
    name = group.consumer.name
    with paused(ferryman_db, group):
        group.send(5, partition=1)
        poll_until(lambda: gauge(metrics.LAG_SECONDS, name) > 1.5, "its age")
        poll_until(lambda: gauge(metrics.LAG, name) == 5, "how many")
        assert _verdicts(ferryman_db) == 0
        ferryman_db.execute("DELETE FROM ferryman.inbox_paused")
        poll_until(lambda: _verdicts(ferryman_db) == 5, "verdicts")
        poll_until(lambda: gauge(metrics.LAG_SECONDS, name) == gauge(metrics.LAG, name) == 0, "nothing that waits")


def test_how_many_wait_is_seen_to_grow_where_nothing_is_fetched(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client knows of a partition's end comes with what it fetches: of one that is held it learns nothing."""
    monkeypatch.setattr(ends, "_AGAIN_SECONDS", 0.5)
    group = Group(ferryman_kafka, ferryman_database_url)
    name = group.consumer.name
    with paused(ferryman_db, group):
        for many in (5, 12, 19):
            group.send(many - int(gauge(metrics.LAG, name)), partition=1)
            until_behind(name, many)
        ferryman_db.execute("DELETE FROM ferryman.inbox_paused")
        poll_until(lambda: _verdicts(ferryman_db) == 19, "verdicts")
        poll_until(lambda: gauge(metrics.LAG, name) == 0, "nothing that waits")


def test_how_many_wait_is_seen_to_grow_while_the_database_is_away(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "_AGAIN_SECONDS", 0.5)
    given = conninfo.conninfo_to_dict(ferryman_database_url)
    with FaultProxy(f"{given['host']}:{given['port']}") as way:
        url = f"postgresql://{given['user']}:{given.get('password', '')}@{way.address}/{given['dbname']}"
        group = Group(ferryman_kafka, url)
        with group.running():
            group.send(1, partition=1)
            poll_until(lambda: _verdicts(ferryman_db) == 1, "a verdict")
            way.down()
            for many in (5, 12):
                group.send(many - int(gauge(metrics.LAG, group.consumer.name)), partition=1)
                until_behind(group.consumer.name, many)
            way.up()
            poll_until(lambda: _verdicts(ferryman_db) == 13, "verdicts", 30)


def until_behind(consumer: str, many: int) -> None:
    poll_until(lambda: gauge(metrics.LAG, consumer) == many, f"{many} messages that wait")


def gauge(meter: Any, consumer: str) -> float:
    return float(meter.labels(consumer)._value.get())


def test_a_topic_that_is_not_there_is_said_until_it_is(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """A name with a slip in it is not an outage that passes."""
    group = Group(ferryman_kafka, ferryman_database_url)
    missing = f"{group.topic}-missing"
    group.consumer.topics = (group.topic, missing)
    group.settings.kafka.properties["topic.metadata.refresh.interval.ms"] = "500"
    group.send(1)
    with group.running() as life:
        poll_until(lambda: _verdicts(ferryman_db) == 1, "a verdict", 30)
        poll_until(lambda: missing in str(life.why_not_ready), "what is wrong")
        assert stays(lambda: missing in str(life.why_not_ready), 2.5)
        create(ferryman_kafka, missing)
        poll_until(lambda: life.why_not_ready is None, "readiness", 30)


def _owned(db: Database) -> int:
    row = db.execute("SELECT count(*) FROM ferryman.inbox_start WHERE owned").fetchone()
    assert row is not None
    return int(row[0])


def _verdicts(db: Database) -> int:
    row = db.execute("SELECT count(*) FROM ferryman.inbox WHERE status = 'HANDLED'").fetchone()
    assert row is not None
    return int(row[0])
