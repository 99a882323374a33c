"""The inbox stays quick as it grows, and lets go of what is old as fast as new messages come."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.consumer.store import keeping, receipts

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
