"""Described outboxes on a real database: rows are claimed, sent and settled, even if their relays die."""

import threading
from typing import Any

import psycopg
import pytest

from ferryman.channels.outcome import Delivered, Retry
from ferryman.relay.admin import row_story
from ferryman.relay.admin.described_rows import RowSelection, open_rows, replay
from ferryman.relay.described.rows import Claimed, settling
from ferryman.relay.described.statements import GIVEN_UP, IN_DOUBT, IN_DOUBT_AGAIN
from ferryman.relay.described.table import Table, open_table
from ferryman.runtime.desk import WHOLE_OUTBOX, Act, Desk, change_pause
from ferryman.runtime.errors import Misconfigured, Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
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
    """Memos with an address where no Kafka answers."""
    return Memos(ferryman_database_url, NOWHERE, ferryman_db, "nowhere")


def test_rows_are_sent_unchanged_and_settled_in_the_words_of_the_table(memos: Memos) -> None:
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


def taken_over(table: Table) -> list[Claimed]:
    return table.claim_lost(1) or table.claim_lost(1, twice=True)


def test_two_relays_claim_each_row_once(memos: Memos) -> None:
    memos.write(*"abcdefghij")
    memos.described["batch_rows"] = 6
    with memos.relay() as one, memos.relay() as other:
        first = one.table.claim(6)
        second = other.table.claim(6)
        third = other.table.claim(6)
    assert (len(first), len(second), third) == (6, 4, [])
    assert not {row.id for row in first} & {row.id for row in second}


def test_oldest_rows_are_claimed_first(away: Memos) -> None:
    away.write("a", "b", "c")
    with away.relay() as relay:
        assert [[row.key for row in relay.table.claim(2)], [row.key for row in relay.table.claim(2)]] == [
            ["a", "b"],
            ["c"],
        ]


def test_row_locked_by_its_writer_is_passed_over(memos: Memos) -> None:
    memos.write("a", "b")
    with psycopg.connect(memos.url) as writer, memos.relay() as relay:
        writer.execute("SELECT FROM shop.memos WHERE key = 'a' FOR UPDATE")
        assert [row.key for row in relay.table.claim(10)] == ["b"]


def test_expired_claim_is_taken_over_alone_and_counts(memos: Memos) -> None:
    memos.write("a", "b")
    with memos.relay() as dead:
        dead.table.claim(10)
    assert memos.rows() == [("SENDING", 1, IN_DOUBT[:60])] * 2
    with memos.relay() as heir:
        assert heir.run_once().quiet
        memos.expire()
        assert heir.run_once().published == 1
        assert heir.run_once().published == 1
    assert memos.rows() == [("SENT", 1, None)] * 2


def test_row_that_ends_its_relay_each_time_is_given_up(memos: Memos) -> None:
    memos.write("a")
    with memos.relay() as relay:
        relay.table.claim(10)
        for _ in range(2):
            memos.expire()
            assert len(taken_over(relay.table)) == 1
        memos.expire()
        assert taken_over(relay.table) == []
        assert relay.run_once().quiet
    assert memos.rows() == [("FAILED", 3, GIVEN_UP[:60])]


def test_success_is_settled_without_the_lease_and_failure_is_not(memos: Memos) -> None:
    memos.write("a", "b")
    with memos.relay() as slow, memos.relay() as heir:
        late = slow.table.claim(10)
        memos.expire()
        for _ in late:
            assert len(taken_over(heir.table)) == 1
        described, (first, second) = slow.outbox.outbox, late
        settled = slow.table.settle(
            [settling(described, first, Delivered()), settling(described, second, Retry("late"))]
        )
        assert settled == {late[0].id}
    assert memos.rows() == [("SENT", 1, None), ("SENDING", 2, IN_DOUBT_AGAIN[:60])]


def test_row_released_when_the_relay_stops_keeps_its_attempts(memos: Memos) -> None:
    memos.write("a")
    stopping = threading.Event()
    stopping.set()
    with memos.relay(stopping) as relay:
        assert relay.run_once().quiet
    assert memos.rows() == [("PENDING", 0, None)]
    assert read_topic(memos.kafka, memos.topic) == []


