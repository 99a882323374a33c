"""The denominator of the wallet's consumer: psycopg in a tight loop, the same transactions from messages in memory.

The same statements, by the same functions, and the same rows: the wallet's rules decide, and a result is encoded with
the balance that it tells. What the loop does without is Kafka, decoding, finding duplicates, and all that makes sure of
a batch.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import psycopg

from ferryman import outbox
from ferryman.bench.spending import Connection, Spending, Stream, codec
from ferryman.consumer import reports
from ferryman.consumer.decoding import hash_of
from ferryman.consumer.model import Record
from ferryman.consumer.store import receipts
from ferryman.consumer.store.receipts import DEFAULT_LIMITS, HANDLED, Verdict
from ferryman.message import Stored
from ferryman.runtime.garbage import collect_less
from ferryman.schemas.codec import Codec
from ferryman.services.wallet import store
from ferryman.services.wallet.rules import Command, Operation

NAME = "bare"


class Batch(NamedTuple):
    """What one transaction is given: made before the clock starts."""

    ids: list[UUID]
    commands: list[Command]
    records: list[tuple[UUID, bytes, Record]]
    """Of each message: the id of its result, the hash of its payload, and where it would have stood."""


def prepared(spendings: Sequence[Spending], first: int) -> Batch:
    return Batch(
        [each.id for each in spendings],
        [Command("DEDUCT", each.request_id, "deduct", each.wallet_id, 1, "EUR") for each in spendings],
        [
            (uuid5(each.id, "0"), hash_of(each.id.bytes), Record("payments.commands", at % 6, at, b"", b"", [], 0))
            for at, each in enumerate(spendings, first)
        ],
    )


def transact(connection: Connection, batch: Batch, codec: Codec) -> None:
    with connection.transaction():
        receipts.find(connection, NAME, batch.ids, DEFAULT_LIMITS)
        books = store.locked(connection, batch.commands)
        operations = [books.decide(command) for command in batch.commands]
        store.book(connection, books)
        results = [_result(each, made[0], codec) for each, made in zip(operations, batch.records, strict=True)]
        outbox.append_stored(connection, results)
        verdicts = [
            Verdict(identity, HANDLED, "DONE", None, digest, "wallet.deduct", record, reports.kept([result]))
            for identity, result, (_, digest, record) in zip(batch.ids, results, batch.records, strict=True)
        ]
        receipts.record(connection, NAME, verdicts)


def _result(operation: Operation, identity: UUID, codec: Codec) -> Stored:
    said = {
        "request_id": operation.request_id, "step": operation.step, "attempt": 1, "wallet_id": operation.wallet_id,
        "kind": operation.kind, "amount": operation.amount, "currency": operation.currency,
        "balance": operation.balance, "applied_at": operation.decided_at,
    }  # fmt: skip
    payload, kind = codec.encode(said), codec.type
    return Stored(kind.topic, str(operation.request_id), kind.name, payload, None, identity, None, kind.content_type)


def main() -> None:
    wanted: dict[str, Any] = json.load(sys.stdin)
    results = codec("wallet.succeeded")
    spendings, size = list(Stream(wanted["messages"], wanted["wallets"])), wanted["batch"]
    batches = [prepared(spendings[first : first + size], first) for first in range(0, len(spendings), size)]
    with psycopg.connect(wanted["database_url"], autocommit=True) as connection:
        collect_less()
        began = time.perf_counter()
        for batch in batches:
            transact(connection, batch, results)
        seconds = time.perf_counter() - began
    print(json.dumps({"handled": len(spendings), "seconds": seconds}))


if __name__ == "__main__":
    main()
