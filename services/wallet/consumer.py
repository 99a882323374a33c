"""Commands in, results out: the wallet as a consumer."""

from collections.abc import Sequence

import psycopg

from ferryman import Consumer, Done, Message, Outcome, Received, Refused
from ferryman.services.wallet import store
from ferryman.services.wallet.rules import Command, Kind, Operation

KINDS: dict[str, Kind] = {"wallet.deduct": "DEDUCT", "wallet.refund": "REFUND", "wallet.cancel": "CANCEL"}
RESULTS = "wallet.results"

wallet = Consumer("wallet", topics=["payments.commands"], connection=psycopg.Connection, unknown="reject")


@wallet.handles_batch(*KINDS)
def handle(db: store.Connection, messages: Sequence[Received]) -> list[Outcome]:
    """Each operation once; whoever asks again is answered with what was decided, whatever the attempt and message."""
    commands = [_command(message) for message in messages]
    books = store.locked(db, commands)
    operations = [books.decide(command) for command in commands]
    store.book(db, books)
    return [_answer(operation, message) for operation, message in zip(operations, messages, strict=True)]


def _command(message: Received) -> Command:
    data = message.data
    return Command(
        KINDS[message.type], data["request_id"], data["step"], data["wallet_id"], data.get("amount", 0),
        data.get("currency"),
    )  # fmt: skip


def _answer(operation: Operation, message: Received) -> Outcome:
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
