"""The journal's space: which segment is current, what of the others can go, and what is behind all cursors.

Each statement runs in READ COMMITTED, with a snapshot of its own: what is asked after a lock sees what was committed
before it.
"""

from dataclasses import dataclass

from psycopg import sql

from ferryman.relay.store.lanes import Connection

# One keeper at a time, by an advisory lock in a class of its own: who holds one of the lanes' class counts as a worker.
# None of this is worth a wait for the disk, and a keeper that vanished must not keep its locks.
_LOCK_CLASS = 0x46455253

_READ_COMMITTED = """\
-- relay.read_committed
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
"""

_KEEP = """\
-- relay.keep_ring
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true),
       set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('synchronous_commit', 'off', true), set_config('jit', 'off', true),
       pg_try_advisory_xact_lock(%(class)s, 0)
"""

# After the lanes, which have a lock_timeout of their own.
_LIMIT_LOCK = """\
-- relay.limit_lock
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true)
"""

_READ_RING = """\
-- relay.read_ring
SELECT s.segment, extract(epoch FROM clock_timestamp() - s.rotated_at)::float8,
       ARRAY(SELECT pg_table_size(('ferryman.outbox_' || n)::regclass) FROM generate_series(0, 7) n ORDER BY n),
       ARRAY(SELECT pg_relation_size(('ferryman.outbox_' || n)::regclass) = 0 FROM generate_series(0, 7) n ORDER BY n)
FROM ferryman.outbox_state s
"""

# Writers only read this row, and a row that is updated can be read.
_ROTATE = """\
-- relay.rotate
UPDATE ferryman.outbox_state SET segment = %(into)s, rotated_at = clock_timestamp() WHERE segment = %(segment)s
"""

# The last to take a position is nearly the last that was written and that is settled. A replay that is under way still
# reads the journal; one that was forgotten does not keep it forever.
_MAY_GO = """\
-- relay.may_go
SELECT coalesce(newest.created_at < clock_timestamp() - %(retention)s * interval '1 second' AND EXISTS (
           SELECT FROM ferryman.outbox_lanes l
           WHERE l.lane = newest.lane AND pg_visible_in_snapshot(newest.xid, l.done_snapshot)
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
           count(*) FILTER (WHERE pg_visible_in_snapshot(o.xid, l.done_snapshot) IS NOT TRUE) AS pending
    FROM ONLY ferryman.{segment} o LEFT JOIN lanes l ON l.lane = o.lane
) counted
"""

_LOCK_SEGMENT = """\
-- relay.lock_segment
LOCK TABLE ONLY ferryman.{segment} IN ACCESS EXCLUSIVE MODE
"""

# Who writes holds a lock on the segment until the transaction ends, also a prepared one: behind ours, all there is was
# either counted or has a number that the count's snapshot did not see.
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


@dataclass(frozen=True, slots=True)
class Ring:
    """The current segment, how long it has been, and of each segment its size and whether nothing was written to it."""

    segment: int
    age_seconds: float
    bytes: tuple[int, ...]
    empty: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """What a segment held in one snapshot: `settled` is what the cursors counted and no truncation has taken yet."""

    segment: int
    snapshot: str
    entries: int
    pending: int
    truncated: int
    settled: int
    needed: int


def keep(connection: Connection, *, lock_seconds: float, statement_seconds: float) -> bool:
    """Starts a keeper's transaction; False when another one keeps the ring at this moment."""
    connection.execute(_READ_COMMITTED)
    limits = {"lock": _milliseconds(lock_seconds), "statement": _milliseconds(statement_seconds)}
    row = connection.execute(_KEEP, {**limits, "class": _LOCK_CLASS}).fetchone()
    assert row is not None
    return bool(row[-1])


def read_ring(connection: Connection) -> Ring:
    row = connection.execute(_READ_RING).fetchone()
    assert row is not None
    segment, age, sizes, empty = row
    return Ring(segment, age, tuple(sizes), tuple(empty))


def rotate(connection: Connection, segment: int, into: int) -> bool:
    return connection.execute(_ROTATE, {"segment": segment, "into": into}).rowcount == 1


def may_go(connection: Connection, segment: int, retention_seconds: float) -> bool:
    """What can be told without reading the segment: its newest entry is settled and past the retention."""
    row = connection.execute(_of(_MAY_GO, segment), {"retention": retention_seconds}).fetchone()
    return row is not None and bool(row[0])


def count(connection: Connection, segment: int) -> Count:
    """Reads all of the segment: cheap conditions first."""
    row = connection.execute(_of(_COUNT, segment), {"number": segment + 1}).fetchone()
    assert row is not None
    return Count(segment, *row)


def lock(connection: Connection, segment: int, *, wait_seconds: float) -> None:
    """For itself alone, or `LockNotAvailable`. While it waits, everybody who comes for the segment waits too."""
    connection.execute(_LIMIT_LOCK, {"lock": _milliseconds(wait_seconds)})
    connection.execute(_of(_LOCK_SEGMENT, segment))


def unchanged(connection: Connection, counted: Count) -> bool:
    """Under the lock: nothing was written, and nobody truncated it or made it current, since it was counted."""
    wanted = {
        "segment": counted.segment,
        "number": counted.segment + 1,
        "truncated": counted.truncated,
        "snapshot": counted.snapshot,
    }
    row = connection.execute(_of(_UNCHANGED, counted.segment), wanted).fetchone()
    return row is not None and bool(row[0])


def truncate(connection: Connection, counted: Count) -> int:
    """Under the lock: moves what exceptions still need, takes the rest away and counts it; returns how many moved.

    What was discarded is forgotten first: one that is replayed at this moment is then either seen by the move, or
    keeps us waiting for its row.
    """
    connection.execute(_of(_FORGET_DISCARDED, counted.segment))
    moved = connection.execute(_of(_MOVE, counted.segment)).rowcount
    connection.execute(_of(_TRUNCATE, counted.segment))
    connection.execute(_COUNT_TRUNCATED, {"number": counted.segment + 1, "entries": counted.entries})
    return moved


def _of(statement: str, segment: int) -> sql.Composed:
    return sql.SQL(statement).format(segment=sql.Identifier(f"outbox_{segment}"))


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
