"""A consumer's service in this process: its group, offsets, lag, and failures of Kafka's client."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import psycopg
import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from psycopg import conninfo

from ferryman import Misconfigured
from ferryman.consumer import metrics
from ferryman.consumer.kafka import group as group_module
from ferryman.consumer.kafka import offsets
from ferryman.consumer.kafka.consumer_topics import retry_topic
from ferryman.consumer.kafka.group import GroupMember
from ferryman.consumer.kafka.offsets import OffsetsGone
from ferryman.consumer.kafka.orphans import OrphanWatch
from ferryman.consumer.model import Partition
from ferryman.consumer.partitions import Partitions
from ferryman.runtime import postgres
from ferryman.runtime.kafka import committed, group_client
from ferryman.runtime.settings import Kafka
from ferryman.testing.proxy import FaultProxy
from support.groups import Group, owned, verdicts
from support.pace import in_time
from support.published import poll_until, stays
from support.topics import create

pytestmark = pytest.mark.real_kafka

Database = psycopg.Connection[tuple[Any, ...]]


class Forgetful(Client):
    """A client that cannot tell the committed offsets the first times that it is asked."""

    times = 2

    def committed(self, *arguments: Any, **named: Any) -> Any:
        if Forgetful.times:
            Forgetful.times -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return super().committed(*arguments, **named)


def test_a_member_joins_again_and_loses_nothing_if_offsets_cannot_be_asked(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, N9, N11: without an answer the partitions were never assigned, and records were skipped."""
    monkeypatch.setattr(group_module, "Client", Forgetful)
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(60)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 60, "verdicts")
    assert Forgetful.times == 0


class Refused(Client):
    """A client whose first commits of handled records are refused, as they are during a rebalance."""

    raises: bool
    times: int

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.told = config["on_commit"]

    def commit(self, *arguments: Any, **named: Any) -> Any:
        if not Refused.times or named.get("asynchronous") is False:
            return super().commit(*arguments, **named)
        Refused.times -= 1
        error = KafkaError(KafkaError.ILLEGAL_GENERATION)
        if Refused.raises:
            raise KafkaException(error)
        return self.told(error, named["offsets"])


@pytest.mark.parametrize("raises", [True, False], ids=["raised", "told"])
def test_refused_offsets_are_committed_again_though_nothing_more_comes(
    ferryman_kafka: str,
    ferryman_database_url: str,
    ferryman_db: Database,
    monkeypatch: pytest.MonkeyPatch,
    raises: bool,
) -> None:
    """N8, N11: the time of sagas stands still until all that they wait for is committed."""
    monkeypatch.setattr(group_module, "Client", Refused)
    Refused.raises, Refused.times = raises, 2
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(1, partition=0)
    settings = Kafka(bootstrap_servers=ferryman_kafka)
    watcher = group_client(settings, "watch", group.consumer.name)
    with group.running(), closing(watcher):
        poll_until(lambda: verdicts(ferryman_db) == 1, "a verdict")
        poll_until(lambda: committed(watcher, [(group.topic, 0)], 5).get((group.topic, 0)) == 1, "the offset", 20)
    assert Refused.times == 0


def test_a_group_that_starts_at_the_end_skips_nothing_that_comes_later(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: a partition in which nothing was handled had no offset, and started at its end again.

    Requeued messages come to a topic that is new to the group.
    """
    group = Group(ferryman_kafka, ferryman_database_url, start="latest")
    group.send(5)
    with group.running():
        poll_until(lambda: owned(ferryman_db) == 3, "partitions")
        group.send(1, partition=0)
        poll_until(lambda: verdicts(ferryman_db) == 1, "a verdict")
    group.send(2, partition=2)
    retry = create(ferryman_kafka, retry_topic(group.topic, group.consumer.name))
    group.send(4, topic=retry)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 7, "verdicts")


def test_a_group_that_starts_at_the_end_skips_nothing_when_its_offsets_are_gone(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: offsets expire while no member runs, and the end has moved: the database knows where it was."""
    group = Group(ferryman_kafka, ferryman_database_url, start="latest")
    with group.running():
        poll_until(lambda: owned(ferryman_db) == 3, "partitions")
    group.forget_offsets()
    group.send(3)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 3, "verdicts")


def test_a_group_stops_when_its_offsets_and_records_are_gone(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: it started at the records that were left, and was silent about those that it had never read."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(3, partition=0)
    group.send(3, partition=1)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 6, "verdicts")
    group.forget_offsets()
    group.send(3, partition=1)
    group.delete_records(partition=1, before=5)
    with pytest.raises(OffsetsGone, match=re.escape(f"{group.topic}[1]: the record that")):
        group.run()
    assert verdicts(ferryman_db) == 6


def test_a_group_without_offsets_reads_all_again_if_no_record_is_gone(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """Duplicates cost nothing."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(3, partition=0)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 3, "verdicts")
    group.forget_offsets()
    group.send(2, partition=0)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 5, "verdicts")


def test_a_new_group_starts_at_the_first_record_left_also_the_second_time(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """In its first life, nothing came of which it could have committed an offset."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(5, partition=1)
    group.delete_records(partition=1, before=5)
    with group.running():
        poll_until(lambda: owned(ferryman_db) == 3, "partitions")
    group.send(2, partition=1)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 2, "verdicts")


