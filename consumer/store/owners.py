"""The partitions in the database: their positions, their owners, and the batches begun after an owner died.

Each statement is a transaction of its own. Batches write their positions with their receipts.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ferryman.consumer.model import Advance, Partition, Position, Record
from ferryman.consumer.store.receipts import Connection

_OWN = """\
-- consumer.own
WITH wanted AS (
    SELECT * FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(positions)s::bigint[], %(topic_ids)s::text[])
                  w (topic, partition, position, topic_id)
), before AS (
    SELECT b.topic, b.partition, b.owned, b.position, b.topic_id
    FROM ferryman.inbox_start b JOIN wanted USING (topic, partition) WHERE b.consumer = %(consumer)s
), owned AS (
    INSERT INTO ferryman.inbox_start AS s (consumer, topic, partition, owned, position, topic_id)
    SELECT %(consumer)s, topic, partition, true, position, topic_id FROM wanted ORDER BY 2, 3
    ON CONFLICT (consumer, topic, partition) DO UPDATE
    SET owned = true, topic_id = coalesce(excluded.topic_id, s.topic_id),
        position = CASE WHEN excluded.topic_id <> s.topic_id THEN 0 ELSE coalesce(s.position, excluded.position) END
    RETURNING s.topic, s.partition, s.position, s.topic_id, s.since, s.until
)
SELECT o.topic, o.partition, o.position, o.topic_id, o.since, o.until, b.owned, b.position, b.topic_id
FROM owned o LEFT JOIN before b USING (topic, partition)
"""

_REACH = """\
-- consumer.reach
UPDATE ferryman.inbox_start s SET position = p.position, topic_id = coalesce(p.topic_id, s.topic_id)
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(were)s::bigint[], %(positions)s::bigint[],
            %(topic_ids)s::text[]) p (topic, partition, was, position, topic_id)
WHERE s.consumer = %(consumer)s AND (s.topic, s.partition, s.position) = (p.topic, p.partition, p.was)
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
    """A partition as the database knows it when a process begins there, or looks again."""

    position: Position
    """Its present position: the first record in a topic that was made anew."""
    marked: range
    """The offsets of the batch that its last owner had marked."""
    owned: bool | None
    """True if its last owner did not release it: a message may have killed it. None if nobody ever owned it."""
    before: Position | None
    """The position that the database had until now."""


def own(connection: Connection, consumer: str, starts: Mapping[Partition, Position]) -> dict[Partition, KnownPartition]:
    """Mark partitions as owned, and return what is known of each. An unknown position becomes the given one."""
    rows = connection.execute(_OWN, _positions(consumer, starts)).fetchall()
    return {
        (topic, number): KnownPartition(
            Position(offset, topic_id), range(since, until), owned, None if was is None else Position(was, was_id)
        )
        for topic, number, offset, topic_id, since, until, owned, was, was_id in rows
    }


def reach(connection: Connection, consumer: str, reached: Mapping[Partition, Advance]) -> bool:
    """Write positions behind records that nothing had to be done about.

    Return False if some are not where this process left them: those are not written.
    """
    values = _positions(consumer, {place: each.to for place, each in reached.items()})
    values["were"] = [each.was for each in reached.values()]
    return connection.execute(_REACH, values).rowcount == len(reached)


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
