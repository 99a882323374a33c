"""A saga whose table has numbers for keys and its own names for columns, as webhook deliveries have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman import Go, Misconfigured, Received, Row
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.saga.answers import Answer
from ferryman.saga.ddl import table
from ferryman.saga.guards import check, enum, guards, lacking
from ferryman.saga.machine import State
from ferryman.saga.store import Moved, SagaStore
from ferryman.saga.timeouts import DueLoop
from support.deliveries import DELIVERY, LIMIT, TABLES, Delivery, declared, on_due, result, sagas, table_of

Database = psycopg.Connection[tuple[Any, ...]]


OTHER_ARCHIVE = (
    "CREATE OR REPLACE FUNCTION hooks.archive_sagas(before timestamptz, who text, reason text, most integer DEFAULT 9) "
    "RETURNS SETOF jsonb LANGUAGE sql AS $$ SELECT '{{}}'::jsonb $$"
)


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute(TABLES)
    return ferryman_db


def begun(db: Database, state: str = "Pending") -> int:
    row = db.execute(
        "INSERT INTO hooks.webhook_delivery_sagas (next_attempt_at, status) VALUES (now(), %s) RETURNING id", (state,)
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
    """Make every saga due."""
    db.execute("UPDATE hooks.webhook_delivery_sagas SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL")
    with db.transaction():
        return len(sagas().due(db))


def test_results_and_timeouts_move_a_saga_to_its_end(db: Database) -> None:
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


def test_exhausted_delivery_is_dead_lettered_in_one_transaction_with_its_letter(db: Database) -> None:
    """N7: the result that exhausts the limit passes PendingRetry; without the letter nothing of it happens."""

    def failed(saga: Delivery, result: Received) -> Answer:
        steps = [Go("PendingRetry", set={"attempt": saga.attempt + 1}, reason=result.data["error_code"], due=60.0)]
        letter = Row(
            "hooks.dead_letters", {"saga_id": saga.id, "event_id": saga.event_id, "attempts": saga.attempt + 1}
        )
        return steps if saga.attempt + 1 < LIMIT else [*steps, Go("DeadLettered", rows=[letter])]

    engine, saga = declared(on_failed=failed).engine, begun(db)

    def fails() -> None:
        late(db)
        with db.transaction():
            engine.apply(db, [result("failed", saga, error_code="HTTP_500")])

    fails()
    with pytest.raises(psycopg.errors.UndefinedTable):
        fails()
    assert stands(db, saga) == ("InProgress", 1, "HTTP_500", True)
    db.execute("CREATE TABLE hooks.dead_letters (saga_id bigint PRIMARY KEY, event_id bigint, attempts integer)")
    fails()
    assert stands(db, saga) == ("DeadLettered", 2, "HTTP_500", None)
    assert db.execute("SELECT * FROM hooks.dead_letters").fetchall() == [(saga, 1, 2)]


def test_many_results_of_a_saga_that_stays_are_one_statement(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """N12: the guards look at transitions, and a saga that stays makes none."""
    statements: list[int] = []
    staying = declared(on_failed=lambda saga, _: Go(saga.state, set={"attempt": saga.attempt + 1}, due=60.0))
    engine, move = staying.engine, SagaStore.move

    def counted(store: SagaStore, connection: Database, moved: Sequence[Moved]) -> int:
        statements.append(len(moved))
        return move(store, connection, moved)

    monkeypatch.setattr(SagaStore, "move", counted)
    counting, other = begun(db), begun(db)
    late(db)
    with db.transaction():
        engine.apply(db, [*(result("failed", counting) for _ in range(500)), result("failed", other)])
    assert statements == [2, 2]
    assert (stands(db, counting)[1], stands(db, other)[1]) == (500, 1)


def test_state_may_be_an_enum_of_the_tables_schema(ferryman_db: Database) -> None:
    """Every result was a LATE stray with a receipt: no rule knows a state that is read as bytes."""
    machine, db = replace(DELIVERY, state_type="hooks.delivery_state"), ferryman_db
    states = ", ".join(f"'{each}'" for each in machine.states)
    db.execute(f"CREATE SCHEMA hooks; CREATE TYPE hooks.delivery_state AS ENUM ({states})")
    db.execute(table_of(machine) + guards(machine))
    check(db, machine)
    good, bad = begun(db), begun(db)
    engine = sagas(state_type=machine.state_type)
    with db.transaction():
        assert len(engine.due(db)) == 2
        engine.apply(db, [result("succeeded", good), result("failed", bad, error_code="HTTP_500")])
    assert [stands(db, each)[0] for each in (good, bad)] == ["Completed", "PendingRetry"]
    assert engine.store.count(db) == {("PendingRetry", False): 1}
    with pytest.raises(psycopg.errors.IntegrityError):
        db.execute("UPDATE hooks.webhook_delivery_sagas SET status = 'Pending', next_attempt_at = now()")
    with pytest.raises(Misconfigured, match=r"status is hooks\.delivery_state, not text"):
        check(db, DELIVERY)


# --- the live table


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DROP TRIGGER delivery_goes ON {table}", "it has no delivery_goes"),
        ("ALTER TABLE {table} DISABLE TRIGGER delivery_ended", "it has no delivery_ended"),
        ("ALTER TABLE {table} DROP CONSTRAINT delivery_waits", "it has no delivery_waits"),
        ("DROP INDEX hooks.delivery_due", "it has no delivery_due"),
        ("ALTER TABLE {table} DROP CONSTRAINT webhook_delivery_sagas_pkey", "no unique index on id"),
        ("ALTER TABLE {table} DROP COLUMN final_error_code", "it has no column final_error_code"),
        ("ALTER TABLE {table} ALTER updated_at TYPE date", "updated_at is date, not timestamp with time zone"),
        ("ALTER TABLE {table} ALTER attempt_count DROP DEFAULT, ALTER attempt_count TYPE text", "is text, not integer"),
        ("DROP TABLE {table}", "it does not exist"),
        ("ALTER FUNCTION hooks.archive_sagas RENAME TO other", "it has no archive_sagas"),
        (OTHER_ARCHIVE, "its archive_sagas is another"),
    ],
)
def test_table_that_does_not_fit_its_machine_is_refused_with_the_ddl(db: Database, damage: str, said: str) -> None:
    """N7: `ferryman run` checks it when it starts. The DDL of the remedy makes it fit."""
    check(db, DELIVERY)
    db.execute(damage.format(table=DELIVERY.table))
    with pytest.raises(Misconfigured, match=said) as refused:
        check(db, DELIVERY)
    assert refused.value.remedy is not None
    db.execute(refused.value.remedy.partition("\n")[2].encode())
    check(db, DELIVERY)


def test_column_that_no_start_fills_is_named_with_the_remedy(db: Database) -> None:
    """The start of a saga failed in its writer's transaction; rows that are inserted otherwise are not refused."""
    db.execute("ALTER TABLE hooks.webhook_delivery_sagas ADD colour text NOT NULL, ADD pen text NOT NULL DEFAULT 'p'")
    with capture_logs() as logs:
        check(db, DELIVERY)
    assert [(each["columns"], each["machine"]) for each in logs] == [(["colour"], "delivery")]


