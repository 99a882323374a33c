"""All SQL of the wallet: three statements for a batch, whatever its size."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any, TypeAlias
from uuid import UUID

import psycopg

from ferryman import Transient
from ferryman.services.wallet.rules import Books, Command, Operation, Wallet

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# Locked in their order, so that two batches with the same wallets wait for one another and do not deadlock.
_LOCK = """\
-- wallet.lock
SELECT w.id, w.currency, w.balance FROM wallet.wallets w WHERE w.id = ANY (%(wallets)b::uuid[])
ORDER BY w.id FOR UPDATE
"""

# A statement of its own, to see what whoever held the locks has decided.
_DECIDED = """\
-- wallet.decided
SELECT clock.now, l.request_id, l.step, l.kind, l.wallet_id, l.reason,
       CASE WHEN l.reason IS NULL THEN abs(l.amount) END, l.currency, l.balance, l.decided_at
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN wallet.ledger l ON l.request_id = ANY (%(requests)b::uuid[])
"""

# Where fewer are written than were given, somebody has decided one meanwhile whose wallet is not there to be locked.
_BOOK = """\
-- wallet.book
WITH booked AS (
    INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, reason, amount, currency, balance, decided_at)
    SELECT n.request_id, n.step, n.kind, n.wallet_id, n.reason,
           CASE n.kind WHEN 'DEDUCT' THEN -coalesce(n.amount, 0) ELSE coalesce(n.amount, 0) END,
           n.currency, n.balance, %(now)b
    FROM unnest(%(requests)b::uuid[], %(steps)b::text[], %(kinds)b::text[], %(wallets)b::uuid[], %(reasons)b::text[],
                %(amounts)b::bigint[], %(currencies)b::text[], %(balances)b::bigint[])
         n (request_id, step, kind, wallet_id, reason, amount, currency, balance)
    ORDER BY n.request_id, n.step, n.kind
    ON CONFLICT ON CONSTRAINT ledger_pkey DO NOTHING
    RETURNING 1
), changed AS (
    UPDATE wallet.wallets w SET balance = c.balance
    FROM unnest(%(changed)b::uuid[], %(held)b::bigint[]) c (id, balance)
    WHERE w.id = c.id
)
SELECT count(*) FROM booked
"""


def locked(db: Connection, commands: Sequence[Command]) -> Books:
    """The wallets of these commands, nobody else's until the transaction ends, and what was decided before."""
    wallets = list({each.wallet_id for each in commands})
    held = db.execute(_LOCK, {"wallets": wallets}, binary=True).fetchall()
    requests = list({each.request_id for each in commands})
    rows = db.execute(_DECIDED, {"requests": requests}, binary=True).fetchall()
    now = rows[0][0].astimezone(UTC)  # that of Avro's epoch: no zone has to be asked for each result
    books = Books({each: Wallet(currency, balance) for each, currency, balance in held}, {}, now)
    for _, *columns in rows:
        if columns[0] is not None:
            operation = Operation(*columns)
            books.decided.setdefault((operation.request_id, operation.step), {})[operation.kind] = operation
    return books


def book(db: Connection, books: Books) -> None:
    """Writes what is new into the ledger, and what the wallets then hold."""
    if not books.new:
        return
    requests, steps, kinds, wallets, reasons, amounts, currencies, balances, _ = map(list, zip(*books.new, strict=True))
    changed = last_balances(books.new)
    row = db.execute(
        _BOOK,
        {
            "now": books.now, "requests": requests, "steps": steps, "kinds": kinds, "wallets": wallets,
            "reasons": reasons, "amounts": amounts, "currencies": currencies, "balances": balances,
            "changed": list(changed), "held": list(changed.values()),
        },
        binary=True,
    ).fetchone()  # fmt: skip
    if row is None or row[0] != len(books.new):
        raise Transient("another process decided one of these operations meanwhile")


def last_balances(operations: Sequence[Operation]) -> dict[UUID, int]:
    """What each wallet holds that gained or lost."""
    return {each.wallet_id: each.balance for each in operations if each.amount and each.balance is not None}
