"""Receipts: what is known of messages, and the verdicts of a batch, in the batch's own transaction."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import psycopg

from ferryman.consumer.model import Received, Record
from ferryman.runtime.columns import Payloads, Texts, Uuids

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

ONLY_THE_RUNTIME_COMMITS = "only_the_runtime_commits"
"""The constraint that refuses a COMMIT of a batch without verdicts."""

HANDLED, RECEIVED, REJECTED, REOPENED = "HANDLED", "RECEIVED", "REJECTED", "REOPENED"

# The transaction's number is taken here, so that the last statement can tell whether it is still the same one; and its
# rows in inbox_open keep it from being committed before that.
_FIND = """\
-- consumer.find
WITH opened AS (
    INSERT INTO ferryman.inbox_open (xid) VALUES (pg_current_xact_id()), (pg_current_xact_id()) RETURNING xid
)
SELECT t.xid, i.id, i.status, i.hash, i.results
FROM (
    SELECT (SELECT xid::text FROM opened LIMIT 1) AS xid,
           set_config('statement_timeout', %(statement)s, true), set_config('lock_timeout', %(lock)s, true),
           set_config('idle_in_transaction_session_timeout', %(idle)s, true)
) t
LEFT JOIN ferryman.inbox_known(%(consumer)s, %(ids)b::uuid[]) i ON true
"""

# In binary: to escape the arrays as text would take longer than to store them. Sorted, so that two owners of one
# partition wait for one another and do not deadlock. Where it gives fewer than it was given, somebody else has handled
# one meanwhile.
_RECORD = """\
-- consumer.record
WITH recorded AS (
    INSERT INTO ferryman.inbox AS i
        (consumer, id, status, outcome, reason, hash, type, topic, partition, "offset", results, error)
    SELECT %(consumer)s, r.id, r.status, r.outcome, r.reason, r.hash, r.type, r.topic, r.partition, r.at, r.results,
           r.error
    FROM unnest(%(ids)b::uuid[], %(statuses)b::text[], %(outcomes)b::text[], %(reasons)b::text[], %(hashes)b::bytea[],
                %(types)b::text[], %(topics)b::text[], %(partitions)b::integer[], %(offsets)b::bigint[],
                %(results)b::text[], %(errors)b::text[])
         r (id, status, outcome, reason, hash, type, topic, partition, at, results, error)
    ORDER BY r.id
    ON CONFLICT (consumer, id) DO UPDATE
    SET status = excluded.status, outcome = excluded.outcome, reason = excluded.reason, results = excluded.results,
        error = excluded.error, received_at = excluded.received_at
    WHERE i.status = 'REOPENED' OR (i.status = 'RECEIVED' AND excluded.status <> 'RECEIVED')
    RETURNING i.id
), closed AS (
    DELETE FROM ferryman.inbox_open WHERE xid = pg_current_xact_id()
)
SELECT array_agg(id), pg_current_xact_id()::text,
       (SELECT count(*) FROM pg_cursors WHERE name <> '' AND name NOT LIKE '<unnamed%%')
FROM recorded
"""

# One round trip, and committed by itself. A message that is known is not claimed, but for one that a person reopened.
_CLAIM = """\
-- consumer.claim
WITH limited AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(lock)s, true) AS by
), claimed AS (
    INSERT INTO ferryman.inbox AS i (consumer, id, status, hash, type, topic, partition, "offset")
    SELECT %(consumer)s, %(id)s, 'RECEIVED', %(hash)s, %(type)s, %(topic)s, %(partition)s, %(at)s
    FROM limited WHERE by IS NOT NULL
    ON CONFLICT (consumer, id) DO UPDATE
    SET status = excluded.status, outcome = NULL, reason = NULL, results = NULL, error = NULL,
        received_at = excluded.received_at
    WHERE i.status = 'REOPENED' AND i.hash = excluded.hash
    RETURNING i.id
)
SELECT EXISTS (SELECT FROM claimed),
       (SELECT k.status FROM ferryman.inbox k WHERE k.consumer = %(consumer)s AND k.id = %(id)s)
"""

_NOTE_ERROR = """\
-- consumer.note_error
UPDATE ferryman.inbox SET error = %(error)s WHERE consumer = %(consumer)s AND id = %(id)s AND status = 'RECEIVED'
"""


class Known(NamedTuple):
    """What stands in the inbox of one message."""

    status: str
    hash: bytes
    results: str | None


class Verdict(NamedTuple):
    """What is to stand there."""

    id: UUID
    status: str
    outcome: str | None
    reason: str | None
    hash: bytes
    type: str
    record: Record
    results: str | None = None
    error: str | None = None


class Recorded(NamedTuple):
    """Which of the verdicts were written, in which transaction, and how many cursors are open in it."""

    ids: frozenset[UUID]
    xid: str
    cursors: int


class Limits(NamedTuple):
    """The timeouts of a batch's transaction, in milliseconds as PostgreSQL takes them."""

    statement: str = "30s"
    lock: str = "5s"
    idle: str = "60s"


DEFAULT_LIMITS = Limits()


def find(connection: Connection, consumer: str, ids: Sequence[UUID], limits: Limits) -> tuple[str, dict[UUID, Known]]:
    """The number of the transaction, and what is known of these messages."""
    wanted = {**limits._asdict(), "consumer": consumer, "ids": Uuids(ids)}
    rows = connection.execute(_FIND, wanted, binary=True).fetchall()
    return rows[0][0], {row[1]: Known(row[2], row[3], row[4]) for row in rows if row[1] is not None}


def record(connection: Connection, consumer: str, verdicts: Sequence[Verdict]) -> Recorded:
    """Writes them; says which were not there before."""
    columns = zip(*verdicts, strict=True) if verdicts else ((),) * len(Verdict._fields)
    ids, statuses, outcomes, reasons, hashes, types, records, results, errors = (list(column) for column in columns)
    values = {
        "consumer": consumer, "ids": Uuids(ids), "statuses": Texts(statuses), "outcomes": Texts(outcomes),
        "reasons": Texts(reasons), "hashes": Payloads(hashes), "types": Texts(types), "results": Texts(results),
        "errors": Texts(errors), "topics": Texts(each.topic for each in records),
        "partitions": [each.partition for each in records], "offsets": [each.offset for each in records],
    }  # fmt: skip
    row = connection.execute(_RECORD, values, binary=True).fetchone()
    assert row is not None
    return Recorded(frozenset(row[0] or ()), row[1], row[2])


def claim(connection: Connection, consumer: str, message: Received, limits: Limits) -> tuple[bool, str | None]:
    """at_most_once: that it came, before anything is done about it. Whether it is ours, and what stood there before."""
    record = message.record
    values = {
        "consumer": consumer, "id": message.id, "hash": message.hash, "type": message.type, "topic": record.topic,
        "partition": record.partition, "at": record.offset, "lock": limits.lock,
    }  # fmt: skip
    row = connection.execute(_CLAIM, values).fetchone()
    assert row is not None
    return row[0], row[1]


def note_error(connection: Connection, consumer: str, identity: UUID, error: str) -> None:
    """at_most_once: why what was received never took effect."""
    connection.execute(_NOTE_ERROR, {"consumer": consumer, "id": identity, "error": error})
