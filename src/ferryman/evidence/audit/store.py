"""All SQL of `audit`: bounded pages, each one statement and so one snapshot; nothing joins across databases."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from psycopg.rows import tuple_row

from ferryman.evidence.audit.columns import Numbers, Uuids, giving, taking
from ferryman.evidence.audit.model import Operation, Page, Place, Plain, Receipt, Request, Window
from ferryman.evidence.databases import Connection

_COLUMNS = "r.uuid, r.wallet_id, r.amount, r.currency, r.fulfil, r.state, r.attempt, r.created_at, r.changed_at"

# The columns of a page, each as one array: they go to the wallet's server as they are.
_PAGE = """\
-- audit.page
SELECT count(*), max(p.created_at), (array_agg(p.uuid ORDER BY p.created_at DESC, p.uuid DESC))[1],
       array_agg(p.uuid), array_agg(p.wallet_id), array_agg(p.amount), array_agg(p.currency), array_agg(p.status)
FROM (
    SELECT * FROM payments.requests r
    WHERE r.created_at < %(until)s AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s)
      AND (%(at)s::timestamptz IS NULL OR (r.created_at, r.uuid) > (%(at)s, %(uuid)s::uuid))
    ORDER BY r.created_at, r.uuid LIMIT %(most)s
) p
"""

_NOT_APPLIED = """\
-- audit.not_applied
SELECT array_agg(n.place)
FROM unnest(%(ids)b) WITH ORDINALITY n (id, place)
WHERE NOT EXISTS (
    SELECT FROM ferryman.inbox i WHERE i.consumer = 'payments' AND i.id = n.id AND i.status = 'HANDLED' OFFSET 0
)
"""

# What is over by one deduction, or by one that was refused, as it should be, is counted here. The rest is told.
# OFFSET 0, because else each use of `plain` would ask for all of it anew.
_PLAIN = """\
-- audit.plain
SELECT s.plain, CASE WHEN s.plain THEN s.status END, CASE WHEN s.plain THEN s.currency END, count(*),
       sum(s.amount)::bigint, coalesce(sum(-s.moved), 0)::bigint, array_agg(s.uuid) FILTER (WHERE NOT s.plain)
FROM (
    SELECT p.uuid, p.status, p.currency, p.amount, l.amount AS moved,
           NOT (p.place = ANY (coalesce(%(not_applied)b::bigint[], '{}')))
           AND coalesce(CASE p.status
               WHEN 'SUCCEEDED' THEN l.reason IS NULL AND -l.amount = p.amount AND l.currency = p.currency
                                     AND l.wallet_id = p.wallet_id
               WHEN 'FAILED' THEN l.reason <> 'CANCELLED' AND l.amount = 0
           END, false)
           AND NOT EXISTS (
               SELECT FROM wallet.ledger o
               WHERE o.request_id = p.uuid AND (o.step <> 'deduct' OR o.kind NOT IN ('OPEN', 'DEDUCT')) OFFSET 0
           )
           AND EXISTS (
               SELECT FROM ferryman.inbox i
               WHERE i.consumer = 'wallet' AND i.id = p.command AND i.status = 'HANDLED' OFFSET 0
           ) AS plain
    FROM unnest(%(uuids)b, %(wallets)b, %(amounts)b, %(currencies)b, %(statuses)b, %(commands)b) WITH ORDINALITY
         p (uuid, wallet_id, amount, currency, status, command, place)
    LEFT JOIN LATERAL (
        SELECT * FROM wallet.ledger l
        WHERE l.request_id = p.uuid AND l.step = 'deduct' AND l.kind = 'DEDUCT' OFFSET 0
    ) l ON true
    OFFSET 0
) s
GROUP BY 1, 2, 3
"""

_REQUESTS_OF: LiteralString = f"""\
-- audit.requests_of
SELECT {_COLUMNS}
FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM payments.requests r WHERE r.uuid = n.id OFFSET 0
) r
"""  # noqa: S608 - same

_UNKNOWN = """\
-- audit.unknown
SELECT n.id FROM unnest(%(ids)b::uuid[]) n (id)
WHERE NOT EXISTS (SELECT FROM payments.requests r WHERE r.uuid = n.id OFFSET 0)
"""

_ABOUT = """\
-- audit.about
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'payments.requests'::regclass
"""

# Each looked up by itself (OFFSET 0): before a table was analyzed, the planner would read all of it.
_OPERATIONS = """\
-- audit.operations
SELECT l.request_id, l.step, l.kind, l.wallet_id, l.amount, l.currency, l.reason, l.decided_at
FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.ledger l WHERE l.request_id = n.id AND l.kind <> 'OPEN' OFFSET 0
) l
"""

_RECEIVED = """\
-- audit.received
SELECT i.id, i.status, i.received_at, i.reported
FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT i.id, i.status, i.received_at, coalesce(i.results, '[]') <> '[]' AS reported
    FROM ferryman.inbox i WHERE i.consumer = %(consumer)s AND i.id = n.id OFFSET 0
) i
"""

_LITERAL = """\
-- audit.literal
SELECT o.uuid FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT o.uuid FROM payments.outbox o WHERE o.uuid = n.id OFFSET 0
) o
"""

# The ledger is append-only, so its blocks are in no need of an index: what was booked stays where it is.
_BOOKED = """\
-- audit.booked
SELECT array_agg(DISTINCT l.request_id), count(*) FROM wallet.ledger l
WHERE l.ctid >= format('(%%s,0)', %(first)s::bigint)::tid AND l.ctid < format('(%%s,0)', %(end)s::bigint)::tid
  AND l.kind <> 'OPEN' AND l.decided_at < %(until)s
  AND (%(since)s::timestamptz IS NULL OR l.decided_at >= %(since)s)
