"""What people change by hand: rejected records are requeued or given up, consumers are paused."""

from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from ferryman.consumer.store.receipts import Connection

Headers = list[list[str | None]]
"""As `rejected.keep` has them: each name with its value in base64."""

_COLUMNS = """\
r.consumer, r.topic, r.partition, r."offset", r.id, r.type, r.key, octet_length(r.value) AS value_bytes, r.headers,
r.code, r.status, r.who, r.changed_at, r.reason"""

_MEANT = """\
(%(ids)s::uuid[] IS NULL OR r.id = ANY (%(ids)s)
 OR (r.topic, r.partition, r."offset") IN (
     SELECT p.topic, p.partition, p.at
     FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[]) p (topic, partition, at)))
AND (%(codes)s::text[] IS NULL OR r.code = ANY (%(codes)s))
AND (%(topic)s::text IS NULL OR r.topic = %(topic)s) AND (%(type)s::text IS NULL OR r.type = %(type)s)
AND (%(since)s::timestamptz IS NULL OR r.rejected_at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR r.rejected_at < %(until)s)"""

# In the order of their offsets: that of each key.
_WAITING: LiteralString = f"""\
-- inbox.rejected_waiting
SELECT {_COLUMNS} FROM ferryman.inbox_rejected r
WHERE r.consumer = %(consumer)s AND {_MEANT} AND r.status = 'REJECTED'
  AND (r.topic, r.partition, r."offset") > (%(after_topic)s::text, %(after_partition)s::integer, %(after_at)s::bigint)
ORDER BY r.topic, r.partition, r."offset" LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in

_NAMED: LiteralString = f"""\
-- inbox.rejected_named
SELECT {_COLUMNS} FROM ferryman.inbox_rejected r
WHERE r.consumer = %(consumer)s AND {_MEANT} AND r.status <> 'REJECTED'
ORDER BY r.topic, r.partition, r."offset"
"""  # noqa: S608 - same

_OWNERS: LiteralString = f"""\
-- inbox.rejected_owners
SELECT DISTINCT r.consumer FROM ferryman.inbox_rejected r
WHERE {_MEANT} AND (r.status = 'REJECTED' OR %(ids)s::uuid[] IS NOT NULL) ORDER BY r.consumer
"""  # noqa: S608 - same

# The outbox's own words for what it refuses.
_FAULTS = """\
-- inbox.faults
SELECT ferryman.outbox_fault(m.topic, m.key, m.type, m.bytes, m.headers, m.content_type, s.max_payload_bytes)
FROM unnest(%(topics)s::text[], %(keys)s::text[], %(types)s::text[], %(sizes)s::integer[], %(headers)s::jsonb[],
            %(content_types)s::text[]) WITH ORDINALITY m (topic, key, type, bytes, headers, content_type, n)
CROSS JOIN ferryman.outbox_state s ORDER BY m.n
"""

# By compare-and-set: of two who requeue it one does. Sorted as the consumer's own verdicts are.
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
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[]) p (topic, partition, at)
WHERE r.consumer = %(consumer)s AND (r.topic, r.partition, r."offset") = (p.topic, p.partition, p.at)
  AND r.status = ANY (%(from)s::text[])
"""

_VALUES = """\
-- inbox.values
SELECT r.topic, r.partition, r."offset", r.value
FROM ferryman.inbox_rejected r
JOIN unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[]) p (topic, partition, at)
    ON (r.topic, r.partition, r."offset") = (p.topic, p.partition, p.at)
WHERE r.consumer = %(consumer)s
"""

_PAUSE = """\
-- inbox.pause
INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES (%(consumer)s, %(who)s, %(reason)s)
ON CONFLICT DO NOTHING
"""

_RESUME = """\
-- inbox.resume
DELETE FROM ferryman.inbox_paused WHERE consumer = %(consumer)s
"""


class Rejected(NamedTuple):
    """A record that was rejected, without its value."""

    consumer: str
    topic: str
    partition: int
    offset: int
    id: UUID
    type: str
    key: bytes | None
    value_bytes: int | None
    headers: Headers
    code: str
    status: str
    who: str | None
    changed_at: Any
    reason: str | None

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


Places = Sequence[tuple[str, int, int]]

FIRST = ("", -1, -1)
"""The place before all others."""


def waiting(connection: Connection, meant: dict[str, Any], after: tuple[str, int, int], most: int) -> list[Rejected]:
    """Those that wait for a person, in the order of their places, after one."""
    topic, partition, at = after
    values = meant | {"after_topic": topic, "after_partition": partition, "after_at": at, "most": most}
    return _rejected(connection, _WAITING, values)


def named(connection: Connection, meant: dict[str, Any]) -> list[Rejected]:
    """Those that do not wait any more: they were requeued or discarded."""
    return _rejected(connection, _NAMED, meant)


def owners(connection: Connection, meant: dict[str, Any]) -> list[str]:
    """The consumers that have rejected these."""
    return [name for (name,) in connection.execute(_OWNERS, meant).fetchall()]


def faults(connection: Connection, columns: dict[str, list[Any]]) -> list[str | None]:
    """What the outbox has against each of these messages."""
    return [fault for (fault,) in connection.execute(_FAULTS, columns).fetchall()]


def reopen(connection: Connection, consumer: str, ids: Sequence[UUID]) -> set[UUID]:
    """Which of these receipts were REJECTED, and are REOPENED now."""
    rows = connection.execute(_REOPEN, {"consumer": consumer, "ids": list(ids)}).fetchall()
    return {identity for (identity,) in rows}


def settle(
    connection: Connection, consumer: str, places: Places, status: str, *, who: str, reason: str, was: Sequence[str]
) -> int:
    """Says what was decided about these records; how many were still to be decided."""
    values = places_of(places) | {
        "consumer": consumer, "status": status, "who": who, "reason": reason, "from": list(was),
    }  # fmt: skip
    return connection.execute(_SETTLE, values).rowcount


def values(connection: Connection, consumer: str, places: Places) -> dict[tuple[str, int, int], bytes]:
    """Of those that have one."""
    rows = connection.execute(_VALUES, places_of(places) | {"consumer": consumer}, binary=True).fetchall()
    return {(topic, partition, at): value for topic, partition, at, value in rows if value is not None}


def places_of(places: Places) -> dict[str, Any]:
    """As the SQL of here takes them."""
    return {
        "topics": [topic for topic, _, _ in places],
        "partitions": [partition for _, partition, _ in places],
        "offsets": [at for _, _, at in places],
    }


def pause(connection: Connection, consumer: str, who: str, reason: str) -> bool:
    """Whether it was not paused before."""
    return connection.execute(_PAUSE, {"consumer": consumer, "who": who, "reason": reason}).rowcount == 1


def resume(connection: Connection, consumer: str) -> bool:
    """Whether it was paused."""
    return connection.execute(_RESUME, {"consumer": consumer}).rowcount == 1


def _rejected(connection: Connection, statement: LiteralString, values: dict[str, Any]) -> list[Rejected]:
    with connection.cursor(row_factory=class_row(Rejected)) as cursor:
        return cursor.execute(statement, values).fetchall()
