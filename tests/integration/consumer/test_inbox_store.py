"""The inbox stays fast as it grows, and old receipts are deleted as fast as new ones come."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.consumer.model import Poison, Record
from ferryman.consumer.store import receipts
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
    """Return how many of these are known, and how many rows were read for that."""
    with db.transaction(force_rollback=True):
        before = rows_read(db)
        _, known = receipts.find(db, "wallet", ids, receipts.DEFAULT_LIMITS)
        return len(known), rows_read(db) - before


def rows_read(db: Database) -> int:
    """Return the rows that this session read since the server last took its counts."""
    row = db.execute(_READ).fetchone()
    assert row is not None
    return int(row[0] or 0)


@pytest.mark.parametrize("vacuumed", [False, True])
def test_a_batch_reads_only_its_own_receipts_however_many_there_are(ferryman_db: Database, vacuumed: bool) -> None:
    """N12: also on a connection that prepared its statements while the table was empty and never analyzed."""
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


def test_old_receipts_are_deleted_in_portions_and_rejected_ones_are_kept(ferryman_db: Database) -> None:
    fill(ferryman_db, receipts.MOST_FORGOTTEN + 5, days=40)
    fill(ferryman_db, 3, days=40, consumer="another")
    kept = [*fill(ferryman_db, 7), *fill(ferryman_db, 1, days=40)]
    ferryman_db.execute("UPDATE ferryman.inbox SET status = 'REJECTED' WHERE id = %s", (kept[-1],))
    assert receipts.forget_receipts(ferryman_db, "wallet", 0) == 0
    assert receipts.forget_receipts(ferryman_db, "wallet", 30 * 86400) == receipts.MOST_FORGOTTEN
    assert receipts.forget_receipts(ferryman_db, "wallet", 30 * 86400) == 5
    left = ferryman_db.execute("SELECT id FROM ferryman.inbox WHERE consumer = 'wallet'").fetchall()
    assert {row[0] for row in left} == set(kept)


def rejected(db: Database, identity: UUID, offset: int, status: str, days: int) -> None:
    record = Record("t", 0, offset, b"k", str(identity).encode(), [("ce_type", b"t")], 0)
    keep(db, "wallet", Poison(record, identity, "t", b"h", "BUG", "a bug"))
    db.execute(
        "UPDATE ferryman.inbox_rejected SET status = %s, changed_at = clock_timestamp() - make_interval(days => %s) "
        'WHERE "offset" = %s',
        (status, days, offset),
    )


def test_settled_records_are_deleted_with_their_receipts_and_others_are_kept(ferryman_db: Database) -> None:
    """N12: a record that waits for a person is kept, whatever its age."""
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
    assert receipts.forget_settled(ferryman_db, "wallet", 0) == 0
    assert receipts.forget_settled(ferryman_db, "another", 30 * 86400) == 0
    ferryman_db.execute("SET ROLE ferryman_wallet")
    assert receipts.forget_settled(ferryman_db, "wallet", 30 * 86400) == 3
    ferryman_db.execute("RESET ROLE")
    left = ferryman_db.execute('SELECT "offset" FROM ferryman.inbox_rejected ORDER BY 1').fetchall()
    assert left == [(1,), (2,), (4,)]
    receipts_left = ferryman_db.execute("SELECT id FROM ferryman.inbox").fetchall()
    assert {row[0] for row in receipts_left} == set(ids[1:])


def test_a_record_rejected_at_the_place_of_an_older_one_is_kept_beside_it(ferryman_db: Database) -> None:
    """In a topic that was made anew, offsets start again at 0."""
    first, second, third = uuid4(), uuid4(), uuid4()
    for identity in (first, second, third):
        rejected(ferryman_db, identity, 7, "REJECTED", 0)
    ferryman_db.execute(
        "UPDATE ferryman.inbox_rejected SET status = 'DISCARDED', changed_at = now() - interval '40 d' WHERE id = %s",
        (second,),
    )
    kept: dict[Any, Any] = dict(ferryman_db.execute("SELECT id, value FROM ferryman.inbox_rejected").fetchall())
    assert kept == {each: str(each).encode() for each in (first, second, third)}
    assert receipts.forget_settled(ferryman_db, "wallet", 30 * 86400) == 1
    left = {each for (each,) in ferryman_db.execute("SELECT id FROM ferryman.inbox_rejected").fetchall()}
    assert left == {first, third}
