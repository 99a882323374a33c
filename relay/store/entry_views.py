"""Reads of the view `outbox_entries`, each bounded: none goes through everything that is retained."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from psycopg.rows import class_row

from ferryman.runtime.desk import Row, selected
from ferryman.runtime.postgres import Connection, value

END = 2**63 - 1
"""A position behind all others."""

_COLUMNS = """\
e.position, e.id, e.topic, e.key, e.type, e.lane, e.segment, e.created_at, e.payload_bytes, e.status, e.attempts,
e.next_attempt_at, e.error, e.replay, e.changed_at"""

_WITHIN = """\
(%(at)s::bigint[] IS NULL OR e.position = ANY (%(at)s::bigint[]))
AND e.position > %(after)s AND e.position <= %(upto)s"""

_MEANT: LiteralString = f"""\
{selected("e", "e.created_at")}
AND (%(key)s::text IS NULL OR e.key = %(key)s) AND (%(statuses)s::text[] IS NULL OR e.status = ANY (%(statuses)s))"""

# With `at`, the entries at these positions; without, a stride of the journal.
_ENTRIES: LiteralString = f"""\
-- outbox.entries
SELECT {_COLUMNS} FROM ferryman.outbox_entries e
WHERE {_WITHIN} AND {_MEANT} ORDER BY e.position LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in

_COUNTS: LiteralString = f"""\
-- outbox.counts
SELECT e.status, count(*), coalesce(sum(e.payload_bytes), 0)::bigint FROM ferryman.outbox_entries e
WHERE {_WITHIN} AND {_MEANT} GROUP BY e.status
"""  # noqa: S608 - same

_EXCEPTIONS = """\
-- outbox.exceptions_after
SELECT e.position FROM ferryman.outbox_exception e
WHERE e.position > %(after)s AND e.position <= %(upto)s AND e.status = ANY (%(statuses)s::text[])
  AND (%(topic)s::text IS NULL OR e.topic = %(topic)s) AND (%(key)s::text IS NULL OR e.key = %(key)s)
ORDER BY e.position LIMIT %(most)s
"""

# Candidates for PENDING by position, and bounded: each row is asked, and not joined, so that the walk stops at its
# limit. Late entries are probed transaction by transaction; those beyond the lowest window are found twice.
_PENDING = """\
-- outbox.pending_after
WITH lanes AS MATERIALIZED (SELECT * FROM ferryman.outbox_lanes)
SELECT position FROM (
    (SELECT o.position FROM ferryman.outbox o
     WHERE o.position > greatest(%(after)s::bigint, (SELECT min(done_position_at) FROM lanes))
       AND o.position <= %(upto)s
       AND (%(topic)s::text IS NULL OR o.topic = %(topic)s) AND (%(key)s::text IS NULL OR o.key = %(key)s)
       AND (SELECT NOT ferryman.outbox_settled(o.xid, o.position, l.done_snapshot, l.target_snapshot, l.position)
            FROM lanes l WHERE l.lane = o.lane)
     ORDER BY o.position LIMIT %(most)s)
    UNION
    (SELECT probe.position
     FROM (SELECT done_snapshot::text::pg_snapshot AS done, done_horizon AS horizon, done_position_at AS done_at,
                  target_snapshot::text::pg_snapshot AS target, position AS read_to, array_agg(lane) AS lanes
           FROM lanes GROUP BY done_snapshot::text, done_horizon, done_position_at, target_snapshot::text, position
     ) place
     CROSS JOIN LATERAL ferryman.outbox_late(place.done, place.done_at, place.horizon, pg_current_snapshot()) late (xid)
     CROSS JOIN LATERAL (
        SELECT o.position FROM ferryman.outbox o
        WHERE (o.xid, o.position) > (late.xid, %(after)s)
          AND (o.xid, o.position) <= (late.xid, least(place.done_at, %(upto)s::bigint))
          AND o.lane = ANY (place.lanes)
          AND NOT ferryman.outbox_settled(o.xid, o.position, place.done, place.target, place.read_to)
        ORDER BY o.xid, o.position LIMIT %(most)s
     ) probe
     ORDER BY probe.position LIMIT %(most)s)
) pending ORDER BY position LIMIT %(most)s
"""

_FIRST_FROM = """\
-- outbox.first_from
SELECT position, created_at FROM ferryman.outbox WHERE position >= %(position)s ORDER BY position LIMIT 1
"""

_LAST_POSITION = """\
-- outbox.last_position
SELECT coalesce(max(position), 0) FROM ferryman.outbox
"""

_BY_ID = """\
-- outbox.positions_of_ids
SELECT position FROM ferryman.outbox
WHERE id = ANY (%(ids)s::uuid[]) AND position > %(after)s AND position <= %(upto)s ORDER BY position DESC
"""


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry with its status, as the view `outbox_entries` gives it."""

    position: int
    id: UUID
    topic: str
    key: str
    type: str
    lane: int
    segment: int
    created_at: datetime
    payload_bytes: int
    status: str
    attempts: int
    next_attempt_at: datetime | None
    error: str | None
    replay: int | None
    changed_at: datetime | None


Counts = dict[str, tuple[int, int]]
"""The number of entries and the bytes of their payloads, by status."""


def entries(connection: Connection, meant: Row, most: int) -> list[ListedEntry]:
    """Return the first selected entries after `after`, up to `upto`, and of the positions `at` if these are given."""
    with connection.cursor(row_factory=class_row(ListedEntry)) as cursor:
        return cursor.execute(_ENTRIES, meant | {"most": most}).fetchall()


def counts(connection: Connection, meant: Row) -> Counts:
    """Count the same entries by status."""
    rows = connection.execute(_COUNTS, meant).fetchall()
    return {status: (count, size) for status, count, size in rows}


def candidates(connection: Connection, meant: Row, *, pending: bool) -> list[int]:
    """Return positions of entries that may be selected: of those that may be pending, or of the exceptions."""
    return _numbers(connection, _PENDING if pending else _EXCEPTIONS, meant)


def first_from(connection: Connection, position: int) -> tuple[int, datetime] | None:
    """Return the position and the time of the first entry from this position on."""
    row = connection.execute(_FIRST_FROM, {"position": position}).fetchone()
    return (row[0], row[1]) if row else None


def last_position(connection: Connection) -> int:
    return int(value(connection.execute(_LAST_POSITION)))


def positions_of_ids(connection: Connection, ids: Sequence[UUID], after: int, upto: int) -> list[int]:
    return _numbers(connection, _BY_ID, {"ids": list(ids), "after": after, "upto": upto})


def _numbers(connection: Connection, statement: LiteralString, values: Row) -> list[int]:
    return [number for (number,) in connection.execute(statement, values).fetchall()]
