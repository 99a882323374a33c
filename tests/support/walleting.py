"""The wallet without Kafka: batches as the consumer's loop passes them, and the wallet's books."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman import Consumer, Received
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.model import Record
from ferryman.consumer.transaction import BatchTransaction
from ferryman.consumer.wire import hash_of
from ferryman.schemas.codec import Codecs
from ferryman.services.wallet.consumer import consumer

Database = psycopg.Connection[tuple[Any, ...]]
WALLET = consumer()
TYPES = {"DEDUCT": "wallet.deduct", "REFUND": "wallet.refund", "CANCEL": "wallet.cancel"}


def asked(
    kind: str, of: UUID, request: UUID, *, amount: int = 100, currency: str = "EUR", step: str = "deduct",
    attempt: int = 1, id: UUID | None = None,
) -> Received:  # fmt: skip
    """Return a command as the handler gets it."""
    data: dict[str, Any] = {"request_id": request, "step": step, "attempt": attempt, "wallet_id": of}
    if kind != "CANCEL":
        data |= {"amount": amount, "currency": currency}
    record = Record("payments.commands", 0, 0, str(of).encode(), b"", [], 0)
    return Received(id or uuid4(), TYPES[kind], data, str(of), record, hash_of(repr(data).encode()))


@dataclass
class Books:
    """A wallet on a database of its own."""

    db: Database
    codecs: Codecs
    opened: list[UUID] = field(default_factory=list)
    consumer: Consumer = WALLET

    def open(self, balance: int, currency: str = "EUR") -> UUID:
        identity = uuid4()
        self.db.execute("SELECT wallet.open(%s, %s, %s)", (identity, currency, balance))
        self.opened.append(identity)
        return identity

    def handle(self, *messages: Received) -> list[dict[str, Any]]:
        """Handle a batch in one transaction; return the appended messages, decoded, in order."""
        before = self.one("SELECT coalesce(max(position), 0) FROM ferryman.outbox")
        transact(self.db, messages, self.consumer)
        rows = self.db.execute(
            "SELECT id, key, topic, type, payload FROM ferryman.outbox WHERE position > %s ORDER BY position", (before,)
        ).fetchall()
        return [
            {"id": identity, "key": key, "topic": topic, "type": kind, **self._decoded(kind, payload)}
            for identity, key, topic, kind, payload in rows
        ]

    def _decoded(self, kind: str, payload: bytes) -> Mapping[str, Any]:
        codec = self.codecs.of(kind)
        assert codec is not None
        return codec.decode(payload)

    def balance(self, of: UUID) -> int:
        return int(self.one("SELECT balance FROM wallet.wallets WHERE id = %s", of))

    def balances(self) -> dict[UUID, int]:
        return dict(
            self.db.execute("SELECT id, balance FROM wallet.wallets WHERE id = ANY (%s)", (self.opened,)).fetchall()
        )

    def one(self, query: str, *parameters: Any) -> Any:
        row = self.db.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]

    def balance_out(self) -> None:
        """Assert N5: balances are sums of entries and never negative; operations sum to zero."""
        assert self.db.execute("SELECT * FROM wallet.unbalanced").fetchall() == []
        assert self.one("SELECT count(*) FROM wallet.wallets WHERE balance < 0") == 0
        lopsided = self.db.execute(
            "SELECT request_id FROM wallet.entries GROUP BY request_id, step, kind HAVING sum(amount) <> 0"
        )
        assert lopsided.fetchall() == []


def transact(db: Database, messages: Sequence[Received], consumer: Consumer = WALLET) -> Counter[str]:
    return BatchTransaction(consumer, HandlerConnection(db), messages).run()
