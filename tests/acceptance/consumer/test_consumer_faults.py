"""Faults around a consumer: poison, outages, rebalances, replays. The books and the receipts judge."""

import json
import random
import signal
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg import conninfo

from ferryman.testing.proxy import FaultProxy
from support import rawheaders
from support.consuming import Shop
from support.launch import Launched, Launcher
from support.published import readyz

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.real_kafka

HANDLING = """
SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()
"""


@pytest.fixture
def shop(ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Shop:
    return Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db)


def test_poison_of_every_kind_in_the_middle_of_a_batch_harms_no_neighbour(shop: Shop) -> None:
    """N9, N10: each record is kept as Kafka had it, and a dead letter is sent."""
    same = uuid4()
    shop.raw(b'{"wallet": "w1", "amount": 1}', id=same, partition=0)
    shop.sent[same] = 1
    for _ in range(10):
        shop.send(1, 1)
    avro = {"content-type": b"application/json"}
    shop.raw(None, partition=0)
    shop.raw(b"{", partition=0)
    shop.raw(b"\xff\xfe", partition=0)
    shop.raw(b'{"a": ', partition=0, headers=avro)
    shop.raw(b"{}", key=b"a\0b", partition=0)
    shop.raw(b"{}", key=b"\xff\xff", partition=0)
    shop.raw(b'{"wallet": "w1", "amount": 1, "do": "raise"}', partition=0)
    shop.raw(b'{"nothing": "that it needs"}', partition=0)
    shop.raw(b"x" * 900_000, partition=0)
    shop.flush()
    kind = (b"ce_type", b"payment.requested")
    rawheaders.produce(shop.kafka, shop.topic, b'{"wallet": "w1", "amount": 1}', [kind, (b"caf\xe9", b"")])
    shop.raw(b'{"wallet": "w1", "amount": 99}', id=same, partition=0)
    for _ in range(10):
        shop.send(1, 1)
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__TRIES="1")
    wallet.until(lambda: shop.settled(31), "verdicts")
    wallet.until(lambda: shop.one("SELECT count(*) FROM ferryman.inbox_rejected") == 11, "rejected records")
    assert shop.verdicts() == {"DONE": 21, "REJECTED": 10}
    codes: dict[str, int] = dict(
        shop.db.execute("SELECT code, count(*) FROM ferryman.inbox_rejected GROUP BY 1").fetchall()
    )
    assert codes == {"NO_VALUE": 1, "UNREADABLE": 4, "BAD_KEY": 2, "BAD_HEADER": 1, "BUG": 2, "CONFLICT": 1}
    letters = shop.db.execute("SELECT payload FROM ferryman.outbox WHERE topic = %s", (f"{shop.topic}.dlt",)).fetchall()
    said = [json.loads(payload) for (payload,) in letters]
    assert sorted(each["code"] for each in said) == sorted(code for code, many in codes.items() for _ in range(many))
    assert {each["value_bytes"] for each in said if each["value_base64"] is None} == {None, 900_000}
    assert shop.one("SELECT max(octet_length(value)) FROM ferryman.inbox_rejected") == 900_000
    shop.books_balance()


def test_a_type_without_a_handler_is_skipped(shop: Shop) -> None:
    shop.raw(b"{}", kind="something.else")
    shop.raw(b"no type at all", headers={"ce_type": b""})
    shop.send(1)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(1), "a verdict")
    assert shop.verdicts() == {"DONE": 1}


def trickle(shop: Shop, wallet: Launched, many: int, seconds: float) -> None:
    """Send payments one by one for a while, so that faults meet them in every state."""
    for number in range(many):
        shop.send(1, number % 10)
        time.sleep(seconds / many)
    shop.flush()
    wallet.until(lambda: shop.settled(len(shop.sent)), "verdicts", 60)
    shop.books_balance()


def test_connections_that_are_cut_again_and_again_double_nothing(shop: Shop) -> None:
    """N5, N11: in a handler, in a commit, in between; the answers to some commits are lost."""
    given = conninfo.conninfo_to_dict(shop.url)
    with FaultProxy(f"{given['host']}:{given['port']}") as way:
        url = f"postgresql://{given['user']}:{given.get('password', '')}@{way.address}/{given['dbname']}"
        wallet = shop.start(FERRYMAN_DATABASE_URL=url)
        dice = random.Random(7)
        for _ in range(15):
            for number in range(40):
                shop.send(1, number % 10)
            shop.flush()
            time.sleep(dice.random() * 0.15)
            way.reset()
        wallet.until(lambda: shop.settled(len(shop.sent)), "verdicts", 60)
    shop.books_balance()
    assert shop.verdicts() == {"DONE": len(shop.sent)}


def test_sessions_that_are_ended_by_the_server_double_nothing(shop: Shop) -> None:
    wallet = shop.start()
    for _ in range(5):
        for number in range(60):
            shop.send(1, number % 10)
        shop.flush()
        shop.db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
            (f"%{shop.name}%"[:50],),
        )
        time.sleep(0.05)
    wallet.until(lambda: shop.settled(len(shop.sent)), "verdicts", 60)
    shop.books_balance()


