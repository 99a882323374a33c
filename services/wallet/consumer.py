"""Commands in, results out: the wallet as a consumer."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

import psycopg

from ferryman import Consumer, Done, Message, Misconfigured, Outcome, Received, Refused
from ferryman.services.wallet import store
from ferryman.services.wallet.rules import Command, Kind, Operation

KINDS: dict[str, Kind] = {"wallet.deduct": "DEDUCT", "wallet.refund": "REFUND", "wallet.cancel": "CANCEL"}
RESULTS = "wallet.results"

EVENT = "wallet.balance-changed"


def wallet_of(settings: Any) -> Consumer:
    """As the settings under [wallet] say."""
    if settings.payments.mode == "literal":
        raise Misconfigured(
            "in the literal mode nobody reads what this wallet would report", setting="payments.mode",
            remedy="run `wallet-literal`, or set the mode to saga",
        )  # fmt: skip
    return consumer(events=settings.wallet.events)


def consumer(*, events: bool = False) -> Consumer:
    """With events, everyone is told on `wallet.events` how balances change."""
    made = Consumer("wallet", topics=["payments.commands"], connection=psycopg.Connection, unknown="reject")
    made.handles_batch(*KINDS)(handle_and_tell if events else handle)
    return made


def handle(db: store.Connection, messages: Sequence[Received]) -> list[Outcome]:
    """Each operation once; whoever asks again is answered with what was decided, whatever the attempt and message."""
    operations, _ = _decided(db, messages)
    return [_answer(operation, message) for operation, message in zip(operations, messages, strict=True)]


def handle_and_tell(db: store.Connection, messages: Sequence[Received]) -> list[Outcome]:
    """As `handle`; what changed a balance is told by who was first to ask for it."""
    operations, new = _decided(db, messages)
    untold = {id(operation) for operation in new if operation.amount}
    outcomes: list[Outcome] = []
    for operation, message in zip(operations, messages, strict=True):
        outcome = _answer(operation, message)
        if id(operation) in untold:
            untold.remove(id(operation))
            outcome = Done(*outcome.reports, _changed(operation))
        outcomes.append(outcome)
    return outcomes


wallet = consumer()


def _decided(db: store.Connection, messages: Sequence[Received]) -> tuple[list[Operation], list[Operation]]:
    """What each message comes to, and what of that was not decided before."""
    commands = [_command(message) for message in messages]
    books = store.locked(db, commands)
    operations = [books.decide(command) for command in commands]
    store.book(db, books)
    return operations, books.new


def _command(message: Received) -> Command:
    data = message.data
    return Command(
        KINDS[message.type], data["request_id"], data["step"], data["wallet_id"], data.get("amount", 0),
        data.get("currency"),
    )  # fmt: skip


def _answer(operation: Operation, message: Received) -> Done | Refused:
    """With the attempt that asked, so that whoever asks knows its own."""
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
    """Of a row of the ledger, by what it is known by."""
    return uuid5(request_id, f"{step}/{kind}")
