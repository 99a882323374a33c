"""Entries that fail, wait behind one that does, or are published once more; changed only while their lane is held.

A parked key has a RETRYING entry at its head, and PARKED ones behind it; a parked topic has PARKED ones only. A key or
a topic stays parked until the last of them is out, so that newcomers join the tail.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ferryman.relay.model import Due, Entry, Place
from ferryman.relay.policy import Standing
from ferryman.relay.store.lanes import Connection
from ferryman.relay.store.reading import COLUMNS

_PARKED = """\
-- relay.parked_keys
SELECT DISTINCT p.topic, p.key
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) wanted (lane, topic, key)
JOIN ferryman.outbox_parked_key p USING (lane, topic, key)
"""

_READ_DUE = f"""\
-- relay.read_due
SELECT {COLUMNS}, due.attempts, due.replay
FROM unnest(%(lanes)s::smallint[]) l (lane)
CROSS JOIN LATERAL (
    SELECT e.position, e.attempts, e.replay, e.next_attempt_at FROM ferryman.outbox_exception e
    WHERE e.lane = l.lane AND e.next_attempt_at <= clock_timestamp()
    ORDER BY e.lane, e.next_attempt_at, e.position LIMIT %(most)s
) due
JOIN ferryman.outbox o ON o.position = due.position
ORDER BY due.next_attempt_at, due.position LIMIT %(most)s
"""  # noqa: S608 - only our own columns are put in

_RECORD = """\
-- relay.record_exceptions
INSERT INTO ferryman.outbox_exception AS known (position, lane, topic, key, status, attempts, next_attempt_at, error)
SELECT e.position, e.lane, e.topic, e.key, e.status, e.attempts, clock_timestamp() + e.delay * interval '1 second', e.error
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
SELECT lane, topic, reason FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(reasons)s::text[]) p (lane, topic, reason)
ON CONFLICT (lane, topic) DO UPDATE SET reason = excluded.reason WHERE known.reason <> excluded.reason
"""

_PUBLISHED = """\
-- relay.exceptions_published
DELETE FROM ferryman.outbox_exception WHERE position = ANY (%(positions)s::bigint[])
"""

# The one that failed stays the head: whoever was released with it waits again.
_WAIT_BEHIND = """\
-- relay.wait_behind
UPDATE ferryman.outbox_exception e SET status = 'PARKED', next_attempt_at = NULL, changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[], %(positions)s::bigint[])
     head (lane, topic, key, position)
WHERE e.lane = head.lane AND e.topic = head.topic AND e.key = head.key AND e.position > head.position
  AND e.status IN ('RETRYING', 'REPLAYING')
"""

_POSTPONE = """\
-- relay.postpone
UPDATE ferryman.outbox_exception SET next_attempt_at = clock_timestamp() + %(delay)s * interval '1 second'
WHERE position = ANY (%(positions)s::bigint[])
"""

_RELEASE_KEYS = """\
-- relay.release_keys
UPDATE ferryman.outbox_exception e
SET status = 'RETRYING', attempts = 0, next_attempt_at = clock_timestamp(), changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) freed (lane, topic, key)
CROSS JOIN LATERAL (
    SELECT w.position FROM ferryman.outbox_exception w
    WHERE w.lane = freed.lane AND w.topic = freed.topic AND w.key = freed.key AND w.status = 'PARKED'
    ORDER BY w.lane, w.topic, w.key, w.position LIMIT %(most)s
) next
WHERE e.position = next.position
  AND EXISTS (
      SELECT FROM ferryman.outbox_parked_key p
      WHERE p.lane = freed.lane AND p.topic = freed.topic AND p.key = freed.key
  )
  AND NOT EXISTS (
      SELECT FROM ferryman.outbox_exception head
      WHERE head.lane = freed.lane AND head.topic = freed.topic AND head.key = freed.key AND head.status = 'RETRYING'
  )
"""

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

# Key by key: the order that matters is that of a key. A key that failed on its own is released by itself.
_RELEASE_TOPICS = """\
-- relay.release_topics
UPDATE ferryman.outbox_exception e
SET status = 'RETRYING', next_attempt_at = clock_timestamp(), changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[]) freed (lane, topic)
CROSS JOIN LATERAL (
    SELECT w.position FROM ferryman.outbox_exception w
    WHERE w.lane = freed.lane AND w.topic = freed.topic AND w.status = 'PARKED'
      AND NOT EXISTS (
          SELECT FROM ferryman.outbox_parked_key p WHERE p.lane = w.lane AND p.topic = w.topic AND p.key = w.key
      )
    ORDER BY w.lane, w.topic, w.key, w.position LIMIT %(most)s
) next
WHERE e.position = next.position
"""

_UNPARK_TOPICS = """\
-- relay.unpark_topics
DELETE FROM ferryman.outbox_parked_topic p
USING unnest(%(lanes)s::smallint[], %(topics)s::text[]) freed (lane, topic)
WHERE p.lane = freed.lane AND p.topic = freed.topic
  AND NOT EXISTS (
      SELECT FROM ferryman.outbox_exception e
      WHERE e.lane = p.lane AND e.topic = p.topic AND e.status IN ('RETRYING', 'PARKED')
        AND NOT EXISTS (
            SELECT FROM ferryman.outbox_parked_key k WHERE k.lane = e.lane AND k.topic = e.topic AND k.key = e.key
        )
  )
