"""A process that dies at any step while its consumer heals a restored database loses nothing and doubles nothing."""

from typing import Any

import psycopg
import pytest

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
STEPS = ["poll", *(step.__name__.strip("_") for step in BatchTransaction.STEPS), "commit", "offsets"]


class Died(Exception):
    """The process died at a step."""


class Member:
    """A process that reads one partition, until it dies or there is nothing left."""

    def __init__(self, url: str, db: Database, topics: MemoryTopics, topic_id: str) -> None:
        self.url, self.db, self.topics, self.topic_id = url, db, topics, topic_id

    def run(self, dies_at: str = "", times: int = 1) -> None:
        left = [times]

        def before(step: str) -> None:
            left[0] -= step == dies_at
            if step == dies_at and not left[0]:
                raise Died(step)

        consumer, clock = Consumer("orders", ["orders"]), ImpatientClock()
        consumer.handles("t")(self.handle)
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
        db.execute("INSERT INTO effect VALUES (%s)", (str(message.id),))
        return Done()


def records(many: int, of: str) -> list[Record]:
    ids = [f"{of * 8}-0000-0000-0000-{number:012}" for number in range(many)]
    return [
        Record(*PLACE, n, b"k", b"{}", [("ce_id", each.encode()), ("ce_type", b"t")], 0) for n, each in enumerate(ids)
    ]


def effects(db: Database) -> list[str]:
    return [each for (each,) in db.execute("SELECT id FROM effect ORDER BY id").fetchall()]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_dies_while_it_goes_back_loses_and_doubles_nothing(
    ferryman_database_url: str, ferryman_db: Database, step: str, anew: bool
) -> None:
    """N1, N5, N9: the database was restored to a past state, or the topic was made anew with other records."""
    ferryman_db.execute("CREATE TABLE effect (id text)")
    topics = MemoryTopics({PLACE: records(12, "a")})
    member = Member(ferryman_database_url, ferryman_db, topics, "first")
    member.run()
    if anew:
        topics.records[PLACE], member.topic_id = records(20, "b"), "second"
    else:
        ferryman_db.execute("DELETE FROM effect WHERE right(id, 2)::int >= 5")
        ferryman_db.execute('DELETE FROM ferryman.inbox WHERE "offset" >= 5')
        ferryman_db.execute("UPDATE ferryman.inbox_start SET position = 5")
    for times in (1, 2):
        member.run(step, times)
    member.run()
    wanted = [*records(12, "a"), *(records(20, "b") if anew else [])]
    assert effects(ferryman_db) == sorted(str((each.header("ce_id") or b"").decode()) for each in wanted)
    assert topics.committed[PLACE] == len(topics.records[PLACE])


def test_a_cluster_that_tells_no_topic_ids_is_asked_once() -> None:
    """librdkafka's built-in broker: positions alone decide."""
    with MockCluster() as cluster:
        cluster.create("orders")
        ids = TopicIds(Kafka(bootstrap_servers=cluster.url))
        ids.ask(["orders"])
        ids.refresh(["orders"])
        assert (ids.known, ids.changed()) == ({}, {})
