"""Entries as the view `outbox_entries` tells them, in bounded reads: never a turn through all that is retained."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row

from ferryman.relay.store.lanes import Connection

# The planner must go by position, whatever the statistics say.
_PREPARE = """\
-- outbox.prepare_reading
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true)
"""

_COLUMNS = """\
e.position, e.id, e.topic, e.key, e.type, e.lane, e.segment, e.created_at, e.payload_bytes, e.status, e.attempts,
e.next_attempt_at, e.error, e.replay, e.changed_at"""

_MEANT = """\
(%(topic)s::text IS NULL OR e.topic = %(topic)s) AND (%(key)s::text IS NULL OR e.key = %(key)s)
AND (%(type)s::text IS NULL OR e.type = %(type)s)
AND (%(since)s::timestamptz IS NULL OR e.created_at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR e.created_at < %(until)s)
AND (%(statuses)s::text[] IS NULL OR e.status = ANY (%(statuses)s))"""

_AT: LiteralString = f"""\
-- outbox.entries_at
SELECT {_COLUMNS} FROM ferryman.outbox_entries e
WHERE e.position = ANY (%(at)s::bigint[]) AND {_MEANT}
ORDER BY e.position LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in

_BETWEEN: LiteralString = f"""\
-- outbox.entries_between
SELECT {_COLUMNS} FROM ferryman.outbox_entries e
WHERE e.position > %(after)s AND e.position <= %(upto)s AND {_MEANT}
ORDER BY e.position LIMIT %(most)s
"""  # noqa: S608 - same

_COUNT_AT: LiteralString = f"""\
-- outbox.count_at
SELECT e.status, count(*), coalesce(sum(e.payload_bytes), 0)::bigint FROM ferryman.outbox_entries e
WHERE e.position = ANY (%(at)s::bigint[]) AND {_MEANT} GROUP BY e.status
"""  # noqa: S608 - same

_COUNT_BETWEEN: LiteralString = f"""\
-- outbox.count_between
SELECT e.status, count(*), coalesce(sum(e.payload_bytes), 0)::bigint FROM ferryman.outbox_entries e
WHERE e.position > %(after)s AND e.position <= %(upto)s AND {_MEANT} GROUP BY e.status
"""  # noqa: S608 - same

_EXCEPTIONS = """\
-- outbox.exceptions_after
SELECT e.position FROM ferryman.outbox_exception e
WHERE e.position > %(after)s AND e.position <= %(upto)s AND e.status = ANY (%(statuses)s::text[])
  AND (%(topic)s::text IS NULL OR e.topic = %(topic)s) AND (%(key)s::text IS NULL OR e.key = %(key)s)
ORDER BY e.position LIMIT %(most)s
"""

# The same arithmetic as the view `backlog`, by position and bounded: asked of each row, and not joined, so that the
# walk stops at its limit. What is late is probed for each of its transactions.
_PENDING = """\
-- outbox.pending_after
WITH lanes AS MATERIALIZED (SELECT * FROM ferryman.outbox_lanes)
SELECT position FROM (
    (SELECT o.position FROM ferryman.outbox o
     WHERE o.position > greatest(%(after)s::bigint, (SELECT min(done_position_at) FROM lanes))
       AND o.position <= %(upto)s
       AND (%(topic)s::text IS NULL OR o.topic = %(topic)s) AND (%(key)s::text IS NULL OR o.key = %(key)s)
       AND (SELECT o.position > l.done_position_at AND NOT pg_visible_in_snapshot(o.xid, l.done_snapshot)
                   AND NOT (l.target IS NOT NULL AND pg_visible_in_snapshot(o.xid, l.target_snapshot)
                            AND o.position <= l.position)
            FROM lanes l WHERE l.lane = o.lane)
     ORDER BY o.position LIMIT %(most)s)
    UNION ALL
    (SELECT probe.position
     FROM (SELECT done_snapshot::text::pg_snapshot AS done, done_horizon AS horizon, done_position_at AS done_at,
                  array_agg(lane) AS lanes
           FROM lanes GROUP BY done_snapshot::text, done_horizon, done_position_at) place
     CROSS JOIN LATERAL ferryman.outbox_late(place.done, place.done_at, place.horizon, pg_current_snapshot()) late (xid)
     CROSS JOIN LATERAL (
        SELECT o.position FROM ferryman.outbox o
        WHERE (o.xid, o.position) > (late.xid, %(after)s)
          AND (o.xid, o.position) <= (late.xid, least(place.done_at, %(upto)s::bigint))
          AND o.lane = ANY (place.lanes)
        ORDER BY o.xid, o.position LIMIT %(most)s
     ) probe
     ORDER BY probe.position LIMIT %(most)s)
) pending ORDER BY position LIMIT %(most)s
"""

