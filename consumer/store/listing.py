"""What is unusual among receipts and records, and all that is known of one message; never a record's value unasked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row, dict_row

from ferryman.consumer.store.receipts import Connection

Row = dict[str, Any]
Cursor = tuple[datetime, str, str, int, int]
"""The time, consumer, topic, partition and offset that a page ended with."""

_RECORD = """\
r.rejected_at AS at, r.consumer, r.topic, r.partition, r."offset", r.id, r.type, r.status, r.code, r.error,
       octet_length(r.value) AS value_bytes,
       (SELECT coalesce(i.outcome, i.status) FROM ferryman.inbox i
        WHERE (i.consumer, i.id) = (r.consumer, r.id)) AS verdict
FROM ferryman.inbox_rejected r"""

_OF_RECORD = """\
r.consumer = c.consumer AND r.status = ANY (%(statuses)s::text[])
AND (%(code)s::text IS NULL OR r.code = %(code)s)
AND (%(topic)s::text IS NULL OR r.topic = %(topic)s) AND (%(type)s::text IS NULL OR r.type = %(type)s)
AND (%(since)s::timestamptz IS NULL OR r.rejected_at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR r.rejected_at < %(until)s)
AND (%(at)s::timestamptz IS NULL OR r.rejected_at <= %(at)s AND
     (r.rejected_at, r.consumer, r.topic, r.partition, r."offset")
     < (%(at)s, %(before_consumer)s::text, %(before_topic)s::text, %(before_partition)s::integer,
        %(before_offset)s::bigint))
ORDER BY r.rejected_at DESC, r.topic DESC, r.partition DESC, r."offset" DESC LIMIT %(most)s"""

# Each consumer by its own index, newest first, and of each no more than a page.
_UNUSUAL: LiteralString = f"""\
-- inbox.list
SELECT found.* FROM unnest(%(consumers)s::text[]) c (consumer)
CROSS JOIN LATERAL (
    (SELECT {_RECORD} WHERE r.status = 'REJECTED' AND {_OF_RECORD})
    UNION ALL
    (SELECT {_RECORD} WHERE r.status <> 'REJECTED' AND {_OF_RECORD})
    UNION ALL
    (SELECT receipt.* FROM unnest(ARRAY['RECEIVED', 'REOPENED']) s (status)
     CROSS JOIN LATERAL (
        SELECT i.received_at, i.consumer, i.topic, i.partition, i."offset", i.id, i.type, i.status, i.reason, i.error,
               NULL::integer, i.status
        FROM ferryman.inbox i
        WHERE i.consumer = c.consumer AND i.status = s.status AND i.status <> 'HANDLED'
          AND i.status = ANY (%(statuses)s::text[]) AND (%(code)s::text IS NULL OR i.reason = %(code)s)
          AND (%(topic)s::text IS NULL OR i.topic = %(topic)s) AND (%(type)s::text IS NULL OR i.type = %(type)s)
          AND (%(since)s::timestamptz IS NULL OR i.received_at >= %(since)s)
          AND (%(until)s::timestamptz IS NULL OR i.received_at < %(until)s)
          AND (%(at)s::timestamptz IS NULL OR i.received_at <= %(at)s AND
               (i.received_at, i.consumer, i.topic, i.partition, i."offset")
               < (%(at)s, %(before_consumer)s::text, %(before_topic)s::text, %(before_partition)s::integer,
                  %(before_offset)s::bigint))
        ORDER BY i.received_at DESC, i.topic DESC, i.partition DESC, i."offset" DESC LIMIT %(most)s
     ) receipt)
) found
ORDER BY found.at DESC, found.consumer DESC, found.topic DESC, found.partition DESC, found."offset" DESC LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in

_RECEIPTS = """\
-- inbox.receipts_of
SELECT i.consumer, i.id, i.status, i.outcome, i.reason, i.type, i.topic, i.partition, i."offset", i.results, i.error,
       i.received_at, encode(i.hash, 'hex') AS hash
FROM ferryman.inbox i JOIN unnest(%(consumers)s::text[]) c (consumer) ON i.consumer = c.consumer
WHERE i.id = ANY (%(ids)s::uuid[]) ORDER BY i.consumer, i.received_at DESC
"""

