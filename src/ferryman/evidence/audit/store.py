"""All SQL of `audit`: bounded pages, each one statement and so one snapshot; nothing joins across databases."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from psycopg.rows import tuple_row

from ferryman.evidence.audit.model import Operation, Request, Unbalanced, Window
from ferryman.evidence.databases import Connection

_COLUMNS = "r.uuid, r.wallet_id, r.amount, r.currency, r.state, r.attempt, r.created_at, r.changed_at"

_REQUESTS: LiteralString = f"""\
-- audit.requests
SELECT {_COLUMNS} FROM payments.requests r
WHERE r.created_at < %(until)s AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s)
  AND (%(at)s::timestamptz IS NULL OR (r.created_at, r.uuid) > (%(at)s, %(uuid)s::uuid))
ORDER BY r.created_at, r.uuid LIMIT %(most)s
"""  # noqa: S608 - only our own columns are put in

_REQUESTS_OF: LiteralString = f"""\
-- audit.requests_of
SELECT {_COLUMNS}
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM payments.requests r WHERE r.uuid = n.id OFFSET 0
) r
"""  # noqa: S608 - same

_KNOWN = """\
-- audit.known
SELECT r.uuid
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT r.uuid FROM payments.requests r WHERE r.uuid = n.id OFFSET 0
) r
"""

_ABOUT = """\
-- audit.about
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'payments.requests'::regclass
"""

# Each looked up by itself (OFFSET 0): before a table was analyzed, the planner would read all of it.
_OPERATIONS = """\
-- audit.operations
SELECT l.request_id, l.step, l.kind, l.wallet_id, l.amount, l.currency, l.reason, l.decided_at
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.ledger l WHERE l.request_id = n.id AND l.kind <> 'OPEN' OFFSET 0
) l
"""

_RECEIVED = """\
-- audit.received
SELECT i.id
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT i.id FROM ferryman.inbox i WHERE i.consumer = %(consumer)s AND i.id = n.id AND i.status = 'HANDLED' OFFSET 0
) i
"""

# The ledger is append-only, so its blocks are in no need of an index: what was booked stays where it is.
_BOOKED = """\
-- audit.booked
SELECT DISTINCT l.request_id FROM wallet.ledger l
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
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.entries e WHERE e.request_id = n.id OFFSET 0
) e
GROUP BY e.request_id, e.step, e.kind HAVING sum(e.amount) <> 0
"""

# One statement, so a balance and its ledger are of one moment, however busy the wallet is.
_WALLETS = """\
-- audit.wallets
SELECT w.id, w.currency, w.balance, coalesce(l.booked, 0)::bigint, coalesce(l.opened, 0)::bigint
FROM (
    SELECT id, currency, balance FROM wallet.wallets
    WHERE (%(after)s::uuid IS NULL OR id > %(after)s) ORDER BY id LIMIT %(most)s
) w
CROSS JOIN LATERAL (
    SELECT sum(amount) AS booked, sum(amount) FILTER (WHERE kind = 'OPEN') AS opened
    FROM wallet.ledger l WHERE l.wallet_id = w.id OFFSET 0
) l
ORDER BY w.id
"""

_UNBALANCED = """\
-- audit.unbalanced
SELECT w.id, w.balance, coalesce(l.booked, 0)::bigint AS booked
FROM wallet.wallets w
CROSS JOIN LATERAL (SELECT sum(amount) AS booked FROM wallet.ledger l WHERE l.wallet_id = w.id) l
WHERE w.id = ANY (%(ids)s::uuid[]) AND (w.balance < 0 OR w.balance <> coalesce(l.booked, 0))
"""

_SETTLED = """\
-- audit.settled
SELECT (filter ->> 'settle')::uuid FROM ferryman.outbox_audit
WHERE act = 'reconcile' AND filter ? 'settle' AND (filter ->> 'settle')::uuid = ANY (%(ids)s::uuid[])
"""

# When the first of all that there is was recorded: what the ledger has of before that was archived.
_ARCHIVED = """\
-- audit.archived
SELECT max((filter ->> 'before')::timestamptz) FROM ferryman.outbox_audit
WHERE act = 'archive' AND filter ->> 'machine' = 'payment'
"""

_READ_ONLY = """\
-- audit.read_only
SELECT set_config('transaction_read_only', 'on', true)
"""

_NOW = """\
-- audit.now
SELECT clock_timestamp()
"""

RowT = TypeVar("RowT")
Place = tuple[datetime, UUID]


def read_only(db: Connection) -> None:
    """From here on in this transaction."""
    db.execute(_READ_ONLY)


def requests(db: Connection, window: Window, after: Place | None, most: int) -> list[Request]:
    """In the order in which they were recorded, after a place."""
    at, uuid = after or (None, None)
    given = {**window._asdict(), "at": at, "uuid": uuid, "most": most}
    return _rows(db, Request, _REQUESTS, given)


def requests_of(db: Connection, ids: Sequence[UUID]) -> list[Request]:
    return _rows(db, Request, _REQUESTS_OF, {"ids": list(ids)})


def known(db: Connection, ids: Iterable[UUID]) -> set[UUID]:
    """Those of these payments that were recorded."""
    return _ids(db, _KNOWN, {"ids": list(ids)})


def about(db: Connection) -> int:
    """How many requests the planner thinks there are."""
    return int(_one(db, _ABOUT) or 0)


def operations(db: Connection, ids: Sequence[UUID]) -> list[Operation]:
    return _rows(db, Operation, _OPERATIONS, {"ids": list(ids)})


def received(db: Connection, consumer: str, ids: Iterable[UUID]) -> set[UUID]:
    """Those of these messages that took effect there."""
    return _ids(db, _RECEIVED, {"consumer": consumer, "ids": list(ids)})


def booked(db: Connection, window: Window, first: int, end: int) -> set[UUID]:
    """The payments in these blocks of the ledger."""
    return _ids(db, _BOOKED, {**window._asdict(), "first": first, "end": end})


def blocks(db: Connection) -> int:
    return int(_one(db, _BLOCKS) or 0)


def lopsided(db: Connection, ids: Sequence[UUID]) -> list[tuple[UUID, str, str]]:
    """Operations whose two sides do not sum to zero."""
    return db.cursor(row_factory=tuple_row).execute(_LOPSIDED, {"ids": list(ids)}).fetchall()


def wallets(db: Connection, after: UUID | None, most: int) -> list[tuple[UUID, str, int, int, int]]:
    """What each holds, what its ledger sums to, and what it was opened with."""
    cursor = db.cursor(row_factory=tuple_row, binary=True)
    return cursor.execute(_WALLETS, {"after": after, "most": most}).fetchall()


def unbalanced(db: Connection, ids: Sequence[UUID]) -> list[Unbalanced]:
    return _rows(db, Unbalanced, _UNBALANCED, {"ids": list(ids)})


def settled(db: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those that a person said were given back by hand."""
    return _ids(db, _SETTLED, {"ids": list(ids)})


def archived(db: Connection) -> datetime | None:
    """Payments that ended before this moment may stand elsewhere by now."""
    found: datetime | None = _one(db, _ARCHIVED)
    return found


def now(db: Connection) -> datetime:
    """The database's clock is the truth."""
    found: datetime = _one(db, _NOW)
    return found


def _rows(db: Connection, make: type[RowT], statement: LiteralString, given: Mapping[str, Any]) -> list[RowT]:
    made: Any = make
    rows = db.cursor(row_factory=tuple_row, binary=True).execute(statement, given).fetchall()
    return [made._make(row) for row in rows]


def _ids(db: Connection, statement: LiteralString, given: Mapping[str, Any]) -> set[UUID]:
    return {row[0] for row in db.cursor(row_factory=tuple_row, binary=True).execute(statement, given).fetchall()}


def _one(db: Connection, statement: LiteralString) -> Any:
    row = db.cursor(row_factory=tuple_row).execute(statement).fetchone()
    assert row is not None
    return row[0]
