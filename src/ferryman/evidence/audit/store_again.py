"""SQL of the second look: what explains a payment that the ledger and the receipts alone do not."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from psycopg.rows import tuple_row

from ferryman.evidence.audit.store import ids_of, one
from ferryman.evidence.databases import Connection

# Between two positions, as the journal has no index on ids.
_APPENDED = """\
-- audit.appended
SELECT o.id FROM ferryman.outbox o
WHERE o.position > %(after)s AND o.position <= %(upto)s AND o.id = ANY (%(ids)b::uuid[])
"""

_TRUNCATED = """\
-- audit.truncated
SELECT 0 <> ANY (truncated) FROM ferryman.outbox_state
"""

_HEARD = """\
-- audit.heard
SELECT received_at FROM ferryman.inbox WHERE consumer = 'payments' ORDER BY received_at DESC LIMIT 1
"""

_ARCHIVED = """\
-- audit.archived
SELECT a.uuid FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT a.uuid FROM payments.archived a WHERE a.uuid = n.id OFFSET 0
) a
"""


def appended(db: Connection, ids: Sequence[UUID], after: int, upto: int) -> set[UUID]:
    """Those of these messages that stand in the journal between two positions."""
    return ids_of(db, _APPENDED, {"ids": list(ids), "after": after, "upto": upto})


def truncated(db: Connection) -> bool:
    """Whether the journal has ever forgotten anything."""
    return bool(one(db, _TRUNCATED))


def heard(db: Connection) -> datetime | None:
    """When the orchestrator last received a result."""
    row = db.cursor(row_factory=tuple_row).execute(_HEARD).fetchone()
    return row[0] if row else None


def archived(db: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those of these payments that were archived."""
    return ids_of(db, _ARCHIVED, {"ids": list(ids)})
