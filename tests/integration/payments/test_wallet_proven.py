"""The wallet's handler, proven at every step of the loop and at each of its statements."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ferryman import Message, use_schemas
from ferryman.schemas import active
from ferryman.services.wallet.consumer import consumer
from ferryman.testing import prove

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def db(ferryman_db: Database) -> Iterator[Database]:
    use_schemas()
    yield ferryman_db
    active.forget()


@pytest.mark.parametrize(
    "events", [pytest.param(False, marks=pytest.mark.prove, id="alone"), pytest.param(True, id="telling everyone")]
)
def test_money_moves_once_wherever_the_wallet_dies(db: Database, *, events: bool) -> None:
    """N5: a payment, and a cancellation that comes before its deduction."""
    of, first, second = uuid4(), uuid4(), uuid4()
    db.execute("SELECT wallet.open(%s, 'EUR', 900)", (of,))

    def asks(kind: str, request: Any, **more: Any) -> Message:
        data = {"request_id": request, "step": "deduct", "attempt": 1, "wallet_id": of, **more}
        return Message(f"wallet.{kind}", data, key=of)

    def holds(other: Database) -> bool:
        row = other.execute("SELECT balance, (SELECT count(*) FROM wallet.unbalanced) FROM wallet.wallets").fetchone()
        return row == (400, 0)

    money = {"amount": 500, "currency": "EUR"}
    runs = prove(
        consumer(events=events), asks("deduct", first, **money), asks("cancel", second),
        asks("deduct", second, **money), db=db, invariant=holds, repeatable=False,
    )  # fmt: skip
    assert len(runs) > 30
