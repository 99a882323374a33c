"""The journal's space: its segments, and rows that no cursor needs any more.

Each statement runs in READ COMMITTED, with a snapshot of its own: a statement after a lock sees what was committed
before it.

Windows, keys and held entries are deleted a bounded part at a time. An open snapshot elsewhere keeps deleted rows from
being vacuumed, and a search that starts at the beginning reads them all again each time: so the caller passes how far
the last search came. That is only a hint: starting at the beginning is always right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql

from ferryman.relay.model import LANES
from ferryman.relay.store import claims
from ferryman.runtime.postgres import Connection, milliseconds, read_committed, row, value

# Counting a segment reads all of it.
_STATEMENT_SECONDS = 120

# One housekeeper at a time, by an advisory lock in a class of its own: a holder of the lanes' class counts as a worker.
# None of this is worth a wait for the disk, and a housekeeper that vanished must not keep its locks.
_LOCK_CLASS = 0x46455253

_KEEP = """\
-- relay.keep_ring
SELECT set_config('lock_timeout', '20ms', true), set_config('statement_timeout', %(statement)s, true),
       set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('synchronous_commit', 'off', true), set_config('jit', 'off', true),
       pg_try_advisory_xact_lock(%(class)s, 0)
"""

# After the lanes, which have a lock_timeout of their own.
_LIMIT_LOCK = """\
-- relay.limit_lock
SELECT set_config('lock_timeout', '20ms', true), set_config('statement_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true)
"""

_READ_RING = """\
-- relay.read_ring
SELECT s.segment, extract(epoch FROM clock_timestamp() - s.rotated_at)::float8,
       ARRAY(SELECT pg_table_size(('ferryman.outbox_' || n)::regclass) FROM generate_series(0, 7) n ORDER BY n),
       ARRAY(SELECT pg_relation_size(('ferryman.outbox_' || n)::regclass) = 0 FROM generate_series(0, 7) n ORDER BY n)
FROM ferryman.outbox_state s
"""

# Writers only read this row, and a row that is being updated can be read.
_ROTATE = """\
-- relay.rotate
UPDATE ferryman.outbox_state SET segment = %(into)s, rotated_at = clock_timestamp() WHERE segment = %(segment)s
"""

# The entry with the highest position is nearly the last that was written and the last that is settled. Asked without a
# target: a window that is being read does not count. A replay under way still reads the journal; one that was forgotten
# does not keep it for ever.
_MAY_GO = """\
-- relay.may_go
SELECT coalesce(newest.created_at < clock_timestamp() - %(retention)s * interval '1 second' AND EXISTS (
           SELECT FROM ferryman.outbox_lanes l
           WHERE l.lane = newest.lane
             AND ferryman.outbox_settled(newest.xid, newest.position, l.done_snapshot, NULL, NULL)
       ) AND NOT EXISTS (
           SELECT FROM ferryman.outbox_replay r
           WHERE r.finished_at IS NULL AND r.position < newest.position
             AND r.started_at > clock_timestamp() - %(retention)s * interval '1 second'
       ), true)
FROM (SELECT) always
LEFT JOIN LATERAL (
    SELECT o.position, o.created_at, o.lane, o.xid FROM ONLY ferryman.{segment} o ORDER BY o.position DESC LIMIT 1
) newest ON true
"""

# One statement, one snapshot: a cursor that it sees was written after the entries it counts were visible.
_COUNT = """\
-- relay.count_segment
WITH lanes AS MATERIALIZED (SELECT lane, done_snapshot, settled FROM ferryman.outbox_lanes)
SELECT pg_current_snapshot()::text, counted.entries, counted.pending, s.truncated[%(number)s],
       (SELECT sum(settled[%(number)s])::bigint FROM lanes) - s.truncated[%(number)s],
       (SELECT count(*) FROM ferryman.outbox_exception e JOIN ONLY ferryman.{segment} o ON o.position = e.position
        WHERE e.status <> 'DISCARDED')
FROM ferryman.outbox_state s, (
    SELECT count(*) AS entries,
           count(*) FILTER (
               WHERE ferryman.outbox_settled(o.xid, o.position, l.done_snapshot, NULL, NULL) IS NOT TRUE
           ) AS pending
    FROM ONLY ferryman.{segment} o LEFT JOIN lanes l ON l.lane = o.lane
) counted
"""

_LOCK_SEGMENT = """\
-- relay.lock_segment
LOCK TABLE ONLY ferryman.{segment} IN ACCESS EXCLUSIVE MODE
"""

# A prepared transaction has no process; the lock on its own number leads to its name.
_USERS = """\
-- relay.segment_users
SELECT DISTINCT coalesce(
    'prepared transaction ' || p.gid, 'session ' || l.pid || coalesce(' of ' || a.application_name, ''), 'somebody'
)
FROM pg_locks l
LEFT JOIN pg_locks own ON l.pid IS NULL AND own.pid IS NULL AND own.virtualtransaction = l.virtualtransaction
                      AND own.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
LEFT JOIN pg_stat_activity a ON a.pid = l.pid AND a.application_name <> ''
WHERE l.relation = %(segment)s::regclass AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY 1 LIMIT 5
"""

# A writer holds a lock on the segment until its transaction ends, also a prepared one: after ours, every row was either
# counted or has a number that the count's snapshot did not see.
_UNCHANGED = """\
-- relay.segment_unchanged
SELECT s.segment <> %(segment)s AND s.truncated[%(number)s] = %(truncated)s AND NOT EXISTS (
    SELECT FROM ONLY ferryman.{segment} o
    WHERE o.xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
      AND NOT pg_visible_in_snapshot(o.xid, %(snapshot)s::pg_snapshot)
)
FROM ferryman.outbox_state s
"""

_FORGET_DISCARDED = """\
-- relay.forget_discarded
DELETE FROM ferryman.outbox_exception e USING ONLY ferryman.{segment} o
WHERE o.position = e.position AND e.status = 'DISCARDED'
"""

_MOVE = """\
-- relay.move_to_held
INSERT INTO ferryman.outbox_held
    (xid, position, segment, lane, id, created_at, topic, key, type, payload, headers, content_type)
    OVERRIDING SYSTEM VALUE
SELECT o.xid, o.position, 8, o.lane, o.id, o.created_at, o.topic, o.key, o.type, o.payload, o.headers, o.content_type
FROM ferryman.outbox_exception e JOIN ONLY ferryman.{segment} o ON o.position = e.position
"""

_TRUNCATE = """\
-- relay.truncate_segment
TRUNCATE ONLY ferryman.{segment}
"""

_COUNT_TRUNCATED = """\
-- relay.count_truncated
UPDATE ferryman.outbox_state SET truncated[%(number)s] = truncated[%(number)s] + %(entries)s
"""

_INDEXED = """\
-- relay.tidy_by_index
SELECT set_config('enable_seqscan', 'off', true)
"""

# In one statement, because a window is committed together with the cursors that name it: a window that this snapshot
# sees and no cursor names will never be named.
_DELETE_WINDOWS = """\
-- relay.delete_windows
WITH named AS MATERIALIZED (
    SELECT array_agg(w.id) AS ids, max(w.id) AS newest
    FROM unnest('{0,1,2,3,4,5,6,7}'::smallint[]) l (lane)
    CROSS JOIN LATERAL (
        SELECT c.done, c.target FROM ferryman.outbox_cursor c WHERE c.lane = l.lane ORDER BY c.generation DESC LIMIT 2
    ) c
    CROSS JOIN LATERAL (VALUES (c.done), (c.target)) w (id)
    WHERE w.id IS NOT NULL
), span AS MATERIALIZED (
    SELECT least(coalesce(first.id, n.newest) + %(most)s, n.newest) AS upto, n.ids
    FROM named n LEFT JOIN LATERAL (
        SELECT w.id FROM ferryman.outbox_window w WHERE w.id >= %(start)s ORDER BY w.id LIMIT 1
    ) first ON true
), gone AS (
    DELETE FROM ferryman.outbox_window w
    WHERE w.id >= %(start)s AND w.id < (SELECT upto FROM span) AND w.id <> ALL ((SELECT ids FROM span)::bigint[])
    RETURNING w.id
)
SELECT (SELECT count(*) FROM gone), greatest(upto, %(start)s) FROM span
"""

# now() is stable, so an index can be searched by it; clock_timestamp() is not.
_DELETE_KEYS = """\
-- relay.delete_keys
WITH gone AS (
    DELETE FROM ferryman.outbox_key WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM ferryman.outbox_key k
        WHERE k.created_at < now() - %(retention)s * interval '1 second'
          AND k.created_at >= coalesce(%(start)s::timestamptz, '-infinity')
        ORDER BY k.created_at LIMIT %(most)s
    ))
    RETURNING created_at
)
SELECT count(*), coalesce(max(created_at), %(start)s) FROM gone
"""

_DELETE_DISCARDED = """\
-- relay.delete_discarded
DELETE FROM ferryman.outbox_exception e
USING (SELECT h.position FROM ferryman.outbox_held h
       WHERE h.position > %(start)s AND h.lane = ANY (%(lanes)s) ORDER BY h.position LIMIT %(most)s) h