@pytest.mark.real_kafka
def test_row_that_can_never_be_sent_is_given_up_and_its_neighbours_are_sent(memos: Memos) -> None:
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


def test_row_without_a_topic_is_given_up_and_odd_headers_become_strings(memos: Memos) -> None:
    """N10: a user's table may hold rows that the journal would refuse."""
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


def test_missing_topic_charges_no_attempt_and_holds_up_nobody(memos: Memos) -> None:
    """N8, N10."""
    memos.write("a", topic="there-is-no-such-topic")
    memos.write("b")
    with memos.relay() as relay:
        relay.run_once()
        assert relay.run_once().quiet
    (status, attempts, error), sent = memos.rows()
    assert (status, attempts, sent) == ("PENDING", 0, ("SENT", 0, None))
    assert error


def test_kafkas_absence_charges_no_attempt_of_a_row(away: Memos) -> None:
    """N8: a drain reports it, and leaves claimed rows as they were."""
    away.write("a")
    with away.relay() as relay:
        assert relay.run_once().unknown == 1
    assert away.rows()[0][:2] == ("PENDING", 0)
    with pytest.raises(Unreachable):
        away.outbox.drain(threading.Event(), lambda _turn: None)
    assert away.rows()[0][:2] == ("PENDING", 0)


def test_counted_outages_give_a_row_up_after_its_limit(away: Memos) -> None:
    away.described["retry"] = {"limit": 2, "base_seconds": 0.01, "count_outages": True}
    away.write("a")
    with away.relay() as relay:
        poll_until(lambda: relay.run_once().failed + 1 and away.rows()[0][0] == "FAILED", "the end of it")
        assert relay.run_once().quiet
    assert away.rows()[0][1] == 2


def test_without_words_for_claimed_and_dead_the_lease_and_the_count_are_enough(away: Memos) -> None:
    away.described["words"] = {"pending": ["PENDING"], "done": "SENT"}
    away.described["retry"] = {"limit": 2, "base_seconds": 0.01, "count_outages": True}
    away.db.execute("ALTER TABLE shop.memos ALTER error_message TYPE text")
    away.write("a")
    with away.relay() as relay:
        relay.table.claim(1)
        assert away.rows() == [("PENDING", 1, IN_DOUBT)]
        assert relay.run_once().quiet
        away.expire()
        assert relay.run_once().failed == 1
        away.expire()
        assert relay.run_once().quiet
        [backlog] = relay.table.backlog()
    status, attempts, error = away.rows()[0]
    assert (status, attempts) == ("PENDING", 2)
    assert "Kafka" in error or "broker" in error
    assert (backlog.pending, backlog.retrying, backlog.failed) == (0, 0, 1)


def test_ordered_by_key_a_row_waits_for_earlier_rows_of_its_key(memos: Memos) -> None:
    """N4, also between two relays."""
    memos.described["order"] = "key"
    memos.write("a", "a", "b")
    with memos.relay() as one, memos.relay() as other:
        assert [row.key for row in one.table.claim(10)] == ["a", "b"]
        assert other.table.claim(10) == []
        memos.db.execute("UPDATE shop.memos SET status = 'FAILED' WHERE status = 'SENDING'")
        assert [row.key for row in other.table.claim(10)] == ["a"]


def test_wait_between_attempts_comes_from_the_lease_or_from_a_column(memos: Memos) -> None:
    memos.described["retry"] = {"limit": 3, "base_seconds": 3600}
    memos.write("a")
    for lease in ("last_attempt_at", "next_attempt_at"):
        memos.described["lease"] = {"column": lease, "seconds": 60}
        with memos.relay() as relay:
            [row] = relay.table.claim(1)
            failed = settling(relay.outbox.outbox, row, Retry("it failed"))
            assert failed.wait_seconds == 3600
            assert relay.table.settle([failed]) == {row.id}
            assert relay.table.claim(1) == []
        memos.db.execute("ALTER TABLE shop.memos ADD COLUMN IF NOT EXISTS next_attempt_at timestamptz")
        memos.db.execute("UPDATE shop.memos SET last_attempt_at = NULL, next_attempt_at = NULL, retry_count = 0")
        with memos.relay() as relay:
            assert relay.table.claim(0) == []


