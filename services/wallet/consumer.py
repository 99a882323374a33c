"""The wallet as a consumer: it handles commands and reports results."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import psycopg

from ferryman import Consumer, Done, Message, Misconfigured, Received, Refused
from ferryman.services.wallet import store
from ferryman.services.wallet.rules import Command, Kind, Operation
from ferryman.services.wallet.wallet_settings import WalletSettings

KINDS: dict[str, Kind] = {"wallet.deduct": "DEDUCT", "wallet.refund": "REFUND", "wallet.cancel": "CANCEL"}
RESULTS = "wallet.results"

EVENT = "wallet.balance-changed"


def wallet_of(settings: Any) -> Consumer:
    """Return the consumer with the settings under [wallet]."""
    if settings.payments.mode == "literal":
        raise Misconfigured(
            "in the literal mode nobody reads the results of this wallet", setting="payments.mode",
            remedy="run `wallet-literal`, or set the mode to saga",
        )  # fmt: skip
    return consumer(events=settings.section(WalletSettings).events)


def consumer(*, events: bool = False) -> Consumer:
    """Return the consumer. With events, it publishes changes of balances on `wallet.events`."""
    made = Consumer("wallet", topics=["payments.commands"], connection=psycopg.Connection, unknown="reject")
    made.handles_batch(*KINDS)(partial(handle, events=events))
    return made


def handle(db: store.Connection, messages: Sequence[Received], *, events: bool = False) -> list[Done | Refused]:
    """Decide each operation once. A repeated command gets the same answer, whatever its attempt and message.

    With events, one is added to the answer of the command that first changed a balance.
    """
    commands = [_command(message) for message in messages]
    books = store.locked(db, commands)
    operations = [books.decide(command) for command in commands]
    store.book(db, books)
    untold = {id(operation) for operation in books.new if operation.amount} if events else set()
    outcomes: list[Done | Refused] = []
    for operation, message in zip(operations, messages, strict=True):
        outcome = _answer(operation, message)
        if id(operation) in untold:
            untold.remove(id(operation))
            outcome = Done(*outcome.reports, _changed(operation))
        outcomes.append(outcome)
    return outcomes


def _command(message: Received) -> Command:
    data = message.data
    return Command(
        KINDS[message.type], data["request_id"], data["step"], data["wallet_id"], data.get("amount", 0),
        data.get("currency"),
    )  # fmt: skip


def _answer(operation: Operation, message: Received) -> Done | Refused:
    """Return the outcome and the result. It names the attempt, by which the sender knows its own command."""
    request_id, step, kind, wallet_id, reason, amount, currency, balance, at = operation
    said = {
        "request_id": request_id, "step": step, "attempt": message.data["attempt"], "wallet_id": wallet_id,
        "kind": kind,
    }  # fmt: skip
    if reason is not None:
        failed = {**said, "reason": reason, "decided_at": at}
        return Refused(reason, Message("wallet.failed", failed, key=request_id, topic=RESULTS))
    succeeded = {**said, "amount": amount, "currency": currency, "balance": balance, "applied_at": at}
    return Done(Message("wallet.succeeded", succeeded, key=request_id, topic=RESULTS))


def _changed(operation: Operation) -> Message:
    request_id, step, kind, wallet_id, _, amount, currency, balance, at = operation
    entry = entry_id(request_id, step, kind)
    change = -(amount or 0) if kind == "DEDUCT" else amount
    said = {"wallet_id": wallet_id, "balance": balance, "currency": currency, "change": change, "entry_id": entry,
            "changed_at": at}  # fmt: skip
    return Message(EVENT, said, key=wallet_id, id=entry)


def entry_id(request_id: UUID, step: str, kind: Kind) -> UUID:
    """Derive the id of a row of the ledger from its primary key."""
    return uuid5(request_id, f"{step}/{kind}")
