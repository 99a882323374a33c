"""The wallet's word on a payment, beside its results: best effort, so it may come never, late, twice, or be wrong."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from ferryman import FerrymanError
from ferryman.saga.engine import Sagas
from ferryman.saga.model import Move
from ferryman.services.payments import store
from ferryman.services.payments.rules import Payment, Rules
from ferryman.services.payments.store import Connection, Recorded


class Told(NamedTuple):
    """What it says became of it, and by what it may be compared."""

    status: str
    reason: str | None = None
    wallet_id: UUID | None = None
    amount: int | None = None
    currency: str | None = None


class NotBelieved(FerrymanError):
    """It contradicts what stands, or it is not the wallet alone that ends this payment."""


def tell(
    db: Connection, uuid: UUID, told: Told, *, sagas: Sagas[Payment], rules: Rules, headers: Mapping[str, str]
) -> Recorded | None:
    """How the payment stands then; None where there is none. What is over stays as it is."""

    def rule(payment: Payment) -> Move | None:
        _compare(payment, told)
        move = rules.told(payment, told.status, told.reason)
        return move and move._replace(messages=tuple(replace(each, headers=headers) for each in move.messages))

    sagas.act(db, [uuid], rule)
    found = store.find(db, [uuid]).get(uuid)
    if found is not None and found.status != told.status:
        raise NotBelieved(f"the payment {uuid} {_why(found)}")
    return found


def _compare(payment: Payment, told: Told) -> None:
    for name in ("wallet_id", "amount", "currency"):
        if (said := getattr(told, name)) is not None and said != getattr(payment, name):
            raise NotBelieved(f"the payment {payment.uuid} has another {name}")


def _why(found: Recorded) -> str:
    if found.status != "PENDING":
        return f"is over: it is {found.status}, and stays so"
    if found.fulfil:
        return "has several steps: only the results of each end it"
    return f"is {found.state}: only the wallet's answer to what it was asked last ends it"
