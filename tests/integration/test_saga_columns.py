"""A saga whose table has numbers for keys and words of its own for its columns, as the webhook document's has."""

from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman.runtime.settings import Settings
from ferryman.saga.model import Move
from ferryman.saga.service import DueLoop
from support.deliveries import TABLES, Delivery, on_due, result, sagas

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute(TABLES)
    return ferryman_db


def begun(db: Database) -> int:
    row = db.execute(
        "INSERT INTO hooks.webhook_delivery_sagas (next_attempt_at) VALUES (now()) RETURNING id"
    ).fetchone()
    assert row is not None
    return int(row[0])


def stands(db: Database, saga: int) -> tuple[Any, ...]:
    row = db.execute(
        "SELECT status, attempt_count, final_error_code, next_attempt_at > now() FROM hooks.webhook_delivery_sagas "
        "WHERE id = %s", (saga,),
    ).fetchone()  # fmt: skip
    assert row is not None
    return row


def late(db: Database) -> int:
    """Every time has come."""
    db.execute("UPDATE hooks.webhook_delivery_sagas SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL")
    with db.transaction():
        return len(sagas().due(db))


def test_it_goes_its_way_by_results_and_timeouts_to_its_end(db: Database) -> None:
    good, bad = begun(db), begun(db)
    assert late(db) == 2
    assert stands(db, good) == ("InProgress", 0, None, True)
    with db.transaction():
        sagas().apply(db, [result("succeeded", good), result("failed", bad, error_code="HTTP_500")])
    assert stands(db, good) == ("Completed", 1, None, None)
    assert stands(db, bad) == ("PendingRetry", 1, "HTTP_500", True)
    assert late(db) == 1
    with db.transaction():
        sagas().apply(db, [result("failed", bad, error_code="TIMEOUT")])
    assert late(db) == 1
    assert stands(db, bad) == ("DeadLettered", 2, "TIMEOUT", None)
    assert sagas().store.count(db) == {}


def test_one_that_cannot_be_moved_stops_no_other(db: Database) -> None:
    """N10: neither one that its rule fails at, nor one that the database refuses; both are looked at again later."""
    buggy, refused, fine = begun(db), begun(db), begun(db)

    def on_due(saga: Delivery) -> Move:
        if saga.id == buggy:
            raise KeyError("nothing that it needs")
        return Move("InProgress", (), 300.0, 2**40 if saga.id == refused else 0)

    loop = DueLoop(sagas(on_due), Settings())
    with capture_logs() as logs:
        assert loop.turn(db) == 1
        assert loop.turn(db) == 0
    assert [stands(db, each)[0] for each in (buggy, refused, fine)] == ["Pending", "Pending", "InProgress"]
    assert stands(db, buggy)[3]
    errors = {each["saga"]: each["error"] for each in logs if each["event"] == "cannot be moved"}
    assert errors[str(buggy)] == "KeyError: 'nothing that it needs'"
    assert "out of range" in errors[str(refused)]


def test_what_is_applied_to_nothing_is_kept_by_its_number(db: Database) -> None:
    saga = begun(db)
    with db.transaction():
        outcomes = sagas().apply(db, [result("succeeded", saga), result("succeeded", 4711)])
    assert [str(each) for each in outcomes] == ["Refused('LATE', *())", "Refused('UNKNOWN', *())"]
    kept = db.execute("SELECT saga_id, saga_number, why FROM ferryman.saga_stray ORDER BY saga_number").fetchall()
    assert kept == [(None, saga, "LATE"), (None, 4711, "UNKNOWN")]


def test_a_person_moves_those_that_are_named(db: Database) -> None:
    wanted, other = begun(db), begun(db)

    with db.transaction():
        assert sagas().act(db, [wanted, 4711], on_due) == 1
    assert (stands(db, wanted)[0], stands(db, other)[0]) == ("InProgress", "Pending")


def test_two_machines_of_one_schema_are_archived_each_by_itself(db: Database) -> None:
    saga = begun(db)
    late(db)
    with db.transaction():
        sagas().apply(db, [result("succeeded", saga)])
    assert db.execute("SELECT hooks.archive_jobs(now() + '1 s', 'ada', 'tidying')").fetchall() == []
    [(row,)] = db.execute("SELECT hooks.archive_sagas(now() + '1 s', 'ada', 'tidying')").fetchall()
    assert (row["id"], row["status"]) == (saga, "Completed")


def test_what_is_due_is_found_by_its_index_however_much_waits(db: Database) -> None:
    """N12: else every turn would go through all that is not over."""
    db.execute(
        "INSERT INTO hooks.webhook_delivery_sagas (next_attempt_at) "
        "SELECT CASE WHEN n % 2 = 0 THEN 'infinity' ELSE now() + interval '1 h' END FROM generate_series(1, 20000) n"
    )
    due = [begun(db) for _ in range(3)]
    db.execute("ANALYZE hooks.webhook_delivery_sagas")
    store = sagas().store
    with db.transaction():
        assert sorted(row[0] for row in store.due(db, 500)) == due
    for statement in (store._due, store._due_keys):
        plan = db.execute("EXPLAIN (ANALYZE, BUFFERS OFF) " + statement, {"most": 500}).fetchall()
        said = "\n".join(line for (line,) in plan)
        assert "Index Cond: (next_attempt_at <= statement_timestamp())" in said, said
        assert "Rows Removed" not in said, said


@pytest.mark.parametrize(("seconds", "left"), [(0, 3), (60, 1), (10_000, 3)])
def test_strays_are_kept_for_as_long_as_receipts_and_with_nought_for_ever(
    db: Database, monkeypatch: pytest.MonkeyPatch, seconds: float, left: int
) -> None:
    """What came too late is found by them alone."""
    monkeypatch.setattr("ferryman.saga.store._MOST_FORGOTTEN", 1)
    with db.transaction():
        sagas().apply(db, [result("succeeded", 404) for _ in range(3)])
    db.execute(
        "UPDATE ferryman.saga_stray SET came_at = came_at - interval '1 h' "
        "WHERE message_id IN (SELECT message_id FROM ferryman.saga_stray LIMIT 2)"
    )
    consumer = Settings.model_validate({"consumer": {"receipts_retention_seconds": seconds}})
    for _ in range(3):
        DueLoop(sagas(), consumer).turn(db)
    assert db.execute("SELECT count(*) FROM ferryman.saga_stray").fetchone() == (left,)
