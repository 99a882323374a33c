"""How everything stands: sums per topic, the ring, the lanes, what is paused, parked and replayed, and who did it."""

from collections.abc import Mapping
from typing import Any, LiteralString

from psycopg.rows import dict_row

from ferryman.relay.store.lanes import Connection

Row = dict[str, Any]

_TOPICS = """\
-- outbox.topics
SELECT topic, pending, oldest_age_seconds, retrying, parked, failed FROM ferryman.backlog ORDER BY topic
"""

_PAUSED = """\
-- outbox.paused
SELECT CASE topic WHEN '' THEN 'outbox' ELSE topic END AS name, topic, since, who, reason
FROM ferryman.outbox_paused ORDER BY topic
"""

_PARKED_TOPICS = """\
-- outbox.parked_topics
SELECT topic, min(since) AS since, array_agg(lane ORDER BY lane) AS lanes, max(reason) AS reason
FROM ferryman.outbox_parked_topic GROUP BY topic ORDER BY topic
"""

_SEGMENTS = """\
-- outbox.segments
SELECT c.relname AS name, greatest(c.reltuples, 0)::bigint AS rows_estimate, pg_total_relation_size(c.oid) AS bytes,
       c.relname = 'outbox_' || s.segment AS current
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid CROSS JOIN ferryman.outbox_state s
WHERE i.inhparent = 'ferryman.outbox'::regclass ORDER BY c.relname
"""

_LANES = """\
-- outbox.lanes
SELECT l.lane, l.generation, coalesce(l.target_position_at, l.done_position_at) AS position_at,
       l.target IS NOT NULL AS in_step,
       extract(epoch FROM clock_timestamp() - greatest(l.written_at, w.taken_at))::float8 AS window_age_seconds
FROM ferryman.outbox_lanes l JOIN ferryman.outbox_window w ON w.id = coalesce(l.target, l.done) ORDER BY l.lane
"""

_REPLAYS = """\
-- outbox.replays
SELECT r.id, r.started_at, r.finished_at, r.who, r.reason, r.filter, r.rate, r.position, r.last_position, r.entries,
       w.waiting
FROM ferryman.outbox_replay r
LEFT JOIN (
    SELECT e.replay, count(*) AS waiting FROM ferryman.outbox_exception e
    WHERE e.replay IS NOT NULL AND e.status IN ('REPLAYING', 'RETRYING', 'PARKED') GROUP BY e.replay
) w ON w.replay = r.id
WHERE r.finished_at IS NULL OR w.waiting > 0 ORDER BY r.id
"""

# What of an entry's place, beside the entry itself, decides why it is where it is.
_FACTS = """\
-- outbox.facts
SELECT coalesce(pg_visible_in_snapshot(o.xid, l.target_snapshot), false) AS in_target,
       o.position <= l.done_position_at AS late, greatest(o.position - l.done_position_at, 0) AS ahead,
       o.headers, o.content_type,
       (SELECT reason FROM ferryman.outbox_parked_topic t WHERE t.lane = o.lane AND t.topic = o.topic) AS topic_reason,
       (SELECT since FROM ferryman.outbox_parked_topic t WHERE t.lane = o.lane AND t.topic = o.topic) AS topic_since,
       EXISTS (SELECT FROM ferryman.outbox_parked_key k
               WHERE k.lane = o.lane AND k.topic = o.topic AND k.key = o.key) AS key_parked,
       head.position AS head_position, head.attempts AS head_attempts, head.next_attempt_at AS head_next_attempt_at,
       head.error AS head_error, clock_timestamp() AS now
FROM ferryman.outbox o
JOIN ferryman.outbox_lanes l ON l.lane = o.lane
LEFT JOIN LATERAL (
    SELECT e.position, e.attempts, e.next_attempt_at, e.error FROM ferryman.outbox_exception e
    WHERE e.lane = o.lane AND e.topic = o.topic AND e.key = o.key AND e.status = 'RETRYING'
    ORDER BY e.lane, e.topic, e.key, e.position LIMIT 1
) head ON true
WHERE o.position = %(position)s
"""

_PAYLOAD = """\
-- outbox.payload
SELECT payload FROM ferryman.outbox WHERE position = %(position)s
"""

_AUDIT = """\
-- outbox.audit
SELECT id, at, who, act, reason, filter, entries FROM ferryman.outbox_audit ORDER BY id DESC LIMIT %(most)s
"""

# A session of another role shows its application name to everyone.
_RELAYS = """\
-- outbox.relays
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'ferryman relay%%'
"""


def topics(connection: Connection) -> list[Row]:
    return _rows(connection, _TOPICS)


def paused(connection: Connection) -> list[Row]:
    return _rows(connection, _PAUSED)


def parked_topics(connection: Connection) -> list[Row]:
    return _rows(connection, _PARKED_TOPICS)


def segments(connection: Connection) -> list[Row]:
    return _rows(connection, _SEGMENTS)


def lanes(connection: Connection) -> list[Row]:
    return _rows(connection, _LANES)


def replays(connection: Connection) -> list[Row]:
    """Those that are not done: not all queued, or not all published."""
    return _rows(connection, _REPLAYS)


def facts(connection: Connection, position: int) -> Row | None:
    found = _rows(connection, _FACTS, {"position": position})
    return found[0] if found else None


def payload(connection: Connection, position: int) -> bytes | None:
    row = connection.execute(_PAYLOAD, {"position": position}).fetchone()
    return bytes(row[0]) if row else None


def audit(connection: Connection, most: int) -> list[Row]:
    """What people did by hand, the newest first."""
    return _rows(connection, _AUDIT, {"most": most})


def relays(connection: Connection) -> int:
    """How many sessions of relays there are in this database."""
    row = connection.execute(_RELAYS, {}).fetchone()
    assert row is not None
    return int(row[0])


def _rows(connection: Connection, statement: LiteralString, values: Mapping[str, Any] | None = None) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, values).fetchall()
