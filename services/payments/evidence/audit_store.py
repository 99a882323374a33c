"""SQL of an audit of payments: bounded pages, each one statement and so one snapshot."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ferryman.evidence import messages
from ferryman.evidence.messages import tuples
from ferryman.evidence.sides import Connection

# The columns of a page, each as one array in text: they go to the wallet's server as they are, by these names.
PAGE = """\
-- audit.page
SELECT count(*) AS many, max(p.created_at) AS at,
       (array_agg(p.uuid ORDER BY p.created_at DESC, p.uuid DESC))[1] AS uuid, array_agg(p.uuid)::text AS uuids,
       array_agg(p.wallet_id)::text AS wallets, array_agg(p.amount)::text AS amounts,
       array_agg(p.currency)::text AS currencies, array_agg(p.status)::text AS statuses
FROM (
    SELECT * FROM payments.requests r
    WHERE r.created_at < %(until)s AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s)
      AND (%(at)s::timestamptz IS NULL OR (r.created_at, r.uuid) > (%(at)s, %(uuid)s::uuid))
    ORDER BY r.created_at, r.uuid LIMIT %(most)s
) p
"""

NOT_APPLIED = """\
-- audit.not_applied
SELECT array_agg(n.place)::text
FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY n (id, place)
WHERE NOT EXISTS (
    SELECT FROM ferryman.inbox i WHERE i.consumer = 'payments' AND i.id = n.id AND i.status = 'HANDLED' OFFSET 0
)
"""

# What is over by one deduction, or by one that was refused, as it should be, is counted here. The rest is told.
# OFFSET 0, because else each use of `plain` would ask for all of it anew.
PLAIN = """\
-- audit.plain
SELECT s.plain, CASE WHEN s.plain THEN s.status END, CASE WHEN s.plain THEN s.currency END, count(*),
       sum(s.amount)::bigint, coalesce(sum(-s.moved), 0)::bigint, array_agg(s.uuid) FILTER (WHERE NOT s.plain)
FROM (
    SELECT p.uuid, p.status, p.currency, p.amount, l.amount AS moved,
           NOT (p.place = ANY (coalesce(%(not_applied)s::bigint[], '{}')))
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
    FROM unnest(%(uuids)s::uuid[], %(wallets)s::uuid[], %(amounts)s::bigint[], %(currencies)s::text[],
                %(statuses)s::text[], %(commands)s::uuid[]) WITH ORDINALITY
         p (uuid, wallet_id, amount, currency, status, command, place)
    LEFT JOIN LATERAL (
        SELECT * FROM wallet.ledger l
        WHERE l.request_id = p.uuid AND l.step = 'deduct' AND l.kind = 'DEDUCT' OFFSET 0
    ) l ON true
    OFFSET 0
) s
GROUP BY 1, 2, 3
"""

UNKNOWN = """\
-- audit.unknown
SELECT n.id, EXISTS (SELECT FROM payments.archived a WHERE a.uuid = n.id OFFSET 0)
FROM unnest(%(ids)s::uuid[]) n (id)
WHERE NOT EXISTS (SELECT FROM payments.requests r WHERE r.uuid = n.id OFFSET 0)
"""

ABOUT = """\
-- audit.about
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'payments.requests'::regclass
"""

HEARD = """\
-- audit.heard
SELECT received_at FROM ferryman.inbox WHERE consumer = 'payments' ORDER BY received_at DESC LIMIT 1
"""

# The ledger is append-only, so its blocks are in no need of an index: what was booked stays where it is.
BOOKED = """\
-- audit.booked
SELECT array_agg(DISTINCT l.request_id)::text, count(*) FROM wallet.ledger l
WHERE l.ctid >= format('(%%s,0)', %(first)s::bigint)::tid AND l.ctid < format('(%%s,0)', %(end)s::bigint)::tid
  AND l.kind <> 'OPEN' AND l.decided_at < %(until)s
  AND (%(since)s::timestamptz IS NULL OR l.decided_at >= %(since)s)
