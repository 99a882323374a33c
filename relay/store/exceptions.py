"""Entries that failed, wait behind a failed one, or are published once more; changed only while their lane is held.

A parked key has a RETRYING entry at its head and PARKED ones behind it; a parked topic has PARKED ones only. A key or a
topic stays parked until the last of them is published, so that new entries join the tail.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ferryman.relay.model import Due, Entry, Place, key_of, lane_of, topic_of
from ferryman.relay.policy import PAUSED, ExceptionState
from ferryman.relay.store.claims import COLUMNS
from ferryman.runtime.postgres import Connection

ParkedKey = tuple[int, str, str]
"""The lane, the topic and the key of entries that wait."""

ParkedTopic = tuple[int, str]
"""A topic in one lane whose entries wait."""

_PARKED = """\
-- relay.parked_keys
SELECT DISTINCT p.topic, p.key
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) wanted (lane, topic, key)
JOIN ferryman.outbox_parked_key p USING (lane, topic, key)
"""

_WAITING = """\
-- relay.waiting_keys
SELECT DISTINCT w.topic, w.key
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) w (lane, topic, key)
WHERE EXISTS (
    SELECT FROM ferryman.outbox_exception e
    WHERE e.lane = w.lane AND e.topic = w.topic AND e.key = w.key AND e.status IN ('RETRYING', 'PARKED')
)
"""

_READ_DUE = f"""\
-- relay.read_due
SELECT {COLUMNS}, due.attempts, due.replay
FROM unnest(%(lanes)s::smallint[]) l (lane)
CROSS JOIN LATERAL (
    SELECT e.position, e.attempts, e.replay, e.next_attempt_at FROM ferryman.outbox_exception e
    WHERE e.lane = l.lane AND e.next_attempt_at <= statement_timestamp()
    ORDER BY e.lane, e.next_attempt_at, e.position LIMIT %(most)s
) due
JOIN ferryman.outbox o ON o.position = due.position
ORDER BY due.next_attempt_at, due.position LIMIT %(most)s
"""  # noqa: S608 - only our own columns are put in

_RECORD = """\
-- relay.record_exceptions
INSERT INTO ferryman.outbox_exception AS known (position, lane, topic, key, status, attempts, next_attempt_at, error)
SELECT e.position, e.lane, e.topic, e.key, e.status, e.attempts,
       clock_timestamp() + e.delay * interval '1 second', e.error
FROM unnest(%(positions)s::bigint[], %(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[], %(statuses)s::text[],
            %(attempts)s::smallint[], %(delays)s::float8[], %(errors)s::text[])
     e (position, lane, topic, key, status, attempts, delay, error)
ON CONFLICT (position) DO UPDATE
SET status = excluded.status, attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at,
    error = coalesce(excluded.error, known.error), changed_at = clock_timestamp()
"""

_PARK_KEYS = """\
-- relay.park_keys
INSERT INTO ferryman.outbox_parked_key (lane, topic, key)
SELECT DISTINCT lane, topic, key
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) p (lane, topic, key)
ORDER BY lane, topic, key ON CONFLICT DO NOTHING
"""

_PARK_TOPICS = """\
-- relay.park_topics
INSERT INTO ferryman.outbox_parked_topic AS known (lane, topic, reason)
SELECT lane, topic, reason
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(reasons)s::text[]) p (lane, topic, reason)
ON CONFLICT (lane, topic) DO UPDATE
SET reason = excluded.reason,
    since = CASE known.reason WHEN %(paused)s THEN clock_timestamp() ELSE known.since END
WHERE known.reason <> excluded.reason
"""

# Entries that were released and not tried yet wait again, behind those that were tried, so that all keep their order.
_WAIT_FOR_TOPICS = """\
-- relay.wait_for_topics
UPDATE ferryman.outbox_exception e SET status = 'PARKED', next_attempt_at = NULL, changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[]) refused (lane, topic)
WHERE e.lane = refused.lane AND e.topic = refused.topic AND e.next_attempt_at <= statement_timestamp()
"""

_PUBLISHED = """\
-- relay.exceptions_published
DELETE FROM ferryman.outbox_exception WHERE position = ANY (%(positions)s::bigint[])
"""

# The entry that failed stays the head: those that were released with it wait again.
_WAIT_BEHIND = """\
-- relay.wait_behind
UPDATE ferryman.outbox_exception e SET status = 'PARKED', next_attempt_at = NULL, changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[], %(positions)s::bigint[])
     head (lane, topic, key, position)
