"""Jobs: creating one with its recipients and commands, once, and looking at what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import psycopg
from psycopg import errors

from ferryman import InvalidMail, Mail, Permanent, append_many, check_mail
from ferryman.services.reviews.job_rules import Asked, commands

Connection: TypeAlias = "psycopg.Connection[Any]"

MOST_RECIPIENTS, LONGEST_NAME, LONGEST_BODY = 10_000, 255, 100_000
_MAIL_FIELDS = {"to": "recipients", "subject": "subject", "text": "body"}
_CONSTRAINTS = {
    "recipient_is_an_address": "recipients", "recipients_are_not_too_many": "recipients",
    "key_is_not_too_long": "idempotency_key", "change_is_not_too_long": "changelist_id",
    "version_is_positive": "review_version", "subject_is_a_line": "subject", "body_is_not_too_long": "body",
}  # fmt: skip
"""The field that each constraint of the tables is about."""

_CREATE = """\
-- reviews.create
SELECT id, is_new FROM reviews.create_job(%(idempotency_key)s, %(changelist_id)s, %(review_version)s,
    %(recipients)s::text[], %(subject)s, %(body)s, %(rerun)s, %(answer_seconds)s)
"""

_FIND = """\
-- reviews.find
SELECT j.id, j.idempotency_key, j.changelist_id, j.review_version, j.rerun_of, j.status, j.reason, j.created_at,
       j.changed_at, c.*
FROM (
    SELECT * FROM reviews.jobs WHERE id = ANY (%(ids)s::uuid[]) OR changelist_id = %(changelist)s
    ORDER BY review_version DESC LIMIT 100
) j CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE r.status = 'waiting'), count(*) FILTER (WHERE r.status = 'notified'),
           count(*) FILTER (WHERE r.status = 'failed'), count(*) FILTER (WHERE r.status = 'withdrawn')
    FROM reviews.recipients r WHERE r.job_id = j.id
) c ORDER BY j.review_version DESC
"""

RECIPIENTS = """\
-- reviews.recipients
SELECT r.recipient, r.status, r.notification_id, r.notified_at, r.error_code, r.permanent, r.replaced_by, r.changed_at
FROM reviews.recipients r
WHERE r.job_id = %(job)s AND (%(status)s::text IS NULL OR r.status = %(status)s) AND r.recipient > %(after)s
ORDER BY r.recipient LIMIT %(most)s
"""

_EVERYBODY = """\
-- reviews.everybody
SELECT r.recipient FROM reviews.recipients r WHERE r.job_id = %(job)s ORDER BY r.recipient
"""


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """A job as its caller asks for it. The same key with the same words is the same job."""

    idempotency_key: str
    changelist_id: str
    review_version: int
    recipients: Sequence[str]
    subject: str
    body: str
    rerun: bool = False
    """True to tell again of a change that has a job of a lower version."""


class RecordedJob(NamedTuple):
    """A job, and how many of its recipients stand how."""

    id: UUID
    idempotency_key: str
    changelist_id: str
    review_version: int
    rerun_of: UUID | None
    status: str
    reason: str | None
    created_at: datetime
    changed_at: datetime
    waiting: int
    notified: int
    failed: int
    withdrawn: int


class RecipientRow(NamedTuple):
    """A recipient of a job, as its table has it."""

    recipient: str
    status: str
    notification_id: str | None
    notified_at: datetime | None
    error_code: str | None
    permanent: bool | None
    replaced_by: str | None
    changed_at: datetime


class InvalidReview(Permanent):
    """A request that no job can have; `field` names what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ReviewConflict(Permanent):
    """A request that contradicts the jobs that are there."""


def create_job(db: Connection, wanted: ReviewRequest, *, answer_seconds: float = 300.0) -> tuple[UUID, bool]:
    """Create a job with its recipients and a command for each, in the caller's transaction: all of it or nothing.

    Return its id, and True if it is new: what was asked before, and what was told of this version, is not repeated.
    Raise `InvalidReview` or `ReviewConflict`: then roll back. `answer_seconds` is `reviews.answer_seconds`.
    """
    check_request(wanted)
    given = {name: getattr(wanted, name) for name in ReviewRequest.__dataclass_fields__}
    job, is_new = _refusing(db, {**given, "recipients": list(wanted.recipients), "answer_seconds": answer_seconds})
    if is_new:
        facts = {"job_id": job, "changelist_id": wanted.changelist_id, "review_version": wanted.review_version}
        found = db.execute(_EVERYBODY, {"job": job}).fetchall()
        append_many(db, commands(facts, [Asked(each, wanted.subject, wanted.body) for (each,) in found]))
    return job, is_new


def find_jobs(db: Connection, *ids: UUID, changelist: str | None = None) -> list[RecordedJob]:
    """Return these jobs, or the newest hundred of a change: the newest version first."""
    found = db.execute(_FIND, {"ids": list(ids), "changelist": changelist}).fetchall()
    return [RecordedJob(*row) for row in found]


def find_recipients(
    db: Connection, job: UUID, *, status: str | None = None, after: str = "", most: int = 100
) -> list[RecipientRow]:
    """Return recipients of a job in their order, behind this one."""
    given = {"job": job, "status": status, "after": after, "most": most}
    return [RecipientRow(*row) for row in db.execute(RECIPIENTS, given).fetchall()]


def check_request(wanted: ReviewRequest) -> None:
    """Refuse a request that the tables cannot hold, or whose mails could not be sent."""
    for name in ("idempotency_key", "changelist_id"):
        value = getattr(wanted, name)
        if not 1 <= len(value) <= LONGEST_NAME or not _is_storable(value):
            raise InvalidReview(name, f"it must have 1 to {LONGEST_NAME} characters, and no NUL")
    if not 0 < wanted.review_version < 2**31:
        raise InvalidReview("review_version", "it must be a whole number from 1 on")
    if not 1 <= len(wanted.recipients) <= MOST_RECIPIENTS:
        raise InvalidReview("recipients", f"there must be 1 to {MOST_RECIPIENTS}")
    check_words(wanted.subject, wanted.body)
    for number, each in enumerate(wanted.recipients):
        check_address(each, f"recipients.{number}")


def check_words(subject: str, body: str) -> None:
    if len(body) > LONGEST_BODY:
        raise InvalidReview("body", f"it must have at most {LONGEST_BODY} characters")
    _check_mail(Mail("nobody@example.com", subject, body), "recipients")


def check_address(recipient: str, field: str) -> None:
    _check_mail(Mail(recipient, "-", "-"), field)


def _check_mail(mail: Mail, recipient: str) -> None:
    try:
        check_mail(mail)
    except InvalidMail as error:
        raise InvalidReview({**_MAIL_FIELDS, "to": recipient}[error.part], error.message) from error


def _refusing(db: Connection, given: Mapping[str, Any]) -> tuple[UUID, bool]:
    try:
        row = db.execute(_CREATE, given).fetchone()
    except errors.CheckViolation as error:
        field = _CONSTRAINTS.get(error.diag.constraint_name or "", "")
        raise InvalidReview(field or "job", error.diag.message_primary or "it cannot be recorded") from error
    except errors.IntegrityConstraintViolation as error:
        raise ReviewConflict(error.diag.message_primary or "it contradicts another job") from error
    assert row is not None
    return row[0], row[1]


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)
