"""Entries, receipts, rejected records and stray results: as values, and found by their ids."""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, LiteralString, NamedTuple, TypeVar
from uuid import UUID

from psycopg.rows import class_row, tuple_row

from ferryman.consumer.store.consumers import processes
from ferryman.evidence.sides import Connection
from ferryman.runtime.desk import count_relays, paused_by, read_paused

# Each is looked up by itself (OFFSET 0): before a table was analyzed, the planner would read all of it.
_RECEIPTS = """\
-- evidence.receipts
SELECT i.id, i.status, i.outcome, i.reason, i.error, i.received_at AS at, i.type, i.topic, i.partition, i."offset",
       i.results AS reports
FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM ferryman.inbox_receipts i WHERE i.consumer = %(consumer)s AND i.id = n.id OFFSET 0
) i
"""

_REJECTED = """\
-- evidence.rejected
SELECT r.* FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT r.id, r.code, r.error, r.status, r.type, r.topic, r.partition, r."offset", r.rejected_at AS at, r.changed_at,
           r.who, r.reason AS why
    FROM ferryman.inbox_rejected r WHERE r.consumer = %(consumer)s AND r.id = n.id OFFSET 0
) r
ORDER BY r.at
"""

_STRAYS = """\
-- evidence.strays
SELECT s.message_id, s.why, s.type, s.came_at FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM ferryman.saga_stray s WHERE s.saga_id = n.id AND s.machine = %(machine)s OFFSET 0
) s
ORDER BY s.came_at
"""

_HAS_TABLE = """\
-- evidence.has_table
SELECT to_regclass(%(name)s) IS NOT NULL
"""

RowT = TypeVar("RowT")
EVER = datetime.max.replace(tzinfo=UTC)


class OutboxEntry(NamedTuple):
    """An entry of an outbox. `reason` and `next` are what `ferryman outbox show` tells of one that is not published.
    A row of an outbox table other than the journal has no position, but the name of its table.
    """

    id: UUID
    position: int | None
    status: str
    type: str = ""
    topic: str = ""
    key: str = ""
    created_at: datetime = EVER
    attempts: int = 0
    error: str | None = None
    changed_at: datetime | None = None
    replay: int | None = None
    reason: str | None = None
    next: str | None = None
    table: str | None = None


class InboxReceipt(NamedTuple):
    """A consumer's verdict on a message, and where the message stood in Kafka."""

    id: UUID
    status: str
    outcome: str | None
    reason: str | None
    error: str | None
    at: datetime
    """When it was received."""
    type: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
    reports: str | None = None
    """The messages that were reported with it, as the inbox stores them, but without their payloads."""

    @property
    def results(self) -> tuple[UUID, ...]:
        """The ids of the messages that were reported with it."""
        return tuple(UUID(each[5]) for each in json.loads(self.reports or "[]"))


class RejectedMessage(NamedTuple):
    """A record that its consumer could not handle, and what a person did about it."""

    id: UUID
    code: str
    error: str
    status: str
    type: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
    at: datetime = EVER
    """When it was rejected."""
    changed_at: datetime | None = None
    who: str | None = None
    why: str | None = None


class StrayResult(NamedTuple):
    """A result that moved no saga."""

    message_id: UUID
    why: str
    type: str
    came_at: datetime


def receipts(db: Connection, consumer: str, ids: Iterable[UUID]) -> dict[UUID, InboxReceipt]:
    found = rows(db, InboxReceipt, _RECEIPTS, {"consumer": consumer, "ids": list(ids)})
    return {row.id: row for row in found}


def rejected(db: Connection, consumer: str, ids: Collection[UUID]) -> list[RejectedMessage]:
    """Return the rejected records of these messages, the oldest first."""
    return rows(db, RejectedMessage, _REJECTED, {"consumer": consumer, "ids": list(ids)})


def strays_of(db: Connection, machine: str, sagas: Collection[UUID]) -> list[StrayResult]:
    return rows(db, StrayResult, _STRAYS, {"machine": machine, "ids": list(sagas)})


def reader(db: Connection, consumer: str) -> tuple[int, str | None]:
    """Return how many processes of a consumer are connected; and by whom it is paused, since when and why."""
    pauses = {each["consumer"]: paused_by(each) for each in read_paused(db, "consumer")}
    return processes(db, [consumer])[consumer], pauses.get(consumer)


def relaying(db: Connection) -> tuple[int, list[str]]:
    """Return how many relays are connected to a database, and its paused topics; the empty name is all of them."""
    return count_relays(db), [each["topic"] for each in read_paused(db, "topic")]


def has_table(db: Connection, name: str) -> bool:
    return bool(tuples(db, _HAS_TABLE, {"name": name})[0][0])


def rows(db: Connection, make: type[RowT], statement: LiteralString, given: Mapping[str, Any]) -> list[RowT]:
    """Run a statement whose columns are named as the fields of a row."""
    return db.cursor(row_factory=class_row(make), binary=True).execute(statement, given).fetchall()


def tuples(db: Connection, statement: LiteralString, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return db.cursor(row_factory=tuple_row, binary=True).execute(statement, given).fetchall()
