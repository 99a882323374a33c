"""Marks of who owns a partition, and of what is begun where its last owner died: each in a transaction of its own."""

from collections.abc import Collection, Mapping

from ferryman.consumer.model import Partition, Record
from ferryman.consumer.store.receipts import Connection

_OWN = """\
-- consumer.own
INSERT INTO ferryman.inbox_start AS s (consumer, topic, partition, owned)
SELECT %(consumer)s, p.topic, p.partition, true
FROM unnest(%(topics)s::text[], %(partitions)s::integer[]) p (topic, partition) ORDER BY 2, 3
ON CONFLICT (consumer, topic, partition) DO UPDATE SET owned = true
RETURNING s.topic, s.partition, s.since, s.until, (SELECT b.owned FROM ferryman.inbox_start b
                                          WHERE (b.consumer, b.topic, b.partition) = (s.consumer, s.topic, s.partition))
"""

_READ_BEFORE = """\
-- consumer.read_before
SELECT s.topic, s.partition FROM ferryman.inbox_start s
JOIN unnest(%(topics)s::text[], %(partitions)s::integer[]) p (topic, partition)
    ON (s.topic, s.partition) = (p.topic, p.partition)
WHERE s.consumer = %(consumer)s
"""

_RELEASE = """\
-- consumer.release
UPDATE ferryman.inbox_start s SET owned = false, starts = 0, since = 0, until = 0
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


_BEGIN_BATCH = """\
-- consumer.begin_batch
UPDATE ferryman.inbox_start s SET since = p.since, until = p.until
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(sinces)s::bigint[],
            %(untils)s::bigint[]) p (topic, partition, since, until)
WHERE s.consumer = %(consumer)s AND (s.topic, s.partition) = (p.topic, p.partition)
"""


def own(connection: Connection, consumer: str, partitions: Collection[Partition]) -> dict[Partition, range]:
    """Marks them as owned; gives those whose last owner did not let go, since a message may have killed it: one of
    these offsets, where it had marked its batch.
    """
    rows = connection.execute(_OWN, _wanted(consumer, partitions)).fetchall()
    return {(topic, partition): range(since, until) for topic, partition, since, until, owned in rows if owned}


def read_before(connection: Connection, consumer: str, partitions: Collection[Partition]) -> set[Partition]:
    """Those of these that were owned at some time."""
    return {(topic, number) for topic, number in connection.execute(_READ_BEFORE, _wanted(consumer, partitions))}


def release(connection: Connection, consumer: str, partitions: Collection[Partition]) -> None:
    connection.execute(_RELEASE, _wanted(consumer, partitions))


def begin_batch(connection: Connection, consumer: str, spans: Mapping[Partition, range]) -> None:
    """Marks which offsets a batch has that is begun after an owner died."""
    sinces, untils = [each.start for each in spans.values()], [each.stop for each in spans.values()]
    connection.execute(_BEGIN_BATCH, {**_wanted(consumer, spans), "sinces": sinces, "untils": untils})


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
