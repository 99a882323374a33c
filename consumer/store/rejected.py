"""Rejected records: kept as Kafka had them, then requeued or discarded by a person."""

import json
from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from ferryman.consumer.model import Poison
from ferryman.consumer.wire import Base64Headers, headers_to_base64
from ferryman.message import Stored
from ferryman.runtime.desk import Act, Connection, Row, selected

Place = tuple[str, int, int]
"""A topic, the number of a partition, and an offset."""

# A person's decision is void when the record is rejected anew, except that a discarded conflict stays discarded.
# Another record at the same place is kept beside it: the topic was made anew.
_KEEP = """\
-- consumer.keep_rejected
WITH kept AS (
    INSERT INTO ferryman.inbox_rejected AS r
        (consumer, topic, partition, "offset", id, hash, type, key, value, headers, code, error)
    VALUES (%(consumer)s, %(topic)s, %(partition)s, %(at)s, %(id)s, %(hash)b, %(type)s, %(key)b, %(value)b, %(headers)s,
            %(code)s, %(error)s)
    ON CONFLICT (consumer, topic, partition, "offset", id, hash) DO UPDATE
    SET headers = excluded.headers, status = 'REJECTED', code = excluded.code, error = excluded.error,
        rejected_at = excluded.rejected_at, changed_at = NULL, who = NULL, reason = NULL
    WHERE NOT (r.status = 'DISCARDED' AND excluded.code = 'CONFLICT')
)
SELECT s.max_payload_bytes FROM ferryman.outbox_state s
"""

_COLUMNS = """\
r.number, r.consumer, r.topic, r.partition, r."offset", r.id, r.type, r.key, r.value_bytes, r.headers,
r.code, r.status, r.who, r.changed_at, r.reason"""

_MEANT: LiteralString = f"""\
(%(ids)s::uuid[] IS NULL OR r.id = ANY (%(ids)s)
 OR (r.topic, r.partition, r."offset") IN (
     SELECT p.topic, p.partition, p.at
     FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[]) p (topic, partition, at)))
AND (%(codes)s::text[] IS NULL OR r.code = ANY (%(codes)s))
AND {selected("r", "r.rejected_at")}"""  # noqa: S608 - only our own columns and parameters are put in

# Those that wait, or the settled ones; in the order of the offsets, which is the order of each key.
_RECORDS: LiteralString = f"""\
-- inbox.rejected
SELECT {_COLUMNS} FROM ferryman.inbox_rejected r
WHERE r.consumer = %(consumer)s AND {_MEANT} AND (r.status = 'REJECTED') = %(waiting)s
  AND (r.topic, r.partition, r."offset", r.number)
      > (%(after_topic)s::text, %(after_partition)s::integer, %(after_at)s::bigint, %(after_number)s::bigint)
ORDER BY r.topic, r.partition, r."offset", r.number LIMIT %(most)s
"""  # noqa: S608 - same

_OWNERS: LiteralString = f"""\
-- inbox.rejected_owners
SELECT DISTINCT r.consumer FROM ferryman.inbox_rejected r
WHERE {_MEANT} AND (r.status = 'REJECTED' OR %(ids)s::uuid[] IS NOT NULL) ORDER BY r.consumer
"""  # noqa: S608 - same

# The outbox says itself why it would refuse a message.
_FAULTS = """\
-- inbox.faults
SELECT ferryman.outbox_fault(m.topic, m.key, m.type, m.bytes, m.headers, m.content_type, s.max_payload_bytes)
FROM unnest(%(topics)s::text[], %(keys)s::text[], %(types)s::text[], %(sizes)s::integer[], %(headers)s::jsonb[],
            %(content_types)s::text[]) WITH ORDINALITY m (topic, key, type, bytes, headers, content_type, n)
CROSS JOIN ferryman.outbox_state s ORDER BY m.n
"""

# A compare-and-set: of two requeues of a message one reopens it. Sorted in the order of the consumer's own verdicts.
_REOPEN = """\
-- inbox.reopen
UPDATE ferryman.inbox i SET status = 'REOPENED'
FROM (
    SELECT o.id FROM ferryman.inbox o
    WHERE o.consumer = %(consumer)s AND o.id = ANY (%(ids)s::uuid[]) AND o.status = 'REJECTED'
    ORDER BY o.id FOR UPDATE
) rejected
WHERE i.consumer = %(consumer)s AND i.id = rejected.id AND i.status = 'REJECTED'
RETURNING i.id
"""

