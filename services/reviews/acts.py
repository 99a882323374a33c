"""Acts of persons: a recipient that was not told is asked for again, replaced or dropped; a job is given up."""

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ferryman import Permanent, append_many
from ferryman.services.reviews.job_rules import Asked, JobRules, commands
from ferryman.services.reviews.jobs import Connection, check_address, check_words

# The job first, as those who apply results do.
_LOCK = """\
-- reviews.lock
SELECT j.changelist_id, j.review_version, j.status, r.status, r.replaced_by,
       coalesce(%(subject)s, r.subject, q.subject), coalesce(%(body)s, r.body, q.body), reviews.folded(%(by)s)
FROM reviews.jobs j JOIN reviews.requests q ON q.job_id = j.id JOIN reviews.recipients r ON r.job_id = j.id
WHERE j.id = %(job)s AND r.recipient = reviews.folded(%(recipient)s)
FOR UPDATE OF j
"""

_AGAIN = """\
-- reviews.again
UPDATE reviews.recipients r SET subject = coalesce(%(subject)s, r.subject), body = coalesce(%(body)s, r.body),
    error_code = NULL, permanent = NULL, changed_at = clock_timestamp()
WHERE r.job_id = %(job)s AND r.recipient = reviews.folded(%(recipient)s)
"""

_WITHDRAW = """\
-- reviews.withdraw
UPDATE reviews.recipients r SET required = false, replaced_by = reviews.folded(%(by)s), changed_at = clock_timestamp()
WHERE r.job_id = %(job)s AND r.recipient = reviews.folded(%(recipient)s)
"""

# One that was withdrawn comes back; one that is required already stands for itself.
_ADD = """\
-- reviews.add
INSERT INTO reviews.recipients AS r (job_id, recipient, subject, body)
SELECT o.job_id, reviews.folded(%(by)s), o.subject, o.body FROM reviews.recipients o
WHERE o.job_id = %(job)s AND o.recipient = reviews.folded(%(recipient)s)
ON CONFLICT (job_id, recipient) DO UPDATE
SET required = true, replaced_by = NULL, error_code = NULL, permanent = NULL, subject = excluded.subject,
    body = excluded.body, changed_at = clock_timestamp()
WHERE NOT r.required
"""

_OTHERS = """\
-- reviews.others
SELECT FROM reviews.recipients r
WHERE r.job_id = %(job)s AND r.required AND r.recipient <> reviews.folded(%(recipient)s) LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Correction:
    """An act about a recipient: `again`, perhaps with other words, `replace` by another address, or `drop`."""

    act: str
    by: str | None = None
    subject: str | None = None
    body: str | None = None


class ActRefused(Permanent):
    """An act that the state of the job or of the recipient does not allow."""


class _Standing(NamedTuple):
    """A recipient and its job, with the words and the other address that are to hold."""

    changelist_id: str
    review_version: int
    job_status: str
    status: str
    replaced_by: str | None
    subject: str
    body: str
    by: str | None


def correct(db: Connection, rules: JobRules, job: UUID, recipient: str, wanted: Correction) -> bool:
    """Do something about a recipient that was not told. Return False if the job has no such recipient.

    Doing it a second time changes nothing. The recipient is part of a delivery's key: another address is another
    delivery, and the old one is no longer required, though its mail may be on its way.
    """
    given = {"job": job, "recipient": recipient, "by": wanted.by, "subject": wanted.subject, "body": wanted.body}
    row = db.execute(_LOCK, given).fetchone()
    if row is None:
        return False
    found = _Standing(*row)
    if found.status == "withdrawn" and wanted.act != "again" and found.replaced_by == found.by:
        return True
    _check(found, wanted)
    asked = None
    match wanted.act:
        case "again":
            db.execute(_AGAIN, given)
            asked = Asked(recipient, found.subject, found.body)
        case "replace":
            if not db.execute(_ADD, given).rowcount:
                raise ActRefused("the other address is a recipient already: drop this one")
            db.execute(_WITHDRAW, given)
            asked = Asked(found.by or "", found.subject, found.body)
        case _:
            if db.execute(_OTHERS, given).fetchone() is None:
                raise ActRefused("it is the only recipient: replace it, or give the job up")
            db.execute(_WITHDRAW, given)
    if asked:
        facts = {"job_id": job, "changelist_id": found.changelist_id, "review_version": found.review_version}
        append_many(db, commands(facts, [asked]))
    rules.saga.engine.act(db, [job], rules.stands)
    return True


def give_up(db: Connection, rules: JobRules, job: UUID, reason: str) -> None:
    """Give up a job for which nothing goes on by itself, and tell so."""
    if not rules.saga.engine.act(db, [job], lambda row: rules.given_up(row, reason)):
        raise ActRefused("only a job that is retryable_failed can be given up")


def _check(found: _Standing, wanted: Correction) -> None:
    if found.job_status in ("succeeded", "failed"):
        raise ActRefused(f"the job is over: it {found.job_status}, and that is final")
    if found.status not in ("waiting", "failed"):
        raise ActRefused(f"the recipient is {found.status}")
    if wanted.act == "replace":
        check_address(wanted.by or "", "by")
    check_words(found.subject, found.body)
