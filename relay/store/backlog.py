"""Reads of unpublished entries and of what holds them up, for metrics, summaries and the commands."""

from typing import Any, NamedTuple

from ferryman.relay.store import claims
from ferryman.runtime.desk import Row, dict_rows, read_paused
from ferryman.runtime.postgres import Connection, value

_BACKLOG = """\
-- relay.backlog
SELECT topic, pending, oldest_age_seconds, retrying, parked, failed FROM ferryman.backlog ORDER BY topic
"""

_WAITING = """\
-- relay.waiting
SELECT count(*) FROM ferryman.outbox_exception WHERE status IN ('RETRYING', 'REPLAYING', 'PARKED')
"""

_WINDOW_AGE = """\
-- relay.window_age
SELECT extract(epoch FROM clock_timestamp() - min(w.taken_at))::float8
FROM ferryman.outbox_lanes l JOIN ferryman.outbox_window w ON w.id = l.done
"""

_SEGMENTS_IN_USE = """\
-- relay.segments_in_use
SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ferryman.outbox'::regclass AND c.relname ~ '^outbox_[0-7]$' AND pg_relation_size(c.oid) > 0
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

# The facts that explain an entry's status, beside the entry itself.
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

_AUDIT = """\
-- outbox.audit
SELECT id, at, who, act, reason, filter, entries FROM ferryman.outbox_audit ORDER BY id DESC LIMIT %(most)s
"""

_HOLDING_UP = {"parked_topics": _PARKED_TOPICS, "segments": _SEGMENTS, "lanes": _LANES, "replays": _REPLAYS}


class Backlog(NamedTuple):
    """The number of a topic's unpublished entries, by status."""

    topic: str
    pending: int
    oldest_age_seconds: float | None
    retrying: int
    parked: int
    failed: int
    claimed: int = 0
    """Rows of a described table that are being sent."""
    held: int = 0
    """Rows of a described table that may have been sent, and wait for a person."""

    @property
    def waiting(self) -> int:
        """The number of rows of a described table that are not sent yet, and are not given up."""
        return self.pending + self.retrying + self.claimed

    def as_dict(self) -> dict[str, Any]:
        """Return the counts that entries have: none of them is claimed or held."""
        return {name: value for name, value in self._asdict().items() if name not in ("claimed", "held")}


def read(connection: Connection) -> list[Backlog]:
    return [Backlog(*row) for row in connection.execute(_BACKLOG).fetchall()]


def waiting(connection: Connection) -> int:
    """Return how many entries are tried again later, or wait behind such entries."""
    return int(value(connection.execute(_WAITING)))


def window_age_seconds(connection: Connection) -> float:
    """Return the age of the oldest window that a lane stands at."""
    return float(value(connection.execute(_WINDOW_AGE)) or 0)


def segments_in_use(connection: Connection) -> int:
    """Return how many of the ring's eight segments hold entries."""
    return int(value(connection.execute(_SEGMENTS_IN_USE)))


def statistics(connection: Connection) -> dict[str, Any]:
    """Return the sums per topic and altogether, and everything that holds entries up."""
    topics = read(connection)
    return {
        "topics": [each.as_dict() for each in topics],
        "pending": sum(each.pending for each in topics),
        "oldest_age_seconds": max(
            (age for each in topics if (age := each.oldest_age_seconds) is not None), default=None
        ),
        "retrying": sum(each.retrying for each in topics),
        "parked": sum(each.parked for each in topics),
        "failed": sum(each.failed for each in topics),
        "paused": read_paused(connection, "topic"),
        **{name: dict_rows(connection, statement) for name, statement in _HOLDING_UP.items()},
    }


def facts(connection: Connection, position: int, *, payload: bool) -> Row | None:
    """Return what explains the status of the entry at a position; its payload only if it was asked for."""
    found = next(iter(dict_rows(connection, _FACTS, {"position": position})), None)
    return found and {**found, "payload": claims.payload(connection, position) if payload else None}


def audit(connection: Connection, most: int) -> list[Row]:
    """Return the latest acts by hand, the newest first."""
    return dict_rows(connection, _AUDIT, {"most": most})
