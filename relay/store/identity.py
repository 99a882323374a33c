"""Which server the journal's numbers are of, and how its entries get numbers of another one.

In another server the old transaction numbers say nothing: they may be of transactions to come. What was settled is
told once more by the old windows; then each entry has a number that is right here, and the lanes begin anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from ferryman.relay.store.lanes import Connection

# The control file names a new timeline only after the first checkpoint on it; the name of a log file does at once.
_HERE = """\
-- relay.where_am_i
SELECT s.system_identifier, s.timeline, here.system_identifier,
       CASE WHEN pg_is_in_recovery() THEN checkpoint.timeline_id
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END
FROM ferryman.outbox_state s, pg_control_system() here, pg_control_checkpoint() checkpoint
"""

_SET_TIMELINE = """\
-- relay.set_timeline
UPDATE ferryman.outbox_state SET timeline = %(timeline)s WHERE timeline <> %(timeline)s
"""

_READ_COMMITTED = """\
-- relay.read_committed
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
"""

# Writers wait, readers do not. Not ACCESS EXCLUSIVE, which would give this transaction a number too early.
_LOCK_OUTBOX = """\
-- relay.lock_outbox
LOCK TABLE ferryman.outbox IN EXCLUSIVE MODE
"""

_LIMITS = """\
-- relay.rebase_limits
SELECT set_config('lock_timeout', %(wait)s, true), set_config('statement_timeout', '0', true),
       set_config('enable_seqscan', 'on', true), set_config('jit', 'off', true)
"""

# Taken before this transaction has a number, which is so from its xmax on.
_SNAPSHOT = """\
-- relay.rebase_snapshot
SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned() IS NULL
"""

_NUMBER = """\
-- relay.rebase_number
SELECT pg_current_xact_id()::text
"""

# What the windows say, as long as the numbers are those of this server.
_SETTLED_BY_WINDOWS = """\
(pg_visible_in_snapshot(o.xid, d.snapshot)
 OR (t.id IS NOT NULL AND pg_visible_in_snapshot(o.xid, t.snapshot) AND o.position <= c.position)
 OR EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = o.position))"""

# What was appended since the restore has low numbers, which the old windows take for settled: so only what stood before
# the window by its position and by its clock is. A few that were published at that very moment are published again.
_SETTLED_BEFORE = """\
((pg_visible_in_snapshot(o.xid, d.snapshot) AND o.position <= d.position_at AND o.created_at <= d.taken_at)
 OR (t.id IS NOT NULL AND pg_visible_in_snapshot(o.xid, t.snapshot) AND o.position <= c.position
     AND o.created_at <= t.taken_at)
 OR EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = o.position))"""

_LANES = """\
ferryman.outbox_lanes c
JOIN ferryman.outbox_window d ON d.id = c.done
LEFT JOIN ferryman.outbox_window t ON t.id = c.target"""

_CLASSIFY = f"""\
-- relay.rebase_classify
SELECT o.segment, o.lane, count(*) FILTER (WHERE $settled), count(*) FILTER (WHERE NOT $settled)
FROM {_LANES} JOIN ferryman.outbox o ON o.lane = c.lane GROUP BY o.segment, o.lane
"""  # noqa: S608 - only our own text is put in
_CLASSIFY_BY_WINDOWS = _CLASSIFY.replace("$settled", _SETTLED_BY_WINDOWS)
_CLASSIFY_BEFORE = _CLASSIFY.replace("$settled", _SETTLED_BEFORE)

# Number 2 is older than any transaction. What is settled and has a number below all that run here may keep it.
_RENUMBER = f"""\
-- relay.rebase_renumber
UPDATE ferryman.outbox o SET xid = CASE WHEN {_SETTLED_BEFORE} THEN '2'::xid8 ELSE pg_current_xact_id() END
FROM {_LANES}
WHERE c.lane = o.lane AND (NOT {_SETTLED_BEFORE} OR o.xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot))
"""  # noqa: S608 - only our own text is put in

# A window before everything that is renumbered, so that it is read as what came late, by its own index and in the
# order of its positions; and one behind it, for lanes that have none of it. What had no end when the snapshot was
# taken counts as running in both: it has not appended yet.
_SEED_WINDOWS = """\
-- relay.rebase_windows
INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
SELECT seed.snapshot, %(position)s, (%(number)s::numeric + 1)::text::xid8
FROM (VALUES (%(snapshot)s::pg_snapshot), ((
    pg_snapshot_xmin(%(snapshot)s::pg_snapshot) || ':' || (%(number)s::numeric + 1) || ':' || array_to_string(ARRAY(
        SELECT xid::text::numeric FROM pg_snapshot_xip(%(snapshot)s::pg_snapshot) xid
        UNION ALL
        SELECT generate_series(pg_snapshot_xmax(%(snapshot)s::pg_snapshot)::text::numeric, %(number)s::numeric - 1)
        ORDER BY 1
    ), ','))::pg_snapshot)
) seed (snapshot)
RETURNING id
"""

_SEED_CURSORS = """\
-- relay.rebase_cursors
INSERT INTO ferryman.outbox_cursor (lane, generation, done, position, settled)
SELECT l.lane, l.generation + 1, CASE WHEN l.lane = ANY (%(waiting)s) THEN %(before)s ELSE %(behind)s END, 0, l.settled
FROM ferryman.outbox_lanes l
"""

# The ring truncates a segment when what was settled, minus what earlier truncations took, is what it holds.
_SET_PLACE = """\
-- relay.rebase_set_place
UPDATE ferryman.outbox_state s SET
    truncated = ARRAY(
        SELECT (SELECT sum(l.settled[n]) FROM ferryman.outbox_lanes l) - (%(settled)s::bigint[])[n]
        FROM generate_series(1, 8) n ORDER BY n
    ),
    system_identifier = here.system_identifier, timeline = %(timeline)s
