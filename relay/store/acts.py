"""What people change by hand: replays, discards, pauses. Exceptions are changed only while their lane is held."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from ferryman.relay.store.lanes import Connection, value

Place = tuple[int, str, str]
"""The lane, the topic and the key of an entry."""

_START_REPLAY = """\
-- outbox.start_replay
INSERT INTO ferryman.outbox_replay (who, reason, filter, rate, last_position)
VALUES (%(who)s, %(reason)s, %(filter)s, %(rate)s, %(last)s) RETURNING id
"""

_READ_REPLAY = """\
-- outbox.read_replay
SELECT id, who, reason, filter, rate, position, last_position, entries, finished_at
FROM ferryman.outbox_replay WHERE id = %(id)s
"""

# One moment for all of the statement: what is due at once goes in the order of positions.
_QUEUE = """\
-- outbox.queue_replay
INSERT INTO ferryman.outbox_exception AS known (position, lane, topic, key, status, next_attempt_at, replay)
SELECT e.position, e.lane, e.topic, e.key, 'REPLAYING', statement_timestamp(), %(id)s
FROM ferryman.outbox_entries e
WHERE e.position = ANY (%(positions)s::bigint[]) AND e.status = ANY (%(statuses)s::text[])
ORDER BY e.position
ON CONFLICT (position) DO UPDATE
SET status = 'REPLAYING', attempts = 0, next_attempt_at = excluded.next_attempt_at, error = NULL,
    replay = excluded.replay, changed_at = clock_timestamp()