_RECORDS = """\
-- inbox.records_of
SELECT r.consumer, r.topic, r.partition, r."offset", r.id, r.type, r.key, octet_length(r.value) AS value_bytes,
       r.headers, r.code, r.error, r.status, r.rejected_at, r.changed_at, r.who, r.reason
FROM ferryman.inbox_rejected r JOIN unnest(%(consumers)s::text[]) c (consumer) ON r.consumer = c.consumer
WHERE r.id = ANY (%(ids)s::uuid[]) OR (r.topic, r.partition, r."offset") = (%(topic)s, %(partition)s, %(offset)s)
ORDER BY r.consumer, r.rejected_at DESC
"""

_VALUE = """\
-- inbox.value
SELECT value FROM ferryman.inbox_rejected
WHERE (consumer, topic, partition, "offset") = (%(consumer)s, %(topic)s, %(partition)s, %(offset)s)
"""

# Receipts have no index on where their messages stood, which every batch would pay for: the newest are looked at first.
_AT_PLACE = """\
-- inbox.receipts_at
SELECT min(n.received_at), count(*),
       array_agg(n.id) FILTER (WHERE (n.topic, n.partition, n."offset") = (%(topic)s, %(partition)s, %(offset)s))
FROM (
    SELECT i.received_at, i.id, i.topic, i.partition, i."offset" FROM ferryman.inbox i
    WHERE i.consumer = %(consumer)s AND (%(before)s::timestamptz IS NULL OR i.received_at <= %(before)s)
    ORDER BY i.received_at DESC LIMIT %(most)s
) n
"""

_NOW = """\
-- inbox.now
SELECT clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """A rejected record, or a receipt that is not HANDLED, with what became of the message."""

    at: datetime
    consumer: str
    topic: str
    partition: int
    offset: int
    id: UUID
    type: str
    status: str
    code: str | None
    error: str | None
    value_bytes: int | None
    verdict: str | None

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    @property
    def cursor(self) -> Cursor:
        return self.at, self.consumer, *self.place


def unusual(connection: Connection, meant: Mapping[str, Any], before: Cursor | None, most: int) -> list[Listed]:
    """The newest first, from before a place on."""
    names = ("at", "before_consumer", "before_topic", "before_partition", "before_offset")
    place = dict(zip(names, before or (None,) * len(names), strict=True))
    with connection.cursor(row_factory=class_row(Listed)) as cursor:
        return cursor.execute(_UNUSUAL, {**meant, **place, "most": most}).fetchall()


def receipts(connection: Connection, consumers: Sequence[str], ids: Sequence[UUID]) -> list[Row]:
    return _rows(connection, _RECEIPTS, {"consumers": list(consumers), "ids": list(ids)})


def records(
    connection: Connection, consumers: Sequence[str], ids: Sequence[UUID], place: tuple[str, int, int] | None
) -> list[Row]:
    """The rejected ones with these ids, or at this place."""
    topic, partition, offset = place or (None, None, None)
    values = {"consumers": list(consumers), "ids": list(ids), "topic": topic, "partition": partition, "offset": offset}
    return _rows(connection, _RECORDS, values)


def value(connection: Connection, record: Row) -> bytes | None:
    row = connection.execute(_VALUE, {name: record[name] for name in ("consumer", "topic", "partition", "offset")})
    found = row.fetchone()
    return bytes(found[0]) if found and found[0] is not None else None


def at_place(
    connection: Connection, consumer: str, place: tuple[str, int, int], before: datetime | None, most: int
) -> tuple[list[UUID], datetime | None]:
    """The ids of what stood there, among so many receipts; and the time to go on before, None where that was all."""
    topic, partition, offset = place
    where = {"consumer": consumer, "topic": topic, "partition": partition, "offset": offset}
    row = connection.execute(_AT_PLACE, where | {"before": before, "most": most}).fetchone()
    assert row is not None
    oldest, looked_at, ids = row
    return list(ids or ()), oldest if looked_at == most and oldest != before else None


def now(connection: Connection) -> datetime:
    """The database's clock is the truth."""
    row = connection.execute(_NOW).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def _rows(connection: Connection, statement: LiteralString, values: Mapping[str, Any]) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, values).fetchall()
