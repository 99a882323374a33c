"""Entries that fail, wait behind one that does, or are published once more; changed only while their lane is held.

A parked key has a RETRYING entry at its head, and PARKED ones behind it; a parked topic has PARKED ones only. A key or
a topic stays parked until the last of them is out, so that newcomers join the tail.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ferryman.relay.model import Due, Entry, Place, lane_of
from ferryman.relay.policy import PAUSED, Standing
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

# What was released and not tried yet stands behind what was tried: it waits again, so that they keep their order.
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

# The one that failed stays the head: whoever was released with it waits again.
_WAIT_BEHIND = """\
-- relay.wait_behind
UPDATE ferryman.outbox_exception e SET status = 'PARKED', next_attempt_at = NULL, changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[], %(positions)s::bigint[])
     head (lane, topic, key, position)
WHERE e.lane = head.lane AND e.topic = head.topic AND e.key = head.key AND e.position > head.position
  AND e.status IN ('RETRYING', 'REPLAYING') AND e.next_attempt_at IS NOT NULL
"""

# How the first of a parked key `p` stands that is not out and not given up: a place in an index, however many wait.
_HEAD = """\
(SELECT head.status FROM ferryman.outbox_exception head
 WHERE head.lane = p.lane AND head.topic = p.topic AND head.key = p.key AND head.status IN ('RETRYING', 'PARKED')
 ORDER BY head.lane, head.topic, head.key, head.position LIMIT 1)"""

# One moment for all of a batch: what is due at once goes in the order of positions.
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

# Key by key: the order that matters is that of a key. A key that failed on its own is released by itself, unless its
# head waits too.
_RELEASE_TOPICS = """\
-- relay.release_topics
UPDATE ferryman.outbox_exception e
SET status = 'RETRYING', next_attempt_at = statement_timestamp(), changed_at = clock_timestamp()
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[]) freed (lane, topic)
CROSS JOIN LATERAL (
    SELECT w.position FROM ferryman.outbox_exception w
    WHERE w.lane = freed.lane AND w.topic = freed.topic AND w.status = 'PARKED'
      AND NOT EXISTS (
          SELECT FROM ferryman.outbox_parked_key p
          WHERE p.lane = w.lane AND p.topic = w.topic AND p.key = w.key AND $head = 'RETRYING'
      )
    ORDER BY w.lane, w.topic, w.key, w.position LIMIT %(most)s
) next
WHERE e.position = next.position
""".replace("$head", _HEAD)

_UNPARK_TOPICS = """\
-- relay.unpark_topics
DELETE FROM ferryman.outbox_parked_topic parked
USING unnest(%(lanes)s::smallint[], %(topics)s::text[]) freed (lane, topic)
WHERE parked.lane = freed.lane AND parked.topic = freed.topic
  AND NOT EXISTS (
      SELECT FROM ferryman.outbox_exception e
      WHERE e.lane = parked.lane AND e.topic = parked.topic AND e.status IN ('RETRYING', 'PARKED')
        AND NOT EXISTS (
            SELECT FROM ferryman.outbox_parked_key p
            WHERE p.lane = e.lane AND p.topic = e.topic AND p.key = e.key AND $head = 'RETRYING'
        )
  )
""".replace("$head", _HEAD)

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
RETURNING e.topic
"""


def parked(connection: Connection, entries: Sequence[Entry]) -> set[Place]:
    """Which of these entries' keys are parked."""
    places = {(lane_of(entry), entry[2], entry[3]) for entry in entries}
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
        values = {"lanes": lanes, "topics": names, "reasons": list(topics.values()), "paused": PAUSED}
        connection.execute(_PARK_TOPICS, values)
        connection.execute(_WAIT_FOR_TOPICS, values)


def published(connection: Connection, entries: Collection[Entry]) -> None:
    if entries:
        connection.execute(_PUBLISHED, {"positions": [entry.position for entry in entries]})


def release_keys(connection: Connection, keys: Collection[tuple[int, str, str]], most: int) -> None:
    """The next waiting ones of each key whose head is out are due; a key of which nothing waits is free.

    About `most` of all keys together, so that however many are released, what is due stays a batch.
    """
    if keys:
        connection.execute(_RELEASE_KEYS, _columns(keys) | {"most": max(1, most // len(keys))})
        connection.execute(_UNPARK_KEYS, _columns(keys))


def release_topics(connection: Connection, topics: Collection[tuple[int, str]], most: int) -> int:
    """The next waiting ones of each topic are due, about `most` of all together; how many. A topic that nothing waits
    for is free.
    """
    if not topics:
        return 0
    values: dict[str, Any] = {"lanes": [lane for lane, _ in topics], "topics": [topic for _, topic in topics]}
    values["most"] = max(1, most // len(topics))
    released = connection.execute(_RELEASE_TOPICS, values).rowcount
    connection.execute(_UNPARK_TOPICS, values)
    return released


def fail_outages(
    connection: Connection, topics: Collection[tuple[int, str]], age_seconds: float, most: int
) -> list[str]:
    """What waited for these topics for longer than it may is FAILED; the topic of each."""
    if not topics:
        return []
    values = {
        "lanes": [lane for lane, _ in topics],
        "topics": [topic for _, topic in topics],
        "paused": PAUSED,
        "age": age_seconds,
        "most": most,
    }
    return [topic for (topic,) in connection.execute(_FAIL_OUTAGES, values).fetchall()]


def _columns(keys: Collection[tuple[int, str, str]]) -> dict[str, Any]:
    return {
        "lanes": [lane for lane, _, _ in keys],
        "topics": [topic for _, topic, _ in keys],
        "keys": [key for _, _, key in keys],
    }