FROM pg_control_system() here, ferryman.outbox_state before
RETURNING before.truncated, s.truncated
"""

# A restore may leave sequences behind what their columns hold; none is set back.
_MEND_SEQUENCES = """\
-- relay.rebase_sequences
SELECT s.name, setval(s.name::regclass, s.highest)
FROM (VALUES
    ('ferryman.outbox_position_seq', (SELECT max(position) FROM ferryman.outbox)),
    ('ferryman.outbox_window_id_seq', (SELECT max(id) FROM ferryman.outbox_window)),
    ('ferryman.outbox_replay_id_seq', (SELECT max(id) FROM ferryman.outbox_replay)),
    ('ferryman.outbox_audit_id_seq', (SELECT max(id) FROM ferryman.outbox_audit))
) s (name, highest)
WHERE s.highest > coalesce(pg_sequence_last_value(s.name::regclass), 0)
"""

_TAKEN_TWICE = """\
-- relay.positions_taken_twice
SELECT count(*) FROM (SELECT FROM ferryman.outbox GROUP BY position HAVING count(*) > 1) twice
"""

_LAST_POSITION = """\
-- relay.rebase_position
SELECT coalesce(pg_sequence_last_value('ferryman.outbox_position_seq'), 0)
"""

# Of a server that kept them, every number is one that was given here.
_NUMBERS_FIT = """\
-- relay.numbers_fit
SELECT NOT EXISTS (SELECT FROM ferryman.outbox o WHERE o.xid >= pg_snapshot_xmax(now.snapshot)) AND NOT EXISTS (
    SELECT FROM ferryman.outbox_window w WHERE pg_snapshot_xmax(w.snapshot) > pg_snapshot_xmax(now.snapshot)
)
FROM (SELECT pg_current_snapshot()) now (snapshot)
"""

_AUDIT = """\
-- relay.audit_rebase
INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
VALUES (%(who)s, 'rebase', %(reason)s, %(filter)s, %(entries)s)
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The server that the journal's numbers are of, and the one that it is in."""

    recorded: int
    recorded_timeline: int
    here: int
    timeline: int


class Census(NamedTuple):
    """Of one segment and lane, how many entries were settled and how many still wait."""

    segment: int
    lane: int
    settled: int
    pending: int


def place(connection: Connection) -> Place:
    return Place(*_row(connection, _HERE))


def set_timeline(connection: Connection, timeline: int) -> bool:
    """Whether nobody else did."""
    return connection.execute(_SET_TIMELINE, {"timeline": timeline}).rowcount == 1


def begin(connection: Connection) -> None:
    connection.execute(_READ_COMMITTED)


def limit(connection: Connection, wait_seconds: float) -> None:
    connection.execute(_LIMITS, {"wait": f"{round(wait_seconds * 1000)}ms"})


def lock_outbox(connection: Connection) -> None:
    """Waits for who appends, and lets nobody append until the transaction ends."""
    connection.execute(_LOCK_OUTBOX)


def snapshot(connection: Connection) -> str:
    """What had ended before this transaction gets a number."""
    taken, unnumbered = _row(connection, _SNAPSHOT)
    assert unnumbered, "a transaction that writes takes no snapshot for a window"
    return str(taken)


def census(connection: Connection, *, kept_xids: bool) -> list[Census]:
    """Reads all that is retained."""
    rows = connection.execute(_CLASSIFY_BY_WINDOWS if kept_xids else _CLASSIFY_BEFORE).fetchall()
    return [Census(*row) for row in rows]


def numbers_fit(connection: Connection) -> bool:
    return bool(_row(connection, _NUMBERS_FIT)[0])


def mend_sequences(connection: Connection) -> list[str]:
    """Those that had given less than stands in their columns."""
    return [name for name, _ in connection.execute(_MEND_SEQUENCES).fetchall()]


def positions_taken_twice(connection: Connection) -> int:
    return int(_row(connection, _TAKEN_TWICE)[0])


def renumber(connection: Connection, taken: str) -> int:
    """What waits gets the number of this transaction, what is settled one that every window shows as done."""
    return connection.execute(_RENUMBER, {"snapshot": taken}).rowcount


def seed(connection: Connection, taken: str, waiting: Sequence[int]) -> None:
    """Lanes begin anew: those that wait before what was renumbered, the others behind it."""
    number, position = _row(connection, _NUMBER)[0], _row(connection, _LAST_POSITION)[0]
    windows = connection.execute(_SEED_WINDOWS, {"snapshot": taken, "number": number, "position": position}).fetchall()
    before, behind = sorted(window for (window,) in windows)
    connection.execute(_SEED_CURSORS, {"waiting": list(waiting), "before": before, "behind": behind})


def set_place(connection: Connection, timeline: int, settled: Sequence[int]) -> tuple[int, ...]:
    """The journal is of this server now, and each segment's count fits what it holds; returns what was off before."""
    before, after = _row(connection, _SET_PLACE, {"timeline": timeline, "settled": list(settled)})
    return tuple(new - old for old, new in zip(before, after, strict=True))


def audit(connection: Connection, who: str, reason: str, details: dict[str, Any], entries: int) -> None:
    values = {"who": who, "reason": reason, "filter": Jsonb(details), "entries": entries}
    connection.execute(_AUDIT, values)


def _row(connection: Connection, statement: str, wanted: dict[str, Any] | None = None) -> tuple[Any, ...]:
    row = connection.execute(statement, wanted).fetchone()
    assert row is not None
    return row
