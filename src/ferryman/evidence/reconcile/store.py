"""All SQL of `reconcile`: pages of what is pending, and lookups by id in either database; nothing joins across."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from psycopg.rows import class_row, tuple_row

from ferryman.evidence.databases import Connection
from ferryman.evidence.messages import EXHAUSTED
from ferryman.evidence.reconcile.model import Entry, Operation, Pending, Receipt, Rejected
from ferryman.services.payments.rules import REFUSED_DOWNSTREAM, TIMED_OUT

_COLUMNS = """\
r.uuid, r.wallet_id, r.state, r.attempt, CASE WHEN r.due_at < 'infinity' THEN r.due_at END AS due_at, r.changed_at,
clock_timestamp() AS now, extract(epoch FROM clock_timestamp() - r.created_at)::float8 AS age_seconds,
coalesce(r.due_at::text, '') AS mark"""

# By the index of what is not over, in the order in which it is to be looked at. What was moved since the walk began
# stands further on now, and is left.
_PENDING: LiteralString = f"""\
-- reconcile.pending
SELECT {_COLUMNS} FROM payments.requests r
WHERE r.due_at IS NOT NULL AND (r.due_at, r.uuid) > (%(at)s::timestamptz, %(uuid)s::uuid)
  AND r.created_at <= %(began)s::timestamptz - make_interval(secs => %(older)s) AND r.changed_at <= %(began)s
ORDER BY r.due_at, r.uuid LIMIT %(most)s
"""  # noqa: S608 - only our own columns are put in

_NAMED: LiteralString = f"""\
-- reconcile.named
SELECT {_COLUMNS} FROM payments.requests r WHERE r.uuid = ANY (%(ids)s::uuid[])
  AND (r.due_at IS NOT NULL OR r.state = 'FAILED')
"""  # noqa: S608 - same

# What was taken and told too late to be kept: by the age of that, since nothing looks after what is over. Not what the
# machine itself has undone, which only the wallet's answer ends.
_TAKEN_LATE: LiteralString = f"""\
-- reconcile.taken_late
SELECT {_COLUMNS.replace("coalesce(r.due_at::text, '')", "s.came_at::text")}
FROM ferryman.saga_stray s CROSS JOIN LATERAL (
    SELECT * FROM payments.requests r
    WHERE r.uuid = s.saga_id AND r.state = 'FAILED' AND coalesce(r.reason, '') <> ALL (%(undone)s) OFFSET 0
) r
WHERE s.machine = 'payment' AND s.why = 'LATE' AND s.type = 'wallet.succeeded' AND s.data ->> 'kind' = 'DEDUCT'
  AND (s.came_at, s.saga_id) > (%(at)s::timestamptz, %(uuid)s::uuid)
  AND s.came_at <= %(began)s::timestamptz - make_interval(secs => %(older)s)
ORDER BY s.came_at, s.saga_id LIMIT %(most)s
"""  # noqa: S608 - same

_STATES = """\
-- reconcile.states
SELECT uuid, state FROM payments.requests WHERE uuid = ANY (%(ids)s::uuid[])
"""

# Each looked up by itself (OFFSET 0): before a table was analyzed, the planner would read all of it.
_LEDGER = """\
-- reconcile.ledger
SELECT l.request_id, l.kind, l.reason, l.decided_at, l.amount
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.ledger l WHERE l.request_id = n.id AND l.step = 'deduct' OFFSET 0
) l
"""

_RECEIPTS = """\
-- reconcile.receipts
SELECT i.id, i.status, i.outcome, i.reason, i.error, i.received_at
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM ferryman.inbox i WHERE i.consumer = %(consumer)s AND i.id = n.id OFFSET 0
) i
"""

_REJECTED = """\
-- reconcile.rejected
SELECT r.id, r.code, r.error, r.status
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM ferryman.inbox_rejected r WHERE r.consumer = %(consumer)s AND r.id = n.id
    ORDER BY r.rejected_at DESC LIMIT 1
) r
"""

_STRAYS = """\
-- reconcile.strays
SELECT s.message_id, s.why
FROM unnest(%(ids)s::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM ferryman.saga_stray s WHERE s.saga_id = n.id AND s.machine = 'payment' OFFSET 0
) s
"""

_LITERAL = """\
-- reconcile.literal
SELECT o.uuid, o.status, o.try_count, o.last_error, coalesce(o.last_attempt_at, o.created_at) AS at
FROM payments.outbox o WHERE o.uuid = ANY (%(ids)s::uuid[])
"""

# By the index of exceptions by key: an id has none in the journal.
_EXCEPTIONS = """\
-- reconcile.exceptions
SELECT o.id, x.position, x.status, x.attempts, coalesce(x.error, t.reason) AS error, x.replay, x.changed_at
FROM unnest(%(topics)s::text[], %(keys)s::text[]) n (topic, key)
CROSS JOIN LATERAL (
    SELECT * FROM ferryman.outbox_exception e
    WHERE e.lane = ferryman.outbox_lane(n.key) AND e.topic = n.topic AND e.key = n.key OFFSET 0
) x
JOIN ferryman.outbox o ON o.position = x.position
LEFT JOIN ferryman.outbox_parked_topic t ON t.lane = x.lane AND t.topic = x.topic
WHERE o.id = ANY (%(ids)s::uuid[])
"""

# What the relay has not read: the arithmetic of the view `backlog`, between two positions.
_UNREAD = """\
-- reconcile.unread
WITH lanes AS MATERIALIZED (SELECT * FROM ferryman.outbox_lanes)
SELECT o.id, o.position, 'PENDING', 0, NULL::text, NULL::bigint, NULL::timestamptz
FROM ferryman.outbox o
WHERE o.position > greatest(%(after)s::bigint, (SELECT min(done_position_at) FROM lanes))
  AND o.position <= %(upto)s AND o.id = ANY (%(ids)s::uuid[])
  AND (SELECT o.position > l.done_position_at AND NOT pg_visible_in_snapshot(o.xid, l.done_snapshot)
              AND NOT (l.target IS NOT NULL AND pg_visible_in_snapshot(o.xid, l.target_snapshot)
                       AND o.position <= l.position)
       FROM lanes l WHERE l.lane = o.lane)
