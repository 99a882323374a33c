"""`ferryman trace` of a saga that an adopter declared: its case file follows from the declaration."""

import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import Consumer, Done, FerrymanError, Message, Received
from ferryman.cli.trace import as_dict, print_story
from ferryman.evidence.saga_case import SagaTracer
from ferryman.evidence.sides import MAIN, Sides
from ferryman.evidence.trace import trace
from ferryman.evidence.way import Traced
from ferryman.runtime.desk import Act
from ferryman.saga import admin
from ferryman.saga.ddl import table
from support import deliveries
from support.orders import cyclic
from support.town import Crossing, bare_crossing

CALLED = "shop.orders:orders"
THERE = "FERRYMAN_DATABASE_URL=<the wallet's URL>"
ORDERS = cyclic()
STOCK, BANK = ORDERS.consumers()
store = Consumer("store", topics=["shop.commands"], connection=psycopg.Connection)
bank = Consumer("bank", topics=["shop.commands"], connection=psycopg.Connection)


@store.handles("stock.reserve")
def reserve(_db: object, command: Received) -> Done:
    return Done(
        Message("stock.reserved", {"id": command.key, "reservation": "r"}, key=command.key, topic="stock.results")
    )


@store.handles("stock.release")
def release(_db: object, command: Received) -> Done:
    return Done(Message("stock.kept", {"id": command.key}, key=command.key, topic="stock.results"))


@bank.handles("bank.charge")
def charge(_db: object, command: Received) -> Done:
    said = {"id": command.key, "amount": command.data["amount"]}
    kind = "bank.refused" if command.headers["ce_correlationid"].endswith("/1") else "bank.charged"
    return Done(Message(kind, said, key=command.key, topic="bank.results"))


@pytest.fixture
def shop(ferryman_postgres: str) -> Iterator[Crossing]:
    """Orders in one database, and the store and the bank on another."""
    with bare_crossing(ferryman_postgres) as made:
        made.desk.db.execute(table(ORDERS))
        yield made


def started(shop: Crossing) -> UUID:
    order = uuid4()
    with shop.desk.db.transaction():
        ORDERS.start(shop.desk.db, ORDERS.row(order, "book", 500))
    return order


def round_trip(shop: Crossing) -> None:
    """Publish commands, handle those that have a handler, and apply the results."""
    shop.topics.clear()
    shop.publish(shop.desk.db)
    commands = shop.topics["shop.commands"]
    for each in (store, bank):
        shop.topics["for it"] = [one for one in commands if one.header("ce_type").decode() in each.handlers]  # type: ignore[union-attr]
        shop.handled(shop.books.db, each, "for it")
    shop.publish(shop.books.db)
    for consumer in (STOCK, BANK):
        shop.handled(shop.desk.db, consumer, *(each for each in consumer.topics if each in shop.topics))


def traced(shop: Crossing, identity: UUID) -> Traced:
    return trace(shop.sides, identity, [SagaTracer(ORDERS, CALLED)])


def ends(shop: Crossing, order: UUID) -> tuple[str, str | None]:
    ending = traced(shop, order).ending
    return ending.now, ending.next


def owns(shop: Crossing, name: str, topic: str) -> None:
    shop.books.db.execute(
        "INSERT INTO ferryman.inbox_start (consumer, topic, partition, owned) VALUES (%s, %s, 0, true)", (name, topic)
    )


def late(shop: Crossing, seconds: float) -> None:
    shop.desk.db.execute("UPDATE shop.orders SET due_at = now() - make_interval(secs => %s)", (seconds,))