@pytest.mark.slow
def test_partitions_created_while_a_static_member_was_away_get_an_owner(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N11: it gets its former assignment back, and no member looks for other partitions.

    Slow, because the group is looked at twice, with seconds in between.
    """
    group = Group(ferryman_kafka, ferryman_database_url, instance_id="one")
    group.send(1, partition=1)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 1, "a verdict")
    admin = AdminClient({"bootstrap.servers": ferryman_kafka})
    [made] = admin.create_partitions([NewPartitions(group.topic, 5)]).values()
    made.result(30)
    poll_until(lambda: len(admin.list_topics(group.topic).topics[group.topic].partitions) == 5, "partitions")
    group.send(2, partition=4)
    watch = OrphanWatch(group.consumer.name, [group.topic], group.settings.kafka)
    with group.running():
        poll_until(lambda: watch.orphans(admin) == {(group.topic, 3), (group.topic, 4)}, "what nobody owns")
        poll_until(lambda: verdicts(ferryman_db) == 3, "verdicts")
        poll_until(lambda: not watch.orphans(admin) and owned(ferryman_db) == 5, "owners")


def test_a_partition_that_was_paused_when_revoked_is_fetched_when_it_returns(ferryman_kafka: str) -> None:
    """N10, N11: the client remembers a pause, over any number of owners."""
    topic = create(ferryman_kafka, partitions=3)
    settings = Kafka.model_validate({"bootstrap_servers": ferryman_kafka, "heartbeat.interval.ms": "300"})
    first, second = (Reader(settings, topic) for _ in range(2))
    with closing(first.member), closing(second.member):
        first.member.open()
        first.until(lambda: len(first.owned) == 3)
        first.member.hold(first.owned)
        second.member.open()
        second.until(lambda: bool(second.owned), first)
        moved = set(second.owned)
        second.member.close()
        first.until(lambda: len(first.owned) == 3)
        producer = Producer({"bootstrap.servers": ferryman_kafka, "log_level": 0})
        for number in range(3):
            producer.produce(topic, b"x", partition=number)
        assert producer.flush(10) == 0
        first.until(lambda: first.came >= moved)
        assert first.came == moved, "what was not taken away is held as before"
        first.member.hold(())
        first.until(lambda: len(first.came) == 3)


@pytest.mark.parametrize("settled", [True, False])
def test_a_member_without_partitions_leaves_the_group_at_once(ferryman_kafka: str, settled: bool) -> None:
    """N10: the next rebalance would wait for it until its session ends. Here it owns nothing, or is still joining."""
    topic = create(ferryman_kafka)
    settings = Kafka.model_validate({"bootstrap_servers": ferryman_kafka, "heartbeat.interval.ms": "300"})
    admin = AdminClient({"bootstrap.servers": ferryman_kafka})
    first, idle, third = (Reader(settings, topic) for _ in range(3))

    def members(state: ConsumerGroupState) -> int:
        found = admin.describe_consumer_groups([f"held-{topic}"])[f"held-{topic}"].result(10)
        return len(found.members) if found.state == state else 0

    with closing(first.member), closing(idle.member), closing(third.member):
        first.member.open()
        first.until(lambda: len(first.owned) == 1)
        idle.member.open()
        if settled:
            first.until(lambda: members(ConsumerGroupState.STABLE) == 2, idle)
        else:
            idle.until(lambda: members(ConsumerGroupState.PREPARING_REBALANCING) == 2)
        owner, idle = (first, idle) if first.owned else (idle, first)
        idle.member.close()
        began = time.monotonic()
        third.member.open()
        owner.until(lambda: members(ConsumerGroupState.STABLE) == 2, third)
        assert in_time(time.monotonic() - began, 10)


class Reader:
    """A member of the group, and the partitions from which something came."""

    def __init__(self, settings: Kafka, topic: str) -> None:
        self.came: set[Partition] = set()
        self._partitions = Partitions(f"held-{topic}", 1 << 20, 1)
        self.member = GroupMember(f"held-{topic}", [topic], settings, self._partitions)

    @property
    def owned(self) -> set[Partition]:
        return set(self._partitions.by_place)

    def until(self, condition: Callable[[], bool], *others: "Reader") -> None:
        def polled() -> bool:
            for each in (self, *others):
                each.came |= {record.place for record in each.member.take(100, 0.05)}
            return condition()

        poll_until(polled, "what the group settles on")


@contextmanager
def paused(db: Database, group: Group) -> Iterator[None]:
    """Run the group, paused."""
    db.execute(
        "INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES (%s, 'me', 'a test')", (group.consumer.name,)
    )
    with group.running() as life:
        poll_until(lambda: "paused" in str(life.why_not_ready), "a pause")
        yield


def test_the_lag_of_a_paused_consumer_is_seen_to_grow_old(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """A forgotten pause would look as if there were nothing to do."""
    group = Group(ferryman_kafka, ferryman_database_url)
    name = group.consumer.name
    with paused(ferryman_db, group):
        group.send(5, partition=1)
        poll_until(lambda: gauge(metrics.LAG_SECONDS, name) > 1.5, "its age")
        poll_until(lambda: gauge(metrics.LAG, name) == 5, "how many")
        assert verdicts(ferryman_db) == 0
        ferryman_db.execute("DELETE FROM ferryman.inbox_paused")
        poll_until(lambda: verdicts(ferryman_db) == 5, "verdicts")
        poll_until(lambda: gauge(metrics.LAG_SECONDS, name) == gauge(metrics.LAG, name) == 0, "nothing that waits")


def test_the_lag_grows_where_nothing_is_fetched(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client learns the end of a partition from fetches, and held partitions are not fetched."""
    monkeypatch.setattr(offsets, "_ASK_AGAIN_SECONDS", 0.5)
    group = Group(ferryman_kafka, ferryman_database_url)
    name = group.consumer.name
    with paused(ferryman_db, group):
        for many in (5, 12, 19):
            group.send(many - int(gauge(metrics.LAG, name)), partition=1)
            until_behind(name, many)
        ferryman_db.execute("DELETE FROM ferryman.inbox_paused")
        poll_until(lambda: verdicts(ferryman_db) == 19, "verdicts")
        poll_until(lambda: gauge(metrics.LAG, name) == 0, "nothing that waits")


def test_the_lag_grows_while_the_database_is_away(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_ASK_AGAIN_SECONDS", 0.5)
    given = conninfo.conninfo_to_dict(ferryman_database_url)
    with FaultProxy(f"{given['host']}:{given['port']}") as way:
        url = f"postgresql://{given['user']}:{given.get('password', '')}@{way.address}/{given['dbname']}"
        group = Group(ferryman_kafka, url)
        with group.running():
            group.send(1, partition=1)
            done = metrics.MESSAGES.labels(group.consumer.name, "done")
            poll_until(lambda: cast(Any, done)._value.get() == 1, "a batch that is over")
            until_behind(group.consumer.name, 0)
            way.down()
            for many in (5, 12):
                group.send(many - int(gauge(metrics.LAG, group.consumer.name)), partition=1)
                until_behind(group.consumer.name, many)
            way.up()
            poll_until(lambda: verdicts(ferryman_db) == 13, "verdicts")


def test_aborted_records_and_control_records_are_no_lag(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """They never come, so behind a transactional producer the lag would never be 0."""
    group = Group(ferryman_kafka, ferryman_database_url)
    producer = Producer({"bootstrap.servers": ferryman_kafka, "transactional.id": group.topic, "log_level": 0})
    producer.init_transactions(30)
    headers: Any = [("ce_type", b"t")]
    with group.running():
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for _ in range(5):
                producer.produce(group.topic, b"x", "k", 1, None, None, 0, headers)
            end(30)
        poll_until(lambda: verdicts(ferryman_db) == 5, "verdicts")
        poll_until(lambda: gauge(metrics.LAG, group.consumer.name) == 0, "no lag")
        assert stays(lambda: gauge(metrics.LAG, group.consumer.name) == 0, 2.5)


def until_behind(consumer: str, many: int) -> None:
    poll_until(lambda: gauge(metrics.LAG, consumer) == many, f"{many} messages that wait")


def gauge(meter: Any, consumer: str) -> float:
    return float(meter.labels(consumer)._value.get())


def test_a_missing_topic_is_reported_until_it_exists(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """A misspelt name is not an outage that passes."""
    group = Group(ferryman_kafka, ferryman_database_url)
    missing = f"{group.topic}-missing"
    group.consumer.topics = (group.topic, missing)
    group.settings.kafka.properties["topic.metadata.refresh.interval.ms"] = "500"
    group.send(1)
    with group.running() as life:
        poll_until(lambda: verdicts(ferryman_db) == 1, "a verdict")
        poll_until(lambda: missing in str(life.why_not_ready), "what is wrong")
        assert stays(lambda: missing in str(life.why_not_ready), 2.5)
        create(ferryman_kafka, missing)
        poll_until(lambda: life.why_not_ready is None, "readiness")


def test_a_login_that_is_refused_after_it_worked_is_tried_again(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11: a password that is rotated, or a role that is created anew, ends no process."""
    group, connect = Group(ferryman_kafka, ferryman_database_url), postgres.connect
    refused: list[str] = []

    def refuse_once(*given: Any, **named: Any) -> Any:
        if not refused:
            refused.append("the login")
            raise Misconfigured("the login is refused")
        return connect(*given, **named)

    group.send(1)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 1, "a verdict")
        monkeypatch.setattr(postgres, "connect", refuse_once)
        ferryman_db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            (f"ferryman {group.consumer.name}"[:63],),
        )
        group.send(1)
        poll_until(lambda: verdicts(ferryman_db) == 2, "the next verdict")
    assert refused == ["the login"]
