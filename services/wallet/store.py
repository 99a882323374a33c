"""All SQL of the wallet: three statements for a batch, whatever its size."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any, TypeAlias

import psycopg

from ferryman import Transient
from ferryman.services.wallet.rules import Books, Command, Operation, Wallet

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_LOCK = """\
-- wallet.lock
SELECT * FROM wallet.lock(%(wallets)b::uuid[])
"""

# A separate statement, which sees the decisions of the previous holder of the locks.
_DECIDED = """\
-- wallet.decided
SELECT clock.now, l.request_id, l.step, l.kind, l.wallet_id, l.reason,
       CASE WHEN l.reason IS NULL THEN abs(l.amount) END, l.currency, l.balance, l.decided_at
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN wallet.ledger l ON l.request_id = ANY (%(requests)b::uuid[])
"""

# If fewer rows are written than given, another process has decided on a wallet that does not exist to be locked.
_BOOK = """\
-- wallet.book
SELECT wallet.book(%(now)b, %(requests)b::uuid[], %(steps)b::text[], %(kinds)b::text[], %(wallets)b::uuid[],
                   %(reasons)b::text[], %(amounts)b::bigint[], %(currencies)b::text[], %(balances)b::bigint[])
"""


def locked(db: Connection, commands: Sequence[Command]) -> Books:
    """Lock the wallets of these commands until the transaction ends, and return them with earlier decisions."""
    wallets = list({each.wallet_id for each in commands})
    held = db.execute(_LOCK, {"wallets": wallets}, binary=True).fetchall()
    requests = list({each.request_id for each in commands})
    rows = db.execute(_DECIDED, {"requests": requests}, binary=True).fetchall()
    now = rows[0][0].astimezone(UTC)  # UTC is Avro's zone: results need no conversion
    books = Books({each: Wallet(currency, balance) for each, currency, balance in held}, {}, now)
    for _, *columns in rows:
        if columns[0] is not None:
            operation = Operation(*columns)
            books.decided.setdefault((operation.request_id, operation.step), {})[operation.kind] = operation
    return books


def book(db: Connection, books: Books) -> None:
    """Write new decisions into the ledger, which changes the balances."""
    if not books.new:
        return
    requests, steps, kinds, wallets, reasons, amounts, currencies, balances, _ = map(list, zip(*books.new, strict=True))
    row = db.execute(
        _BOOK,
        {
            "now": books.now, "requests": requests, "steps": steps, "kinds": kinds, "wallets": wallets,
            "reasons": reasons, "amounts": amounts, "currencies": currencies, "balances": balances,
        },
        binary=True,
    ).fetchone()  # fmt: skip
    if row is None or row[0] != len(books.new):
        raise Transient("another process decided one of these operations in the meantime")
