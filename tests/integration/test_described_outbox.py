"""Described outboxes on a real database: rows are claimed, sent and settled, whatever becomes of their relays."""

import threading
from typing import Any

import psycopg
import pytest

from ferryman.relay.described.policy import End, Verdict
from ferryman.relay.described.statements import GIVEN_UP, IN_DOUBT
from ferryman.runtime.errors import Misconfigured, Unreachable
from support.describing import Memos
from support.published import poll_until, read_topic
from support.topics import create

Database = psycopg.Connection[tuple[Any, ...]]
NOWHERE = "127.0.0.1:9"
ENUM = """
CREATE TYPE memo_status AS ENUM ('PENDING', 'SENT');
ALTER TABLE shop.memos ALTER status DROP DEFAULT, ALTER status TYPE memo_status USING status::memo_status
"""
GRANTS = """
CREATE ROLE memo_relay; GRANT USAGE ON SCHEMA shop TO memo_relay;
GRANT SELECT ON shop.memos TO memo_relay; GRANT UPDATE (status) ON shop.memos TO memo_relay
"""


@pytest.fixture
def memos(ferryman_database_url: str, ferryman_db: Database, ferryman_kafka: str) -> Memos:
    return Memos(ferryman_database_url, ferryman_kafka, ferryman_db, create(ferryman_kafka))


@pytest.fixture
def away(ferryman_database_url: str, ferryman_db: Database) -> Memos:
    """Where no Kafka answers."""
    return Memos(ferryman_database_url, NOWHERE, ferryman_db, "nowhere")


def test_rows_are_sent_with_their_ids_keys_and_bytes_and_are_settled_in_the_words_of_the_table(memos: Memos) -> None:
    ids = memos.write("a", "b", "a")
    with memos.relay() as relay:
        assert relay.run_once().published == 3
        assert relay.run_once().quiet
    assert memos.rows() == [("SENT", 0, None)] * 3
    assert memos.db.execute("SELECT count(*) FROM shop.memos WHERE sent_at IS NOT NULL").fetchone() == (3,)
    records = read_topic(memos.kafka, memos.topic)
    assert [(record.id, record.key) for record in records] == list(zip(map(str, ids), "aba", strict=True))
    headers = dict(records[0].headers)
    assert (headers["ce_type"], headers["content-type"], records[0].value) == (
        b"memo", b"application/json", b'{"n": 0}',
    )  # fmt: skip


def test_two_relays_claim_each_row_once(memos: Memos) -> None:
    memos.write(*"abcdefghij")
    memos.described["batch_rows"] = 6
    with memos.relay() as one, memos.relay() as other:
        first = one.table.claim(one.connection, 6)
        second = other.table.claim(other.connection, 6)
        third = other.table.claim(other.connection, 6)
    assert (len(first), len(second), third) == (6, 4, [])
    assert not {row.id for row in first} & {row.id for row in second}


def test_a_row_that_is_locked_by_its_writer_is_passed_over(memos: Memos) -> None:
    memos.write("a", "b")
    with psycopg.connect(memos.url) as writer, memos.relay() as relay:
        writer.execute("SELECT FROM shop.memos WHERE key = 'a' FOR UPDATE")
        assert [row.entry.key for row in relay.table.claim(relay.connection, 10)] == ["b"]


def test_an_expired_claim_is_taken_over_alone_and_counts(memos: Memos) -> None:
    memos.write("a", "b")
    with memos.relay() as dead:
        dead.table.claim(dead.connection, 10)
    assert memos.rows() == [("SENDING", 1, IN_DOUBT[:60])] * 2
    with memos.relay() as heir:
        assert heir.run_once().quiet
        memos.expire()
        assert heir.run_once().published == 1
        assert heir.run_once().published == 1
    assert memos.rows() == [("SENT", 1, None)] * 2


def test_a_row_that_ends_its_relay_each_time_is_given_up(memos: Memos) -> None:
    memos.write("a")
    with memos.relay() as relay:
        relay.table.claim(relay.connection, 10)
        for _ in range(2):
            memos.expire()
            assert len(relay.table.claim(relay.connection, 1, lost=True)) == 1
        memos.expire()
        assert relay.table.claim(relay.connection, 1, lost=True) == []
        assert relay.run_once().quiet
    assert memos.rows() == [("FAILED", 3, GIVEN_UP[:60])]


