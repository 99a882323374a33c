"""A process whose database falls back at any step, or that dies while it heals, loses nothing and doubles nothing."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman import Consumer, Done, Outcome, Received
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.kafka.topic_ids import TopicIds
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Position, Record
from ferryman.consumer.partitions import Entitlement, Partitions
from ferryman.consumer.transaction import BatchTransaction, Transactions
from ferryman.runtime.settings import ConsumerSettings, Kafka
from ferryman.testing.proving.memory_kafka import ImpatientClock, MemoryFeed, MemoryTopics
from ferryman.testing.proving.prove_owner import HangWatch
from support.mockcluster import MockCluster

Database = psycopg.Connection[tuple[Any, ...]]
PLACE = ("orders", 0)
TABLE = "CREATE TABLE effect (number serial, id text)"
STEPS = ["poll", *(step.__name__.strip("_") for step in BatchTransaction.STEPS), "commit", "offsets"]


class Died(Exception):
    """The process died at a step."""


def die() -> None:
    raise Died


class Member:
    """A process that reads one partition, until it dies or there is nothing left."""

    def __init__(self, url: str, db: Database, topics: MemoryTopics, topic_id: str) -> None:
        self.url, self.db, self.topics, self.topic_id = url, db, topics, topic_id

    def run(self, at: str = "", times: int = 1, then: Callable[[], None] = die, kind: str = "t") -> None:
        """Run; at a step, at the given time that it comes there, do something: die. It handles one type."""
        left = [times]

        def before(step: str) -> None:
            left[0] -= step == at
            if step == at and not left[0]:
                then()

        consumer, clock = Consumer("orders", ["orders"]), ImpatientClock()
        consumer.handles(kind)(self.handle)
        feed, partitions = MemoryFeed(self.topics, clock), Partitions("orders", 1 << 20, 4)
        transactions = Transactions(consumer, 4, HangWatch(self.url), before=before)
        loop = ConsumerLoop(consumer, feed, ConsumerSettings(batch_messages=4), partitions, transactions,
                            before=before, clock=clock.now)  # fmt: skip
        start = Position(self.topics.committed.get(PLACE, 0), self.topic_id)
        partitions.assigned({PLACE: start}, Entitlement.COMMITTED)
        try:
            while True:
                loop.turn(HandlerConnection(self.db))
                if feed.at_the_end and not partitions.bytes:
                    return
        except Died:
            return

    def handle(self, db: Database, message: Received) -> Outcome:
        db.execute("INSERT INTO effect (id) VALUES (%s)", (str(message.id),))
        return Done()


def records(many: int, of: str) -> list[Record]:
    named = [f"{of * 8}-0000-0000-0000-{number:012}" for number in range(many)]
    return [
        Record(*PLACE, n, b"k", b"{}", [("ce_id", each.encode()), ("ce_type", b"t")], 0) for n, each in enumerate(named)
    ]


def effects(db: Database) -> list[str]:
    """Return the ids in the order in which they were handled."""
    return [each for (each,) in db.execute("SELECT id FROM effect ORDER BY number").fetchall()]


def put_back(db: Database) -> None:
    """Put the database back to the time when five messages were handled."""
    db.execute("DELETE FROM effect WHERE right(id, 2)::int >= 5")
    db.execute('DELETE FROM ferryman.inbox WHERE "offset" >= 5')
    db.execute("UPDATE ferryman.inbox_start SET position = least(position, 5)")


def ids(records: list[Record]) -> list[str]:
    return [(each.header("ce_id") or b"").decode() for each in records]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("step", [step for step in STEPS if step != "commit"])
def test_database_that_falls_back_under_a_running_process_loses_nothing(
    ferryman_database_url: str, ferryman_db: Database, step: str, lost: bool
) -> None:
    """N1, N5, N9: nothing tells of it, not even a new connection. The order of the messages stays."""
    ferryman_db.execute(TABLE)
    topics = MemoryTopics({PLACE: records(20, "a")})

    def fall_back() -> None:
        with psycopg.connect(ferryman_database_url, autocommit=True) as another:
            put_back(another)
            if lost:
                another.execute("DELETE FROM ferryman.inbox")
                another.execute("DELETE FROM effect")
                another.execute("DELETE FROM ferryman.inbox_start")

    if not lost:
        Member(ferryman_database_url, ferryman_db, MemoryTopics({PLACE: records(5, "a")}), "first").run()
        topics.committed[PLACE] = 5
    Member(ferryman_database_url, ferryman_db, topics, "first").run(step, 3, fall_back)
    assert effects(ferryman_db) == ids(records(20, "a"))
    assert topics.committed[PLACE] == 20
    assert ferryman_db.execute("SELECT position, owned FROM ferryman.inbox_start").fetchall() == [(20, True)]


def test_ignored_messages_notice_too_that_the_database_fell_back(
    ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1: their batches write positions only."""
    ferryman_db.execute(TABLE)
    topics = MemoryTopics({PLACE: records(20, "a")})
    member = Member(ferryman_database_url, ferryman_db, topics, "first")
    with capture_logs() as logs:
        member.run("poll", 4, lambda: put_back(ferryman_db), kind="u")
    assert [each["partitions"]["orders[0]"] for each in logs] == [{"database": 5, "kafka": 12}]
    assert ferryman_db.execute("SELECT position FROM ferryman.inbox_start").fetchall() == [(20,)]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_dies_while_it_goes_back_loses_and_doubles_nothing(
    ferryman_database_url: str, ferryman_db: Database, step: str, anew: bool
) -> None:
    """N1, N5, N9: the database was restored to a past state, or the topic was made anew with other records."""
    ferryman_db.execute(TABLE)
    topics = MemoryTopics({PLACE: records(12, "a")})
    member = Member(ferryman_database_url, ferryman_db, topics, "first")
    member.run()
    if anew:
        topics.records[PLACE], member.topic_id = records(20, "b"), "second"
    else:
        put_back(ferryman_db)
    for times in (1, 2):
        member.run(step, times)
    member.run()
    wanted = [*records(12, "a"), *(records(20, "b") if anew else [])]
    assert effects(ferryman_db) == ids(wanted)
    assert topics.committed[PLACE] == len(topics.records[PLACE])


def test_a_cluster_that_tells_no_topic_ids_is_asked_once() -> None:
    """librdkafka's built-in broker: positions alone decide."""
    with MockCluster() as cluster:
        cluster.create("orders")
        ids = TopicIds(Kafka(bootstrap_servers=cluster.url))
        ids.ask(["orders"])
        ids.refresh(["orders"])
        assert (ids.known, ids.changed()) == ({}, {})