WHERE e.position = h.position AND e.status = 'DISCARDED'
  AND e.changed_at < now() - %(retention)s * interval '1 second'
"""

# Only settled entries: an entry may have been appended to a segment outside the ring by hand.
_DELETE_HELD = """\
-- relay.delete_held
WITH looked AS MATERIALIZED (
    SELECT h.ctid AS place, h.position, h.lane, h.xid, h.created_at FROM ferryman.outbox_held h
    WHERE h.position > %(start)s AND h.lane = ANY (%(lanes)s) ORDER BY h.position LIMIT %(most)s
), gone AS (
    DELETE FROM ferryman.outbox_held WHERE ctid = ANY (ARRAY(
        SELECT h.place FROM looked h JOIN ferryman.outbox_lanes l ON l.lane = h.lane
        WHERE h.created_at < now() - %(retention)s * interval '1 second'
          AND ferryman.outbox_settled(h.xid, h.position, l.done_snapshot, NULL, NULL)
          AND NOT EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = h.position)
    ))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), CASE WHEN count(*) = %(most)s THEN max(position) ELSE 0 END FROM looked
"""


class RingBusy(Exception):
    """An error for a turn that somebody else's lock is in the way of, or that took too long: try again later."""


@dataclass(frozen=True, slots=True)
class RingState:
    """The current segment and its age, and of each segment its size and whether it is empty."""

    segment: int
    age_seconds: float
    bytes: tuple[int, ...]
    empty: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class SegmentCount:
    """A segment's entries in one snapshot: `settled` is what the cursors counted and no truncation has taken yet.

    `needed` are those that exceptions still need.
    """

    segment: int
    snapshot: str
    entries: int
    pending: int
    truncated: int
    settled: int
    needed: int