def test_saga_is_told_from_its_first_command_to_its_end(shop: Crossing, capsys: pytest.CaptureFixture[str]) -> None:
    """Its second visit of a state has commands of its own, and each answer stands behind its command."""
    order = started(shop)
    owns(shop, "bank", "shop.commands")
    for _ in range(4):
        round_trip(shop)
    story = traced(shop, order)
    assert (story.ending.now, story.ending.next, story.over) == ("DONE", None, True)
    told = [(each.where, each.what, each.detail.get("type")) for each in story.events if each.where != "kafka"]
    expected = [
        ("stock.reserve", "stock.reserved"), ("bank.charge", "bank.refused"), ("stock.release", "stock.kept"),
        ("bank.charge", "bank.charged"),
    ]  # fmt: skip
    assert told == [
        step
        for command, result in expected
        for step in (
            ("main", "appended", command), ("wallet", "received", command), ("wallet", "handled", command),
            ("wallet", "reported", result), ("main", "received", result), ("main", "applied", result),
        )
    ] + [("main", "DONE", None)]  # fmt: skip
    times = [each.at for each in story.events if each.at]
    assert times == sorted(times)
    said = as_dict(story)
    assert (said["orders"]["state"], said["orders"]["visit"], said["now"]) == ("DONE", 3, "DONE")
    assert json.dumps(said, default=str)
    print_story(story)
    assert f"DONE  orders {order}" in capsys.readouterr().out


def test_message_of_a_saga_leads_to_its_story(shop: Crossing) -> None:
    order, other = started(shop), started(shop)
    round_trip(shop)
    messages = {
        (each.header("ce_type"), each.key): UUID((each.header("ce_id") or b"").decode())
        for topic in ("shop.commands", "stock.results") for each in shop.topics[topic]
    }  # fmt: skip
    for kind in (b"stock.reserve", b"stock.reserved"):
        assert traced(shop, messages[kind, str(order).encode()]).id == order
        assert traced(shop, messages[kind, str(other).encode()]).id == other


