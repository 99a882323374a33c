"""How consumers stand: verdicts, what was rejected and waits, partitions, pauses. Nothing here counts all receipts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from psycopg.rows import dict_row

from ferryman.consumer.store.receipts import Connection

Row = dict[str, Any]

# By their indexes, whatever the statistics say.
_PREPARE = """\
-- inbox.prepare_reading
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true)
"""

# A step through the index for each consumer, however many receipts it has.
_CONSUMERS = """\
-- inbox.consumers
WITH RECURSIVE known (consumer) AS (
    (SELECT i.consumer FROM ferryman.inbox i ORDER BY i.consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT i.consumer FROM ferryman.inbox i WHERE i.consumer > k.consumer ORDER BY i.consumer LIMIT 1)
    FROM known k WHERE k.consumer IS NOT NULL
)
SELECT consumer FROM known WHERE consumer IS NOT NULL
UNION SELECT consumer FROM ferryman.inbox_start
UNION SELECT consumer FROM ferryman.inbox_rejected
UNION SELECT consumer FROM ferryman.inbox_paused
ORDER BY consumer
"""

_UNUSUAL = """\
-- inbox.unusual
SELECT consumer, status, count(*) AS receipts FROM ferryman.inbox WHERE status <> 'HANDLED' GROUP BY consumer, status
"""

_NEWEST = """\
-- inbox.newest
SELECT count(*) FILTER (WHERE n.outcome = 'DONE') AS done, count(*) FILTER (WHERE n.outcome = 'REFUSED') AS refused,
       count(*) AS looked_at
FROM (SELECT outcome FROM ferryman.inbox WHERE consumer = %(consumer)s ORDER BY received_at DESC LIMIT %(most)s) n
"""

# As the planner thinks: by the last ANALYZE, and by what the table has grown since.
_ESTIMATE = """\
-- inbox.estimate
EXPLAIN (FORMAT JSON) SELECT FROM ferryman.inbox WHERE consumer = %(consumer)s
"""

_WAITING = """\
-- inbox.waiting
SELECT consumer, code, count(*) AS waiting,
       extract(epoch FROM clock_timestamp() - min(rejected_at))::float8 AS oldest_age_seconds
FROM ferryman.inbox_rejected WHERE status = 'REJECTED' GROUP BY consumer, code ORDER BY consumer, code
"""

_PARTITIONS = """\
-- inbox.partitions
SELECT consumer, count(*) FILTER (WHERE owned) AS owned, count(*) FILTER (WHERE NOT owned) AS released,
       json_agg(json_build_object('topic', topic, 'partition', partition, 'offset', "offset", 'starts', starts)
                ORDER BY topic, partition) FILTER (WHERE starts > 1) AS suspects
FROM ferryman.inbox_start GROUP BY consumer
"""

_PAUSED = """\
-- inbox.paused
SELECT consumer, since, who, reason FROM ferryman.inbox_paused ORDER BY consumer
"""

# A session of another role shows its application name to everyone.
_PROCESSES = """\
-- inbox.processes
SELECT c.consumer, count(a.pid) AS processes
FROM unnest(%(consumers)s::text[]) c (consumer)
LEFT JOIN pg_stat_activity a
    ON a.datname = current_database() AND a.application_name = left('ferryman ' || c.consumer, 63)
GROUP BY c.consumer
"""

# A session of another role shows its application name to everyone.
_RELAYS = """\
-- inbox.relays
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'ferryman relay%%'
"""

_HAS_RUN = """\
-- inbox.has_run
SELECT EXISTS (SELECT FROM ferryman.inbox_start WHERE consumer = %(consumer)s)
"""


def prepare(connection: Connection) -> None:
    connection.execute(_PREPARE)


def consumers(connection: Connection) -> list[str]:
    """Every consumer that this database knows of."""
    return [name for (name,) in connection.execute(_CONSUMERS).fetchall()]


def unusual(connection: Connection) -> dict[str, dict[str, int]]:
    """Of each consumer, how many receipts have a status other than HANDLED."""
    found: dict[str, dict[str, int]] = {}
    for row in _rows(connection, _UNUSUAL):
        found.setdefault(row["consumer"], {})[row["status"]] = row["receipts"]
    return found


def newest(connection: Connection, consumer: str, most: int) -> Row:
    """Of the newest receipts, how many are DONE and REFUSED, and how many were looked at."""
    return _rows(connection, _NEWEST, {"consumer": consumer, "most": most})[0]


def estimate(connection: Connection, consumer: str) -> int:
    """About how many receipts it has."""
    row = connection.execute(_ESTIMATE, {"consumer": consumer}).fetchone()
    assert row is not None
    plan = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    return int(plan[0]["Plan"]["Plan Rows"])


def waiting(connection: Connection) -> list[Row]:
    """By consumer and code: how many rejected records wait for a person, and for how long the oldest has."""
    return _rows(connection, _WAITING)


def partitions(connection: Connection) -> dict[str, Row]:
    return {row["consumer"]: row for row in _rows(connection, _PARTITIONS)}


def paused(connection: Connection) -> list[Row]:
    return _rows(connection, _PAUSED)


def processes(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Of each consumer, how many sessions there are in this database."""
    return {row["consumer"]: row["processes"] for row in _rows(connection, _PROCESSES, {"consumers": list(names)})}


def relays(connection: Connection) -> int:
    """How many sessions of relays there are in this database."""
    row = connection.execute(_RELAYS, {}).fetchone()
    assert row is not None
    return int(row[0])


def has_run(connection: Connection, consumer: str) -> bool:
    """Whether it ever owned a partition on this database."""
    row = connection.execute(_HAS_RUN, {"consumer": consumer}).fetchone()
    return bool(row and row[0])


def _rows(connection: Connection, statement: LiteralString, values: Mapping[str, Any] | None = None) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, values).fetchall()