# --- the description


def opened(memos: Memos, connection: Connection) -> Table:
    return open_table(connection, "memos", memos.settings.outbox["memos"], memos.settings.database)


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
def test_misdescribed_table_is_refused_with_the_ddl_that_mends_it(
    memos: Memos, break_it: str, mends: list[str]
) -> None:
    memos.db.execute(break_it)
    with pytest.raises(Misconfigured) as refused:
        opened(memos, memos.db)
    remedy = refused.value.remedy or ""
    assert all(each in remedy for each in mends), remedy
    memos.db.execute(remedy.partition(": ")[2])
    opened(memos, memos.db)


def test_role_that_may_not_change_the_table_gets_the_missing_grants(memos: Memos) -> None:
    memos.db.execute(GRANTS)
    try:
        with psycopg.connect(memos.url, autocommit=True) as connection:
            connection.execute("SET ROLE memo_relay")
            with pytest.raises(Misconfigured, match=r"GRANT UPDATE \(retry_count, .*\) ON shop\.memos TO memo_relay;"):
                opened(memos, connection)
    finally:
        memos.db.execute("DROP OWNED BY memo_relay; DROP ROLE memo_relay")


def test_table_whose_constraint_refuses_the_relay_is_tried_again(memos: Memos) -> None:
    """N10, N11: one user's table must not end the relay of the others."""
    memos.db.execute("ALTER TABLE shop.memos ADD CONSTRAINT never_done CHECK (status <> 'SENT') NOT VALID")
    memos.write("k")
    life = Life("outbox memos")
    thread = threading.Thread(target=memos.outbox.run, args=(life,))
    thread.start()
    try:
        poll_until(lambda: "never_done" in str(life.why_not_ready), "a refusal")
        memos.db.execute("ALTER TABLE shop.memos DROP CONSTRAINT never_done")
        poll_until(lambda: [row[0] for row in memos.rows()] == ["SENT"], "the settled row")
    finally:
        life.stopping.set()
        thread.join(20)
    assert not thread.is_alive()


def test_a_paused_outbox_or_topic_is_not_claimed_from(memos: Memos) -> None:
    desk, act = Desk(memos.db, memos.settings.database), Act("ann", "moving")
    memos.write("a", "b")
    memos.write("c", topic=create(memos.kafka))
    change_pause(desk, "pause", "outbox", "memos", act, destination=memos.topic)
    with memos.relay() as relay:
        assert relay.run_once().published == 1
        assert [status for status, *_ in memos.rows()] == ["PENDING", "PENDING", "SENT"]
        change_pause(desk, "pause", "outbox", "memos", act, destination=WHOLE_OUTBOX)
        change_pause(desk, "resume", "outbox", "memos", act, destination=memos.topic)
        relay.outbox.held.next_at = 0.0
        assert relay.run_once().quiet
        change_pause(desk, "resume", "outbox", "memos", act, destination=WHOLE_OUTBOX)
        relay.outbox.held.next_at = 0.0
        assert relay.run_once().published == 2


def test_a_table_in_a_database_without_the_engine_is_delivered_and_shown(memos: Memos) -> None:
    memos.db.execute("DROP SCHEMA ferryman CASCADE")
    [identity] = memos.write("a")
    rows = open_rows(Desk(memos.db, memos.settings.database), "memos", "memos", memos.settings.outbox["memos"])
    known = row_story.look(rows, str(identity))
    assert row_story.explain(known).next == "ferryman run relay"
    with memos.relay() as relay:
        assert relay.run_once().published == 1
    assert row_story.look(rows, str(identity)).row["state"] == "delivered"
    with pytest.raises(Misconfigured):
        next(replay(rows, RowSelection(ids=(str(identity),)), Act("ann", "again")))