def test_a_success_is_settled_though_the_lease_was_lost_and_a_failure_is_not(memos: Memos) -> None:
    memos.write("a", "b")
    with memos.relay() as slow, memos.relay() as heir:
        late = slow.table.claim(slow.connection, 10)
        memos.expire()
        for _ in late:
            assert len(heir.table.claim(heir.connection, 1, lost=True)) == 1
        judge = slow.worker._judge
        ends = (Verdict(End.DONE), Verdict(End.FAILED, "late", 1.0))
        settled = slow.table.settle(slow.connection, [judge.settling(*each) for each in zip(late, ends, strict=True)])
        assert settled == {late[0].id}
    assert memos.rows() == [("SENT", 1, None), ("SENDING", 2, IN_DOUBT[:60])]


def test_what_is_given_back_when_the_relay_stops_does_not_count(memos: Memos) -> None:
    memos.write("a")
    stopping = threading.Event()
    stopping.set()
    with memos.relay(stopping) as relay:
        assert relay.run_once().quiet
    assert memos.rows() == [("PENDING", 0, None)]
    assert read_topic(memos.kafka, memos.topic) == []


def test_a_row_that_can_never_be_sent_is_given_up_and_its_neighbours_are_sent(memos: Memos) -> None:
    """N10."""
    small = create(memos.kafka, max_message_bytes=1000)
    memos.write("a", "b", topic=small)
    memos.db.execute("UPDATE shop.memos SET payload = to_jsonb(repeat('x', 5000)) WHERE key = 'a'")
    with memos.relay() as relay:
        turn = relay.run_once()
        assert (turn.published, turn.failed) == (1, 1)
    (status, attempts, error), sent = memos.rows()
    assert (status, attempts, sent) == ("FAILED", 1, ("SENT", 0, None))
    assert "bytes" in error


def test_a_row_without_a_topic_is_given_up_and_odd_headers_are_written_as_text(memos: Memos) -> None:
    """N10: a user's table holds what the journal would not take."""
    memos.db.execute("ALTER TABLE shop.memos ALTER topic DROP NOT NULL, ADD COLUMN headers jsonb")
    memos.write("a", "b", "c")
    memos.db.execute("UPDATE shop.memos SET topic = NULL WHERE key = 'a'")
    memos.db.execute("""UPDATE shop.memos SET headers = '{"n": 1, "t": "x", "z": null}' WHERE key = 'b'""")
    memos.db.execute("UPDATE shop.memos SET headers = '[1]' WHERE key = 'c'")
    with memos.relay() as relay:
        turn = relay.run_once()
    assert (turn.published, turn.failed) == (2, 1)
    assert memos.rows()[0] == ("FAILED", 1, "it has no topic")
    by_key = {each.key: dict(each.headers) for each in read_topic(memos.kafka, memos.topic)}
    assert (by_key["b"]["n"], by_key["b"]["t"]) == (b"1", b"x")
    assert "z" not in by_key["b"]


def test_a_topic_that_is_not_there_burns_no_attempt_and_holds_up_nobody(memos: Memos) -> None:
    """N8, N10."""
    memos.write("a", topic="there-is-no-such-topic")
    memos.write("b")
    with memos.relay() as relay:
        relay.run_once()
        assert relay.run_once().quiet
    (status, attempts, error), sent = memos.rows()
    assert (status, attempts, sent) == ("PENDING", 0, ("SENT", 0, None))
    assert error


def test_while_kafka_is_away_nothing_is_burned(away: Memos) -> None:
    """N8: a drain says so, and leaves what it claimed as it was."""
    away.write("a")
    with away.relay() as relay:
        assert relay.run_once().unknown == 1
    assert away.rows()[0][:2] == ("PENDING", 0)
    with pytest.raises(Unreachable):
        away.outbox.drain(threading.Event(), lambda _turn: None)
    assert away.rows()[0][:2] == ("PENDING", 0)


def test_where_outages_count_a_row_is_given_up_after_so_many(away: Memos) -> None:
    away.described["retry"] = {"limit": 2, "base_seconds": 0.01, "count_outages": True}
    away.write("a")
    with away.relay() as relay:
        poll_until(lambda: relay.run_once().failed + 1 and away.rows()[0][0] == "FAILED", "the end of it")
        assert relay.run_once().quiet
    assert away.rows()[0][1] == 2


