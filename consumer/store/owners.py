"""The partitions in the database: their positions, their owners, and the batches begun after an owner died.

Each statement is a transaction of its own. Batches write their positions with their receipts.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ferryman.consumer.model import Partition, Position, Record
from ferryman.consumer.store.receipts import Connection

_OWN = """\
-- consumer.own
INSERT INTO ferryman.inbox_start AS s (consumer, topic, partition, owned, position, topic_id)
SELECT %(consumer)s, p.topic, p.partition, true, p.position, p.topic_id
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(positions)s::bigint[], %(topic_ids)s::text[])
     p (topic, partition, position, topic_id) ORDER BY 2, 3
ON CONFLICT (consumer, topic, partition) DO UPDATE
SET owned = true, position = coalesce(s.position, excluded.position), topic_id = coalesce(s.topic_id, excluded.topic_id)
RETURNING s.topic, s.partition, s.position, s.topic_id, s.since, s.until,
          (SELECT b.owned FROM ferryman.inbox_start b
           WHERE (b.consumer, b.topic, b.partition) = (s.consumer, s.topic, s.partition))
"""

_REACH = """\
-- consumer.reach
UPDATE ferryman.inbox_start s SET position = p.position, topic_id = coalesce(p.topic_id, s.topic_id)
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(positions)s::bigint[], %(topic_ids)s::text[])
     p (topic, partition, position, topic_id)
WHERE s.consumer = %(consumer)s AND (s.topic, s.partition) = (p.topic, p.partition)
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


class KnownPartition(NamedTuple):
    """A partition as the database knew it when it was assigned."""

    position: Position
    marked: range
    """The offsets of the batch that its last owner had marked."""
    owned: bool | None
    """True if its last owner did not release it: a message may have killed it. None if nobody ever owned it."""


def own(connection: Connection, consumer: str, starts: Mapping[Partition, Position]) -> dict[Partition, KnownPartition]:
    """Mark partitions as owned, and return what is known of each. An unknown position becomes the given one."""
    rows = connection.execute(_OWN, _positions(consumer, starts)).fetchall()
    return {
        (topic, number): KnownPartition(Position(offset, topic_id), range(since, until), owned)
        for topic, number, offset, topic_id, since, until, owned in rows
    }


def reach(connection: Connection, consumer: str, positions: Mapping[Partition, Position]) -> None:
    """Write positions behind records that nothing had to be done about."""
    connection.execute(_REACH, _positions(consumer, positions))


def release(connection: Connection, consumer: str, partitions: Collection[Partition]) -> None:
    connection.execute(_RELEASE, _wanted(consumer, partitions))


def begin_batch(connection: Connection, consumer: str, spans: Mapping[Partition, range]) -> None:
    """Mark the offsets of a batch that is begun after an owner died."""
    sinces, untils = [each.start for each in spans.values()], [each.stop for each in spans.values()]
    connection.execute(_BEGIN_BATCH, {**_wanted(consumer, spans), "sinces": sinces, "untils": untils})


def begin_alone(connection: Connection, consumer: str, record: Record) -> int:
    """Return how often this message was begun alone without an end, this time included."""
    place = {"consumer": consumer, "topic": record.topic, "partition": record.partition, "at": record.offset}
    row = connection.execute(_BEGIN, place).fetchone()
    return int(row[0]) if row else 1


def _positions(consumer: str, positions: Mapping[Partition, Position]) -> dict[str, object]:
    offsets, topic_ids = [each.offset for each in positions.values()], [each.topic_id for each in positions.values()]
    return {**_wanted(consumer, positions), "positions": offsets, "topic_ids": topic_ids}


def _wanted(consumer: str, partitions: Collection[Partition]) -> dict[str, object]:
    return {
        "consumer": consumer,
        "topics": [each[0] for each in partitions],
        "partitions": [each[1] for each in partitions],
    }
