"""All SQL of the journal's reading side. Each statement runs in READ COMMITTED, with a snapshot of its own."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import psycopg

from ferryman.relay.model import Cursor, Entry, Walk, Window

Connection = psycopg.Connection[tuple[Any, ...]]

# Advisory locks of ours in this database: (this number, the lane).
_LOCK_CLASS = 0x46455252

# The planner must not take a turn through all that is retained. A commit that a crash of the server forgets costs
# duplicates, which its publication could cost anyway: so nobody waits for the disk. A claimer that vanished frees its
# lanes when the server ends its session.
_PREPARE_CLAIM = """\
-- relay.prepare_claim
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('synchronous_commit', 'off', true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('statement_timeout', %(statement)s, true)
"""

_LOCK_LANES = """\
-- relay.lock_lanes
SELECT lane FROM unnest(%(lanes)s::integer[]) lane WHERE pg_try_advisory_xact_lock(%(class)s, lane) LIMIT %(most)s
"""

# In a statement after the lock's, so that it sees what the last holder committed (tried: in one statement, lanes are
# read where they stood before, and 9 % is published twice).
_READ_CURSORS = """\
-- relay.read_cursors
SELECT lane, generation, position, settled,
       done, done_snapshot::text, done_position_at, done_horizon::text,
       target, target_snapshot::text, target_position_at, target_horizon::text
FROM ferryman.outbox_lanes
"""

# A sequence that was never used says 1 without having given it.
_LAST_POSITION = """\
-- relay.last_position
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ferryman.outbox_position_seq
"""

# Kept for the statement behind it in the same pipeline.
_TAKE_SNAPSHOT = """\
-- relay.take_snapshot
SELECT set_config('ferryman.target', pg_current_snapshot()::text, true)
"""

_COLUMNS = """\
o.position, o.id::text, o.topic, o.key, o.type, o.payload, CASE WHEN o.headers <> '{}' THEN o.headers::text END,
o.content_type, (extract(epoch FROM o.created_at) * 1000000)::bigint, o.segment, o.lane"""

# Late entries have positions up to that of `done`, so that ordering by position puts them first. Who was running at
# `done` stands in the snapshot's list, or has a number from its xmax (one past the latest that had ended) up to the
# horizon and stands in no list (tried: without that range 5 to 13 % are lost). A probe for each number, because an OR
# would let the planner read all that is retained (tried: 900 ms instead of 0.1).
_READ = f"""\
-- relay.read
WITH RECURSIVE unlisted (xid) AS (
    (SELECT o.xid FROM ferryman.outbox o
     WHERE o.xid >= pg_snapshot_xmax(%(done)s::pg_snapshot) AND o.xid < %(horizon)s::xid8 ORDER BY o.xid LIMIT 1)
    UNION ALL
    SELECT (SELECT o.xid FROM ferryman.outbox o
            WHERE o.xid > unlisted.xid AND o.xid < %(horizon)s::xid8 ORDER BY o.xid LIMIT 1)
    FROM unlisted WHERE unlisted.xid IS NOT NULL
)
SELECT * FROM (
    (SELECT late.*
     FROM (SELECT unnest(ARRAY(SELECT pg_snapshot_xip(%(done)s::pg_snapshot))) UNION ALL SELECT xid FROM unlisted)
          running (xid)
     CROSS JOIN LATERAL (
        SELECT {_COLUMNS} FROM ferryman.outbox o
        WHERE o.xid = running.xid AND o.position > %(position)s AND o.position <= %(done_at)s
          AND o.lane = ANY (%(lanes)s::smallint[]) AND pg_visible_in_snapshot(o.xid, $target)
        ORDER BY o.xid, o.position LIMIT %(most)s
     ) late)
    UNION ALL
    (SELECT {_COLUMNS} FROM ferryman.outbox o
     WHERE o.position > greatest(%(position)s, %(done_at)s) AND o.lane = ANY (%(lanes)s::smallint[])
       AND pg_visible_in_snapshot(o.xid, $target) AND NOT pg_visible_in_snapshot(o.xid, %(done)s::pg_snapshot)
     ORDER BY o.position LIMIT %(most)s)
) entry ORDER BY 1 LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in
_READ_ON = _READ.replace("$target", "%(target)s::pg_snapshot")
_READ_NEW = _READ.replace("$target", "(SELECT current_setting('ferryman.target')::pg_snapshot)")
_NO_HORIZON = str(2**64 - 1)

_WRITE_WINDOW = """\
-- relay.write_window
INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
VALUES (%(snapshot)s::pg_snapshot, %(position_at)s, pg_current_xact_id()) RETURNING id, horizon::text
"""

# The generation is unique in its lane: whoever claimed by a lock that was lost meanwhile fails here.
_WRITE_CURSORS = """\
-- relay.write_cursors
INSERT INTO ferryman.outbox_cursor (lane, generation, done, target, position, settled)
SELECT c.lane, c.generation, c.done, c.target, c.position, c.settled::bigint[]
FROM unnest(%(lanes)s::smallint[], %(generations)s::bigint[], %(dones)s::bigint[], %(targets)s::bigint[],
            %(positions)s::bigint[], %(settled)s::text[]) c (lane, generation, done, target, position, settled)
"""

# By their exact keys: a range would read again all that an open snapshot keeps from being vacuumed.
_DELETE_CURSORS = """\
-- relay.delete_cursors
DELETE FROM ferryman.outbox_cursor c
USING unnest(%(lanes)s::smallint[], %(generations)s::bigint[]) old (lane, generation)
WHERE c.lane = old.lane AND c.generation = old.generation - 2
"""


def claim(
    connection: Connection, lanes: Sequence[int], most: int, *, idle_seconds: float, statement_seconds: float
) -> list[Cursor]:
    """Locks up to `most` of the lanes, in that order, until the transaction ends; reads where they are."""
    with connection.pipeline():
        limits = {"idle": f"{round(idle_seconds * 1000)}ms", "statement": f"{round(statement_seconds * 1000)}ms"}
        connection.execute(_PREPARE_CLAIM, limits)
        locked = connection.execute(_LOCK_LANES, {"lanes": list(lanes), "class": _LOCK_CLASS, "most": most})
        cursors = connection.execute(_READ_CURSORS)
        held = {lane for (lane,) in locked.fetchall()}
        return [_cursor(row) for row in cursors.fetchall() if row[0] in held]


def read(connection: Connection, walk: Walk, most: int) -> tuple[list[Entry], Window]:
    """The next entries of the walk's step, and the step's target: a new window when it had none."""
    wanted: dict[str, Any] = {
        "lanes": walk.lanes,
        "done": walk.done.snapshot,
        "done_at": walk.done.position_at,
        "horizon": walk.done.horizon or _NO_HORIZON,
        "position": walk.position,
        "most": most,
    }
    if walk.target is not None:
        rows = connection.execute(_READ_ON, wanted | {"target": walk.target.snapshot}, binary=True)
        return cast(list[Entry], rows.fetchall()), walk.target
    with connection.pipeline():
        last = connection.execute(_LAST_POSITION)
        snapshot = connection.execute(_TAKE_SNAPSHOT)
        rows = connection.execute(_READ_NEW, wanted, binary=True)
        window = Window(_value(snapshot), _value(last))
        return cast(list[Entry], rows.fetchall()), window


def settle(connection: Connection, cursors: Sequence[Cursor]) -> None:
    """Appends the cursors, and the windows they name that were not written yet."""
    written: dict[Window, Window] = {}
    for window in {window for cursor in cursors for window in (cursor.done, cursor.target) if window}:
        written[window] = window if window.id is not None else _write_window(connection, window)
    values: Mapping[str, Any] = {
        "lanes": [cursor.lane for cursor in cursors],
        "generations": [cursor.generation for cursor in cursors],
        "dones": [written[cursor.done].id for cursor in cursors],
        "targets": [written[cursor.target].id if cursor.target else None for cursor in cursors],
        "positions": [cursor.position for cursor in cursors],
        "settled": ["{" + ",".join(map(str, cursor.settled)) + "}" for cursor in cursors],
    }
    with connection.pipeline():
        connection.execute(_WRITE_CURSORS, values)
        connection.execute(_DELETE_CURSORS, values)


def _write_window(connection: Connection, window: Window) -> Window:
    row = connection.execute(_WRITE_WINDOW, {"snapshot": window.snapshot, "position_at": window.position_at}).fetchone()
    assert row is not None
    return Window(window.snapshot, window.position_at, horizon=row[1], id=row[0])


def _cursor(row: tuple[Any, ...]) -> Cursor:
    lane, generation, position, settled, *windows = row
    done = Window(id=windows[0], snapshot=windows[1], position_at=windows[2], horizon=windows[3])
    target = None
    if windows[4] is not None:
        target = Window(id=windows[4], snapshot=windows[5], position_at=windows[6], horizon=windows[7])
    return Cursor(lane, generation, done, target, position, tuple(settled))


def _value(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row[0]