"""

LEDGER_BLOCKS = """\
-- audit.blocks
SELECT pg_relation_size('wallet.ledger') / current_setting('block_size')::bigint
"""

LOPSIDED = """\
-- audit.lopsided
SELECT e.request_id, e.step, e.kind
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.entries e WHERE e.request_id = n.id OFFSET 0
) e
GROUP BY e.request_id, e.step, e.kind HAVING sum(e.amount) <> 0
"""

# Wallets, and what the ledger names as one: an index is skipped through, so a page reads as many of its rows.
WALLETS_AFTER = """\
-- audit.wallets_after
WITH RECURSIVE booked AS (
    (SELECT l.wallet_id AS id FROM wallet.ledger l WHERE %(after)s::uuid IS NULL OR l.wallet_id > %(after)s
     ORDER BY l.wallet_id LIMIT 1)
    UNION ALL
    SELECT (SELECT l.wallet_id FROM wallet.ledger l WHERE l.wallet_id > b.id ORDER BY l.wallet_id LIMIT 1)
    FROM booked b WHERE b.id IS NOT NULL
)
SELECT n.id FROM (
    (SELECT id FROM wallet.wallets WHERE %(after)s::uuid IS NULL OR id > %(after)s ORDER BY id LIMIT %(most)s)
    UNION (SELECT b.id FROM booked b WHERE b.id IS NOT NULL LIMIT %(most)s)
) n ORDER BY n.id LIMIT %(most)s
"""

# One statement, so a balance and its ledger are of one moment, however busy the wallet is. All that it sums is in the
# index, and in the index's order, because else the planner would read the whole ledger for one that is long.
HELD = """\
-- audit.held
SELECT n.id, coalesce(w.currency, o.currency) AS currency, w.balance,
       CASE WHEN l.many <= %(most)s THEN coalesce(l.booked, 0)::bigint END AS booked,
       coalesce(l.taken, 0)::bigint AS taken, coalesce(o.opened, 0)::bigint AS opened,
       coalesce(o.minted, 0)::bigint AS minted, f.request_id AS future
FROM unnest(%(ids)b::uuid[]) WITH ORDINALITY n (id, place)
LEFT JOIN LATERAL (SELECT w.currency, w.balance FROM wallet.wallets w WHERE w.id = n.id OFFSET 0) w ON true
CROSS JOIN LATERAL (
    SELECT sum(s.amount) AS booked, -sum(least(s.amount, 0)) AS taken, count(*) AS many FROM (
        SELECT l.amount FROM wallet.ledger l WHERE l.wallet_id = n.id ORDER BY l.decided_at LIMIT %(most)s + 1
    ) s
) l
CROSS JOIN LATERAL (
    SELECT sum(l.amount) FILTER (WHERE l.request_id = l.wallet_id AND l.step = 'open') AS opened,
           sum(l.amount) FILTER (WHERE l.request_id <> l.wallet_id OR l.step <> 'open') AS minted,
           min(l.currency) AS currency
    FROM wallet.ledger l WHERE l.wallet_id = n.id AND l.kind = 'OPEN' OFFSET 0
) o
LEFT JOIN LATERAL (
    SELECT l.request_id FROM wallet.ledger l
    WHERE l.wallet_id = n.id AND l.decided_at > statement_timestamp() + interval '5 minutes'
    ORDER BY l.decided_at LIMIT 1
) f ON true
ORDER BY n.place
"""

# What was decided at the same moment as the last is summed with it.
BOOKED_AFTER = """\
-- audit.booked_after
SELECT coalesce(sum(s.amount), 0)::bigint, -coalesce(sum(least(s.amount, 0)), 0)::bigint, max(s.decided_at) FROM (
    SELECT l.amount, l.decided_at FROM wallet.ledger l
    WHERE l.wallet_id = %(id)s AND l.decided_at > coalesce(%(after)s::timestamptz, '-infinity')
    ORDER BY l.decided_at FETCH FIRST (%(most)s) ROWS WITH TIES
) s
"""


class HeldBalance(NamedTuple):
    """A wallet's balance and the sums of its ledger, of one moment."""

    id: UUID
    currency: str | None
    balance: int | None
    """None if there is no such wallet."""
    booked: int | None
    """The sum of its ledger; None if that is too long to be summed beside others."""
    taken: int
    """The sum of its deductions."""
    opened: int
    minted: int = 0
    """The sum of the openings after the one that the wallet has."""
    future: UUID | None = None
    """The request of an operation that the ledger dates in the future."""

    @property
    def given_back(self) -> int:
        return (self.booked or 0) + self.taken - self.opened - self.minted


def held(db: Connection, ids: Sequence[UUID], most: int) -> list[HeldBalance]:
    """Return what each wallet holds, and the sum of its ledger if that has no more rows than this."""
    return messages.rows(db, HeldBalance, HELD, {"ids": list(ids), "most": most})


def booked_after(db: Connection, wallet: UUID, moment: datetime | None, most: int) -> tuple[int, int, datetime | None]:
    """Return the sum of so many of its rows, the sum of the deductions among them, and when the last of them was
    decided; None if there are no more.
    """
    [(booked, taken, last)] = tuples(db, BOOKED_AFTER, {"id": wallet, "after": moment, "most": most})
    return booked, taken, last