UNION ALL
SELECT late.id, late.position, 'PENDING', 0, NULL, NULL, NULL
FROM (SELECT done_snapshot::text::pg_snapshot AS done, done_horizon AS horizon, done_position_at AS done_at,
             array_agg(lane) AS lanes
      FROM lanes GROUP BY done_snapshot::text, done_horizon, done_position_at) place
CROSS JOIN LATERAL ferryman.outbox_late(place.done, place.done_at, place.horizon, pg_current_snapshot()) l (xid)
CROSS JOIN LATERAL (
    SELECT o.id, o.position FROM ferryman.outbox o
    WHERE (o.xid, o.position) >= (l.xid, 0) AND (o.xid, o.position) <= (l.xid, place.done_at)
      AND o.lane = ANY (place.lanes) AND o.id = ANY (%(ids)s::uuid[])
    ORDER BY o.xid, o.position
) late
"""

_PAUSED = """\
-- reconcile.paused
SELECT topic FROM ferryman.outbox_paused
"""

_NOW = """\
-- reconcile.now
SELECT clock_timestamp()
"""

FIRST = ("-infinity", UUID(int=0))
"""The place before all that is pending."""

RowT = TypeVar("RowT")


def pending(db: Connection, after: tuple[str, UUID], began: datetime, older_seconds: float, most: int) -> list[Pending]:
    """What is not over and is as old as that, after a place."""
    at, uuid = after
    given = {"at": at, "uuid": uuid, "began": began, "older": older_seconds, "most": most}
    return _rows(db, Pending, _PENDING, given)


def taken_late(
    db: Connection, after: tuple[str, UUID], began: datetime, older_seconds: float, most: int
) -> list[Pending]:  # fmt: skip
    """What has FAILED and was taken all the same, as a result told that came after that, behind a place."""
    at, uuid = after
    given = {"at": at, "uuid": uuid, "began": began, "older": older_seconds, "most": most,
             "undone": [TIMED_OUT, REFUSED_DOWNSTREAM]}  # fmt: skip
    return _rows(db, Pending, _TAKEN_LATE, given)


def named(db: Connection, ids: Sequence[UUID]) -> list[Pending]:
    return _rows(db, Pending, _NAMED, {"ids": list(ids)})


def states(db: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    return dict(db.cursor(row_factory=tuple_row).execute(_STATES, {"ids": list(ids)}).fetchall())


def ledger(db: Connection, ids: Sequence[UUID]) -> list[Operation]:
    return _rows(db, Operation, _LEDGER, {"ids": list(ids)})


def receipts(db: Connection, consumer: str, ids: Iterable[UUID]) -> dict[UUID, Receipt]:
    rows = _rows(db, Receipt, _RECEIPTS, {"consumer": consumer, "ids": list(ids)})
    return {row.id: row for row in rows}


def rejected(db: Connection, consumer: str, ids: Iterable[UUID]) -> dict[UUID, Rejected]:
    """The last record of each."""
    rows = _rows(db, Rejected, _REJECTED, {"consumer": consumer, "ids": list(ids)})
    return {row.id: row for row in rows}


def strays(db: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Of these payments, the results that were applied to nothing, and why."""
    return dict(db.cursor(row_factory=tuple_row).execute(_STRAYS, {"ids": list(ids)}).fetchall())


def literal(db: Connection, ids: Sequence[UUID], limit: int) -> dict[UUID, Entry | None]:
    """Those of these payments that left by the literal mode's outbox; their entry, where it is not published."""
    rows = db.cursor(row_factory=tuple_row).execute(_LITERAL, {"ids": list(ids)}).fetchall()
    return {
        uuid: Entry(uuid, 0, EXHAUSTED if tries >= limit else status, tries, error, None, at)
        if status == "PENDING" else None
        for uuid, status, tries, error, at in rows
    }  # fmt: skip


def exceptions(db: Connection, keys: Iterable[tuple[str, str]], ids: Sequence[UUID]) -> dict[UUID, Entry]:
    """Those of these entries that failed, wait, or are published once more; the keys with their topics."""
    topics, names = zip(*keys, strict=True)
    rows = _rows(db, Entry, _EXCEPTIONS, {"topics": list(topics), "keys": list(names), "ids": list(ids)})
    return {row.id: row for row in rows}


def unread(db: Connection, ids: Sequence[UUID], after: int, upto: int) -> dict[UUID, Entry]:
    """Those of these entries that the relay has not read yet, between two positions."""
    rows = db.cursor(row_factory=tuple_row).execute(_UNREAD, {"ids": list(ids), "after": after, "upto": upto})
    return {row[0]: Entry(*row) for row in rows.fetchall()}


def paused(db: Connection) -> tuple[str, ...]:
    """Topics; the empty name is all of them."""
    return tuple(topic for (topic,) in db.cursor(row_factory=tuple_row).execute(_PAUSED).fetchall())


def now(db: Connection) -> datetime:
    """The database's clock is the truth."""
    row = db.cursor(row_factory=tuple_row).execute(_NOW).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def _rows(db: Connection, make: type[RowT], statement: LiteralString, given: Mapping[str, Any]) -> list[RowT]:
    return db.cursor(row_factory=class_row(make), binary=True).execute(statement, given).fetchall()
