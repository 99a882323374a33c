"""What is behind everybody and goes, a bounded part at a time: windows, keys, held entries, discarded exceptions.

An open snapshot elsewhere keeps what was deleted from being vacuumed, and who looks for more from the beginning reads
it all again each time: so the caller passes how far the last look came. That is only a hint: from the beginning is
always right.
"""

from datetime import datetime
from typing import Any

from ferryman.relay.model import LANES
from ferryman.relay.store import lanes
from ferryman.relay.store.lanes import Connection

_INDEXED = """\
-- relay.tidy_by_index
SELECT set_config('enable_seqscan', 'off', true)
"""

# In one statement, because a window is committed together with the cursors that name it: what this snapshot sees and
# the cursors do not name, nobody will name any more.
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

# A stable time, which an index can be searched by; clock_timestamp() is not.
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
SELECT count(*), max(created_at) FROM gone
"""

_DELETE_DISCARDED = """\
-- relay.delete_discarded
DELETE FROM ferryman.outbox_exception e
USING (SELECT h.position FROM ferryman.outbox_held h
       WHERE h.position > %(start)s AND h.lane = ANY (%(lanes)s) ORDER BY h.position LIMIT %(most)s) h
WHERE e.position = h.position AND e.status = 'DISCARDED'
  AND e.changed_at < now() - %(retention)s * interval '1 second'
"""

# Only what its lane has behind it: an entry may have been appended to no segment of the ring by hand.
_DELETE_HELD = """\
-- relay.delete_held
WITH looked AS MATERIALIZED (
    SELECT h.ctid AS place, h.position, h.lane, h.xid, h.created_at FROM ferryman.outbox_held h
    WHERE h.position > %(start)s AND h.lane = ANY (%(lanes)s) ORDER BY h.position LIMIT %(most)s
), gone AS (
    DELETE FROM ferryman.outbox_held WHERE ctid = ANY (ARRAY(
        SELECT h.place FROM looked h JOIN ferryman.outbox_lanes l ON l.lane = h.lane
        WHERE h.created_at < now() - %(retention)s * interval '1 second'
          AND pg_visible_in_snapshot(h.xid, l.done_snapshot)
          AND NOT EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = h.position)
    ))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), CASE WHEN count(*) = %(most)s THEN max(position) ELSE 0 END FROM looked
"""


def by_index(connection: Connection) -> None:
    connection.execute(_INDEXED)


def delete_windows(connection: Connection, start: int, most: int) -> tuple[int, int]:
    """Those that no cursor needs, of the next `most` numbers; returns how many, and where to go on."""
    return _pair(connection, _DELETE_WINDOWS, {"start": start, "most": most})


def delete_keys(
    connection: Connection, start: datetime | None, most: int, retention_seconds: float
) -> tuple[int, datetime | None]:
    """Those past their retention, oldest first; returns how many, and where to go on."""
    wanted = {"start": start, "most": most, "retention": retention_seconds}
    return _pair(connection, _DELETE_KEYS, wanted)


def delete_held(
    connection: Connection, start: int, most: int, retention_seconds: float, *, statement_seconds: float
) -> tuple[int, int]:
    """Held entries that nothing needs any more, of the next `most` in the lanes that nobody works in at this moment.

    Whoever replays one by hand holds its lane: so none goes that is about to be needed.
    """
    free = lanes.claim(connection, range(LANES), LANES, idle_seconds=10, statement_seconds=statement_seconds).lanes
    wanted = {"start": start, "most": most, "retention": retention_seconds, "lanes": free}
    connection.execute(_DELETE_DISCARDED, wanted)
    return _pair(connection, _DELETE_HELD, wanted)


def _pair(connection: Connection, statement: str, wanted: dict[str, Any]) -> tuple[int, Any]:
    row = connection.execute(statement, wanted).fetchone()
    assert row is not None
    return row[0], row[1]