def test_table_with_the_guards_of_an_older_machine_is_refused_with_the_ddl(db: Database) -> None:
    states = {**DELIVERY.states, "InProgress": State("A job.", ("Completed", "PendingRetry", "DeadLettered"))}
    newer = replace(DELIVERY, states=states)
    with pytest.raises(Misconfigured, match="its delivery_goes is another") as refused:
        check(db, newer)
    assert refused.value.remedy is not None
    db.execute(refused.value.remedy.partition("\n")[2].encode())
    check(db, newer)


def test_state_that_the_live_enum_lacks_is_added_before_it_is_used(ferryman_db: Database) -> None:
    """The DDL of the other guards failed: the type did not know the state that they name."""
    machine, db = replace(DELIVERY, state_type="hooks.delivery_state"), ferryman_db
    db.execute("CREATE SCHEMA hooks; " + enum(machine) + table_of(machine) + guards(machine))
    retried = State("Rests.", ("InProgress",))
    newer = replace(
        machine,
        states={
            **machine.states,
            "Resting": retried,
            "InProgress": State("A job.", ("Resting", "Completed", "PendingRetry")),
        },
    )
    (problem, statement), *others = lacking(db, newer)
    assert problem == "its type hooks.delivery_state has no Resting"
    for each in (statement, *(later for _, later in others)):
        db.execute(each.encode())
    check(db, newer)


def test_enum_that_does_not_exist_is_created_with_the_table(ferryman_db: Database) -> None:
    saga = declared(state_type="hooks.delivery_state")
    ferryman_db.execute(table(saga))
    check(ferryman_db, saga.machine)
    other = replace(saga.machine, state_type="hooks.other_state")
    assert lacking(ferryman_db, other)[0] == ("there is no type hooks.other_state", enum(other))


@pytest.mark.parametrize(
    ("index", "does"),
    [
        ("(status, next_attempt_at)", True),
        ("(status, next_attempt_at) WITH (fillfactor = 70)", True),
        ("(status, next_attempt_at) INCLUDE (id) WHERE next_attempt_at IS NOT NULL", True),
        ("(status, next_attempt_at) WHERE attempt_count > 3", False),
        ("(status, next_attempt_at) WHERE status = 'Pending'", False),
        ("(status, next_attempt_at DESC)", False),
        ("(next_attempt_at, status)", False),
        ("(status)", False),
    ],
)
def test_equal_index_of_another_name_does_as_well(db: Database, index: str, does: bool) -> None:
    """The document of webhooks names its own; a second one would cost every move."""
    db.execute(f"DROP INDEX hooks.delivery_due; CREATE INDEX theirs ON {DELIVERY.table} {index}")
    assert [problem for problem, _ in lacking(db, DELIVERY)] == ([] if does else ["it has no delivery_due"])


