"""The consumers of a database: their verdicts, rejected messages, partitions and processes.

No statement counts all receipts.
"""

from collections.abc import Sequence

from ferryman.runtime.desk import Connection, Row, dict_rows
from ferryman.runtime.postgres import value

# One step through the index per consumer, however many receipts it has.
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

# The planner's estimate: from the last ANALYZE, and from how much the table has grown since.
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

# Every role can see the application name of every session.
_PROCESSES = """\
-- inbox.processes
SELECT c.consumer, count(a.pid) AS processes
FROM unnest(%(consumers)s::text[]) c (consumer)
LEFT JOIN pg_stat_activity a
    ON a.datname = current_database() AND a.application_name = left('ferryman ' || c.consumer, 63)
GROUP BY c.consumer
"""

_IS_PAUSED = """\
-- consumer.paused
SELECT EXISTS (SELECT FROM ferryman.inbox_paused WHERE consumer = %(consumer)s)
"""

_COUNT_REJECTED = """\
-- consumer.count_rejected
SELECT count(*) FROM ferryman.inbox_rejected WHERE consumer = %(consumer)s AND status = 'REJECTED'
"""

_TOPICS = """\
-- inbox.topics
SELECT DISTINCT topic FROM ferryman.inbox_start WHERE consumer = %(consumer)s ORDER BY topic
"""

_POSITIONS_KNOWN = """\
-- inbox.positions_known
SELECT count(*) FROM ferryman.inbox_start
WHERE consumer = %(consumer)s AND position IS NOT NULL AND (%(topic)s::text IS NULL OR topic = %(topic)s)
"""

_FORGET_POSITIONS = """\
-- inbox.forget_positions
UPDATE ferryman.inbox_start SET position = NULL, topic_id = NULL
WHERE consumer = %(consumer)s AND position IS NOT NULL AND (%(topic)s::text IS NULL OR topic = %(topic)s)
"""

_HAS_RUN = """\
-- inbox.has_run
SELECT EXISTS (SELECT FROM ferryman.inbox_start WHERE consumer = %(consumer)s)
"""


def consumers(connection: Connection) -> list[str]:
    """Return the names of all consumers that this database knows."""
    return [name for (name,) in connection.execute(_CONSUMERS).fetchall()]


def unusual(connection: Connection) -> dict[str, dict[str, int]]:
    """Return how many receipts of each consumer have each status other than HANDLED."""
    found: dict[str, dict[str, int]] = {}
    for row in dict_rows(connection, _UNUSUAL):
        found.setdefault(row["consumer"], {})[row["status"]] = row["receipts"]
    return found


def newest(connection: Connection, consumer: str, most: int) -> Row:
    """Return how many of the newest receipts are DONE and REFUSED, and how many were looked at."""
    return dict_rows(connection, _NEWEST, {"consumer": consumer, "most": most})[0]


def estimate(connection: Connection, consumer: str) -> int:
    """Return an estimate of how many receipts the consumer has."""
    plan = value(connection.execute(_ESTIMATE, {"consumer": consumer}))
    return int(plan[0]["Plan"]["Plan Rows"])


def waiting(connection: Connection) -> list[Row]:
    """Return, by consumer and code, how many rejected records wait for a person, and the age of the oldest."""
    return dict_rows(connection, _WAITING)


def partitions(connection: Connection) -> dict[str, Row]:
    return {row["consumer"]: row for row in dict_rows(connection, _PARTITIONS)}


def processes(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return how many sessions each consumer has in this database."""
    return dict(connection.execute(_PROCESSES, {"consumers": list(names)}).fetchall())


def has_run(connection: Connection, consumer: str) -> bool:
    """Return True if the consumer ever owned a partition on this database."""
    return bool(value(connection.execute(_HAS_RUN, {"consumer": consumer})))


def topics(connection: Connection, consumer: str) -> list[str]:
    """Return the topics of which the consumer ever owned a partition on this database."""
    return [topic for (topic,) in connection.execute(_TOPICS, {"consumer": consumer}).fetchall()]


def positions_known(connection: Connection, consumer: str, topic: str | None) -> int:
    """Return of how many partitions this database knows the consumer's position."""
    return int(value(connection.execute(_POSITIONS_KNOWN, {"consumer": consumer, "topic": topic})))


def forget_positions(connection: Connection, consumer: str, topic: str | None) -> int:
    """Forget the positions, so that the consumer begins at Kafka's offsets. Return how many were known."""
    return connection.execute(_FORGET_POSITIONS, {"consumer": consumer, "topic": topic}).rowcount


def is_paused(connection: Connection, consumer: str) -> bool:
    return bool(value(connection.execute(_IS_PAUSED, {"consumer": consumer})))


def count_rejected(connection: Connection, consumer: str) -> int:
    """Return how many rejected messages wait for a person."""
    return int(value(connection.execute(_COUNT_REJECTED, {"consumer": consumer})))
