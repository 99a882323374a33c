"""`prove` of a saga: crashes, duplicates and replays of its results, and a timeout right before each of them."""

from typing import Any
from uuid import UUID

import psycopg
import pytest

from ferryman import Go, Message, Saga, State
from ferryman.saga.ddl import table
from ferryman.testing import NotProven, prove
from support.orders import Order, declared

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.slow  # hundreds of runs

ID = UUID(int=7)
RESERVED = Message("stock.reserved", {"id": str(ID), "reservation": "r1"}, key=str(ID))
REFUSED = Message("bank.refused", {"id": str(ID)}, key=str(ID))
RELEASED = Message("stock.released", {"id": str(ID)}, key=str(ID))


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute(table(declared()).encode())
    with ferryman_db.transaction():
        declared().start(ferryman_db, Order(ID, "book", 500))
    return ferryman_db


def ends(db: Database) -> bool:
    """Return True if the order is cancelled, or waits for an answer, and every command was appended once."""
    [(state, waits)] = db.execute("SELECT state, due_at IS NOT NULL FROM shop.orders").fetchall()
    [(commands, ids)] = db.execute("SELECT count(*), count(DISTINCT id) FROM ferryman.outbox").fetchall()
    [(strays,)] = db.execute("SELECT count(*) FROM ferryman.saga_stray WHERE why <> 'LATE'").fetchall()
    assert (commands, strays) == (ids, 0)
    return bool(waits or state == "CANCELLED")


@pytest.mark.parametrize("more", [[], pytest.param([RELEASED], marks=pytest.mark.prove)], ids=["refused", "released"])
def test_saga_is_proven_against_crashes_and_against_timeouts(db: Database, more: list[Message]) -> None:
    names = prove(declared(), RESERVED, REFUSED, *more, db=db, invariant=ends)
    for name in ("crash before commit", "replayed from offset 0", "timeout before message 1: plain",
                 f"timeout before message {2 + len(more)}: crash after offsets"):  # fmt: skip
        assert name in names
    assert prove(declared(), RESERVED, REFUSED, db=db, invariant=ends, only="timeout before message 2: plain") == [
        "timeout before message 2: plain"
    ]


def test_saga_that_loses_to_its_timeout_is_found(db: Database) -> None:
    """A bank that refuses after it was asked to cancel is a stray here, so the item would stay reserved for ever."""

    def released(db: Database) -> bool:
        return db.execute("SELECT state FROM shop.orders").fetchone() in [("RELEASING",), ("CANCELLED",)]

    with pytest.raises(NotProven, match="timeout before message 2") as found:
        prove(hasty(), RESERVED, REFUSED, db=db, invariant=released)
    assert "only='timeout before message 2" in str(found.value)


def hasty() -> Saga[Order]:
    """Return the orders with a bank that is asked once."""
    whole = declared()
    states = {**whole.states, "CHARGING": State(
        "The bank is asked once.", ask="bank.charge", within=60, tries=1, then="CANCELLING")}  # fmt: skip
    saga = Saga(
        "orders", Order, table="shop.orders", of=whole.of, commands="shop.commands", states=states,
        results={"stock.*": "stock.results", "bank.*": "bank.results"},
    )  # fmt: skip
    saga.on("RESERVING", "stock.reserved", to="CHARGING")(lambda _, result: Go(
        "CHARGING", set={"reservation": result.data["reservation"]}))  # fmt: skip
    saga.on("RESERVING", "stock.out", to="CANCELLED")
    saga.on("CHARGING", "bank.charged", to="DONE")
    saga.on("CHARGING", "bank.refused", to="RELEASING")
    saga.on("CANCELLING", "bank.cancelled", to="RELEASING")
    saga.on("RELEASING", "stock.released", to="CANCELLED")
    return saga
