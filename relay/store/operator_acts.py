"""Changes that people make by hand: replays and discards. Hold an exception's lane before changing it."""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from ferryman.relay.store.exceptions import ParkedKey
from ferryman.runtime.desk import Connection, Row, dict_rows, selected
from ferryman.runtime.postgres import row

_START_REPLAY = """\
-- outbox.start_replay
INSERT INTO ferryman.outbox_replay (who, reason, filter, rate, last_position)
VALUES (%(who)s, %(reason)s, %(filter)s, %(rate)s, (SELECT coalesce(max(position), 0) FROM ferryman.outbox))
RETURNING id, who, reason, filter, rate, position, last_position, entries, finished_at
"""

_READ_REPLAY = """\
-- outbox.read_replay
SELECT id, who, reason, filter, rate, position, last_position, entries, finished_at
FROM ferryman.outbox_replay WHERE id = %(id)s
"""

# The same moment for the whole statement: entries that are due at once go in the order of positions.
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

# From the position that the caller knows: of two processes that continue one replay, only one gets past this.
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

_CAN_BE_DISCARDED: LiteralString = f"""\
FROM ferryman.outbox_exception x JOIN ferryman.outbox o ON o.position = x.position
WHERE x.position < %(before)s AND x.position <= %(last)s AND x.status = ANY (%(statuses)s::text[])
  AND (%(positions)s::bigint[] IS NULL OR x.position = ANY (%(positions)s))
  AND (%(topic)s::text IS NULL OR x.topic = %(topic)s) AND (%(key)s::text IS NULL OR x.key = %(key)s)
  AND {selected("o", "o.created_at")}"""

_DISCARDABLE: LiteralString = f"""\
-- outbox.discardable
SELECT x.position, x.lane {_CAN_BE_DISCARDED} ORDER BY x.position DESC LIMIT %(most)s
"""

# The row without a status has the sums.
_COUNT_DISCARDABLE: LiteralString = f"""\
-- outbox.count_discardable
SELECT x.status, count(*), count(DISTINCT (x.topic, x.key)) {_CAN_BE_DISCARDED} GROUP BY ROLLUP (x.status)
ORDER BY x.status
"""

_DISCARD = """\
-- outbox.discard
UPDATE ferryman.outbox_exception x
SET status = 'DISCARDED', next_attempt_at = NULL, changed_at = clock_timestamp()
WHERE x.position = ANY (%(positions)s::bigint[]) AND x.status = ANY (%(statuses)s::text[])
RETURNING x.lane, x.topic, x.key, EXISTS (
    SELECT FROM ferryman.outbox_parked_key p WHERE (p.lane, p.topic, p.key) = (x.lane, x.topic, x.key)
)
"""


def start_replay(
    connection: Connection, *, who: str, reason: str, selection: Mapping[str, Any], rate: float | None
) -> Row:
    """Record a new replay of what is in the journal now, and return it."""
    values = {"who": who, "reason": reason, "filter": Jsonb(dict(selection)), "rate": rate}
    return dict_rows(connection, _START_REPLAY, values)[0]


def read_replay(connection: Connection, replay: int) -> Row | None:
    return next(iter(dict_rows(connection, _READ_REPLAY, {"id": replay})), None)


def queue_replay(connection: Connection, replay: int, positions: Sequence[int], statuses: Sequence[str]) -> int:
    """Queue those of these entries whose status is still one of the given. Return how many."""
    values = {"id": replay, "positions": list(positions), "statuses": list(statuses)}
    return connection.execute(_QUEUE, values).rowcount


def advance_replay(connection: Connection, replay: int, after: int, upto: int, entries: int) -> bool:
    """Record how far a replay is. Return True if nobody else moved it."""
    values = {"id": replay, "after": after, "upto": upto, "entries": entries}
    return connection.execute(_ADVANCE_REPLAY, values).rowcount == 1


def finish_replay(connection: Connection, replay: int) -> None:
    connection.execute(_FINISH_REPLAY, {"id": replay})


def replay_left(connection: Connection, replay: int) -> tuple[int, int]:
    """Return how many queued entries are not published yet, and how many have failed for good."""
    waiting, failed = row(connection.execute(_REPLAY_LEFT, {"id": replay}))
    return waiting, failed


def discardable(connection: Connection, meant: Row, *, before: int, last: int, most: int) -> list[tuple[int, int]]:
    """Return (position, lane) of selected entries that can be discarded, the last first."""
    values = meant | {"before": before, "last": last, "most": most}
    return [(position, lane) for position, lane in connection.execute(_DISCARDABLE, values).fetchall()]


def count_discardable(connection: Connection, meant: Row, last: int) -> tuple[dict[str, int], int]:
    """Count selected entries that can be discarded, by status. Return the counts, and the number of their keys."""
    rows = connection.execute(_COUNT_DISCARDABLE, meant | {"before": last + 1, "last": last}).fetchall()
    *counted, (_, _, keys) = rows
    return {status: count for status, count, _ in counted}, keys


def discard(connection: Connection, positions: Sequence[int], statuses: Sequence[str]) -> tuple[int, list[ParkedKey]]:
    """Discard these entries. Return how many there were, and those of their keys that are parked."""
    rows = connection.execute(_DISCARD, {"positions": list(positions), "statuses": list(statuses)}).fetchall()
    return len(rows), sorted({(lane, topic, key) for lane, topic, key, parked in rows if parked})
