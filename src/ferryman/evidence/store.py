"""SQL that `audit` and `reconcile` share: what was done about payments by hand, or after they had ended."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import tuple_row

from ferryman.evidence.databases import Connection

# By the results that came too late for what was taken to be kept, and by people. An act names up to 500 payments, and
# to look into one costs more than to take it apart: that is done once for all that are asked for.
_ASKED_BACK = """\
-- audit.asked_back
WITH by_hand AS MATERIALIZED (
    SELECT p.id::uuid AS id, max(a.at) AS at, count(DISTINCT a.id) AS many
    FROM ferryman.outbox_audit a CROSS JOIN LATERAL jsonb_array_elements_text(a.filter -> 'payments') p (id)
    WHERE a.act = 'reconcile' AND a.filter ->> 'repair' = 'give_back' AND p.id = ANY (%(names)s::text[])
    GROUP BY p.id
)
SELECT n.id, greatest(late.at, by_hand.at), late.at IS NOT NULL, coalesce(by_hand.many, 0)
FROM unnest(%(ids)b::uuid[]) n (id)
CROSS JOIN LATERAL (
    SELECT max(s.came_at) AS at FROM ferryman.saga_stray s
    WHERE s.saga_id = n.id AND s.machine = 'payment' AND s.why = 'LATE' AND s.type = 'wallet.succeeded'
      AND s.data ->> 'kind' = 'DEDUCT'
) late
LEFT JOIN by_hand ON by_hand.id = n.id
WHERE late.at IS NOT NULL OR by_hand.at IS NOT NULL
"""

# A state that follows begins at one again, so a payment does not tell how often it was asked for before.
_BY_HAND = """\
-- audit.by_hand
SELECT p.id::uuid, count(DISTINCT a.id)
FROM ferryman.outbox_audit a CROSS JOIN LATERAL jsonb_array_elements_text(a.filter -> 'payments') p (id)
WHERE a.act = 'reconcile' AND p.id = ANY (%(names)s::text[])
GROUP BY p.id
"""

_SETTLED = """\
-- audit.settled
SELECT (filter ->> 'settle')::uuid FROM ferryman.outbox_audit
WHERE act = 'reconcile' AND filter ? 'settle' AND (filter ->> 'settle')::uuid = ANY (%(ids)s::uuid[])
"""


class AskedBack(NamedTuple):
    """When the amount of a payment that had FAILED was last asked back; whether by itself, and how often by people."""

    at: datetime
    by_itself: bool
    by_people: int

    @property
    def attempt(self) -> int:
        """Of the last cancellation: the first is the machine's, or would have been."""
        return 1 + self.by_people


def asked_back(db: Connection, ids: Sequence[UUID]) -> dict[UUID, AskedBack]:
    """Of these payments, those whose amount was asked back after they had ended."""
    given = {"ids": list(ids), "names": [str(each) for each in ids]}
    found = db.cursor(row_factory=tuple_row, binary=True).execute(_ASKED_BACK, given).fetchall()
    return {uuid: AskedBack(*said) for uuid, *said in found}


def by_hand(db: Connection, ids: Sequence[UUID]) -> dict[UUID, int]:
    """In how many repairs by people each of these payments was named: each may have made an attempt."""
    given = {"names": [str(each) for each in ids]}
    return dict(db.cursor(row_factory=tuple_row, binary=True).execute(_BY_HAND, given).fetchall())


def settled(db: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those that a person said were given back by hand."""
    found = db.cursor(row_factory=tuple_row, binary=True).execute(_SETTLED, {"ids": list(ids)}).fetchall()
    return {uuid for (uuid,) in found}
