"""SQL of the wallets: what each holds, and what its ledger sums to, however long that is."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from psycopg.rows import tuple_row

from ferryman.evidence.audit.model import Held
from ferryman.evidence.audit.store import rows
from ferryman.evidence.databases import Connection

_AFTER = """\
-- audit.wallets_after
SELECT id FROM wallet.wallets WHERE %(after)s::uuid IS NULL OR id > %(after)s ORDER BY id LIMIT %(most)s
"""

# One statement, so a balance and its ledger are of one moment, however busy the wallet is. All that it sums is in the
# index, and in the index's order, because else the planner would read the whole ledger for one that is long.
_HELD = """\
-- audit.held
SELECT w.id, w.currency, w.balance, CASE WHEN l.many <= %(most)s THEN coalesce(l.booked, 0)::bigint END,
       coalesce(o.opened, 0)::bigint
FROM unnest(%(ids)b::uuid[]) WITH ORDINALITY n (id, place)
CROSS JOIN LATERAL (SELECT w.id, w.currency, w.balance FROM wallet.wallets w WHERE w.id = n.id OFFSET 0) w
CROSS JOIN LATERAL (
    SELECT sum(s.amount) AS booked, count(*) AS many FROM (
        SELECT l.amount FROM wallet.ledger l WHERE l.wallet_id = w.id ORDER BY l.decided_at LIMIT %(most)s + 1
    ) s
) l
CROSS JOIN LATERAL (
    SELECT sum(l.amount) AS opened FROM wallet.ledger l
    WHERE l.request_id = w.id AND l.kind = 'OPEN' AND l.wallet_id = w.id OFFSET 0
) o
ORDER BY n.place
"""

# What was decided at the same moment as the last is summed with it.
_BOOKED_AFTER = """\
-- audit.booked_after
SELECT coalesce(sum(s.amount), 0)::bigint, max(s.decided_at) FROM (
    SELECT l.amount, l.decided_at FROM wallet.ledger l
    WHERE l.wallet_id = %(id)s AND l.decided_at > coalesce(%(after)s::timestamptz, '-infinity')
    ORDER BY l.decided_at FETCH FIRST (%(most)s) ROWS WITH TIES
) s
"""


def after(db: Connection, wallet: UUID | None, most: int) -> list[UUID]:
    """The next wallets."""
    found = db.cursor(row_factory=tuple_row, binary=True).execute(_AFTER, {"after": wallet, "most": most}).fetchall()
    return [uuid for (uuid,) in found]


def held(db: Connection, ids: Sequence[UUID], most: int) -> list[Held]:
    """What each of these holds, and what its ledger sums to, where it has no more rows than that."""
    return rows(db, Held, _HELD, {"ids": list(ids), "most": most})


def booked_after(db: Connection, wallet: UUID, moment: datetime | None, most: int) -> tuple[int, datetime | None]:
    """What so many of its rows sum to, and when the last of them was decided; None where there are no more."""
    given = {"id": wallet, "after": moment, "most": most}
    row = db.cursor(row_factory=tuple_row, binary=True).execute(_BOOKED_AFTER, given).fetchone()
    assert row is not None
    return row[0], row[1]