_SETTLE = """\
-- inbox.settle_rejected
UPDATE ferryman.inbox_rejected r
SET status = %(status)s, changed_at = clock_timestamp(), who = %(who)s, reason = %(reason)s
WHERE r.consumer = %(consumer)s AND r.number = ANY (%(numbers)s::bigint[]) AND r.status = ANY (%(from)s::text[])
"""

_VALUES = """\
-- inbox.values
SELECT r.number, r.value FROM ferryman.inbox_rejected r
WHERE r.consumer = %(consumer)s AND r.number = ANY (%(numbers)s::bigint[])
"""


class RejectedRecord(NamedTuple):
    """A rejected record, without its value."""

    number: int
    """It names the record alone: a place may have several records, and an id too."""
    consumer: str
    topic: str
    partition: int
    offset: int
    id: UUID
    type: str
    key: bytes | None
    value_bytes: int | None
    headers: Base64Headers
    code: str
    status: str
    who: str | None
    changed_at: Any
    reason: str | None

    @property
    def place(self) -> Place:
        return self.topic, self.partition, self.offset

    def __str__(self) -> str:
        return written(self.place)


def written(place: Place) -> str:
    """Return a place as a person writes it: orders/2/4711."""
    return "/".join(map(str, place))


FIRST = ("", -1, -1), -1
"""The place and the number in front of all others."""


def keep(connection: Connection, consumer: str, poison: Poison) -> int:
    """Store the rejected record. Return the most bytes that its dead letter may have."""
    record = poison.record
    values: dict[str, Any] = {
        "consumer": consumer, "topic": record.topic, "partition": record.partition, "at": record.offset,
        "id": poison.id, "hash": poison.hash, "type": poison.type, "key": record.key, "value": record.value,
        "headers": json.dumps(headers_to_base64(record.headers)), "code": poison.code, "error": poison.error,
    }  # fmt: skip
    row = connection.execute(_KEEP, values).fetchone()
    return int(row[0]) if row else 0


def records(
    connection: Connection, meant: Row, *, waiting: bool, after: tuple[Place, int] = FIRST, most: int = 10_000
) -> list[RejectedRecord]:
    """Return selected records in the order of their places, after one: those that wait for a person, or the others."""
    (topic, partition, at), number = after
    place = {"after_topic": topic, "after_partition": partition, "after_at": at, "after_number": number}
    with connection.cursor(row_factory=class_row(RejectedRecord)) as cursor:
        return cursor.execute(_RECORDS, {**meant, **place, "waiting": waiting, "most": most}).fetchall()


def owners(connection: Connection, meant: Row) -> list[str]:
    """Return the consumers that have rejected the selected records."""
    return [name for (name,) in connection.execute(_OWNERS, meant).fetchall()]


def faults(connection: Connection, messages: Sequence[Stored], sizes: Sequence[int | None]) -> list[str | None]:
    """Return why the outbox would refuse each of these messages with values of these sizes, or None."""
    names = {"topics": "topic", "keys": "key", "types": "type", "headers": "headers", "content_types": "content_type"}
    columns = {column: [getattr(each, name) for each in messages] for column, name in names.items()}
    rows = connection.execute(_FAULTS, columns | {"sizes": list(sizes)}).fetchall() if messages else []
    return [fault for (fault,) in rows]


def reopen(connection: Connection, consumer: str, ids: Sequence[UUID]) -> set[UUID]:
    """Reopen those of these receipts that are REJECTED, and return their ids."""
    rows = connection.execute(_REOPEN, {"consumer": consumer, "ids": list(ids)}).fetchall()
    return {identity for (identity,) in rows}


def settle(
    connection: Connection, records: Sequence[RejectedRecord], status: str, act: Act, *, was: Sequence[str]
) -> int:
    """Write the decision about these records of one consumer. Return how many had one of the statuses `was`."""
    values = {
        "consumer": records[0].consumer, "numbers": [each.number for each in records], "status": status,
        "who": act.who, "reason": act.reason, "from": list(was),
    }  # fmt: skip
    return connection.execute(_SETTLE, values).rowcount


def values(connection: Connection, consumer: str, numbers: Sequence[int]) -> dict[int, bytes]:
    """Return the values of those that have one, by their numbers."""
    rows = connection.execute(_VALUES, {"consumer": consumer, "numbers": list(numbers)}, binary=True).fetchall()
    return {number: value for number, value in rows if value is not None}


def places_of(places: Sequence[Place]) -> dict[str, Any]:
    """Return places as the parameters of the statements here."""
    return {
        "topics": [topic for topic, _, _ in places],
        "partitions": [partition for _, partition, _ in places],
        "offsets": [at for _, _, at in places],
    }