WHERE e.lane = head.lane AND e.topic = head.topic AND e.key = head.key AND e.position > head.position
  AND e.status IN ('RETRYING', 'REPLAYING') AND e.next_attempt_at IS NOT NULL
"""

# Status of the first unfinished entry of the parked key `p`: one index probe, however many wait.
_HEAD = """\
(SELECT head.status FROM ferryman.outbox_exception head
 WHERE head.lane = p.lane AND head.topic = p.topic AND head.key = p.key AND head.status IN ('RETRYING', 'PARKED')
 ORDER BY head.lane, head.topic, head.key, head.position LIMIT 1)"""

# The same moment for all of a batch: entries that are due at once go in the order of positions.
_RELEASE_KEYS = """\
-- relay.release_keys
UPDATE ferryman.outbox_exception e
SET status = 'RETRYING', attempts = 0, next_attempt_at = statement_timestamp(), changed_at = clock_timestamp()
FROM (
    SELECT p.lane, p.topic, p.key
    FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) freed (lane, topic, key)
    JOIN ferryman.outbox_parked_key p USING (lane, topic, key)
    WHERE $head = 'PARKED' OFFSET 0
) p
CROSS JOIN LATERAL (
    SELECT w.position FROM ferryman.outbox_exception w
    WHERE w.lane = p.lane AND w.topic = p.topic AND w.key = p.key AND w.status = 'PARKED'
    ORDER BY w.lane, w.topic, w.key, w.position LIMIT %(most)s
) next
WHERE e.position = next.position
""".replace("$head", _HEAD)

_UNPARK_KEYS = """\
-- relay.unpark_keys
DELETE FROM ferryman.outbox_parked_key p
USING unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) freed (lane, topic, key)
WHERE p.lane = freed.lane AND p.topic = freed.topic AND p.key = freed.key
  AND NOT EXISTS (
      SELECT FROM ferryman.outbox_exception e
      WHERE e.lane = freed.lane AND e.topic = freed.topic AND e.key = freed.key AND e.status IN ('RETRYING', 'PARKED')
  )
"""

# A key that failed for a reason of its own is released by itself, unless its head waits for the topic too.
_BEHIND_ITS_KEY = """\
EXISTS (
          SELECT FROM ferryman.outbox_parked_key p
          WHERE p.lane = w.lane AND p.topic = w.topic AND p.key = w.key AND $head = 'RETRYING'
      )""".replace("$head", _HEAD)

# Key by key, since order is kept per key.
_RELEASE_WAITING = """\
-- relay.release_waiting
UPDATE ferryman.outbox_exception e
SET status = 'RETRYING', next_attempt_at = statement_timestamp(), changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[]) freed (lane, topic)
CROSS JOIN LATERAL (
    SELECT w.position FROM ferryman.outbox_exception w
    WHERE w.lane = freed.lane AND w.topic = freed.topic AND w.status = 'PARKED'
      AND NOT $behind_its_key
    ORDER BY w.lane, w.topic, w.key, w.position LIMIT %(most)s
) next
WHERE e.position = next.position
""".replace("$behind_its_key", _BEHIND_ITS_KEY)

_FREE_TOPICS = """\
-- relay.free_topics
DELETE FROM ferryman.outbox_parked_topic parked
USING unnest(%(lanes)s::smallint[], %(topics)s::text[]) freed (lane, topic)
WHERE parked.lane = freed.lane AND parked.topic = freed.topic
  AND NOT EXISTS (
      SELECT FROM ferryman.outbox_exception w
      WHERE w.lane = parked.lane AND w.topic = parked.topic AND w.status IN ('RETRYING', 'PARKED')
        AND NOT $behind_its_key
  )
""".replace("$behind_its_key", _BEHIND_ITS_KEY)

_FAIL_OUTAGES = """\
-- relay.fail_outages
UPDATE ferryman.outbox_exception e
SET status = 'FAILED', next_attempt_at = NULL, changed_at = clock_timestamp(),
    error = 'waited longer than relay.max_outage_seconds: ' || old.reason
FROM (
    SELECT w.position, p.reason
    FROM unnest(%(lanes)s::smallint[], %(topics)s::text[]) refused (lane, topic)
    JOIN ferryman.outbox_parked_topic p USING (lane, topic)
    CROSS JOIN LATERAL (
        SELECT w.position FROM ferryman.outbox_exception w
        WHERE w.lane = p.lane AND w.topic = p.topic AND w.status = 'PARKED' LIMIT %(most)s
    ) w
    WHERE p.reason <> %(paused)s AND p.since < clock_timestamp() - %(age)s * interval '1 second'
) old
WHERE e.position = old.position
RETURNING e.lane, e.topic, e.key
"""


def parked(connection: Connection, entries: Sequence[Entry]) -> set[Place]:
    """Return those of the entries' keys that are parked."""
    keys = {(lane_of(entry), topic_of(entry), key_of(entry)) for entry in entries}
    return {(topic, key) for topic, key in connection.execute(_PARKED, columns(keys)).fetchall()}