_NEXT_POSITION = """\
-- outbox.next_position
SELECT position FROM ferryman.outbox WHERE position > %(after)s ORDER BY position LIMIT 1
"""

_LAST_POSITION = """\
-- outbox.last_position
SELECT position FROM ferryman.outbox ORDER BY position DESC LIMIT 1
"""

_PROBE = """\
-- outbox.when
SELECT position, created_at FROM ferryman.outbox WHERE position >= %(position)s ORDER BY position LIMIT 1
"""

_BY_ID = """\
-- outbox.positions_of_ids
SELECT position FROM ferryman.outbox
WHERE id = ANY (%(ids)s::uuid[]) AND position > %(after)s AND position <= %(upto)s ORDER BY position DESC
"""

_NOW = """\
-- outbox.now
SELECT clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry with what became of it."""

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
"""By status: how many entries, and the bytes of their payloads."""


def prepare(connection: Connection) -> None:
    connection.execute(_PREPARE)


def entries_at(connection: Connection, meant: dict[str, Any], at: Sequence[int], most: int) -> list[Listed]:
    return _listed(connection, _AT, meant | {"at": list(at), "most": most})


def entries_between(connection: Connection, meant: dict[str, Any], after: int, upto: int, most: int) -> list[Listed]:
    return _listed(connection, _BETWEEN, meant | {"after": after, "upto": upto, "most": most})


def count_at(connection: Connection, meant: dict[str, Any], at: Sequence[int]) -> Counts:
    return _counted(connection, _COUNT_AT, meant | {"at": list(at)})


def count_between(connection: Connection, meant: dict[str, Any], after: int, upto: int) -> Counts:
    return _counted(connection, _COUNT_BETWEEN, meant | {"after": after, "upto": upto})


def exceptions_after(connection: Connection, meant: dict[str, Any], after: int, upto: int, most: int) -> list[int]:
    return _numbers(connection, _EXCEPTIONS, meant | {"after": after, "upto": upto, "most": most})


def pending_after(connection: Connection, meant: dict[str, Any], after: int, upto: int, most: int) -> list[int]:
    return _numbers(connection, _PENDING, meant | {"after": after, "upto": upto, "most": most})


def next_position(connection: Connection, after: int) -> int | None:
    """The first position that is there after this one."""
    found = _numbers(connection, _NEXT_POSITION, {"after": after})
    return found[0] if found else None


def last_position(connection: Connection) -> int:
    found = _numbers(connection, _LAST_POSITION, {})
    return found[0] if found else 0


def when(connection: Connection, position: int) -> tuple[int, datetime] | None:
    """The first entry from this position on, and when it was appended."""
    row = connection.execute(_PROBE, {"position": position}).fetchone()
    return (row[0], row[1]) if row else None


def positions_of_ids(connection: Connection, ids: Sequence[UUID], after: int, upto: int) -> list[int]:
    return _numbers(connection, _BY_ID, {"ids": list(ids), "after": after, "upto": upto})


def now(connection: Connection) -> datetime:
    """The database's clock is the truth."""
    row = connection.execute(_NOW).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def _listed(connection: Connection, statement: LiteralString, values: dict[str, Any]) -> list[Listed]:
    with connection.cursor(row_factory=class_row(Listed)) as cursor:
        return cursor.execute(statement, values).fetchall()


def _counted(connection: Connection, statement: LiteralString, values: dict[str, Any]) -> Counts:
    return {status: (count, size) for status, count, size in connection.execute(statement, values).fetchall()}


def _numbers(connection: Connection, statement: LiteralString, values: dict[str, Any]) -> list[int]:
    return [number for (number,) in connection.execute(statement, values).fetchall()]
