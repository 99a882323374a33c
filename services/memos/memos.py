"""Recording memos: each with the e-mail about it, both or neither."""

import base64
import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg import errors

from ferryman import InvalidMail, Mail, Permanent, Transient, check_mail

EVENT = "memo.created"
_NOTIFICATION = "MEMO_CREATED"
_KEY_CHARACTERS = 100
_TRIES = 12
# Requests that conflict would conflict again if they came again together.
_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 0.2
_LONGEST = {"number_prefix": 50, "department_code": 50, "title": 500}
_FIELDS = {"to": "recipient", "subject": "title", "text": "email_body", "html": "email_html"}
T = TypeVar("T")
Connection: TypeAlias = "psycopg.Connection[Any]"

_CREATE = """\
-- memos.create
WITH memo AS (
    INSERT INTO memos.memos (id, memo_number_prefix, department_code, title, purpose)
    VALUES (%(id)s, %(number_prefix)s, %(department_code)s, %(title)s, %(purpose)s)
    RETURNING id, memo_number_sequence
), mail AS (
    INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type, idempotency_key)
    SELECT memo.id, %(event)s, %(payload)s::jsonb, %(recipient)s, %(notification)s, %(key)s FROM memo
    RETURNING id
), said AS (
    INSERT INTO memos.request SELECT memo.id, %(hash)s FROM memo
)
SELECT memo.memo_number_sequence, mail.id FROM memo, mail
"""

_FIND = """\
-- memos.find
SELECT m.id, m.memo_number_prefix || '-' || m.memo_number_sequence, m.memo_number_prefix, m.department_code, m.title,
       m.purpose, m.created_at, r.hash, o.id, o.status, o.retry_count, o.sent_at, o.error_message
FROM memos.memos m
LEFT JOIN memos.request r ON r.memo_id = m.id
LEFT JOIN memos.email_outbox o ON o.memo_id = m.id AND o.event_type = %(event)s
WHERE m.id = %(id)s ORDER BY o.meta_created_at LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class MemoInput:
    """A memo to record, and the mail about it."""

    number_prefix: str
    department_code: str
    title: str
    recipient: str
    email_body: str
    purpose: str | None = None
    email_html: str | None = None

    @property
    def hash(self) -> bytes:
        """A hash that tells a repeated request from another one, also after the rows were corrected."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()


@dataclass(frozen=True, slots=True)
class RecordedMemo:
    """A memo that was recorded, its number, and the row of its mail."""

    id: UUID
    number: str
    mail: UUID


class MemoRow(NamedTuple):
    """A memo as its table has it, with the mail about it; None of these where the mail is archived."""

    id: UUID
    number: str
    number_prefix: str
    department_code: str
    title: str
    purpose: str | None
    created_at: datetime
    hash: bytes | None
    """That of its `MemoInput`; None if SQL recorded it."""
    mail: UUID | None
    status: str | None
    retry_count: int | None
    sent_at: datetime | None
    error: str | None


class InvalidMemo(Permanent):
    """A memo that its tables cannot hold, or a mail about it that cannot be sent; `field` names what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def create_memo(
    db: Connection, memo: MemoInput, memo_id: UUID | None = None, *, max_bytes: int | None = None
) -> RecordedMemo:
    """Record a memo and the mail about it in the caller's transaction: both or neither.

    Raise `InvalidMemo` if the mail could not be sent; `max_bytes` is `email.max_bytes`, if that is set.
    """
    check(memo, max_bytes)
    memo_id = memo_id or uuid4()
    row = db.execute(_CREATE, {
        "id": memo_id, "number_prefix": memo.number_prefix, "department_code": memo.department_code,
        "title": memo.title, "purpose": memo.purpose, "event": EVENT, "payload": json.dumps(payload_of(memo)),
        "recipient": memo.recipient, "notification": _NOTIFICATION, "key": key_of(memo_id, EVENT, memo.recipient),
        "hash": memo.hash,
    }).fetchone()  # fmt: skip
    assert row is not None
    return RecordedMemo(memo_id, f"{memo.number_prefix}-{row[0]}", row[1])


def find_memo(db: Connection, memo_id: UUID) -> MemoRow | None:
    """Return a memo and the mail about it."""
    row = db.execute(_FIND, {"id": memo_id, "event": EVENT}).fetchone()
    return MemoRow(*row) if row else None


def check(memo: MemoInput, max_bytes: int | None = None) -> None:
    """Refuse a memo that its tables cannot hold, or whose mail could not be sent."""
    for name, most in _LONGEST.items():
        value = getattr(memo, name)
        if not 1 <= len(value) <= most or "\0" in value:
            raise InvalidMemo(name, f"it must have 1 to {most} characters, and no NUL")
    if "\0" in (memo.purpose or ""):
        raise InvalidMemo("purpose", "it must have no NUL")
    for name in (*_LONGEST, "purpose"):
        if any("\ud800" <= each <= "\udfff" for each in getattr(memo, name) or ""):
            raise InvalidMemo(name, "it is not valid Unicode")
    payload = payload_of(memo)
    mail = Mail(memo.recipient, payload["subject"], payload["body"], payload.get("html"))
    try:
        check_mail(mail) if max_bytes is None else check_mail(mail, max_bytes)
    except InvalidMail as error:
        raise InvalidMemo(_FIELDS[error.part], error.message) from error


def serializably(opened: Callable[[], AbstractContextManager[Connection]], work: Callable[[Connection], T]) -> T:
    """Do the work in a transaction, and again in a new one if it conflicts with another SERIALIZABLE transaction."""
    for tried in range(1, _TRIES + 1):
        try:
            with opened() as db:
                return work(db)
        except (psycopg.Error, Transient) as error:
            conflict = error if isinstance(error, psycopg.Error) else error.__cause__
            if tried == _TRIES or not isinstance(conflict, errors.SerializationFailure | errors.DeadlockDetected):
                raise
        time.sleep(random.uniform(0, min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**tried)))
    raise AssertionError


def payload_of(memo: MemoInput) -> Mapping[str, str]:
    """Return what the mail is made of."""
    payload = {"subject": f"Memo {memo.title} Created", "body": memo.email_body}
    return payload if memo.email_html is None else {**payload, "html": memo.email_html}


def key_of(memo_id: UUID, event: str, recipient: str) -> str:
    """Return the mail's idempotency key, or a hash of it where the column is too short for the recipient."""
    key = f"{memo_id}-{event}-{recipient}"
    if len(key) <= _KEY_CHARACTERS:
        return key
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).decode().rstrip("=")
