"""The payment orchestrator without Kafka: requests, results and the messages that are sent."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman import Consumer, Received
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.model import Record
from ferryman.consumer.transaction import BatchTransaction
from ferryman.consumer.wire import hash_of
from ferryman.saga.engine import SagaEngine
from ferryman.schemas.codec import Codecs
from ferryman.services.payments import requests
from ferryman.services.payments.rules import RESULTS, WALLET, Payment, Rules
from ferryman.services.payments.store import RecordedPayment, Request

Database = psycopg.Connection[tuple[Any, ...]]


def result(kind: str, data: Mapping[str, Any], *, id: UUID | None = None) -> Received:
    """Return a result as a handler gets it."""
    topic = "fulfilments.results" if kind.startswith("fulfilment") else "wallet.results"
    key = str(data["request_id"])
    record = Record(topic, 0, 0, key.encode(), b"", [], 0)
    return Received(id or uuid4(), kind, dict(data), key, record, hash_of(repr(sorted(data.items())).encode()))


def succeeded(
    payment: Request | Payment, kind: str = "DEDUCT", *, id: UUID | None = None, **more: Any
) -> Received:  # fmt: skip
    said = {"request_id": payment.uuid, "step": "deduct", "attempt": 1, "wallet_id": payment.wallet_id, "kind": kind,
            "amount": payment.amount, "currency": payment.currency, "balance": 1, "applied_at": None}  # fmt: skip
    return result("wallet.succeeded", said | more, id=id)


def failed(payment: Request | Payment, reason: str, kind: str = "DEDUCT", **more: Any) -> Received:
    said = {"request_id": payment.uuid, "step": "deduct", "attempt": 1, "wallet_id": payment.wallet_id, "kind": kind,
            "reason": reason, "decided_at": None}  # fmt: skip
    return result("wallet.failed", said | more)


def accepted(payment: Request | Payment, **more: Any) -> Received:
    said = {"request_id": payment.uuid, "step": "fulfil", "attempt": 1, "accepted_at": None}
    return result("fulfilment.accepted", said | more)


def refused(payment: Request | Payment, reason: str = "OUT_OF_STOCK", **more: Any) -> Received:
    said = {"request_id": payment.uuid, "step": "fulfil", "attempt": 1, "reason": reason, "refused_at": None}
    return result("fulfilment.refused", said | more)


@dataclass
class Desk:
    """The orchestrator on a database of its own."""

    db: Database
    codecs: Codecs
    rules: Rules = field(default_factory=Rules)

    @property
    def sagas(self) -> SagaEngine[Payment]:
        return self.rules.saga.engine

    @property
    def consumer(self) -> Consumer:
        """One consumer for both topics: the sagas tell their results apart."""
        return self.rules.saga.consumer(WALLET.consumer, sorted({source.topic for source in RESULTS.values()}))

    def request(self, **more: Any) -> Request:
        """Record a payment."""
        given: dict[str, Any] = {"uuid": uuid4(), "wallet_id": uuid4(), "amount": 500, "currency": "EUR", **more}
        made = Request(**given)
        self.record(made)
        return made

    def record(self, *wanted: Request) -> list[RecordedPayment]:
        with self.db.transaction():
            return requests.record(self.db, wanted, self.rules)[0]

    def apply(self, *results: Received) -> Counter[str]:
        return BatchTransaction(self.consumer, HandlerConnection(self.db), results).run()

    def late(self, *payments: Request) -> int:
        """Make these payments due, and let them time out."""
        keys = [each.uuid for each in payments]
        self.db.execute("UPDATE payments.requests SET due_at = now() - interval '1 s' WHERE uuid = ANY (%s)", (keys,))
        with self.db.transaction():
            return len(self.sagas.due(self.db))

    def stands(self, payment: Request) -> tuple[str, str, str | None]:
        row = self.db.execute(
            "SELECT state, status, reason FROM payments.requests WHERE uuid = %s", (payment.uuid,)
        ).fetchone()
        assert row is not None
        return row

    def left(self, payment: Request) -> list[tuple[str, dict[str, Any]]]:
        """Return every message of the payment that was appended, in order."""
        rows = self.db.execute(
            "SELECT type, payload FROM ferryman.outbox WHERE key = ANY (%s) ORDER BY position",
            ([str(payment.uuid), str(payment.wallet_id)],),
        ).fetchall()
        return [(kind, self._decoded(kind, payload)) for kind, payload in rows]

    def kinds(self, payment: Request) -> list[str]:
        return [kind for kind, _ in self.left(payment)]

    def strays(self) -> list[tuple[UUID, str]]:
        return self.db.execute("SELECT saga_id, why FROM ferryman.saga_stray ORDER BY came_at").fetchall()

    def _decoded(self, kind: str, payload: bytes) -> dict[str, Any]:
        codec = self.codecs.of(kind)
        assert codec is not None
        return dict(codec.decode(payload))