@pytest.mark.slow
def test_members_that_come_and_go_double_nothing_and_lose_nothing(shop: Shop) -> None:
    """N1, N5: it is safe throughout, and finishes once members stop coming and going.

    Slow, because twelve of them do, and the group waits for those that were killed.
    """
    dice = random.Random(11)
    members: list[Launched] = []
    for _ in range(12):
        for _ in range(30):
            shop.send(1, dice.randrange(10))
        shop.flush()
        members.append(shop.start(FERRYMAN_CONSUMER__INSTANCE_ID=""))
        time.sleep(0.4)
        if len(members) > 2:
            leaving = members.pop(dice.randrange(len(members)))
            leaving.send(dice.choice([signal.SIGTERM, signal.SIGKILL]))
    last = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="")
    last.until(lambda: shop.settled(len(shop.sent)), "verdicts", 60)
    shop.books_balance()
    assert shop.verdicts() == {"DONE": len(shop.sent)}


@pytest.mark.slow
def test_a_handler_that_outlasts_the_poll_interval_costs_a_duplicate_and_no_effect(shop: Shop) -> None:
    """N5: another member gets its partitions while it handles. Slow, because the interval has to pass."""
    env: dict[str, Any] = {"FERRYMAN_CONSUMER__INSTANCE_ID": "", "FERRYMAN_KAFKA__MAX_POLL_INTERVAL_MS": "6000"}
    slow = shop.send(1, 1, do="slow")
    shop.flush()
    first = shop.start(**env)
    first.until(lambda: shop.one(HANDLING), "a start")
    second = shop.start(**env)
    for number in range(20):
        shop.send(1, number % 10)
    shop.flush()
    second.until(lambda: shop.settled(21), "verdicts", 60)
    first.until(lambda: "partitions lost" in first.stderr, "its loss")
    shop.books_balance()
    assert shop.verdicts() == {"DONE": 21}
    assert shop.one("SELECT count(*) FROM effect WHERE payment = %s", str(slow)) == 1


def test_two_processes_with_one_name_fence_each_other_and_the_first_says_so(shop: Shop) -> None:
    first = shop.start()
    shop.send(1)
    shop.flush()
    first.until(lambda: shop.settled(1), "a verdict")
    second = shop.start()
    assert first.wait(30) != 0
    assert "fenced" in first.stderr.lower()
    shop.send(1)
    shop.flush()
    second.until(lambda: shop.settled(2), "the second's verdict")
    shop.books_balance()


def test_replaying_the_whole_topic_has_no_effect(shop: Shop) -> None:
    """N3, N6: each message is answered again with its first answer."""
    for number in range(100):
        shop.send(1, number % 10)
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="")
    wallet.until(lambda: shop.settled(100), "verdicts")
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0
    shop.reset_offsets(0)
    again = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="")
    again.until(lambda: len(shop.reports()) == 200, "all results once more")
    assert len(set(shop.reports())) == 100
    shop.books_balance()


def test_a_consumer_whose_offsets_are_gone_stops_and_says_so_instead_of_skipping(shop: Shop) -> None:
    for _ in range(30):
        shop.send(1)
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="")
    wallet.until(lambda: shop.settled(30), "verdicts")
    wallet.send(signal.SIGTERM)
    wallet.wait()
    shop.reset_offsets(1)
    admin = AdminClient({"bootstrap.servers": shop.kafka})
    for answer in admin.delete_records([TopicPartition(shop.topic, n, -1) for n in range(shop.partitions)]).values():
        answer.result(30)
    stopped = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="")
    assert stopped.wait(30) == 1
    assert "is gone" in stopped.stderr
    assert "reset" in stopped.stderr


def test_a_consumer_that_would_forget_too_early_stops_and_says_the_numbers(shop: Shop) -> None:
    wallet = shop.start(FERRYMAN_CONSUMER__RECEIPTS_RETENTION_SECONDS="3600")
    assert wallet.wait() == 3
    assert "retention.ms 604,800 s + segment.ms 604,800 s" in wallet.stderr
    assert "FERRYMAN_CONSUMER__RECEIPTS_RETENTION_SECONDS" in wallet.stderr


def test_a_consumer_that_is_stopped_before_it_took_its_partitions_ends(shop: Shop) -> None:
    """N16: librdkafka's own close would hang for ever there."""
    admin = AdminClient({"bootstrap.servers": shop.kafka})

    def joined() -> bool:
        [group] = admin.describe_consumer_groups([shop.name]).values()
        try:
            return bool(group.result(10).state == ConsumerGroupState.STABLE)
        except KafkaException:  # the broker has just begun to coordinate groups
            return False

    with psycopg.connect(shop.url) as other:
        other.execute("LOCK TABLE ferryman.version_engine")  # it joins, and asks for the level before its first poll
        wallet = shop.start()
        wallet.until(joined, "its member of the group")
        wallet.send(signal.SIGTERM)
    assert wallet.wait(10) == 0