def test_without_a_word_for_claimed_and_for_dead_the_lease_and_the_count_say_it_all(away: Memos) -> None:
    away.described["words"] = {"pending": ["PENDING"], "done": "SENT"}
    away.described["retry"] = {"limit": 2, "base_seconds": 0.01, "count_outages": True}
    away.db.execute("ALTER TABLE shop.memos ALTER error_message TYPE text")
    away.write("a")
    with away.relay() as relay:
        relay.table.claim(relay.connection, 1)
        assert away.rows() == [("PENDING", 1, IN_DOUBT)]
        assert relay.run_once().quiet
        away.expire()
        assert relay.run_once().failed == 1
        away.expire()
        assert relay.run_once().quiet
        [backlog] = relay.table.backlog(relay.connection)
    status, attempts, error = away.rows()[0]
    assert (status, attempts) == ("PENDING", 2)
    assert "Kafka" in error or "broker" in error
    assert (backlog.pending, backlog.retrying, backlog.failed) == (0, 0, 1)


def test_with_order_by_key_a_row_waits_for_the_earlier_ones_of_its_key(memos: Memos) -> None:
    """N4, also between two relays."""
    memos.described["order"] = "key"
    memos.write("a", "a", "b")
    with memos.relay() as one, memos.relay() as other:
        assert [row.entry.key for row in one.table.claim(one.connection, 10)] == ["a", "b"]
        assert other.table.claim(other.connection, 10) == []
        memos.db.execute("UPDATE shop.memos SET status = 'FAILED' WHERE status = 'SENDING'")
        assert [row.entry.key for row in other.table.claim(other.connection, 10)] == ["a"]


def test_the_wait_between_attempts_is_reckoned_from_the_lease_or_stands_in_a_column(memos: Memos) -> None:
    memos.described["retry"] = {"limit": 3, "base_seconds": 3600}
    memos.write("a")
    for lease in ("last_attempt_at", "next_attempt_at"):
        memos.described["lease"] = {"column": lease, "seconds": 60}
        with memos.relay() as relay:
            [row] = relay.table.claim(relay.connection, 1)
            failed = relay.worker._judge.settling(row, Verdict(End.FAILED, "it failed", 3600.0))
            assert relay.table.settle(relay.connection, [failed]) == {row.id}
            assert relay.table.claim(relay.connection, 1) == []
        memos.db.execute("ALTER TABLE shop.memos ADD COLUMN IF NOT EXISTS next_attempt_at timestamptz")
        memos.db.execute("UPDATE shop.memos SET last_attempt_at = NULL, next_attempt_at = NULL, retry_count = 0")
        with memos.relay() as relay:
            assert relay.table.claim(relay.connection, 0) == []


# --- the description


@pytest.mark.parametrize(
    ("break_it", "mends"),
    [
        ("DROP TABLE shop.memos",
         ["CREATE TABLE shop.memos", "retry_count integer", "last_attempt_at timestamptz"]),
        ("ALTER TABLE shop.memos DROP COLUMN error_message",
         ["ALTER TABLE shop.memos ADD COLUMN error_message text;"]),
        ("ALTER TABLE shop.memos DROP COLUMN last_attempt_at, DROP COLUMN retry_count",
         ["ADD COLUMN last_attempt_at timestamptz;", "ADD COLUMN retry_count integer NOT NULL DEFAULT 0;"]),
        ("ALTER TABLE shop.memos ALTER retry_count TYPE text",
         ["ALTER TABLE shop.memos ALTER COLUMN retry_count TYPE integer USING retry_count::integer;"]),
        ("ALTER TABLE shop.memos DROP CONSTRAINT memos_pkey", ["ADD UNIQUE (id);"]),
        (ENUM, ["ALTER TYPE memo_status ADD VALUE IF NOT EXISTS 'SENDING';"]),
    ],
)  # fmt: skip
def test_a_table_that_is_misdescribed_is_refused_with_the_ddl_that_mends_it(
    memos: Memos, break_it: str, mends: list[str]
) -> None:
    memos.db.execute(break_it)
    outbox = memos.outbox
    with outbox.connect() as connection:
        with pytest.raises(Misconfigured) as refused:
            outbox.open(connection)
        remedy = refused.value.remedy or ""
        assert all(each in remedy for each in mends), remedy
        memos.db.execute(remedy.partition(": ")[2])
        outbox.open(connection)


def test_a_role_that_may_not_change_the_table_is_told_the_grants(memos: Memos) -> None:
    memos.db.execute(GRANTS)
    try:
        outbox = memos.outbox
        with outbox.connect() as connection:
            connection.execute("SET ROLE memo_relay")
            with pytest.raises(Misconfigured, match=r"GRANT UPDATE \(retry_count\) ON shop\.memos TO memo_relay;"):
                outbox.open(connection)
    finally:
        memos.db.execute("DROP OWNED BY memo_relay; DROP ROLE memo_relay")