WHERE known.status IN ('FAILED', 'DISCARDED')
"""

# From where the caller knows it to be: two who go on with one replay cannot both pass here.
_ADVANCE_REPLAY = """\
-- outbox.advance_replay
UPDATE ferryman.outbox_replay SET position = %(upto)s, entries = entries + %(entries)s
WHERE id = %(id)s AND position = %(after)s AND finished_at IS NULL
"""

_FINISH_REPLAY = """\
-- outbox.finish_replay
UPDATE ferryman.outbox_replay SET finished_at = clock_timestamp() WHERE id = %(id)s AND finished_at IS NULL
"""

_REPLAY_LEFT = """\
-- outbox.replay_left
SELECT count(*) FILTER (WHERE status IN ('REPLAYING', 'RETRYING', 'PARKED')), count(*) FILTER (WHERE status = 'FAILED')
FROM ferryman.outbox_exception WHERE replay = %(id)s
"""

_CAN_BE_DISCARDED = """\
FROM ferryman.outbox_exception x JOIN ferryman.outbox o ON o.position = x.position
WHERE x.position < %(before)s AND x.position <= %(last)s AND x.status = ANY (%(statuses)s::text[])
  AND (%(positions)s::bigint[] IS NULL OR x.position = ANY (%(positions)s))
  AND (%(topic)s::text IS NULL OR x.topic = %(topic)s) AND (%(key)s::text IS NULL OR x.key = %(key)s)
  AND (%(type)s::text IS NULL OR o.type = %(type)s)
  AND (%(since)s::timestamptz IS NULL OR o.created_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR o.created_at < %(until)s)"""

_DISCARDABLE: LiteralString = f"""\
-- outbox.discardable
SELECT x.position, x.lane {_CAN_BE_DISCARDED} ORDER BY x.position DESC LIMIT %(most)s
"""

_COUNT_DISCARDABLE: LiteralString = f"""\
-- outbox.count_discardable
SELECT x.status, count(*) {_CAN_BE_DISCARDED} GROUP BY x.status ORDER BY x.status
"""

_KEYS_OF_DISCARDABLE: LiteralString = f"""\
-- outbox.keys_of_discardable
SELECT count(DISTINCT (x.topic, x.key)) {_CAN_BE_DISCARDED}
"""

_DISCARD = """\
-- outbox.discard
UPDATE ferryman.outbox_exception
SET status = 'DISCARDED', next_attempt_at = NULL, changed_at = clock_timestamp()
WHERE position = ANY (%(positions)s::bigint[]) AND status = ANY (%(statuses)s::text[])
RETURNING lane, topic, key
"""

_PARKED_OF = """\
-- outbox.parked_of
SELECT p.lane, p.topic, p.key
FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[]) touched (lane, topic, key)
JOIN ferryman.outbox_parked_key p USING (lane, topic, key)
"""

_PAUSE = """\
-- outbox.pause
INSERT INTO ferryman.outbox_paused (topic, who, reason) VALUES (%(topic)s, %(who)s, %(reason)s) ON CONFLICT DO NOTHING
"""

_RESUME = """\
-- outbox.resume
DELETE FROM ferryman.outbox_paused WHERE topic = %(topic)s
"""


def start_replay(
    connection: Connection, *, who: str, reason: str, said: Mapping[str, Any], rate: float | None, last: int
) -> int:
    values = {"who": who, "reason": reason, "filter": Jsonb(dict(said)), "rate": rate, "last": last}
    return int(value(connection.execute(_START_REPLAY, values)))


def read_replay(connection: Connection, replay: int) -> dict[str, Any] | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_READ_REPLAY, {"id": replay}).fetchone()


def queue_replay(connection: Connection, replay: int, positions: Sequence[int], statuses: Sequence[str]) -> int:
    """These entries are published once more, if their status is still one of those; how many."""
    values = {"id": replay, "positions": list(positions), "statuses": list(statuses)}
    return connection.execute(_QUEUE, values).rowcount


def advance_replay(connection: Connection, replay: int, after: int, upto: int, entries: int) -> bool:
    """Whether nobody else moved it."""
    values = {"id": replay, "after": after, "upto": upto, "entries": entries}
    return connection.execute(_ADVANCE_REPLAY, values).rowcount == 1


def finish_replay(connection: Connection, replay: int) -> None:
    connection.execute(_FINISH_REPLAY, {"id": replay})


def replay_left(connection: Connection, replay: int) -> tuple[int, int]:
    """Of what is queued: how many are not published yet, and how many have failed for good."""
    row = connection.execute(_REPLAY_LEFT, {"id": replay}).fetchone()
    assert row is not None
    return row[0], row[1]


def discardable(
    connection: Connection, meant: dict[str, Any], statuses: Sequence[str], *, before: int, last: int, most: int
) -> list[tuple[int, int]]:
    """(position, lane) of what is meant and can be discarded, the last first."""
    values = {**meant, "statuses": list(statuses), "before": before, "last": last, "most": most}
    return [(position, lane) for position, lane in connection.execute(_DISCARDABLE, values).fetchall()]


def count_discardable(
    connection: Connection, meant: dict[str, Any], statuses: Sequence[str], last: int
) -> dict[str, int]:
    values = {**meant, "statuses": list(statuses), "before": last + 1, "last": last}
    rows = connection.execute(_COUNT_DISCARDABLE, values).fetchall()
    return {str(status): int(count) for status, count in rows}


def keys_of_discardable(connection: Connection, meant: dict[str, Any], statuses: Sequence[str], last: int) -> int:
    values = {**meant, "statuses": list(statuses), "before": last + 1, "last": last}
    return int(value(connection.execute(_KEYS_OF_DISCARDABLE, values)))


def discard(connection: Connection, positions: Sequence[int], statuses: Sequence[str]) -> list[Place]:
    """Where each stood that was discarded."""
    values = {"positions": list(positions), "statuses": list(statuses)}
    return [(lane, topic, key) for lane, topic, key in connection.execute(_DISCARD, values).fetchall()]


def parked_of(connection: Connection, places: Sequence[Place]) -> list[Place]:
    """Which of these keys are parked."""
    values = {
        "lanes": [lane for lane, _, _ in places],
        "topics": [topic for _, topic, _ in places],
        "keys": [key for _, _, key in places],
    }
    return [(lane, topic, key) for lane, topic, key in connection.execute(_PARKED_OF, values).fetchall()]


def pause(connection: Connection, topic: str, who: str, reason: str) -> bool:
    """Whether it was not paused before."""
    return connection.execute(_PAUSE, {"topic": topic, "who": who, "reason": reason}).rowcount == 1


def resume(connection: Connection, topic: str) -> bool:
    """Whether it was paused."""
    return connection.execute(_RESUME, {"topic": topic}).rowcount == 1
