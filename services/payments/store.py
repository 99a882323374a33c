"""All SQL that records and reads requests. The saga engine moves them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import psycopg
from psycopg.rows import class_row, tuple_row

from ferryman import Encoded, FerrymanError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# Sorted: two clients that send the same payments wait for one another and do not deadlock.
_RECORD = """\
-- payments.record
INSERT INTO payments.requests (uuid, wallet_id, amount, currency, fulfil, due_at)
SELECT n.uuid, n.wallet_id, n.amount, n.currency, n.fulfil,
       coalesce(clock_timestamp() + make_interval(secs => %(seconds)b::float8), 'infinity')
FROM unnest(%(uuids)b::uuid[], %(wallets)b::uuid[], %(amounts)b::bigint[], %(currencies)b::text[], %(fulfils)b::bool[])
     n (uuid, wallet_id, amount, currency, fulfil)
ORDER BY n.uuid
ON CONFLICT (uuid) DO NOTHING
RETURNING uuid, wallet_id, amount, currency, fulfil, status, state, reason, created_at, changed_at
"""

# The same statement appends the messages of a new request: clients mostly send one payment at a time.
_RECORD_ONE = """\
-- payments.record_one
WITH recorded AS (
    INSERT INTO payments.requests (uuid, wallet_id, amount, currency, fulfil, due_at)
    VALUES (%(uuid)b::uuid, %(wallet_id)b::uuid, %(amount)b::bigint, %(currency)b::text, %(fulfil)b::bool,
            coalesce(clock_timestamp() + make_interval(secs => %(seconds)b::float8), 'infinity'))
    ON CONFLICT (uuid) DO NOTHING
    RETURNING uuid, wallet_id, amount, currency, fulfil, status, state, reason, created_at, changed_at
){referred}
SELECT recorded.*, {appended} FROM recorded
"""
_REFERRED = """, referred AS (
    INSERT INTO payments.reference (uuid, reference) SELECT uuid, %(reference)b::text FROM recorded
    ON CONFLICT (uuid) DO UPDATE SET reference = excluded.reference
)"""
_APPENDED = """\
ferryman.outbox_append(
    %(topic{n})b::text, %(key{n})b::text, %(type{n})b::text, %(payload{n})b::bytea, %(headers{n})b::text::jsonb,
    %(id{n})b::uuid, content_type => %(content_type{n})b::text
)"""

_REFER = """\
-- payments.refer
INSERT INTO payments.reference (uuid, reference)
SELECT n.uuid, n.reference FROM unnest(%(uuids)s::uuid[], %(references)s::text[]) n (uuid, reference)
ON CONFLICT (uuid) DO UPDATE SET reference = excluded.reference
"""

_ENQUEUE = """\
-- payments.enqueue
INSERT INTO payments.outbox (uuid, topic, key, type, payload, content_type, headers)
SELECT n.uuid, n.topic, n.key, n.type, n.payload, n.content_type, n.headers::jsonb
FROM unnest(%(uuids)b::uuid[], %(topics)b::text[], %(keys)b::text[], %(types)b::text[], %(payloads)b::bytea[],
            %(content_types)b::text[], %(headers)b::text[]) n (uuid, topic, key, type, payload, content_type, headers)
ORDER BY n.uuid
"""

_COLUMNS = """\
r.uuid, r.wallet_id, r.amount, r.currency, r.fulfil, r.status, r.state, r.reason, r.created_at, r.changed_at,
       p.reference
FROM payments.requests r LEFT JOIN payments.reference p ON p.uuid = r.uuid
"""

_FIND = f"""\
-- payments.find
SELECT {_COLUMNS}WHERE r.uuid = ANY (%(uuids)s::uuid[])
"""

_LIST = f"""\
-- payments.list
SELECT {_COLUMNS}WHERE (%(pending)s::bool IS NULL OR (r.due_at IS NOT NULL) = %(pending)s)
  AND (%(status)s::text IS NULL OR r.status = %(status)s)
  AND (%(wallet)s::uuid IS NULL OR r.wallet_id = %(wallet)s)
  AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR r.created_at < %(until)s)
  AND (%(at)s::timestamptz IS NULL OR (r.created_at, r.uuid) < (%(at)s, %(uuid)s))
ORDER BY r.created_at DESC, r.uuid DESC LIMIT %(most)s
"""


MOST_AMOUNT, LONGEST_REFERENCE = 10**15, 500

_ENDED = """\
-- payments.ended
SELECT said FROM payments.ended WHERE uuid = %s
"""
_ARCHIVED = "requests_archived"
_ANOTHER = "give each payment a uuid of its own"


class Archived(FerrymanError):
    """A payment with this uuid is over and archived: the uuid cannot be used again."""


class Request(NamedTuple):
    """A payment as a client requests it."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool = False
    reference: str | None = None


