"""Receipts: those that are known, the verdicts of a batch in the batch's own transaction, and their deletion."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import psycopg

from ferryman.consumer.model import Advance, Partition, Received, Record
from ferryman.runtime.columns import Payloads, Texts, Uuids
from ferryman.runtime.postgres import row, value

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

ONLY_THE_RUNTIME_COMMITS = "only_the_runtime_commits"
"""The trigger that refuses a COMMIT of a batch without verdicts."""

HANDLED, RECEIVED, REJECTED, REOPENED = "HANDLED", "RECEIVED", "REJECTED", "REOPENED"

# The transaction's id is taken here, so that the last statement can tell whether it is still in the same transaction.
# The row in inbox_open prevents a COMMIT before that statement.
_FIND = """\
-- consumer.find
WITH opened AS (
    INSERT INTO ferryman.inbox_open (xid) VALUES (pg_current_xact_id()) RETURNING xid
)
SELECT t.xid, i.id, i.status, i.hash, i.results
FROM (
    SELECT (SELECT xid::text FROM opened) AS xid,
           set_config('statement_timeout', %(statement)s, true), set_config('lock_timeout', %(lock)s, true),
           set_config('idle_in_transaction_session_timeout', %(idle)s, true)
) t
LEFT JOIN ferryman.inbox_known(%(consumer)s, %(ids)b::uuid[]) i ON true
"""

# In binary: to escape the arrays as text would take longer than to store them. Sorted, so that two owners of one
# partition wait for each other and do not deadlock. If it returns fewer ids than it was given, another process has
# handled one of the messages meanwhile. If it moves fewer positions than it was given, the database was put back.
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
), reached AS (
    UPDATE ferryman.inbox_start s SET position = p.position, topic_id = coalesce(p.topic_id, s.topic_id)
    FROM unnest(%(reached_topics)b::text[], %(reached_partitions)b::integer[], %(were)b::bigint[],
                %(positions)b::bigint[], %(topic_ids)b::text[]) p (topic, partition, was, position, topic_id)
    WHERE s.consumer = %(consumer)s AND (s.topic, s.partition, s.position) = (p.topic, p.partition, p.was)
    RETURNING 1
)
SELECT array_agg(id), (SELECT count(*) FROM reached), pg_current_xact_id()::text,
       (SELECT count(*) FROM pg_cursors WHERE name <> '' AND name NOT LIKE '<unnamed%%')
FROM recorded
"""

# One round trip, committed by itself. Known messages are not claimed, except those that a person reopened.
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

# A little at a time, so that a batch never waits for long.
_FORGET = """\
-- consumer.forget
DELETE FROM ferryman.inbox i
WHERE i.consumer = %(consumer)s AND i.id = ANY (ARRAY(
    SELECT o.id FROM ferryman.inbox o
    WHERE o.consumer = %(consumer)s AND o.received_at < statement_timestamp() - make_interval(secs => %(seconds)s)
      AND o.status NOT IN ('REJECTED', 'REOPENED')
    ORDER BY o.received_at LIMIT %(most)s
))
"""

# Deletes the records that a person has decided about, and the receipts of discarded ones. Others are kept.
_FORGET_SETTLED = """\
-- consumer.forget_settled
WITH settled AS (
    DELETE FROM ferryman.inbox_rejected r
    USING (
        SELECT o.number FROM ferryman.inbox_rejected o
        WHERE o.consumer = %(consumer)s AND o.status <> 'REJECTED'
          AND o.changed_at < statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY o.rejected_at LIMIT %(most)s FOR UPDATE
    ) old
    WHERE r.consumer = %(consumer)s AND r.number = old.number
    RETURNING r.id
), receipts AS (
    DELETE FROM ferryman.inbox i
    WHERE i.consumer = %(consumer)s AND i.id IN (SELECT id FROM settled) AND i.status = 'REJECTED'
      AND i.received_at < statement_timestamp() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT FROM ferryman.inbox_rejected w
                      WHERE w.consumer = i.consumer AND w.id = i.id AND w.status = 'REJECTED')
)
SELECT count(*) FROM settled
"""

# A plan made while a table was small would be kept while it grows, for our statements and the handlers'.
_FORGET_PLANS = "-- consumer.forget_plans\nDISCARD PLANS"

MOST_FORGOTTEN = 10_000