@pytest.mark.parametrize(("more", "does"), [("", True), (" AND attempt_count > 3", False)])
def test_index_of_what_is_over_must_have_all_of_it(db: Database, more: str, does: bool) -> None:
    over = f"CREATE INDEX theirs ON {DELIVERY.table} (updated_at) WHERE status IN ('Completed', 'DeadLettered'){more}"
    db.execute(f"DROP INDEX hooks.delivery_over; {over}")
    assert (lacking(db, DELIVERY) == []) is does


def test_timeouts_of_a_saga_without_its_guards_do_not_start(ferryman_database_url: str, db: Database) -> None:
    db.execute("DROP TRIGGER delivery_goes ON hooks.webhook_delivery_sagas")
    settings, life = Settings.model_validate({"database_url": ferryman_database_url}), Life("timeouts")
    with pytest.raises(Misconfigured, match="delivery_goes"):
        DueLoop(sagas(), settings).run(life)
    life.stopping.set()


def test_one_that_cannot_be_moved_stops_no_other(db: Database) -> None:
    """N10: neither a failing rule nor a refusal of the database stops the others; both sagas are tried again later."""
    buggy, refused, fine = begun(db), begun(db), begun(db)

    def on_due(saga: Delivery) -> Answer:
        if saga.id == buggy:
            raise KeyError("nothing that it needs")
        return Go("InProgress", set={"attempt": 2**40 if saga.id == refused else 0}, due=300.0)

    loop = DueLoop(sagas(on_due), Settings())
    with capture_logs() as logs:
        assert loop.turn(db) == 1
        assert loop.turn(db) == 0
    assert [stands(db, each)[0] for each in (buggy, refused, fine)] == ["Pending", "Pending", "InProgress"]
    assert stands(db, buggy)[3]
    errors = {each["saga"]: each["error"] for each in logs if each["event"] == "cannot be moved"}
    assert errors[str(buggy)] == "KeyError: 'nothing that it needs'"
    assert "out of range" in errors[str(refused)]


def test_a_stray_of_a_machine_with_numbers_is_kept_by_its_number(db: Database) -> None:
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


def test_two_machines_of_one_schema_are_archived_separately(db: Database) -> None:
    saga = begun(db)
    late(db)
    with db.transaction():
        sagas().apply(db, [result("succeeded", saga)])
    assert db.execute("SELECT hooks.archive_jobs(now() + '1 s', 'ada', 'tidying')").fetchall() == []
    [(row,)] = db.execute("SELECT hooks.archive_sagas(now() + '1 s', 'ada', 'tidying')").fetchall()
    assert (row["id"], row["status"]) == (saga, "Completed")


@pytest.mark.parametrize("by_state", [False, True])
def test_due_sagas_are_found_by_their_index_however_many_wait(db: Database, by_state: bool) -> None:
    """N12: otherwise every turn would scan all unfinished sagas."""
    engine = sagas(due_by_state=by_state)
    for _, statement in lacking(db, engine.machine):
        db.execute(statement.encode())
    db.execute(
        "INSERT INTO hooks.webhook_delivery_sagas (next_attempt_at) "
        "SELECT CASE WHEN n % 2 = 0 THEN 'infinity' ELSE now() + interval '1 h' END FROM generate_series(1, 20000) n"
    )
    db.execute("ALTER TABLE hooks.webhook_delivery_sagas DISABLE TRIGGER delivery_begins")
    due = [begun(db, state) for state in ("Pending", "PendingRetry", "InProgress")]
    db.execute("ANALYZE hooks.webhook_delivery_sagas")
    with db.transaction():
        assert sorted(row[0] for row in engine.store.due(db, 500)) == due
        assert [row[0] for row in engine.store.due(db, 2)] == due[:2]
    found = "((status = n.in_state) AND (next_attempt_at" if by_state else "(next_attempt_at"
    store = engine.store
    for statement, compared in ((store._due, "<="), (store._next_due, "<"), (store._overdue, "<=")):
        plan = db.execute(
            "EXPLAIN (ANALYZE, BUFFERS OFF) " + statement, {"most": 500, "machine": "delivery"}
        ).fetchall()
        said = "\n".join(line for (line,) in plan)
        assert f"Index Cond: {found} {compared} " in said, said
        assert "Rows Removed" not in said, said
        assert "Seq Scan on webhook" not in said, said


def test_table_whose_index_has_other_columns_is_refused_with_the_ddl(db: Database) -> None:
    machine = sagas(due_by_state=False).machine
    [(problem, statement)] = lacking(db, machine)
    assert problem == "its delivery_due is another"
    db.execute(statement.encode())
    check(db, machine)


@pytest.mark.parametrize(("seconds", "left"), [(0, 3), (60, 1), (10_000, 3)])
def test_strays_are_kept_as_long_as_receipts_and_with_zero_for_ever(
    db: Database, monkeypatch: pytest.MonkeyPatch, seconds: float, left: int
) -> None:
    """Late results can only be found among the strays."""
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
