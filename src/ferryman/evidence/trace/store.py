"""What trace reads: rows by their keys, and of the journals what stands between two positions. All of it by indexes."""

import json
from collections.abc import Collection, Mapping
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import class_row, dict_row

from ferryman.evidence.trace.model import Operation, Payment, Receipt, Stray

Connection = psycopg.Connection[tuple[Any, ...]]

_NOW = """\
-- trace.now
SELECT clock_timestamp()
"""

_IDENTITY = """\
-- trace.identity
SELECT system_identifier, current_database()::text FROM ferryman.outbox_state
"""

_PAYMENT = """\
-- trace.payment
SELECT uuid AS id, wallet_id, amount, currency, fulfil, state, status, reason, attempt,
       nullif(due_at, 'infinity') AS due_at, created_at, changed_at
FROM payments.requests WHERE uuid = %(id)s
"""

_LITERAL = """\
-- trace.literal
SELECT type, topic, status, created_at, try_count, last_error, coalesce(published_at, last_attempt_at) AS at
FROM payments.outbox WHERE uuid = %(id)s
"""

_OF_WALLET = """\
-- trace.payments_of_wallet
SELECT uuid FROM payments.requests WHERE wallet_id = %(wallet)s AND created_at <= %(until)s
ORDER BY created_at DESC LIMIT %(most)s
"""

_STRAYS = """\
-- trace.strays
SELECT message_id, why, type, came_at FROM ferryman.saga_stray
WHERE saga_id = %(id)s AND machine = 'payment' ORDER BY came_at
"""

_STRAY_OF = """\
-- trace.saga_of_stray
SELECT saga_id FROM ferryman.saga_stray WHERE machine = 'payment' AND message_id = %(id)s
"""

_LEDGER = """\
-- trace.ledger
SELECT kind, step, wallet_id, amount, currency, balance, reason, decided_at FROM wallet.ledger
WHERE request_id = %(id)s AND kind <> 'OPEN' ORDER BY decided_at
"""

# Each by itself: the planner, left alone, would read all of a consumer's receipts before they were analyzed.
_RECEIPTS = """\
-- trace.receipts
SELECT found.* FROM unnest(%(ids)s::uuid[]) n (id)
CROSS JOIN LATERAL (
    SELECT i.id, i.type, i.topic, i.partition, i."offset", i.status, i.outcome, i.reason, i.error, i.received_at,
           i.results
    FROM ferryman.inbox i WHERE i.consumer = %(consumer)s AND i.id = n.id OFFSET 0
) found
"""

# Either by its id, or as a message whose key is the payment.
_POSITIONS = """\
-- trace.positions_between
SELECT position FROM ferryman.outbox
WHERE position > %(after)s AND position <= %(upto)s AND (id = ANY (%(ids)s::uuid[]) OR key = %(key)s)
  AND type = ANY (%(types)s::text[])
"""


def now(db: Connection) -> Any:
    return _one(db, _NOW, {})


def identity(db: Connection) -> Any:
    """Which database of which server this is: two URLs may name the same one."""
    return db.execute(_IDENTITY).fetchone()


def payment(db: Connection, identity: UUID) -> Payment | None:
    with db.cursor(row_factory=class_row(Payment)) as cursor:
        return cursor.execute(_PAYMENT, {"id": identity}).fetchone()


def literal(db: Connection, identity: UUID) -> dict[str, Any] | None:
    """Its row in the literal mode's outbox."""
    with db.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_LITERAL, {"id": identity}).fetchone()


def payments_of_wallet(db: Connection, wallet: UUID, until: Any, most: int) -> list[UUID]:
    """The newest first."""
    return [row[0] for row in db.execute(_OF_WALLET, {"wallet": wallet, "until": until, "most": most}).fetchall()]


def strays(db: Connection, identity: UUID) -> list[Stray]:
    with db.cursor(row_factory=class_row(Stray)) as cursor:
        return cursor.execute(_STRAYS, {"id": identity}).fetchall()


def saga_of_stray(db: Connection, message: UUID) -> UUID | None:
    found: UUID | None = _one(db, _STRAY_OF, {"id": message})
    return found


def ledger(db: Connection, identity: UUID) -> list[Operation]:
    with db.cursor(row_factory=class_row(Operation)) as cursor:
        return cursor.execute(_LEDGER, {"id": identity}).fetchall()


def receipts(db: Connection, consumer: str, ids: Collection[UUID]) -> list[Receipt]:
    """In the order in which they came."""
    with db.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_RECEIPTS, {"consumer": consumer, "ids": list(ids)}).fetchall()
    found = [Receipt(**{**row, "results": tuple(UUID(each[5]) for each in reported(row))}) for row in rows]
    return sorted(found, key=lambda each: each.received_at)


def reported(row: Mapping[str, Any]) -> list[Any]:
    """What stands in a receipt of the messages that were reported: their columns, in the order of `Stored`."""
    found: list[Any] = json.loads(row["results"] or "[]")
    return found


def positions_between(db: Connection, wanted: Mapping[str, Any], after: int, upto: int) -> list[int]:
    """Of messages of these `types`: with one of these `ids`, or with this `key`."""
    rows = db.execute(_POSITIONS, {**wanted, "after": after, "upto": upto}).fetchall()
    return [row[0] for row in rows]


def _one(db: Connection, statement: LiteralString, values: Mapping[str, Any]) -> Any:
    row = db.execute(statement, values).fetchone()
    return row[0] if row else None
