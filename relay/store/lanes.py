"""Who reads what, and how far it was read: locks of lanes, cursors, windows.

Each statement runs in READ COMMITTED, with a snapshot of its own. None goes in a pipeline:
behind and amid one the server does not watch `idle_in_transaction_session_timeout` (tried on PostgreSQL 15 and 18), and
a worker that vanished would hold its lanes for ever.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from ferryman.relay.model import Claim, Cursor, Window

Connection = psycopg.Connection[tuple[Any, ...]]

# Advisory locks of ours in this database: (this number, the lane).
_LOCK_CLASS = 0x46455252

# The planner must not take a turn through all that is retained, nor plan each read anew. A commit that a crash of the
# server forgets costs duplicates, which its publication could cost anyway: so nobody waits for the disk. A claimer that
# vanished frees its lanes when the server ends its session: by its own clock, or where it waits in the middle of a
# pipeline, by TCP's.
_PREPARE_CLAIM = """\
-- relay.prepare_claim
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('synchronous_commit', 'off', true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true),
       set_config('statement_timeout', %(statement)s, true)
"""

_LOCK_LANES = """\
-- relay.lock_lanes
SELECT lane FROM unnest(%(lanes)s::integer[]) lane WHERE pg_try_advisory_xact_lock(%(class)s, lane) LIMIT %(most)s
"""

_HOLD_LANES = """\
-- relay.hold_lanes
SELECT set_config('lock_timeout', %(wait)s, true), set_config('enable_seqscan', 'off', true),
       (SELECT count(pg_advisory_xact_lock(%(class)s, lane)) FROM unnest(%(lanes)s::integer[]) lane)
"""

# In a statement after the lock's, so that it sees what the last holder committed (tried: in one statement, lanes are
# read where they stood before, and 9 % is published twice).
_READ_CURSORS = """\
-- relay.read_cursors
SELECT l.lane, l.generation, l.position, l.settled,
       l.done, l.done_snapshot::text, l.done_position_at, l.done_horizon::text,
       l.target, l.target_snapshot::text, l.target_position_at, l.target_horizon::text,
       EXISTS (SELECT FROM ferryman.outbox_exception e
               WHERE e.lane = l.lane AND e.next_attempt_at <= statement_timestamp()),
       EXISTS (SELECT FROM ferryman.outbox_parked_key k WHERE k.lane = l.lane),
       ARRAY(SELECT t.topic FROM ferryman.outbox_parked_topic t WHERE t.lane = l.lane)
FROM ferryman.outbox_lanes l
"""

_PAUSED = """\
-- relay.paused
SELECT topic FROM ferryman.outbox_paused
"""

# Whoever waits is served before those who only try.
_QUEUE_FOR_LANE = """\
-- relay.queue_for_lane
SELECT set_config('lock_timeout', %(wait)s, true), pg_advisory_xact_lock(%(class)s, %(lane)s)
"""

_COUNT_WORKERS = """\
-- relay.count_workers
SELECT count(DISTINCT pid) FROM pg_locks
WHERE locktype = 'advisory' AND classid = %(class)s
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_PEEK = """\
-- relay.peek
SELECT ferryman.outbox_peek()
"""

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
) -> Claim:
    """Locks up to `most` of the lanes, in that order, until the transaction ends; reads where they are."""
    limits = {"idle": _milliseconds(idle_seconds), "statement": _milliseconds(statement_seconds)}
    connection.execute(_PREPARE_CLAIM, limits)
    locked = connection.execute(_LOCK_LANES, {"lanes": list(lanes), "class": _LOCK_CLASS, "most": most})
    cursors = connection.execute(_READ_CURSORS)
    held = {lane for (lane,) in locked.fetchall()}
    rows = [row for row in cursors.fetchall() if row[0] in held]
    paused = connection.execute(_PAUSED)
    return Claim(
        cursors=[_cursor(row[:12]) for row in rows],
        due=any(row[12] for row in rows),
        parked_keys=any(row[13] for row in rows),
        parked_topics=frozenset((row[0], topic) for row in rows for topic in row[14]),
        paused=frozenset(topic for (topic,) in paused.fetchall()),
    )


def queue(connection: Connection, lane: int, *, wait_seconds: float) -> bool:
    """Waits in line for a lane that another holds; whether it was given."""
    try:
        with connection.transaction():
            wanted = {"lane": lane, "class": _LOCK_CLASS, "wait": _milliseconds(wait_seconds)}
            connection.execute(_QUEUE_FOR_LANE, wanted)
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def count_workers(connection: Connection) -> int:
    """How many sessions hold lanes, or wait for one, at this moment."""
    return int(value(connection.execute(_COUNT_WORKERS, {"class": _LOCK_CLASS})))


def peek(connection: Connection) -> bool:
    """Whether there is anything to publish: one cheap statement, which locks nothing."""
    return bool(value(connection.execute(_PEEK)))


def hold(connection: Connection, lanes: Sequence[int], *, wait_seconds: float) -> None:
    """Waits for these lanes and keeps them until the transaction ends: for who changes exceptions by hand.

    The lanes are taken in the order of their numbers, so that two who do this wait for one another.
    """
    wanted = {"lanes": sorted(lanes), "class": _LOCK_CLASS, "wait": _milliseconds(wait_seconds)}
    connection.execute(_HOLD_LANES, wanted)


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


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"  # 0 would be no limit at all


def value(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row[0]