"""

_BLOCKS = """\
-- audit.blocks
SELECT pg_relation_size('wallet.ledger') / current_setting('block_size')::bigint
"""

_LOPSIDED = """\
-- audit.lopsided
SELECT e.request_id, e.step, e.kind
FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.entries e WHERE e.request_id = n.id OFFSET 0
) e
GROUP BY e.request_id, e.step, e.kind HAVING sum(e.amount) <> 0
"""

# Compiling such statements takes longer than to run them.
_READ_ONLY = """\
-- audit.read_only
SELECT set_config('transaction_read_only', 'on', true), set_config('jit', 'off', true)
"""

_NOW = """\
-- audit.now
SELECT clock_timestamp()
"""

RowT = TypeVar("RowT")


def read_only(db: Connection) -> None:
    """From here on in this transaction."""
    db.execute(_READ_ONLY)


def page(db: Connection, window: Window, after: Place | None, most: int) -> Page | None:
    """In the order in which they were recorded, after a place."""
    at, uuid = after or (None, None)
    many, at, uuid, *columns = _opaque(db, _PAGE, {**window._asdict(), "at": at, "uuid": uuid, "most": most})
    return Page(many, (at, uuid), *columns) if many else None


def not_applied(db: Connection, results: Uuids) -> Numbers | None:
    """The places of those that the orchestrator has not applied; None where it has applied all."""
    found: Numbers | None = _opaque(db, _NOT_APPLIED, {"ids": results})[0]
    return found


def plain(db: Connection, page: Page, commands: Uuids, not_applied: Numbers | None) -> tuple[list[Plain], list[UUID]]:
    """How many are plainly in order, by what became of them; and those that have to be looked at."""
    cursor = db.cursor(row_factory=tuple_row, binary=True)
    taking(cursor)
    rows = cursor.execute(_PLAIN, {**page.columns(), "commands": commands, "not_applied": not_applied}).fetchall()
    others = [uuid for row in rows if not row[0] for uuid in row[6]]
    return [Plain(*row[1:6]) for row in rows if row[0]], others


def requests_of(db: Connection, ids: Sequence[UUID]) -> list[Request]:
    return rows(db, Request, _REQUESTS_OF, {"ids": list(ids)})


def unknown(db: Connection, ids: Uuids | Sequence[UUID]) -> set[UUID]:
    """Those of these payments that were never recorded."""
    return ids_of(db, _UNKNOWN, {"ids": ids})


def about(db: Connection) -> int:
    """How many requests the planner thinks there are."""
    return int(one(db, _ABOUT) or 0)


def operations(db: Connection, ids: Sequence[UUID]) -> list[Operation]:
    return rows(db, Operation, _OPERATIONS, {"ids": list(ids)})


def received(db: Connection, consumer: str, ids: Iterable[UUID]) -> dict[UUID, Receipt]:
    """What is known there of these messages."""
    found = rows(db, Receipt, _RECEIVED, {"consumer": consumer, "ids": list(ids)})
    return {row.id: row for row in found}


def literal(db: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those of these payments whose command left by the outbox of the literal mode."""
    return ids_of(db, _LITERAL, {"ids": list(ids)})


def booked(db: Connection, window: Window, first: int, end: int) -> tuple[Uuids | None, int]:
    """The payments in these blocks of the ledger, and how many operations they have there."""
    ids, many = _opaque(db, _BOOKED, {**window._asdict(), "first": first, "end": end})
    return ids, many


def blocks(db: Connection) -> int:
    return int(one(db, _BLOCKS) or 0)


def lopsided(db: Connection, ids: Uuids) -> list[tuple[UUID, str, str]]:
    """Operations whose two sides do not sum to zero."""
    cursor = db.cursor(row_factory=tuple_row)
    taking(cursor)
    return cursor.execute(_LOPSIDED, {"ids": ids}).fetchall()


def now(db: Connection) -> datetime:
    """The database's clock is the truth."""
    found: datetime = one(db, _NOW)
    return found


def rows(db: Connection, make: type[RowT], statement: LiteralString, given: Mapping[str, Any]) -> list[RowT]:
    made: Any = make
    found = db.cursor(row_factory=tuple_row, binary=True).execute(statement, given).fetchall()
    return [made._make(row) for row in found]


def ids_of(db: Connection, statement: LiteralString, given: Mapping[str, Any]) -> set[UUID]:
    cursor = db.cursor(row_factory=tuple_row, binary=True)
    taking(cursor)
    return {row[0] for row in cursor.execute(statement, given).fetchall()}


def _opaque(db: Connection, statement: LiteralString, given: Mapping[str, Any]) -> tuple[Any, ...]:
    cursor = db.cursor(row_factory=tuple_row, binary=True)
    giving(cursor)
    taking(cursor)
    row = cursor.execute(statement, given).fetchone()
    assert row is not None
    return row


def one(db: Connection, statement: LiteralString) -> Any:
    row = db.cursor(row_factory=tuple_row).execute(statement).fetchone()
    assert row is not None
    return row[0]
