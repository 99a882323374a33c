"""Mistakes of an adopter on a real database: each is refused before it can move a saga wrongly, or takes no effect."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import Go, Misconfigured, Received, Row, Saga
from ferryman.saga.ddl import table
from ferryman.saga.guards import check
from ferryman.testing import stack
from support.orders import Order, answer, declared, wider

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute(table(declared()))
    return ferryman_db


def another(saga: Saga[Any], row: Any = Order, **more: Any) -> Saga[Any]:
    """Return a saga of the same states, with a result that is taken by a rule of the test."""
    given: dict[str, Any] = {"of": saga.of, "results": {"*": "stock.results"}, "table": "shop.orders", **more}
    made = Saga(given.pop("name", "orders"), row, commands="shop.commands", states=saga.states, **given)
    made.on("RESERVING", "stock.reserved", to="CHARGING")
    made.on("CHARGING", "stock.done", to="DONE")
    made.on("CANCELLING", "stock.kept", to="RELEASING")
    made.on("RELEASING", "stock.released", to="CANCELLED")
    return made


def started(db: Database, saga: Saga[Any] | None = None) -> Order:
    order = Order(uuid4(), "book", 500)
    with db.transaction():
        assert (saga or declared()).start(db, order).is_new
    return order


def apply(db: Database, saga: Saga[Any], *results: Received) -> list[str]:
    with db.transaction():
        return [type(each).__name__ for each in saga.engine.apply(db, results)]


def one(db: Database, query: str) -> Any:
    row = db.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("of", [lambda result: result.data["id"], lambda _: None, lambda _: 7])
def test_key_of_another_type_than_the_tables_is_refused(db: Database, of: Any) -> None:
    """Every result was an UNKNOWN stray with a receipt."""
    order = started(db)
    with pytest.raises(TypeError, match=r"`of` gave the key .*: give UUID"):
        apply(db, another(declared(), of=of), answer("stock.reserved", order.id))
    assert one(db, "SELECT count(*) FROM ferryman.saga_stray") == 0


@pytest.mark.parametrize("wrong", [None, ("a", "b"), Order(str(uuid4()), "book", 1)])  # type: ignore[arg-type]
def test_saga_that_starts_with_something_else_than_its_row_is_refused(db: Database, wrong: Any) -> None:
    with pytest.raises(TypeError), db.transaction():
        declared().start(db, wrong)


@pytest.mark.parametrize("where", [None, "a URL", object()])
def test_saga_that_is_started_elsewhere_than_in_postgres_is_refused(where: Any) -> None:
    with pytest.raises(Misconfigured, match="a saga cannot be started in a"):
        declared().start(where, Order(uuid4(), "book", 1))


@pytest.mark.usefixtures("db")
def test_saga_starts_on_a_connection_that_binds_in_the_client(ferryman_database_url: str) -> None:
    order = Order(uuid4(), "book", 1)
    with psycopg.connect(ferryman_database_url, cursor_factory=psycopg.ClientCursor) as connection:
        assert declared().start(connection, order).is_new
        assert declared().start(connection, order) == (order, False)


def test_first_of_two_rows_with_the_same_key_is_started(db: Database) -> None:
    """The later one replaced what the first had asked for."""
    order = Order(uuid4(), "book", 500)
    with db.transaction():
        both = declared().engine.start(db, [order, order._replace(sku="pen")])
    assert both == [(order, True), (order, False)]
    assert one(db, "SELECT sku FROM shop.orders") == "book"


@pytest.mark.parametrize("values", [{"state": "DONE"}, {"id": uuid4()}, {"due_at": None}, {"colour": "red"}])
def test_rule_sets_no_column_of_the_engine_and_no_key(db: Database, values: dict[str, Any]) -> None:
    """With another id, the command of one order was sent for another."""
    order = started(db)
    with pytest.raises(ValueError, match="is not a column that it may set: amount, attempt"), db.transaction():
        declared().engine.act(db, [order.id], lambda _: Go("CHARGING", set=values))
    assert one(db, "SELECT count(*) FROM ferryman.outbox") == 1


@pytest.mark.parametrize("given", ["CHARGING", True, ["CHARGING"], 7])
def test_rule_that_returns_something_else_than_steps_is_named(db: Database, given: Any) -> None:
    saga, order = another(declared()), started(db)
    saga.on("RESERVING", "stock.odd", to="CHARGING")(lambda _order, _result: given)
    with pytest.raises(TypeError, match=r"the rule for stock\.odd in RESERVING returned"):
        apply(db, saga, answer("stock.odd", order.id))


@pytest.mark.parametrize("rows", [Row("shop.t", {"a": 1}), [("shop.t", {"a": 1})], [Row("shop.t", {})]])
def test_step_with_something_else_than_rows_is_refused(rows: Any) -> None:
    with pytest.raises(TypeError, match="rows are not a list of Row"):
        Go("DONE", rows=rows)


@pytest.mark.parametrize("due", [-1, float("nan"), float("inf"), "5"])
def test_step_that_is_due_at_no_time_is_refused(due: Any) -> None:
    """A negative time was taken as the time that the saga had."""
    with pytest.raises(ValueError, match="is not a time"):
        Go("DONE", due=due)


def test_rows_reach_tables_and_columns_whose_names_need_quotes(db: Database) -> None:
    db.execute('CREATE TABLE shop."Gone %" ("a ""b"" %" numeric, "Raw" bytea)')
    order = started(db)
    row = Row("shop.Gone %", {'a "b" %': Decimal("1.50"), "Raw": b"\x00"})
    with db.transaction():
        declared().engine.act(db, [order.id], lambda _: Go("CHARGING", rows=[row]))
    assert db.execute('SELECT * FROM shop."Gone %"').fetchall() == [(Decimal("1.50"), b"\x00")]


@pytest.mark.parametrize("value", [{1}, object()])
def test_value_that_is_not_one_of_a_column_is_refused(db: Database, value: object) -> None:
    order = started(db)
    with pytest.raises(TypeError, match="is not the value of a column"), db.transaction():
        declared().engine.act(db, [order.id], lambda _: Go("CHARGING", set={"sku": value}))


@pytest.mark.parametrize("data", ["a\0b", float("nan"), "\ud800"])
def test_stray_whose_data_no_column_takes_is_kept(db: Database, data: Any) -> None:
    """It was rejected, and its `on_late` was never called."""
    assert apply(db, declared(), answer("stock.reserved", uuid4(), said=data)) == ["Refused"]
    assert one(db, "SELECT why FROM ferryman.saga_stray") == "UNKNOWN"


def test_undoing_messages_that_are_not_messages_are_refused(db: Database) -> None:
    saga, order = another(declared()), started(db)
    wrong: Any = ["undo"]
    saga.on_late(lambda _order, _result: wrong)
    with pytest.raises(TypeError, match=r"must be a ferryman\.Message, not str"):
        apply(db, saga, answer("stock.done", order.id, topic="stock.results"))


# --- fields of other tables


Limited = wider(limit=0)


def limited(fill: Any) -> Saga[Any]:
    saga = another(declared(), row=Limited)
    saga.complete("limit")(fill)
    return saga


def test_row_that_is_not_completed_is_no_unknown_saga(db: Database) -> None:
    """Its result was an UNKNOWN stray."""
    order = started(db)
    with pytest.raises(ValueError, match="`complete` of orders did not return every row"):
        apply(db, limited(lambda _db, _rows: []), answer("stock.reserved", order.id))


def test_completing_changes_no_column_and_needs_no_order(db: Database) -> None:
    first, second = started(db), started(db)

    def fill(_db: Any, rows: Sequence[Any]) -> Sequence[Any]:
        return [each._replace(limit=7, state="DONE") for each in reversed(rows)]

    results = [answer("stock.reserved", each.id, topic="stock.results") for each in (first, second)]
    assert apply(db, limited(fill), *results) == ["Applied", "Applied"]
    assert one(db, "SELECT count(*) FROM shop.orders WHERE state = 'CHARGING'") == 2


def test_results_are_noted_before_their_sagas_are_completed(db: Database) -> None:
    """The rule of the first one knows all that are believed; the others change nothing, and are no strays."""
    order, noted = started(db), list[str]()
    saga = limited(lambda _db, rows: [each._replace(limit=len(noted)) for each in rows])
    saga.on("RESERVING", "stock.counted", to=("CHARGING",))(
        lambda row, _: Go("CHARGING" if row.limit == 2 else "RESERVING")
    )
    saga.note(lambda _db, results: noted.extend(each.type for each in results))
    two = [answer("stock.counted", order.id, topic="stock.results") for _ in range(2)]
    forged = answer("stock.counted", order.id, topic="elsewhere")
    assert apply(db, saga, *two, forged) == ["Applied", "Applied", "Refused"]
    assert noted == ["stock.counted"] * 2
    assert one(db, "SELECT state FROM shop.orders") == "CHARGING"
    assert one(db, "SELECT string_agg(why, ',') FROM ferryman.saga_stray") == "FORGED"


def test_a_step_needs_no_right_on_a_column_that_it_does_not_set(db: Database, ferryman_database_url: str) -> None:
    order = started(db)
    with psycopg.connect(stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", "ferryman_consumer")) as login:
        db.execute("GRANT USAGE ON SCHEMA shop TO ferryman_consumer")
        db.execute("GRANT SELECT, UPDATE (state, attempt, reason, due_at, changed_at, reservation) ON shop.orders "
                   "TO ferryman_consumer")  # fmt: skip
        declared().engine.act(login, [order.id], lambda _: Go("CHARGING", set={"reservation": "r-1"}))
        login.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            declared().engine.act(login, [order.id], lambda _: Go("CHARGING", set={"sku": "pen"}))
    assert one(db, "SELECT reservation FROM shop.orders") == "r-1"


# --- tables


class Odd(NamedTuple):
    """A row with names that need quotes, and with the names that the statements use themselves."""

    id: UUID
    order: str
    placedBy: str
    s: str
    n: int
    p: int
    machine: str
    state: str = "RESERVING"
    attempt: int = 1
    reason: str | None = None


def test_row_may_have_any_names(ferryman_db: Database) -> None:
    """A column `s` failed every step that set a column."""
    saga, row = another(declared(), row=Odd, table="odd.rows"), Odd(uuid4(), "a", "b", "c", 1, 2, "d")
    ferryman_db.execute(table(saga))
    check(ferryman_db, saga.machine)
    with ferryman_db.transaction():
        assert saga.start(ferryman_db, row).is_new
        saga.engine.act(ferryman_db, [row.id], lambda _: Go("CHARGING", set={"s": "x", "order": "y", "n": 3}))
    with ferryman_db.transaction():
        there = saga.start(ferryman_db, row).row
    assert there == row._replace(s="x", order="y", n=3, state="CHARGING")


def test_two_sagas_stand_in_one_schema(db: Database) -> None:
    """The second one's function `archive` was refused as there already."""
    other = another(declared(), name="others", table="shop.others")
    db.execute(table(other))
    check(db, other.machine)


