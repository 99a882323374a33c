"""`ferryman trace` where a saga of the setting `sagas` cannot be imported."""

import json
from uuid import uuid4

import psycopg

from ferryman import Message, append
from support.launch import Launcher


def test_saga_that_cannot_be_imported_stops_no_other_story(ferryman: Launcher, ferryman_database_url: str) -> None:
    """Every trace failed where the module of one saga was not installed. One that is asked for must be there."""
    order, sagas = uuid4(), "support.orders:ORDERS"
    environment = {"FERRYMAN_DATABASE_URL": ferryman_database_url, "FERRYMAN_SAGAS": json.dumps(["gone.shop:orders"])}
    with psycopg.connect(ferryman_database_url) as db:
        append(db, Message("order.placed", {}, key="o-7", topic="orders", id=order))
    told = ferryman.run("trace", str(order), env=environment)
    assert told.wait() == 5, told.transcript()
    assert "PENDING  message" in told.stdout
    assert "not looked at: gone.shop:orders of the setting `sagas`: cannot import gone.shop" in told.stderr
    asked = ferryman.run("trace", str(order), "--saga", "gone.shop:orders", env=environment)
    assert asked.wait() == 3, asked.transcript()
    named = {**environment, "FERRYMAN_SAGAS": json.dumps([sagas])}
    known = ferryman.run("trace", str(order), env=named)
    assert "the table shop.orders of support.orders:ORDERS: no database here has it" in known.stderr
