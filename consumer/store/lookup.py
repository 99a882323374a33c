"""Lists of rejected records and unusual receipts, and everything about one message, without values."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from ferryman.consumer.store.rejected import Place
from ferryman.runtime.desk import Connection, Row, dict_rows, selected
from ferryman.runtime.postgres import row as one_row

Cursor = tuple[datetime, str, str, int, int, UUID]
"""The time, consumer, topic, partition, offset and message id that a page ended with."""

_RECORD = """\
r.rejected_at AS at, r.consumer, r.topic, r.partition, r."offset", r.id, r.type, r.status, r.code, r.error,
       r.value_bytes,
       (SELECT coalesce(i.outcome, i.status) FROM ferryman.inbox i
        WHERE (i.consumer, i.id) = (r.consumer, r.id)) AS verdict
FROM ferryman.inbox_rejected r"""


def _newest(table: LiteralString, at: LiteralString, code: LiteralString) -> LiteralString:
    """Return the conditions of the rows to list, and the order and the length of a page."""
    return f"""\
{table}.consumer = c.consumer AND {table}.status = ANY (%(statuses)s::text[])
AND (%(code)s::text IS NULL OR {code} = %(code)s) AND {selected(table, at)}
AND (%(at)s::timestamptz IS NULL OR {at} <= %(at)s AND
     ({at}, {table}.consumer, {table}.topic, {table}.partition, {table}."offset", {table}.id)
     < (%(at)s, %(before_consumer)s::text, %(before_topic)s::text, %(before_partition)s::integer,
        %(before_offset)s::bigint, %(before_id)s::uuid))
ORDER BY {at} DESC, {table}.topic DESC, {table}.partition DESC, {table}."offset" DESC, {table}.id DESC
LIMIT %(most)s"""


_OF_RECORDS = _newest("r", "r.rejected_at", "r.code")

# Each consumer by its own index, newest first, and no more than a page of each.
_UNUSUAL: LiteralString = f"""\
-- inbox.list
SELECT found.* FROM unnest(%(consumers)s::text[]) c (consumer)
CROSS JOIN LATERAL (
    (SELECT {_RECORD} WHERE r.status = 'REJECTED' AND {_OF_RECORDS})
    UNION ALL
    (SELECT {_RECORD} WHERE r.status <> 'REJECTED' AND {_OF_RECORDS})
    UNION ALL
    (SELECT receipt.* FROM unnest(ARRAY['RECEIVED', 'REOPENED']) s (status)
     CROSS JOIN LATERAL (
        SELECT i.received_at, i.consumer, i.topic, i.partition, i."offset", i.id, i.type, i.status, i.reason, i.error,
               NULL::integer, i.status
        FROM ferryman.inbox i
        WHERE i.status = s.status AND i.status <> 'HANDLED' AND {_newest("i", "i.received_at", "i.reason")}
     ) receipt)
) found
ORDER BY found.at DESC, found.consumer DESC, found.topic DESC, found.partition DESC, found."offset" DESC, found.id DESC
LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in

_RECEIPTS = """\
-- inbox.receipts_of
SELECT i.consumer, i.id, i.status, i.outcome, i.reason, i.type, i.topic, i.partition, i."offset", i.results, i.error,
       i.received_at, encode(i.hash, 'hex') AS hash
FROM unnest(%(consumers)s::text[]) c (consumer) CROSS JOIN LATERAL (
    SELECT * FROM ferryman.inbox_receipts r WHERE r.consumer = c.consumer AND r.id = ANY (%(ids)s::uuid[]) OFFSET 0
) i
ORDER BY i.consumer, i.received_at DESC
"""

_RECORDS = """\
-- inbox.records_of
SELECT r.number, r.consumer, r.topic, r.partition, r."offset", r.id, r.type, r.key, r.value_bytes,
       r.headers, r.code, r.error, r.status, r.rejected_at, r.changed_at, r.who, r.reason,
       EXISTS (SELECT FROM ferryman.inbox_rejected o
               WHERE (o.consumer, o.topic, o.partition, o."offset") = (r.consumer, r.topic, r.partition, r."offset")
                 AND o.number <> r.number) AS shares_place
FROM ferryman.inbox_rejected r JOIN unnest(%(consumers)s::text[]) c (consumer) ON r.consumer = c.consumer
WHERE r.id = ANY (%(ids)s::uuid[]) OR (r.topic, r.partition, r."offset") = (%(topic)s, %(partition)s, %(offset)s)
ORDER BY r.consumer, r.rejected_at DESC
"""

# There is no index on the places of receipts, since every batch would pay for it: the newest are looked through first.
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


def unusual(connection: Connection, meant: Mapping[str, Any], before: Cursor | None, most: int) -> list[Row]:
    """Return the newest rejected records and unusual receipts, with the message's verdict, starting before a cursor."""
    names = ("at", "before_consumer", "before_topic", "before_partition", "before_offset", "before_id")
    place = dict(zip(names, before or (None,) * len(names), strict=True))
    return dict_rows(connection, _UNUSUAL, {**meant, **place, "most": most})


def cursor_of(row: Row) -> Cursor:
    """Return where the page after this row begins."""
    return row["at"], row["consumer"], row["topic"], row["partition"], row["offset"], row["id"]


def receipts(connection: Connection, consumers: Sequence[str], ids: Sequence[UUID]) -> list[Row]:
    return dict_rows(connection, _RECEIPTS, {"consumers": list(consumers), "ids": list(ids)})


def records(connection: Connection, consumers: Sequence[str], ids: Sequence[UUID], place: Place | None) -> list[Row]:
    """Return the rejected records with these ids, or at this place."""
    topic, partition, offset = place or (None, None, None)
    values = {"consumers": list(consumers), "ids": list(ids), "topic": topic, "partition": partition, "offset": offset}
    return dict_rows(connection, _RECORDS, values)


def at_place(
    connection: Connection, consumer: str, place: Place, before: datetime | None, most: int
) -> tuple[list[UUID], datetime | None]:
    """Search the newest receipts for those of a place.

    Return their ids, and the time to continue before, or None if there are no more receipts.
    """
    topic, partition, offset = place
    where = {"consumer": consumer, "topic": topic, "partition": partition, "offset": offset}
    oldest, looked_at, ids = one_row(connection.execute(_AT_PLACE, where | {"before": before, "most": most}))
    return list(ids or ()), oldest if looked_at == most and oldest != before else None