def test_text_is_read_as_text_whatever_its_column_is(db: Database) -> None:
    """An enum was read as bytes."""
    db.execute("CREATE TYPE shop.colour AS ENUM ('book', 'pen')")
    db.execute("ALTER TABLE shop.orders ALTER sku TYPE shop.colour USING sku::shop.colour")
    check(db, declared().machine)
    order = started(db)
    with db.transaction():
        assert declared().start(db, order).row == order


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DROP COLUMN sku", "it has no column sku"),
        ("ALTER sku TYPE integer USING 1", "its sku is integer, not text"),
        ("ALTER due_at SET NOT NULL", "its due_at is NOT NULL"),
        ("ALTER reason SET NOT NULL", "its reason is NOT NULL"),
    ],
)
def test_table_that_does_not_fit_its_row_is_refused_with_the_ddl(db: Database, damage: str, said: str) -> None:
    """It failed at the first start, or at the first end."""
    db.execute(f"ALTER TABLE shop.orders {damage}".encode())
    with pytest.raises(Misconfigured, match=said) as refused:
        check(db, declared().machine)
    assert refused.value.remedy is not None
    db.execute(refused.value.remedy.partition("\n")[2].encode())
    check(db, declared().machine)
    started(db)


def test_message_of_another_topic_starts_nothing(db: Database) -> None:
    saga = another(declared(), results={"order.placed": "shop.orders", "*": "stock.results"})
    saga.starts("order.placed")(lambda message: Order(UUID(message.data["id"]), "book", 1))
    assert apply(db, saga, answer("order.placed", uuid4(), topic="stock.results")) == ["Refused"]
    assert one(db, "SELECT count(*) FROM shop.orders") == 0