def waiting(connection: Connection, entries: Sequence[Entry]) -> set[Place]:
    """Return those of the entries' keys of which an entry waits."""
    keys = {(lane_of(entry), topic_of(entry), key_of(entry)) for entry in entries}
    return {(topic, key) for topic, key in connection.execute(_WAITING, columns(keys)).fetchall()} if keys else set()


def read_due(connection: Connection, lanes: Sequence[int], most: int) -> list[Due]:
    """Return what must be tried now, ordered by when it was due, then by position."""
    rows = connection.execute(_READ_DUE, {"lanes": list(lanes), "most": most}, binary=True).fetchall()
    return [Due(Entry(*entry), attempts, replay) for *entry, attempts, replay in rows]


def record(connection: Connection, states: Mapping[Entry, ExceptionState]) -> None:
    """Write down the new state of each entry."""
    if not states:
        return
    values: dict[str, Any] = {
        "positions": [entry.position for entry in states],
        **columns([(entry.lane, entry.topic, entry.key) for entry in states]),
        "statuses": [each.status for each in states.values()],
        "attempts": [each.attempts for each in states.values()],
        "delays": [each.delay_seconds for each in states.values()],
        "errors": [each.error for each in states.values()],
    }
    connection.execute(_RECORD, values)


def park_keys(connection: Connection, entries: Collection[Entry]) -> None:
    """Make later entries of these keys wait; those that were released with them wait again."""
    if entries:
        values = columns([(entry.lane, entry.topic, entry.key) for entry in entries])
        connection.execute(_PARK_KEYS, values)
        connection.execute(_WAIT_BEHIND, values | {"positions": [entry.position for entry in entries]})


def park_topics(connection: Connection, topics: Mapping[ParkedTopic, str]) -> None:
    """Make entries of these topics wait in these lanes, for this reason."""
    if topics:
        values = columns(topics) | {"reasons": list(topics.values()), "paused": PAUSED}
        connection.execute(_PARK_TOPICS, values)
        connection.execute(_WAIT_FOR_TOPICS, values)


def published(connection: Connection, entries: Collection[Entry]) -> None:
    """Forget the exceptions of entries that were published."""
    if entries:
        connection.execute(_PUBLISHED, {"positions": [entry.position for entry in entries]})


def release_keys(connection: Connection, keys: Collection[ParkedKey], most: int) -> None:
    """Make the next waiting entries due of each key whose head is finished; free keys that nothing waits for.

    About `most` are released of all keys together, so that however many keys there are, what is due stays a batch.
    """
    if keys:
        connection.execute(_RELEASE_KEYS, columns(keys) | {"most": max(1, most // len(keys))})
        connection.execute(_UNPARK_KEYS, columns(keys))


def release_waiting(connection: Connection, topics: Collection[ParkedTopic], most: int) -> None:
    """Make the next waiting entries of each topic due, about `most` of all together."""
    if topics:
        connection.execute(_RELEASE_WAITING, columns(topics) | {"most": max(1, most // len(topics))})


def free_topics(connection: Connection, topics: Collection[ParkedTopic]) -> None:
    """Free the topics that nothing waits for."""
    if topics:
        connection.execute(_FREE_TOPICS, columns(topics))


def fail_outages(connection: Connection, topics: Collection[ParkedTopic], age_seconds: float, most: int) -> list[str]:
    """Mark entries FAILED that waited too long for these topics, and free their keys. Return the topic of each."""
    if not topics:
        return []
    values = columns(topics) | {"paused": PAUSED, "age": age_seconds, "most": most}
    keys = connection.execute(_FAIL_OUTAGES, values).fetchall()
    connection.execute(_UNPARK_KEYS, columns(set(keys)))
    return [topic for _, topic, _ in keys]


def columns(keys: Collection[ParkedKey] | Collection[ParkedTopic]) -> dict[str, Any]:
    """Return the keys, or topics, as the arrays that the statements take."""
    arrays = [list(array) for array in zip(*keys, strict=True)] or [[], [], []]
    return dict(zip(("lanes", "topics", "keys"), arrays, strict=False))
