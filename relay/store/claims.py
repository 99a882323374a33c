"""Claims of lanes: locks, cursors and windows, and the entries that became visible between two windows.

Each statement runs in READ COMMITTED, with a snapshot of its own. None goes in a pipeline: behind and inside one the
server does not watch `idle_in_transaction_session_timeout` (tried on PostgreSQL 15 and 18), and a worker that vanished
would hold its lanes for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import psycopg

from ferryman.relay.model import LANES, Claim, Cursor, Entry, Walk, Window
from ferryman.runtime.life import Before, no_hook
from ferryman.runtime.postgres import Connection, milliseconds, row, value

# The key of our advisory locks in this database: (this number, the lane).
LOCK_CLASS = 0x46455252
_REHEARSAL_SECONDS = 10.0

# The planner must not read everything that is retained, nor plan each read anew. A commit that a crash of the server
# forgets costs duplicates, which publishing can cost anyway: so nobody waits for the disk. A claimer that vanished
# frees its lanes when the server ends its session: by its own clock or, where it waits inside a pipeline, by TCP's.
_PREPARE_CLAIM = """\
-- relay.prepare_claim
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('synchronous_commit', 'off', true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true),
       set_config('statement_timeout', %(statement)s, true),
       current_setting('transaction_read_only')::boolean
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

# A statement of its own after the lock's, so that it sees what the last holder committed (tried: in one statement,
# lanes are read where they stood before, and 9 % is published twice).
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

# A waiting session is served before those that only try.
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

# A sequence that was never used says 1 without having given it.
_LAST_POSITION = """\
-- relay.last_position
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ferryman.outbox_position_seq
"""

_TAKE_SNAPSHOT = """\
-- relay.take_snapshot
SELECT pg_current_snapshot()::text
"""

# A large payload is read when its turn comes, so that a batch is bounded in bytes too.
INLINE_BYTES = 16_384
COLUMNS = f"""\
o.position, o.id::text, o.topic, o.key, o.type,
CASE WHEN octet_length(o.payload) <= {INLINE_BYTES} THEN o.payload END,
CASE WHEN o.headers <> '{{}}' THEN o.headers::text END, o.content_type,
greatest(least(date_part('epoch', o.created_at) * 1000000, 9e18), -9e18)::bigint, o.segment * 8 + o.lane"""

# Late entries have positions up to that of `done`, so that ordering by position puts them first.
_READ = f"""\
-- relay.read
SELECT {COLUMNS}
FROM ferryman.outbox_unread(
    %(lanes)s::smallint[], %(done)s::pg_snapshot, %(done_at)s::bigint, %(horizon)s::xid8, %(target)s::pg_snapshot,
    %(position)s::bigint, %(most)s::bigint
) o ORDER BY o.position LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in
_NO_HORIZON = str(2**64 - 1)

_PAYLOAD = """\
-- relay.payload
SELECT payload FROM ferryman.outbox WHERE position = %(position)s
"""

_TAKE_NUMBER = """\
-- relay.take_number
SELECT pg_current_xact_id()
"""

_WRITE_WINDOW = """\
-- relay.write_window
INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
VALUES (%(snapshot)s::pg_snapshot, %(position_at)s, pg_current_xact_id()) RETURNING id, horizon::text
"""

# The generation is unique in its lane: a worker whose lock was lost meanwhile fails here.
_WRITE_CURSORS = """\
-- relay.write_cursors
INSERT INTO ferryman.outbox_cursor (lane, generation, done, target, position, settled)
SELECT c.lane, c.generation, c.done, c.target, c.position, c.settled::bigint[]
FROM unnest(%(lanes)s::smallint[], %(generations)s::bigint[], %(dones)s::bigint[], %(targets)s::bigint[],
            %(positions)s::bigint[], %(settled)s::text[]) c (lane, generation, done, target, position, settled)