class RecordedPayment(NamedTuple):
    """A recorded request in its present state."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    status: str
    state: str
    reason: str | None
    created_at: datetime
    changed_at: datetime
    reference: str | None

    @property
    def request(self) -> Request:
        return Request(self.uuid, self.wallet_id, self.amount, self.currency, self.fulfil, self.reference)


def record(db: Connection, requests: Sequence[Request], answer_seconds: float | None) -> dict[UUID, RecordedPayment]:
    """Record requests, and return the new ones. Without `answer_seconds` they never time out."""
    uuids, wallets, amounts, currencies, fulfils, _ = (list(column) for column in zip(*requests, strict=True))
    given = {"uuids": uuids, "wallets": wallets, "amounts": amounts, "currencies": currencies, "fulfils": fulfils,
             "seconds": answer_seconds}  # fmt: skip
    with _refusing_archived():
        rows = db.cursor(row_factory=tuple_row).execute(_RECORD, given, binary=True).fetchall()
    said = {each.uuid: each.reference for each in requests}
    new = {row[0]: RecordedPayment._make((*row, said[row[0]])) for row in rows}
    if told := {uuid: reference for uuid, reference in said.items() if reference is not None and uuid in new}:
        db.execute(_REFER, {"uuids": list(told), "references": list(told.values())})
    return new


def record_one(
    db: Connection, request: Request, answer_seconds: float | None, messages: Sequence[Encoded]
) -> dict[UUID, RecordedPayment]:
    """Record a request and append its messages if it is new, in one statement."""
    given: dict[str, Any] = {**request._asdict(), "seconds": answer_seconds}
    for n, message in enumerate(messages):
        given |= {f"{name}{n}": value for name, value in message._asdict().items()}
    statement = _record_one(len(messages), referred=request.reference is not None)
    with _refusing_archived():
        row = db.cursor(row_factory=tuple_row).execute(statement, given, binary=True).fetchone()
    return {} if row is None else {request.uuid: RecordedPayment._make((*row[: -len(messages)], request.reference))}


@contextmanager
def _refusing_archived() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != _ARCHIVED:
            raise
        raise Archived(str(error.diag.message_primary), remedy=_ANOTHER) from error


@cache
def _record_one(messages: int, *, referred: bool) -> str:
    appended = ", ".join(_APPENDED.format(n=n) for n in range(messages))
    return _RECORD_ONE.format(appended=appended, referred=_REFERRED if referred else "")


def enqueue(db: Connection, messages: Sequence[tuple[UUID, Encoded]]) -> None:
    """Write rows to the outbox of the literal mode, each with the uuid of its request."""
    given = {
        "uuids": [uuid for uuid, _ in messages],
        **{f"{name.removesuffix('s')}s": [getattr(each, name) for _, each in messages]
           for name in ("topic", "key", "type", "payload", "content_type", "headers")},
    }  # fmt: skip
    db.execute(_ENQUEUE, given, binary=True)


def find(db: Connection, uuids: Sequence[UUID]) -> dict[UUID, RecordedPayment]:
    """Return these requests. The statement is not prepared: a plan made for an empty table would scan a large one."""
    cursor = db.cursor(row_factory=class_row(RecordedPayment))
    rows = cursor.execute(_FIND, {"uuids": list(uuids)}, prepare=False).fetchall()
    return {row.uuid: row for row in rows}


def refuse_archived(db: Connection, uuid: UUID) -> None:
    """Raise Archived, which says how the payment ended, if it was archived."""
    if row := db.execute(_ENDED, (uuid,)).fetchone():
        raise Archived(str(row[0]), remedy=_ANOTHER)


def listed(
    db: Connection,
    most: int,
    *,
    status: str | None = None,
    wallet_id: UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    behind: tuple[datetime, UUID] | None = None,
) -> list[RecordedPayment]:
    """Return requests, the newest first; `behind` is the time and the uuid of the last one of the previous page."""
    at, uuid = behind or (None, None)
    given = {"pending": None if status is None else status == "PENDING", "status": status, "wallet": wallet_id,
             "since": since, "until": until, "at": at, "uuid": uuid, "most": most}  # fmt: skip
    return db.cursor(row_factory=class_row(RecordedPayment)).execute(_LIST, given).fetchall()
