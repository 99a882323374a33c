"""The inbox stays quick as it grows, and lets go of what is old as fast as new messages come."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.consumer.model import Poison, Record
from ferryman.consumer.store import keeping, receipts
from ferryman.consumer.store.rejected import keep

Database = psycopg.Connection[tuple[Any, ...]]

_FILL = """
INSERT INTO ferryman.inbox (consumer, id, status, hash, type, topic, partition, "offset", received_at)
SELECT %s, gen_random_uuid(), 'HANDLED', '', 't', 't', 0, n, clock_timestamp() - make_interval(days => %s)
FROM generate_series(1, %s) n RETURNING id
"""
_READ = """
SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'ferryman.inbox'::regclass
"""


def fill(db: Database, many: int, days: int = 0, consumer: str = "wallet") -> list[UUID]:
    return [row[0] for row in db.execute(_FILL, (consumer, days, many)).fetchall()]


def found(db: Database, ids: list[UUID]) -> tuple[int, int]:
    """How many of these are known, and how many rows were read to know it."""
    with db.transaction(force_rollback=True):
        before = rows_read(db)
        _, known = receipts.find(db, "wallet", ids, receipts.DEFAULT_LIMITS)
        return len(known), rows_read(db) - before


def rows_read(db: Database) -> int:
    """By this session, since the server last took its counts."""
    row = db.execute(_READ).fetchone()
    assert row is not None
    return int(row[0] or 0)


@pytest.mark.parametrize("vacuumed", [False, True])
def test_a_batch_reads_its_own_receipts_and_no_others_however_many_there_are(
    ferryman_db: Database, vacuumed: bool
) -> None:
    """N12: also on a connection that has prepared its statements while the table was empty and nobody analyzed it."""
    ferryman_db.execute("ALTER TABLE ferryman.inbox SET (autovacuum_enabled = off)")
    if vacuumed:
        ferryman_db.execute("VACUUM (ANALYZE) ferryman.inbox")
    for _ in range(20):
        assert found(ferryman_db, [uuid4()]) == (0, 0)
    known = fill(ferryman_db, 20_000)
    for _ in range(20):
        assert found(ferryman_db, [*known[:5], uuid4()]) == (5, 5)
    many, read = found(ferryman_db, known[:500])
    assert (many, read) == (500, 500)


def test_what_is_old_is_forgotten_a_little_at_a_time_and_what_waits_for_a_person_is_kept(ferryman_db: Database) -> None:
    fill(ferryman_db, keeping.MOST + 5, days=40)
    fill(ferryman_db, 3, days=40, consumer="another")
    kept = [*fill(ferryman_db, 7), *fill(ferryman_db, 1, days=40)]
    ferryman_db.execute("UPDATE ferryman.inbox SET status = 'REJECTED' WHERE id = %s", (kept[-1],))
    assert keeping.forget(ferryman_db, "wallet", 0) == 0
    assert keeping.forget(ferryman_db, "wallet", 30 * 86400) == keeping.MOST
    assert keeping.forget(ferryman_db, "wallet", 30 * 86400) == 5
    left = ferryman_db.execute("SELECT id FROM ferryman.inbox WHERE consumer = 'wallet'").fetchall()
    assert {row[0] for row in left} == set(kept)


def rejected(db: Database, identity: UUID, offset: int, status: str, days: int) -> None:
    record = Record("t", 0, offset, b"k", str(identity).encode(), [("ce_type", b"t")], 0)
    keep(db, "wallet", Poison(record, identity, "t", b"", "BUG", "a bug"))
    db.execute(
        "UPDATE ferryman.inbox_rejected SET status = %s, changed_at = clock_timestamp() - make_interval(days => %s) "
        'WHERE "offset" = %s',
        (status, days, offset),
    )


def test_what_a_person_decided_about_is_forgotten_with_its_receipt_and_what_waits_is_not(ferryman_db: Database) -> None:
    """N12: whatever its age, nothing that waits for a person."""
    ids = fill(ferryman_db, 5, days=40)
    ferryman_db.execute("UPDATE ferryman.inbox SET status = 'REJECTED' WHERE id = ANY (%s)", (ids[:4],))
    for offset, (identity, status, days) in enumerate(
        [
            (ids[0], "DISCARDED", 40),
            (ids[1], "DISCARDED", 1),
            (ids[2], "REJECTED", 40),
            (ids[3], "REQUEUED", 40),
            (ids[3], "REJECTED", 40),  # and rejected again
            (ids[4], "REQUEUED", 40),
        ]
    ):
        rejected(ferryman_db, identity, offset, status, days)
    assert keeping.forget_settled(ferryman_db, "wallet", 0) == 0
    assert keeping.forget_settled(ferryman_db, "another", 30 * 86400) == 0
    ferryman_db.execute("SET ROLE ferryman_consumer")
    assert keeping.forget_settled(ferryman_db, "wallet", 30 * 86400) == 3
    ferryman_db.execute("RESET ROLE")
    left = ferryman_db.execute('SELECT "offset" FROM ferryman.inbox_rejected ORDER BY 1').fetchall()
    assert left == [(1,), (2,), (4,)]
    receipts_left = ferryman_db.execute("SELECT id FROM ferryman.inbox").fetchall()
    assert {row[0] for row in receipts_left} == set(ids[1:])


def test_a_record_that_is_rejected_where_another_once_stood_is_kept_whole(ferryman_db: Database) -> None:
    """N1: offsets begin again where a topic is made anew; to requeue would send the message of before."""
    first, second = uuid4(), uuid4()
    rejected(ferryman_db, first, 7, "DISCARDED", 1)
    rejected(ferryman_db, second, 7, "REJECTED", 0)
    kept = ferryman_db.execute("SELECT id, value, status FROM ferryman.inbox_rejected").fetchall()
    assert kept == [(second, str(second).encode(), "REJECTED")]
