"""The acts of persons on sagas: what they may do, what is refused with the way out, and what is kept of it."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import FerrymanError, Go, Saga
from ferryman.runtime.desk import Act, Desk
from ferryman.runtime.settings import Settings
from ferryman.saga import admin
from ferryman.saga.ddl import table
from support import deliveries
from support.orders import ORDERS, Order

Database = psycopg.Connection[tuple[Any, ...]]

ADA = Act("ada", "the store burned down")


@pytest.fixture
def desk(ferryman_db: Database) -> Desk:
    ferryman_db.execute(table(ORDERS))
    return Desk(ferryman_db, Settings().database)


def started(desk: Desk) -> UUID:
    order = uuid4()
    with desk.connection.transaction():
        ORDERS.start(desk.connection, Order(order, "book", 500))
    return order


def moved(desk: Desk, order: UUID, to: str | None) -> Any:
    before = admin.story(desk, ORDERS, order).row
    go = admin.check_move(ORDERS, before, to)
    return admin.move(desk, ORDERS, order, go, ADA, before=before["state"])


def commands(desk: Desk) -> list[Any]:
    return desk.connection.execute("SELECT type FROM ferryman.outbox ORDER BY position").fetchall()


def test_person_moves_a_saga_with_its_next_command_and_the_audit_keeps_it(desk: Desk) -> None:
    order = started(desk)
    assert moved(desk, order, None)["attempt"] == 2
    row = moved(desk, order, "RELEASING")
    assert (row["state"], row["attempt"]) == ("RELEASING", 1)
    assert commands(desk) == [("stock.reserve",), ("stock.reserve",), ("stock.release",)]
    acts = admin.moves_by_hand(desk.connection, ORDERS, order)
    assert [(each["who"], each["reason"], each["state"], each["again"]) for each in acts] == [
        ("ada", "the store burned down", "RESERVING", True), ("ada", "the store burned down", "RELEASING", False),
    ]  # fmt: skip
    assert admin.moves_by_hand(desk.connection, ORDERS, uuid4()) == []


@pytest.mark.parametrize(
    ("to", "said", "remedy"),
    [
        ("DONE", "no way leads from RESERVING to DONE", "CHARGING, RELEASING, CANCELLED; a further way is declared"),
        ("NOWHERE", "no way leads from RESERVING to NOWHERE", "it may go to CHARGING, RELEASING, CANCELLED"),
        ("RESERVING", "it is in RESERVING already", "leave out --to"),
    ],
)
def test_move_that_no_way_allows_is_refused_with_the_ways_there_are(
    desk: Desk, to: str, said: str, remedy: str
) -> None:
    with pytest.raises(FerrymanError, match=said) as refused:
        moved(desk, started(desk), to)
    assert remedy in (refused.value.remedy or "")
    assert ("declared" in (refused.value.remedy or "")) is (to == "DONE")


def test_saga_that_was_moved_since_it_was_looked_at_stays(desk: Desk) -> None:
    order = started(desk)
    moved(desk, order, "CHARGING")
    with pytest.raises(FerrymanError, match="moved in the meantime"):
        admin.move(desk, ORDERS, order, Go("RELEASING"), ADA, before="RESERVING")
    assert admin.story(desk, ORDERS, order).row["state"] == "CHARGING"
    assert len(admin.moves_by_hand(desk.connection, ORDERS, order)) == 1


def test_saga_that_is_over_or_asks_for_nothing_is_not_asked_again(desk: Desk) -> None:
    order = started(desk)
    moved(desk, order, "CANCELLED")
    with pytest.raises(FerrymanError, match="the saga is over: it is CANCELLED"):
        moved(desk, order, None)
    silent = deliveries.declared()
    with pytest.raises(FerrymanError, match="in Pending nothing is asked for") as refused:
        admin.check_move(silent, {"state": "Pending"}, None)
    assert refused.value.remedy == "name where it goes: --to InProgress"


@pytest.mark.parametrize("to", [None, "InProgress", "Pending"])
def test_saga_that_forbids_moves_names_what_a_person_does_instead(to: str | None) -> None:
    """A move makes neither the job nor the dead letter of a delivery, so it would wait for ever."""
    saga: Saga[Any] = deliveries.declared(instead_of_move="ask the endpoint's owner")
    with pytest.raises(FerrymanError, match="no person moves sagas of delivery") as refused:
        admin.check_move(saga, {"state": "Pending"}, to)
    assert refused.value.remedy == "ask the endpoint's owner"
    assert saga.ways_by_hand("Pending") == ()
    assert deliveries.declared().ways_by_hand("Pending") == ("InProgress",)


@pytest.mark.parametrize(
    ("saga", "text"), [(ORDERS, "7"), (deliveries.declared(), "x"), (deliveries.declared(), str(2**63))]
)
def test_text_that_is_no_key_is_refused(saga: Saga[Any], text: str) -> None:
    with pytest.raises(FerrymanError, match=f"{text} is not the key of a saga of {saga.name}"):
        admin.key_of(saga, text)


def test_sagas_are_listed_by_state_by_who_moves_them_and_page_by_page(desk: Desk) -> None:
    keys = sorted(started(desk) for _ in range(4))
    moved(desk, keys[0], "CANCELLED")
    desk.connection.execute("UPDATE shop.orders SET due_at = 'infinity' WHERE id = %s", (keys[1],))

    def listed(**asked: Any) -> list[UUID]:
        given: dict[str, Any] = {"state": None, "waiting": False, "over": False, "after": None, "most": 10, **asked}
        return [each["id"] for each in admin.listed(desk, ORDERS, **given)]

    assert listed() == keys[1:]
    assert listed(over=True) == keys
    assert listed(waiting=True) == [keys[1]]
    assert listed(state="CANCELLED") == [keys[0]]
    assert listed(state="CHARGING") == []
    assert listed(most=1, after=str(keys[1])) == [keys[2]]
    with pytest.raises(FerrymanError, match="orders has no state GONE"):
        listed(state="GONE")