"""

_FAIL_OUTAGES = """\
-- relay.fail_outages
UPDATE ferryman.outbox_exception e
SET status = 'FAILED', next_attempt_at = NULL, changed_at = clock_timestamp(),
    error = 'waited longer than relay.max_outage_seconds: ' || old.reason
FROM (
    SELECT w.position, p.reason FROM ferryman.outbox_parked_topic p
    CROSS JOIN LATERAL (
        SELECT w.position FROM ferryman.outbox_exception w
        WHERE w.lane = p.lane AND w.topic = p.topic AND w.status = 'PARKED' LIMIT %(most)s
    ) w
    WHERE p.lane = ANY (%(lanes)s::smallint[]) AND p.topic <> ALL (%(paused)s::text[])
      AND p.since < clock_timestamp() - %(age)s * interval '1 second'
) old
WHERE e.position = old.position
"""


def parked(connection: Connection, entries: Sequence[Entry]) -> set[Place]:
    """Which of these entries' keys are parked."""
    places = {(entry.lane, entry.topic, entry.key) for entry in entries}
    return {(topic, key) for topic, key in connection.execute(_PARKED, _columns(places)).fetchall()}


def read_due(connection: Connection, lanes: Sequence[int], most: int) -> list[Due]:
    """What is to be tried now, in the order of when it was due, then of its position."""
    rows = connection.execute(_READ_DUE, {"lanes": list(lanes), "most": most}, binary=True).fetchall()
    return [Due(Entry(*row[:-2]), row[-2], row[-1]) for row in rows]


def record(connection: Connection, standings: Mapping[Entry, Standing]) -> None:
    """How these entries stand from now on."""
    if not standings:
        return
    values: dict[str, Any] = {
        "positions": [entry.position for entry in standings],
        "lanes": [entry.lane for entry in standings],
        "topics": [entry.topic for entry in standings],
        "keys": [entry.key for entry in standings],
        "statuses": [each.status for each in standings.values()],
        "attempts": [each.attempts for each in standings.values()],
        "delays": [each.delay_seconds for each in standings.values()],
        "errors": [each.error for each in standings.values()],
    }
    connection.execute(_RECORD, values)


def park_keys(connection: Connection, entries: Collection[Entry]) -> None:
    """From now on later entries of these keys wait; those that were released with them wait again."""
    if entries:
        values = _columns([(entry.lane, entry.topic, entry.key) for entry in entries])
        connection.execute(_PARK_KEYS, values)
        connection.execute(_WAIT_BEHIND, values | {"positions": [entry.position for entry in entries]})


def park_topics(connection: Connection, topics: Mapping[tuple[int, str], str]) -> None:
    """From now on entries of these topics wait in these lanes, for this reason."""
    if topics:
        lanes, names = [lane for lane, _ in topics], [name for _, name in topics]
        connection.execute(_PARK_TOPICS, {"lanes": lanes, "topics": names, "reasons": list(topics.values())})


def published(connection: Connection, entries: Collection[Entry]) -> None:
    if entries:
        connection.execute(_PUBLISHED, {"positions": [entry.position for entry in entries]})


def postpone(connection: Connection, entries: Collection[Entry], seconds: float) -> None:
    """Not now, without an attempt: for what is due while its topic is not to be tried."""
    if entries:
        connection.execute(_POSTPONE, {"positions": [entry.position for entry in entries], "delay": seconds})


def release_keys(connection: Connection, keys: Collection[tuple[int, str, str]], most: int) -> None:
    """The next waiting ones of each key whose head is out are due; a key of which nothing waits is free."""
    if keys:
        connection.execute(_RELEASE_KEYS, _columns(keys) | {"most": most})
        connection.execute(_UNPARK_KEYS, _columns(keys))


def release_topics(connection: Connection, topics: Collection[tuple[int, str]], most: int) -> int:
    """The next waiting ones of each topic are due; a topic of which nothing waits is free. How many are due."""
    if not topics:
        return 0
    values = {"lanes": [lane for lane, _ in topics], "topics": [topic for _, topic in topics], "most": most}
    released = connection.execute(_RELEASE_TOPICS, values).rowcount
    connection.execute(_UNPARK_TOPICS, values)
    return released


def fail_outages(
    connection: Connection, lanes: Sequence[int], paused: Collection[str], age_seconds: float, most: int
) -> int:
    """What waited for its topic for longer than it may is FAILED; how many."""
    values = {"lanes": list(lanes), "paused": list(paused), "age": age_seconds, "most": most}
    return connection.execute(_FAIL_OUTAGES, values).rowcount


def _columns(keys: Collection[tuple[int, str, str]]) -> dict[str, Any]:
    return {
        "lanes": [lane for lane, _, _ in keys],
        "topics": [topic for _, topic, _ in keys],
        "keys": [key for _, _, key in keys],
    }