@dataclass(slots=True)
class Marks:
    """The points that the last searches for old rows came to."""

    window: int = 0
    key: datetime | None = None
    held: int = 0


@contextmanager
def keeping(connection: Connection) -> Iterator[None]:
    """Open a housekeeper's transaction. Raise RingBusy while another one is at work, or locks are not to be had."""
    try:
        with connection.transaction():
            read_committed(connection)
            limits = {"class": _LOCK_CLASS, "statement": milliseconds(_STATEMENT_SECONDS)}
            *_, locked = row(connection.execute(_KEEP, limits))
            if not locked:
                raise RingBusy
            yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.DeadlockDetected) as error:
        raise RingBusy from error


def read_ring(connection: Connection) -> RingState:
    segment, age, sizes, empty = row(connection.execute(_READ_RING))
    return RingState(segment, age, tuple(sizes), tuple(empty))


def rotate(connection: Connection, segment: int, into: int) -> bool:
    return connection.execute(_ROTATE, {"segment": segment, "into": into}).rowcount == 1


def may_go(connection: Connection, segment: int, retention_seconds: float) -> bool:
    """Return True if the segment's newest entry is settled and past the retention; the others are not read."""
    return bool(value(connection.execute(_of(_MAY_GO, segment), {"retention": retention_seconds})))


