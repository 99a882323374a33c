"""A saga as an adopter declares it, on a real database: started once, and moved by results and timeouts."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from ferryman import Go, Message, Misconfigured, Received, Row, Saga
from ferryman.saga.ddl import table
from ferryman.saga.guards import check
from support.orders import Order, answer, cyclic, declared, wider

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute(table(declared()))
    return ferryman_db


def started(db: Database, saga: Saga[Order] | None = None) -> Order:
    order = Order(uuid4(), "book", 500)
    with db.transaction():
        assert (saga or declared()).start(db, order) == (order, True)
    return order


def apply(db: Database, saga: Saga[Order], *results: Received) -> list[str]:
    with db.transaction():
        return [type(each).__name__ for each in saga.engine.apply(db, results)]


def stands(db: Database, order: Order) -> tuple[Any, ...]:
    row = db.execute(
        "SELECT state, attempt, reason, reservation FROM shop.orders WHERE id = %s", (order.id,)
    ).fetchone()
    assert row is not None
    return row


def commands(db: Database) -> list[tuple[str, str, UUID]]:
    return db.execute("SELECT type, topic, id FROM ferryman.outbox ORDER BY position").fetchall()


def late(db: Database, saga: Saga[Order]) -> int:
    db.execute("UPDATE shop.orders SET due_at = now() WHERE due_at < 'infinity'")
    with db.transaction():
        return len(saga.engine.due(db))


def test_its_table_follows_from_its_row_and_fits_it(db: Database) -> None:
    check(db, declared().machine)
    columns = db.execute(
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = 'orders' "
        "AND table_schema = 'shop' ORDER BY ordinal_position"
    ).fetchall()
    assert columns == [
        ("id", "uuid", "NO"), ("sku", "text", "NO"), ("amount", "bigint", "NO"), ("reservation", "text", "YES"),
        ("state", "text", "NO"), ("attempt", "integer", "NO"), ("reason", "text", "YES"),
        ("due_at", "timestamp with time zone", "YES"), ("changed_at", "timestamp with time zone", "NO"),
    ]  # fmt: skip


def test_saga_starts_once_with_its_first_command_and_says_how_it_stands(db: Database) -> None:
    """N1: the row and the command are committed together or not at all."""
    saga, order = declared(), Order(uuid4(), "book", 500)
    with db.transaction(force_rollback=True):
        saga.start(db, order)
    assert commands(db) == []
    started(db, saga)
    with db.transaction():
        assert saga.start(db, order).is_new
        apply(db, saga, answer("stock.reserved", order.id, reservation="r1"))
    with db.transaction():
        there = saga.start(db, order)
    assert (there.is_new, there.row.state, there.row.reservation) == (False, "CHARGING", "r1")
    assert [kind for kind, _, _ in commands(db)] == ["stock.reserve", "stock.reserve", "bank.charge"]


def test_many_are_started_by_one_statement_each_once(db: Database) -> None:
    saga = declared()
    orders = [Order(uuid4(), "book", each) for each in range(50)]
    with db.transaction():
        assert all(each.is_new for each in saga.engine.start(db, orders))
        assert {each.is_new for each in saga.engine.start(db, [*orders, orders[0]])} == {False}
    assert len(commands(db)) == 50


def test_saga_starts_in_a_session_of_sqlalchemy(db: Database, ferryman_database_url: str) -> None:
    engine = sqlalchemy.create_engine(ferryman_database_url.replace("postgresql://", "postgresql+psycopg://"))
    order = Order(uuid4(), "book", 500)
    with Session(engine) as session, session.begin():
        assert declared().start(session, order).is_new
    engine.dispose()
    assert stands(db, order)[0] == "RESERVING"
    assert len(commands(db)) == 1


def test_saga_that_would_be_committed_without_its_command_is_refused(db: Database) -> None:
    with pytest.raises(Misconfigured, match="autocommit"):
        declared().start(db, Order(uuid4(), "book", 1))
    assert db.execute("SELECT count(*) FROM shop.orders").fetchone() == (0,)


def test_saga_that_does_not_begin_at_its_beginning_is_refused(db: Database) -> None:
    with pytest.raises(ValueError, match="begins as RESERVING, not as DONE"), db.transaction():
        declared().start(db, Order(uuid4(), "book", 1, state="DONE"))


def test_results_move_an_order_to_its_end_and_keep_what_they_bring(db: Database) -> None:
    saga, order = declared(), started(db)
    assert apply(db, saga, answer("stock.reserved", order.id, reservation="r1")) == ["Applied"]
    assert stands(db, order) == ("CHARGING", 1, None, "r1")
    assert apply(db, saga, answer("bank.charged", order.id, amount=499)) == ["Refused"]
    assert apply(db, saga, answer("bank.charged", order.id, amount=500)) == ["Applied"]
    assert stands(db, order) == ("DONE", 1, None, "r1")
    assert [kind for kind, _, _ in commands(db)] == ["stock.reserve", "bank.charge"]


def test_order_without_money_gives_its_item_back(db: Database) -> None:
    """The reason stays until a rule says another."""
    saga, order = declared(), started(db)
    apply(db, saga, answer("stock.reserved", order.id, reservation="r1"), answer("bank.refused", order.id))
    assert stands(db, order) == ("RELEASING", 1, "NO_MONEY", "r1")
    apply(db, saga, answer("stock.released", order.id))
    assert stands(db, order) == ("CANCELLED", 1, "NO_MONEY", "r1")


def test_order_that_nobody_answers_asks_again_and_goes_on(db: Database) -> None:
    """Each attempt has an id of its own; a repeated attempt has the same."""
    saga, order = declared(), started(db)
    assert [late(db, saga) for _ in range(3)] == [1, 1, 1]
    assert stands(db, order) == ("RELEASING", 1, "TIMED_OUT", None)
    assert [kind for kind, _, _ in commands(db)] == ["stock.reserve"] * 3 + ["stock.release"]
    assert len({each for _, _, each in commands(db)}) == 4


def test_each_attempt_is_waited_for_twice_as_long_and_a_new_state_anew(db: Database) -> None:
    """A saga that asked again at once would have used up its attempts before anybody could answer."""
    saga, order = declared(), started(db)

    def waits() -> int:
        due = "SELECT round(extract(epoch FROM due_at - changed_at)) FROM shop.orders WHERE id = %s"
        row = db.execute(due, (order.id,)).fetchone()
        assert row is not None
        return int(row[0])

    waited = [waits()]
    for _ in range(3):
        late(db, saga)
        waited.append(waits())
    assert waited == [60, 120, 240, 60]


# --- states that are entered again


@pytest.fixture
def circle(ferryman_db: Database) -> Database:
    ferryman_db.execute(table(cyclic()))
    return ferryman_db


def charged_again(db: Database) -> tuple[Saga[Order], Order, list[str]]:
    """Return an order that was refused its money once, and is charged again; and what correlates its commands."""
    saga = cyclic()
    order = saga.row(uuid4(), "book", 500)
    with db.transaction():
        saga.start(db, order)
    apply(db, saga, answer("stock.reserved", order.id, reservation="r1"), answer("bank.refused", order.id),
          answer("stock.kept", order.id))  # fmt: skip
    assert stands(db, order)[0] == "CHARGING"
    said = db.execute("SELECT headers ->> 'ce_correlationid' FROM ferryman.outbox ORDER BY position").fetchall()
    return saga, order, [each for (each,) in said]


def test_state_that_is_entered_again_asks_with_another_id(circle: Database) -> None:
    """Its command had the id of the first time: the participant took it for a duplicate, and nobody answered."""
    saga, order, said = charged_again(circle)
    sent = commands(circle)
    assert [kind for kind, _, _ in sent] == ["stock.reserve", "bank.charge", "stock.release", "bank.charge"]
    assert len({identity for _, _, identity in sent}) == len(sent)
    assert said == [None, *(f"orders/{order.id}/{each}" for each in ("CHARGING/1", "RELEASING/2", "CHARGING/3"))]
    with circle.transaction():
        saga.engine.act(circle, [order.id], lambda row: Go(row.state, again=True))
    assert circle.execute("SELECT visit, attempt FROM shop.orders").fetchone() == (3, 2)


def test_answer_to_an_earlier_visit_of_a_state_is_late(circle: Database) -> None:
    """The first refusal, which came twice, ended the second try: an order was cancelled that was charged."""
    saga, order, said = charged_again(circle)
    assert apply(circle, saga, answer("bank.refused", order.id, to=said[1])) == ["Refused"]
    assert stands(circle, order)[0] == "CHARGING"
    assert circle.execute("SELECT why FROM ferryman.saga_stray").fetchall() == [("LATE",)]
    assert apply(circle, saga, answer("bank.charged", order.id, to=said[3], amount=500)) == ["Applied"]


def test_saga_that_was_on_its_way_before_visits_were_counted_goes_on(circle: Database) -> None:
    """The column was added to a live table: it has no number yet."""
    saga = cyclic()
    order = saga.row(uuid4(), "book", 500)
    with circle.transaction():
        saga.start(circle, order)
    circle.execute("ALTER TABLE shop.orders ALTER visit DROP NOT NULL; UPDATE shop.orders SET visit = NULL")
    assert apply(circle, saga, answer("stock.reserved", order.id, reservation="r1")) == ["Applied"]
    assert circle.execute("SELECT state, visit FROM shop.orders").fetchone() == ("CHARGING", 1)


@pytest.mark.parametrize("to", [None, "of another system", "orders/other/CHARGING/1"])
def test_answer_that_names_no_visit_is_applied(circle: Database, to: str | None) -> None:
    saga, order, _ = charged_again(circle)
    assert apply(circle, saga, answer("bank.charged", order.id, to=to, amount=500)) == ["Applied"]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (("stock.out", "bank.results"), "FORGED"),
        (("bank.refused", "bank.results"), "LATE"),
        (("stock.released", "stock.results"), "LATE"),
    ],
)
def test_result_that_moves_nothing_is_kept_as_a_stray(db: Database, result: tuple[str, str], why: str) -> None:
    saga, order = declared(), started(db)
    kind, topic = result
    assert apply(db, saga, answer(kind, order.id, topic=topic)) == ["Refused"]
    assert stands(db, order)[0] == "RESERVING"
    assert db.execute("SELECT saga_id, why, type FROM ferryman.saga_stray").fetchall() == [(order.id, why, kind)]


# --- several steps, rows beside them, and facts of other tables


Parcel = wider(limit=0)


def with_rows() -> Saga[Any]:
    """Return an order that is given up in two steps, with a row of its own, above a limit that another table has."""
    saga = Saga(
        "orders", Parcel, table="shop.orders", of=lambda result: UUID(result.data["id"]), commands="shop.commands",
        results={"stock.*": "stock.results", "bank.*": "bank.results"}, states=declared().states,
    )  # fmt: skip
    for state, event, to in (("CHARGING", "bank.refused", "RELEASING"), ("CANCELLING", "bank.cancelled", "RELEASING")):
        saga.on(state, event, to=to)
    saga.on("CHARGING", "bank.charged", to="DONE")
    saga.on("RESERVING", "stock.reserved", to="CHARGING")
    saga.on("RELEASING", "stock.released", to="CANCELLED")

    @saga.on("RESERVING", "stock.out", to=("RELEASING", "CANCELLED"))
    def out(parcel: Any, _result: Received) -> Sequence[Go]:
        left = Row("shop.missing", {"sku": parcel.sku, "order_id": parcel.id, "note": {"limit": parcel.limit}})
        return [Go("RELEASING", reason="GONE"), Go("CANCELLED", rows=[left], set={"reservation": "none"})]

    @saga.complete("limit")
    def limits(db: Database, parcels: Sequence[Any]) -> Sequence[Any]:
        known: dict[str, int] = dict(db.execute("SELECT sku, most FROM shop.limits").fetchall())
        return [each._replace(limit=known[each.sku]) for each in parcels]

    return saga


def test_rule_may_take_several_steps_with_rows_and_facts_of_other_tables(db: Database) -> None:
    """Each step is seen by the guards; steps, rows and commands are committed together."""
    db.execute("CREATE TABLE shop.missing (sku text, order_id uuid, note jsonb)")
    db.execute("CREATE TABLE shop.limits (sku text, most integer); INSERT INTO shop.limits VALUES ('book', 7)")
    saga, order = with_rows(), started(db)
    with db.transaction():
        [applied] = saga.engine.apply(db, [answer("stock.out", order.id)])
    assert [(step.before, step.state) for step in applied.steps] == [  # type: ignore[union-attr]
        ("RESERVING", "RELEASING"), ("RELEASING", "CANCELLED"),
    ]  # fmt: skip
    assert stands(db, order) == ("CANCELLED", 1, "GONE", "none")
    [(sku, order_id, note)] = db.execute("SELECT * FROM shop.missing").fetchall()
    assert (sku, order_id, note) == ("book", order.id, {"limit": 7})


def test_messages_of_a_step_leave_behind_the_command_of_its_state(db: Database) -> None:
    saga, order = declared(), started(db)
    noted = [Message(kind, {}, key="k", topic="shop.notes") for kind in ("order.noted", "order.priced")]
    with db.transaction():
        saga.engine.act(db, [order.id], lambda _: [Go("CHARGING", *noted), Go("CANCELLING")])
    sent = [kind for kind, _, _ in commands(db)]
    assert sent == ["stock.reserve", "bank.charge", "order.noted", "order.priced", "bank.cancel"]


def test_rows_that_cannot_be_written_take_nothing_with_them(db: Database) -> None:
    saga, order = with_rows(), started(db)
    db.execute("CREATE TABLE shop.limits (sku text, most integer); INSERT INTO shop.limits VALUES ('book', 7)")
    with pytest.raises(psycopg.errors.UndefinedTable), db.transaction():
        saga.engine.apply(db, [answer("stock.out", order.id)])
    assert stands(db, order)[0] == "RESERVING"


def test_step_of_a_saga_that_stays_keeps_its_time(db: Database) -> None:
    saga, order = declared(), started(db)
    [before] = db.execute("SELECT due_at FROM shop.orders").fetchone() or ()
    with db.transaction():
        assert saga.engine.act(db, [order.id], lambda row: Go(row.state, set={"sku": "pen"})) == 1
    assert db.execute("SELECT due_at, sku FROM shop.orders").fetchone() == (before, "pen")


def test_saga_is_started_by_a_message_once(db: Database) -> None:
    saga = declared()
    saga = Saga(
        "orders", Order, table="shop.orders", of=saga.of, commands="shop.commands", states=saga.states,
        results={"order.placed": "shop.orders", "stock.*": "stock.results", "bank.*": "bank.results"},
    )  # fmt: skip
    saga.on(("RESERVING", "RELEASING"), "stock.out", to="CANCELLED")
    saga.on("RESERVING", "stock.reserved", to="CHARGING")
    saga.on("CHARGING", "bank.charged", to="DONE")
    saga.on("CANCELLING", "bank.cancelled", to="RELEASING")

    @saga.starts("order.placed")
    def placed(message: Received) -> Order:
        return Order(UUID(message.data["id"]), message.data["sku"], 1)

    assert "order.placed" in saga.types
    order = uuid4()
    came = answer("order.placed", order, topic="shop.orders", sku="book")
    assert apply(db, saga, came, came, answer("stock.out", order)) == ["Done", "Done", "Applied"]
    assert db.execute("SELECT state, sku FROM shop.orders").fetchall() == [("CANCELLED", "book")]
    forged = answer("order.placed", uuid4(), topic="bank.results", sku="book")
    assert apply(db, saga, forged) == ["Refused"]
    assert len(commands(db)) == 1


def test_live_table_that_lacks_a_way_is_refused_with_its_ddl(db: Database) -> None:
    saga = declared()
    saga.on("CHARGING", "bank.gone", to="CANCELLED")
    with pytest.raises(Misconfigured, match="its orders_goes is another") as refused:
        check(db, saga.machine)
    assert "('CHARGING', 'CANCELLED')" in str(refused.value.remedy)


def test_values_keep_their_types_on_their_way_into_columns(db: Database) -> None:
    db.execute("ALTER TABLE shop.orders ADD parts text[], ADD seen bytea")
    order = started(db)
    saga = declared()
    strange = {"sku": 'a"b\\c', "amount": 2**53 + 1}
    with db.transaction():
        saga.engine.act(db, [order.id], lambda row: Go(row.state, set=strange))
    assert db.execute("SELECT sku, amount FROM shop.orders").fetchone() == (strange["sku"], strange["amount"])
    assert json.loads(json.dumps(strange)) == strange