"""

# By their exact keys: a range would read again everything that an open snapshot keeps from being vacuumed.
_DELETE_CURSORS = """\
-- relay.delete_cursors
DELETE FROM ferryman.outbox_cursor c
USING unnest(%(lanes)s::smallint[], %(generations)s::bigint[]) old (lane, generation)
WHERE c.lane = old.lane AND c.generation = old.generation - 2
"""


def claim(
    connection: Connection, lanes: Sequence[int], most: int, *, idle_seconds: float, statement_seconds: float = 30.0
) -> Claim:
    """Lock up to `most` of the lanes, in that order, until the transaction ends. Return where they stand.

    Refuse a database that takes no writes: what is published could not be settled, and would be published for ever.
    """
    limits = {"idle": milliseconds(idle_seconds), "statement": milliseconds(statement_seconds)}
    *_, read_only = row(connection.execute(_PREPARE_CLAIM, limits))
    if read_only:
        raise psycopg.errors.ReadOnlySqlTransaction("the database takes no writes, so nothing is published")
    locked = connection.execute(_LOCK_LANES, {"lanes": list(lanes), "class": LOCK_CLASS, "most": most})
    cursors = connection.execute(_READ_CURSORS)
    held = {lane for (lane,) in locked.fetchall()}
    rows = [row for row in cursors.fetchall() if row[0] in held]
    paused = connection.execute(_PAUSED)
    return Claim(
        cursors=[_cursor(columns) for *columns, _, _, _ in rows],
        due=any(due for *_, due, _, _ in rows),
        parked_keys=any(parked for *_, parked, _ in rows),
        parked_topics=frozenset((lane, topic) for lane, *_, topics in rows for topic in topics),
        paused=frozenset(topic for (topic,) in paused.fetchall()),
    )


def queue(connection: Connection, lane: int, *, wait_seconds: float) -> bool:
    """Wait in line for a lane that another worker holds. Return True if it was given."""
    try:
        with connection.transaction():
            wanted = {"lane": lane, "class": LOCK_CLASS, "wait": milliseconds(wait_seconds)}
            connection.execute(_QUEUE_FOR_LANE, wanted)
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def count_workers(connection: Connection) -> int:
    """Return how many database sessions hold lanes, or wait for one, at this moment."""
    return int(value(connection.execute(_COUNT_WORKERS, {"class": LOCK_CLASS})))


def peek(connection: Connection) -> bool:
    """Return True if there is anything to publish: one cheap statement, which locks nothing."""
    return bool(value(connection.execute(_PEEK)))


def hold(connection: Connection, lanes: Sequence[int], *, wait_seconds: float) -> None:
    """Wait for these lanes and hold them until the transaction ends, to change exceptions by hand.

    Lanes are taken in the order of their numbers, so that two callers wait for one another and do not deadlock.
    """
    wanted = {"lanes": sorted(lanes), "class": LOCK_CLASS, "wait": milliseconds(wait_seconds)}
    connection.execute(_HOLD_LANES, wanted)


def read(connection: Connection, walk: Walk, most: int, target: Window | None = None) -> tuple[list[Entry], Window]:
    """Return the walk's next entries, and its target: its own, else the one given, else a new one."""
    target = walk.target or target
    if target is None:
        last = connection.execute(_LAST_POSITION)
        snapshot = connection.execute(_TAKE_SNAPSHOT)
        target = Window(value(snapshot), value(last))
    wanted: dict[str, Any] = {
        "lanes": walk.lanes,
        "done": walk.done.snapshot,
        "done_at": walk.done.position_at,
        "horizon": walk.done.horizon or _NO_HORIZON,
        "target": target.snapshot,
        "position": walk.position,
        "most": most,
    }
    return cast(list[Entry], connection.execute(_READ, wanted, binary=True).fetchall()), target


def payload(connection: Connection, position: int) -> bytes:
    """Return a large payload, alone."""
    return bytes(value(connection.execute(_PAYLOAD, {"position": position}, binary=True)))


def take_number(connection: Connection) -> None:
    """Give the transaction its number, which is the horizon of the windows that it writes: read nothing new after it.

    Every transaction that begins before this is looked for by the next read, so it is not taken later than needed.
    """
    connection.execute(_TAKE_NUMBER)


def settle(connection: Connection, cursors: Sequence[Cursor], before: Before = no_hook) -> None:
    """Append the cursors, and the windows they name that were not written yet."""
    before("write windows")
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
    before("write cursors")
    connection.execute(_WRITE_CURSORS, values)
    connection.execute(_DELETE_CURSORS, values)


def rehearse(connection: Connection) -> None:
    """Write what settles a lane that is free, and take it back. Raise what the database refuses.

    What is published cannot be taken back, so a worker that was interrupted tries this before it publishes again: a
    full disk or a missing right would let the same entries be published again and again.
    """
    with connection.transaction(force_rollback=True):
        claimed = claim(connection, range(LANES), 1, idle_seconds=_REHEARSAL_SECONDS)
        settle(connection, [
            replace(cursor, generation=cursor.generation + 1, done=replace(cursor.done, id=None))
            for cursor in claimed.cursors
        ])  # fmt: skip


def _write_window(connection: Connection, window: Window) -> Window:
    wanted = {"snapshot": window.snapshot, "position_at": window.position_at}
    number, horizon = row(connection.execute(_WRITE_WINDOW, wanted))
    return Window(window.snapshot, window.position_at, horizon=horizon, id=number)


def _cursor(columns: Sequence[Any]) -> Cursor:
    lane, generation, position, settled, done, done_snapshot, done_at, done_horizon, *of_target = columns
    target, target_snapshot, target_at, target_horizon = of_target
    return Cursor(
        lane=lane,
        generation=generation,
        done=Window(done_snapshot, done_at, done_horizon, done),
        target=None if target is None else Window(target_snapshot, target_at, target_horizon, target),
        position=position,
        settled=tuple(settled),
    )