def count(connection: Connection, segment: int) -> SegmentCount:
    """Read the whole segment: ask `may_go` first."""
    return SegmentCount(segment, *row(connection.execute(_of(_COUNT, segment), {"number": segment + 1})))


def lock(connection: Connection, segment: int) -> None:
    """Lock the segment for ourselves alone. While this waits, everybody who comes for the segment waits too."""
    connection.execute(_LIMIT_LOCK)
    connection.execute(_of(_LOCK_SEGMENT, segment))


def users(connection: Connection, segment: int) -> list[str]:
    """Return which transactions use the segment at this moment, in words; a few are enough."""
    with connection.transaction():
        found = connection.execute(_USERS, {"segment": f"ferryman.outbox_{segment}"}).fetchall()
    return [name for (name,) in found]


def unchanged(connection: Connection, counted: SegmentCount) -> bool:
    """Return True if nobody wrote to the segment, truncated it or made it current since it was counted.

    Call it under the lock.
    """
    wanted = {
        "segment": counted.segment,
        "number": counted.segment + 1,
        "truncated": counted.truncated,
        "snapshot": counted.snapshot,
    }
    return bool(value(connection.execute(_of(_UNCHANGED, counted.segment), wanted)))


def truncate(connection: Connection, counted: SegmentCount) -> int:
    """Empty the segment, and keep what exceptions still need; return how many entries were kept. Needs the lock.

    Discarded entries are forgotten first: one that is replayed at this moment is then either seen by the move, or makes
    us wait for its row.
    """
    connection.execute(_of(_FORGET_DISCARDED, counted.segment))
    moved = connection.execute(_of(_MOVE, counted.segment)).rowcount
    connection.execute(_of(_TRUNCATE, counted.segment))
    connection.execute(_COUNT_TRUNCATED, {"number": counted.segment + 1, "entries": counted.entries})
    return moved


def delete_old_rows(
    connection: Connection, marks: Marks, most: int, retention_seconds: float, key_retention_seconds: float
) -> tuple[int, int, int]:
    """Continue the searches from their marks: delete old rows among the next `most`. Return how many of each kind.

    They are windows that no cursor needs, idempotency keys past their retention, and held entries that nothing needs
    any more, in lanes that nobody works in: a replay by hand holds the lane, so no entry goes that it is about to need.
    """
    connection.execute(_INDEXED)
    windows, marks.window = row(connection.execute(_DELETE_WINDOWS, {"start": marks.window, "most": most}))
    aged = {"start": marks.key, "most": most, "retention": key_retention_seconds}
    keys, marks.key = row(connection.execute(_DELETE_KEYS, aged))
    claimed = claims.claim(connection, range(LANES), LANES, idle_seconds=10, statement_seconds=_STATEMENT_SECONDS)
    wanted = {"start": marks.held, "most": most, "retention": retention_seconds, "lanes": claimed.lanes}
    connection.execute(_DELETE_DISCARDED, wanted)
    held, marks.held = row(connection.execute(_DELETE_HELD, wanted))
    return windows, keys, held


def _of(statement: str, segment: int) -> sql.Composed:
    return sql.SQL(statement).format(segment=sql.Identifier(f"outbox_{segment}"))
