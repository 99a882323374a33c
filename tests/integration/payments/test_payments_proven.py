"""The handlers of payments, proven at every step of the loop and at each of their statements."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg

from ferryman import Done, Message, Received, Refused
from ferryman.services.payments.rules import Payment
from ferryman.services.payments.store import Request
from ferryman.services.wallet import literal_wallet
from ferryman.testing import prove
from support.paying import Desk, refused, succeeded

Database = psycopg.Connection[tuple[Any, ...]]

_NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)

_MOVED = """\
SELECT r.uuid, r.state, (SELECT array_agg(o.type ORDER BY o.type) FROM ferryman.outbox o
                         WHERE o.key = r.uuid::text AND o.type NOT IN ('wallet.deduct', 'payment.requested'))
FROM payments.requests r
"""


def test_a_payment_is_moved_once_wherever_the_orchestrator_dies(desk: Desk) -> None:
    """N5, N6: one payment succeeds, one is refused, one goes to the fulfilment, and one is given back."""
    good, poor, wanted, unwanted = (desk.request(fulfil=fulfil) for fulfil in (False, False, True, True))
    desk.apply(succeeded(unwanted))
    desk.apply(refused(unwanted))

    def moved(db: Database) -> bool:
        strays = db.execute("SELECT count(*) FROM ferryman.saga_stray").fetchone()
        return strays == (0,) and {uuid: (state, kinds) for uuid, state, kinds in db.execute(_MOVED)} == {
            good.uuid: ("SUCCEEDED", ["payment.succeeded"]),
            poor.uuid: ("FAILED", ["payment.failed"]),
            wanted.uuid: ("FULFILLING", ["fulfilment.request"]),
            unwanted.uuid: ("FAILED", ["fulfilment.request", "payment.failed"]),
        }

    runs = prove(
        desk.consumer, _answered(good), _answered(poor, reason="INSUFFICIENT_FUNDS"), _answered(wanted),
        _answered(unwanted, kind="REFUND"), db=desk.db, invariant=moved, repeatable=False,
    )  # fmt: skip
    assert len(runs) > 30


def test_the_literal_wallet_never_takes_twice_wherever_it_dies(desk: Desk) -> None:
    """At most once: a deduction may be lost, but only booked deductions are reported."""
    of, told = uuid4(), list[str]()
    desk.db.execute("SELECT wallet.open(%s, 'EUR', 900)", (of,))

    def put(_message: Received, outcome: Done | Refused) -> None:
        assert isinstance(outcome, Done)
        told.append("SUCCEEDED")

    def holds(db: Database) -> bool:
        row = db.execute("SELECT balance, (SELECT count(*) FROM wallet.unbalanced) FROM wallet.wallets").fetchone()
        return row in [(400, 0), (900, 0)] and len(told) <= (row == (400, 0))

    [command, *_] = desk.rules.requested(Payment(uuid4(), of, 500, "EUR", False, "DEDUCTING", 1, None))
    runs = prove(literal_wallet.consumer(put), command, db=desk.db, invariant=holds, reset=told.clear, repeatable=False)
    assert len(runs) > 15


def _answered(payment: Request, kind: str = "DEDUCT", reason: str | None = None) -> Message:
    said = {"request_id": payment.uuid, "step": "deduct", "attempt": 1, "wallet_id": payment.wallet_id, "kind": kind}
    if reason:
        return Message("wallet.failed", {**said, "reason": reason, "decided_at": _NOW}, key=payment.uuid)
    money = {"amount": payment.amount, "currency": payment.currency, "balance": 1, "applied_at": _NOW}
    return Message("wallet.succeeded", said | money, key=payment.uuid)
