"""Marks of who owns a partition, and of messages that are begun alone: each in a transaction of its own."""

from collections.abc import Collection

from ferryman.consumer.model import Partition, Record
from ferryman.consumer.store.receipts import Connection

_OWN = """\
-- consumer.own
INSERT INTO ferryman.inbox_start AS s (consumer, topic, partition, owned)
SELECT %(consumer)s, p.topic, p.partition, true
FROM unnest(%(topics)s::text[], %(partitions)s::integer[]) p (topic, partition) ORDER BY 2, 3
ON CONFLICT (consumer, topic, partition) DO UPDATE SET owned = true
RETURNING s.topic, s.partition, (SELECT b.owned FROM ferryman.inbox_start b
                                 WHERE (b.consumer, b.topic, b.partition) = (s.consumer, s.topic, s.partition))
"""

_RELEASE = """\
-- consumer.release
UPDATE ferryman.inbox_start s SET owned = false, starts = 0
FROM unnest(%(topics)s::text[], %(partitions)s::integer[]) p (topic, partition)
WHERE s.consumer = %(consumer)s AND (s.topic, s.partition) = (p.topic, p.partition)
"""

_BEGIN = """\
-- consumer.begin_alone
UPDATE ferryman.inbox_start s
SET "offset" = %(at)s, starts = CASE WHEN s."offset" = %(at)s THEN s.starts + 1 ELSE 1 END
WHERE (s.consumer, s.topic, s.partition) = (%(consumer)s, %(topic)s, %(partition)s)
RETURNING s.starts
"""


def own(connection: Connection, consumer: str, partitions: Collection[Partition]) -> set[Partition]:
    """Marks them as owned; gives those whose last owner did not let go: it may have been killed by a message."""
    rows = connection.execute(_OWN, _wanted(consumer, partitions)).fetchall()
    return {(topic, partition) for topic, partition, owned in rows if owned}


def release(connection: Connection, consumer: str, partitions: Collection[Partition]) -> None:
    connection.execute(_RELEASE, _wanted(consumer, partitions))


def begin_alone(connection: Connection, consumer: str, record: Record) -> int:
    """How often this message was begun alone, now included, without its end being seen."""
    place = {"consumer": consumer, "topic": record.topic, "partition": record.partition, "at": record.offset}
    row = connection.execute(_BEGIN, place).fetchone()
    return int(row[0]) if row else 1


def _wanted(consumer: str, partitions: Collection[Partition]) -> dict[str, object]:
    return {
        "consumer": consumer,
        "topics": [each[0] for each in partitions],
        "partitions": [each[1] for each in partitions],
    }