@pytest.fixture
def locked(shop: Shop) -> Iterator[Database]:
    with psycopg.connect(shop.url) as other:
        other.execute("SELECT FROM wallet WHERE id = 'w1' FOR UPDATE")
        yield other


def test_a_lock_is_waited_for_and_nothing_is_rejected(shop: Shop, locked: Database) -> None:
    """N8: a transient failure costs no message its verdict."""
    shop.send(1, 1)
    shop.send(1, 2)
    shop.flush()
    wallet = shop.start(FERRYMAN_DATABASE__LOCK_TIMEOUT_SECONDS="0.3")
    wallet.until(lambda: "handling failed" in wallet.stderr, "a first try")
    locked.rollback()
    wallet.until(lambda: shop.settled(2), "verdicts")
    assert shop.verdicts() == {"DONE": 2}
    shop.books_balance()


def test_a_database_slower_than_the_deadline_costs_no_message_its_verdict(shop: Shop, locked: Database) -> None:
    """N8: statements are cancelled again and again, and that does not count as a bug."""
    shop.send(1, 1)
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__DEADLINE_SECONDS="0.3", FERRYMAN_CONSUMER__TRIES="2")
    wallet.until(lambda: wallet.stderr.count("it took too long") > 2, "more tries than a bug has")
    locked.rollback()
    wallet.until(lambda: shop.settled(1), "a verdict")
    assert shop.verdicts() == {"DONE": 1}
    shop.books_balance()


@pytest.mark.usefixtures("locked")
def test_a_lock_that_is_held_for_too_long_costs_only_its_own_message(shop: Shop) -> None:
    """N8, N10: not the messages in front of it and behind it, even in its partition."""
    for number in range(30):
        shop.send(1, number % 10)
    waiting = [str(identity) for number, identity in enumerate(shop.sent) if number % 10 == 1]
    shop.flush()
    wallet = shop.start(FERRYMAN_DATABASE__LOCK_TIMEOUT_SECONDS="0.2", FERRYMAN_CONSUMER__RETRY_SECONDS="1")
    wallet.until(lambda: shop.settled(30), "verdicts", 60)
    assert shop.verdicts() == {"DONE": 27, "REJECTED": 3}
    rejected = shop.db.execute("SELECT id::text, code FROM ferryman.inbox_rejected").fetchall()
    assert sorted(rejected) == sorted((identity, "TIMED_OUT") for identity in waiting)
    shop.books_balance()


def test_a_table_that_is_locked_costs_no_message_its_verdict(shop: Shop) -> None:
    """N8, N11: DDL that takes longer than any message is retried."""
    for number in range(30):
        shop.send(1, number % 10)
    shop.flush()
    with psycopg.connect(shop.url) as other:
        other.execute("LOCK TABLE wallet")
        wallet = shop.start(FERRYMAN_DATABASE__LOCK_TIMEOUT_SECONDS="0.2", FERRYMAN_CONSUMER__RETRY_SECONDS="0.1")
        wallet.until(lambda: "every message that waits fails alike" in readyz(wallet), "readiness that says why")
        tries = wallet.stderr.count("handling failed")
        wallet.until(lambda: wallet.stderr.count("handling failed") > tries + 5, "more tries")
        assert shop.verdicts() == {}
    wallet.until(lambda: shop.settled(30), "verdicts")
    assert shop.verdicts() == {"DONE": 30}
    shop.books_balance()


def test_a_type_without_a_handler_is_rejected_if_asked_for(shop: Shop) -> None:
    shop.raw(b"{}", kind="something.else")
    shop.send(1)
    shop.flush()
    wallet = shop.start(SHOP_UNKNOWN="reject")
    wallet.until(lambda: shop.settled(2), "verdicts")
    assert shop.verdicts() == {"DONE": 1, "REJECTED": 1}
    code, error = shop.db.execute("SELECT code, error FROM ferryman.inbox_rejected").fetchone() or ("", "")
    assert code == "UNKNOWN_TYPE"
    assert "has no handler for something.else, only for payment.requested" in error


def test_a_partition_taken_away_while_its_message_is_handled_doubles_nothing(shop: Shop) -> None:
    """N5: the members are static; the first finishes its batch before it gives anything away."""
    shop.send(1, 1, do="nap")
    shop.flush()
    first = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="one")
    first.until(lambda: shop.one(HANDLING), "a start")
    second = shop.start(FERRYMAN_CONSUMER__INSTANCE_ID="two")
    for number in range(30):
        shop.send(1, number % 10)
    shop.flush()
    second.until(lambda: shop.settled(31), "verdicts")
    owners = "SELECT count(*) FROM ferryman.inbox_start WHERE owned"
    second.until(lambda: shop.one(owners) == shop.partitions, "owners")
    shop.books_balance()
    assert shop.verdicts() == {"DONE": 31}
    assert first.alive