class KnownReceipt(NamedTuple):
    """The receipt of one message, as far as a batch needs it."""

    status: str
    hash: bytes
    results: str | None


class InboxVerdict(NamedTuple):
    """The inbox row to write for one message."""

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
    """The answer of the statement that ends a batch."""

    ids: set[UUID]
    """The ids of the verdicts that were written."""
    positions: int
    """The number of positions that were written."""
    xid: str
    """The id of the transaction."""
    cursors: int
    """The number of cursors that are open in it."""


class Limits(NamedTuple):
    """The timeouts of a batch's transaction, as PostgreSQL takes them."""

    statement: str = "30s"
    lock: str = "5s"
    idle: str = "60s"


DEFAULT_LIMITS = Limits()


def find(
    connection: Connection, consumer: str, ids: Sequence[UUID], limits: Limits
) -> tuple[str, dict[UUID, KnownReceipt]]:
    """Return the transaction's id, and the receipts of these messages that exist."""
    wanted = {**limits._asdict(), "consumer": consumer, "ids": Uuids(ids)}
    rows = connection.execute(_FIND, wanted, binary=True).fetchall()
    return rows[0][0], {row[1]: KnownReceipt(row[2], row[3], row[4]) for row in rows if row[1] is not None}


def record(
    connection: Connection,
    consumer: str,
    verdicts: Sequence[InboxVerdict],
    reached: Mapping[Partition, Advance] = MappingProxyType({}),
) -> Recorded:
    """Write the verdicts, and the positions that the batch reached.

    Verdicts on messages that another process has handled meanwhile are not written, nor positions that are not where
    this process left them.
    """
    columns = zip(*verdicts, strict=True) if verdicts else ((),) * len(InboxVerdict._fields)
    ids, statuses, outcomes, reasons, hashes, types, records, results, errors = (list(column) for column in columns)
    values = {
        "consumer": consumer, "ids": Uuids(ids), "statuses": Texts(statuses), "outcomes": Texts(outcomes),
        "reasons": Texts(reasons), "hashes": Payloads(hashes), "types": Texts(types), "results": Texts(results),
        "errors": Texts(errors), "topics": Texts(each.topic for each in records),
        "partitions": [each.partition for each in records], "offsets": [each.offset for each in records],
        "reached_topics": Texts(topic for topic, _ in reached), "reached_partitions": [number for _, number in reached],
        "were": [each.was for each in reached.values()], "positions": [each.to.offset for each in reached.values()],
        "topic_ids": Texts(each.to.topic_id for each in reached.values()),
    }  # fmt: skip
    written, *others = row(connection.execute(_RECORD, values, binary=True))
    return Recorded(set(written or ()), *others)


def claim(connection: Connection, consumer: str, message: Received, limits: Limits) -> tuple[bool, str | None]:
    """at_most_once: write that the message came, before it is handled.

    Return whether this process may handle it, and the status that its receipt had.
    """
    record = message.record
    values = {
        "consumer": consumer, "id": message.id, "hash": message.hash, "type": message.type, "topic": record.topic,
        "partition": record.partition, "at": record.offset, "lock": limits.lock,
    }  # fmt: skip
    claimed, status = row(connection.execute(_CLAIM, values))
    return claimed, status


def note_error(connection: Connection, consumer: str, identity: UUID, error: str) -> None:
    """at_most_once: write into a receipt why its message never took effect."""
    connection.execute(_NOTE_ERROR, {"consumer": consumer, "id": identity, "error": error})


def forget_receipts(connection: Connection, consumer: str, seconds: float) -> int:
    """Delete old receipts, `MOST_FORGOTTEN` at a time, and return how many. 0 seconds keeps them for ever."""
    return connection.execute(_FORGET, _forgotten(consumer, seconds)).rowcount


def forget_settled(connection: Connection, consumer: str, seconds: float) -> int:
    """Do the same to rejected records that were requeued or discarded."""
    return int(value(connection.execute(_FORGET_SETTLED, _forgotten(consumer, seconds))))


def _forgotten(consumer: str, seconds: float) -> dict[str, object]:
    """Return what to delete. No row is older than NULL seconds."""
    return {"consumer": consumer, "seconds": seconds or None, "most": MOST_FORGOTTEN}


def forget_plans(connection: Connection) -> None:
    """Have each prepared statement planned anew at its next use."""
    connection.execute(_FORGET_PLANS)