def test_answers_of_a_participant_elsewhere_are_told_if_its_group_is_named(
    shop: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = started(shop)
    round_trip(shop)
    here = Sides({MAIN: shop.sides[MAIN]}, shop.sides.settings)

    def applied() -> list[str]:
        story = trace(here, order, [SagaTracer(ORDERS, CALLED)])
        return [each.detail["type"] for each in story.events if each.what == "applied"]

    assert applied() == []
    monkeypatch.setattr(ORDERS, "participants", {"shop.commands": "store"})
    assert applied() == ["stock.reserved"]


def test_each_stop_of_a_saga_has_its_state_and_its_command(shop: Crossing) -> None:
    order = started(shop)
    assert ends(shop, order) == ("RESERVING", "ferryman run relay")
    shop.publish(shop.desk.db)
    assert ends(shop, order) == ("RESERVING", None)
    assert "If nothing comes by" in traced(shop, order).ending.why
    owns(shop, "store", "shop.commands")
    assert ends(shop, order) == ("RESERVING", f"{THERE} ferryman run module:object")
    shop.handled(shop.books.db, store, "shop.commands")
    assert ends(shop, order) == ("RESERVING", f"{THERE} ferryman run relay")
    shop.publish(shop.books.db)
    late(shop, 60)
    assert ends(shop, order) == ("RESERVING", f"ferryman run {CALLED}")
    assert "no process of" in traced(shop, order).ending.why
    shop.desk.db.execute("UPDATE shop.orders SET due_at = 'infinity', attempt = 3")
    assert ends(shop, order) == ("RESERVING", f"ferryman saga move {CALLED} --id {order}")
    shop.handled(shop.desk.db, STOCK, "stock.results")
    assert ends(shop, order) == ("CHARGING", "ferryman run relay")


def test_answer_that_moved_nothing_is_told_with_its_reason(shop: Crossing) -> None:
    order = started(shop)
    shop.publish(shop.desk.db)
    shop.handled(shop.books.db, store, "shop.commands")
    shop.publish(shop.books.db)
    with shop.desk.db.transaction():
        ORDERS.engine.act(shop.desk.db, [order], lambda row: ORDERS.on_due(row._replace(attempt=3)))
    shop.handled(shop.desk.db, STOCK, "stock.results")
    story = traced(shop, order)
    assert story.ending.now == "RELEASING"
    [stray] = [each for each in story.events if each.what == "applied to nothing: LATE"]
    assert (stray.detail["type"], stray.bad) == ("stock.reserved", True)


def test_acts_of_persons_are_told_with_their_reasons_before_what_they_sent(shop: Crossing) -> None:
    order, other, db = started(shop), started(shop), shop.desk.db
    for to in (None, "RELEASING"):
        before = admin.look(db, ORDERS, order).row
        go = admin.check_move(ORDERS, before, to)
        admin.move(shop.sides[MAIN], ORDERS, order, go, Act("ada", "the store burned down"), before=before["state"])
    told = [
        (each.where, each.what, each.detail.get("by"), each.detail.get("type")) for each in traced(shop, order).events
    ]
    assert [each for each in told if each[1] != "not published yet"] == [
        ("main", "appended", None, "stock.reserve"),
        ("main", "asked again by hand", "ada", None), ("main", "appended", None, "stock.reserve"),
        ("main", "moved to RELEASING by hand", "ada", None), ("main", "appended", None, "stock.release"),
        ("main", "RELEASING", None, None),
    ]  # fmt: skip
    assert not [each for each in traced(shop, other).events if "by" in each.detail]


def test_saga_that_forbids_moves_is_told_with_what_a_person_does_instead(
    shop: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = started(shop)
    shop.publish(shop.desk.db)
    shop.desk.db.execute("UPDATE shop.orders SET due_at = 'infinity', attempt = 3")
    assert ends(shop, order) == ("RESERVING", f"ferryman saga move {CALLED} --id {order}")
    monkeypatch.setattr(ORDERS, "instead_of_move", "call the store")
    assert ends(shop, order) == ("RESERVING", None)
    assert "It waits for a person: call the store" in traced(shop, order).ending.why


def test_saga_that_is_archived_or_unknown_is_not_told_as_one_that_waits(shop: Crossing) -> None:
    order = started(shop)
    round_trip(shop)
    shop.desk.db.execute("ALTER TABLE shop.orders DISABLE TRIGGER ALL; DELETE FROM shop.orders")
    assert ends(shop, order)[0] == "NOT KNOWN"
    assert "may be archived" in traced(shop, order).ending.why
    with pytest.raises(FerrymanError, match="nobody knows"):
        traced(shop, uuid4())
    shop.desk.db.execute("DROP TABLE shop.orders")
    with pytest.raises(FerrymanError, match=f"Not looked at: the table shop.orders of {CALLED}"):
        traced(shop, uuid4())


def test_state_that_the_declaration_does_not_have_is_named(shop: Crossing) -> None:
    order = started(shop)
    shop.desk.db.execute("ALTER TABLE shop.orders DISABLE TRIGGER ALL, DROP CONSTRAINT orders_states")
    shop.desk.db.execute("UPDATE shop.orders SET state = 'OLD'")
    assert ends(shop, order) == ("OLD", f"ferryman saga sql {CALLED}")


def test_saga_with_a_number_for_a_key_is_told_by_it(shop: Crossing) -> None:
    """Without --saga the number is a position first."""
    shop.desk.db.execute(deliveries.TABLES)
    shop.desk.db.execute("INSERT INTO hooks.webhook_delivery_sagas (id, next_attempt_at) VALUES (1, now()), (7, now())")
    tracers = [SagaTracer(deliveries.declared(), "hooks:delivery")]
    assert trace(shop.sides, 7, tracers).id == 7
    started(shop)  # at position 1
    assert trace(shop.sides, 1, tracers).kind == "message"
    assert trace(shop.sides, 1, tracers, is_key=True).kind == "delivery"
    with pytest.raises(FerrymanError, match="knows 99"):
        trace(shop.sides, 99, tracers)
    with pytest.raises(FerrymanError, match="no saga here has the key 99, and no outbox"):
        trace(shop.sides, 99, tracers, is_key=True)
    shop.desk.db.execute(
        "INSERT INTO ferryman.saga_stray (machine, message_id, saga_number, why, type, data) "
        "VALUES ('delivery', %s, 7, 'LATE', 'webhook.attempt-failed', '{}')", (stray := uuid4(),),
    )  # fmt: skip
    assert trace(shop.sides, stray, tracers).id == 7
