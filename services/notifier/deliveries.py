"""Deliveries: the rows that commands of reviews record, and the results that tell of them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import psycopg

from ferryman import Done, Message, Outcome, Received, Refused, Retry

NOTIFY, NOTIFIED, NOT_NOTIFIED = "review.notify", "review.notified", "review.notify-failed"
INVALID = "INVALID_COMMAND"
_LONGEST = {"changelist_id": 255, "recipient": 320}
_UNDER_WAY_SECONDS = 1.0

Connection: TypeAlias = "psycopg.Connection[Any]"
Key: TypeAlias = tuple[str, str, int]
"""A recipient of a review's version."""

_RECORD = """\
-- notifier.record
INSERT INTO notifier.deliveries (job_id, changelist_id, recipient, review_version, payload)
SELECT DISTINCT ON (n.changelist_id, n.recipient, n.review_version)
       n.job_id, n.changelist_id, n.recipient, n.review_version, n.payload::jsonb
FROM unnest(%(jobs)s::uuid[], %(changelists)s::text[], %(recipients)s::text[], %(versions)s::integer[],
            %(payloads)s::text[]) WITH ORDINALITY n (job_id, changelist_id, recipient, review_version, payload, number)
ORDER BY n.changelist_id, n.recipient, n.review_version, n.number
ON CONFLICT ON CONSTRAINT notified_once DO NOTHING
"""

# Whoever sends or settles one of them now is waited for.
_LOCK = """\
-- notifier.lock
SELECT d.id, d.job_id, d.changelist_id, d.recipient, d.review_version, d.payload, d.status, d.notification_id,
       d.notified_at
FROM notifier.deliveries d
JOIN unnest(%(changelists)s::text[], %(recipients)s::text[], %(versions)s::integer[])
     n (changelist_id, recipient, review_version) USING (changelist_id, recipient, review_version)
ORDER BY d.id FOR UPDATE OF d
"""

_QUEUE = """\
-- notifier.queue
UPDATE notifier.deliveries d
SET job_id = n.job_id, payload = n.payload::jsonb, status = 'queued', attempts = 0, error = NULL,
    next_attempt_at = clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(jobs)s::uuid[], %(payloads)s::text[]) n (id, job_id, payload)
WHERE d.id = n.id
"""


class Notification(NamedTuple):
    """A row as it is read to decide on a command, or to tell of its end."""

    id: UUID
    job_id: UUID
    changelist_id: str
    recipient: str
    review_version: int
    payload: Any = None
    status: str = "queued"
    notification_id: str | None = None
    notified_at: datetime | None = None

    @property
    def key(self) -> Key:
        return self.changelist_id, self.recipient, self.review_version

    def notified(self, job_id: UUID) -> Message:
        """Return the result for this job that the recipient was told."""
        more = {"notification_id": self.notification_id or "", "notified_at": self.notified_at}
        return _result(NOTIFIED, self._replace(job_id=job_id), **more)

    def failed(self, code: str, *, permanent: bool) -> Message:
        """Return the result that the recipient was not told."""
        return _result(NOT_NOTIFIED, self, permanent=permanent, error_code=code, failed_at=datetime.now(UTC))


def record(db: Connection, commands: Sequence[Received]) -> list[Outcome]:
    """Record a delivery for each recipient before anything is sent; answer for those that were told already.

    A command for a delivery that failed queues it again, and so does one with other words for one that is not sent:
    that is a new edition. A command that finds its delivery under way changes nothing.
    """
    wanted = [_wanted(each) for each in commands]
    valid = [each for each in wanted if _is_valid(each)]
    known = {} if _recorded(db, valid) == len(valid) else _known(db, valid)
    again: dict[UUID, Notification] = {}
    outcomes: list[Outcome] = []
    for each in wanted:
        if not _is_valid(each):
            outcomes.append(Refused(INVALID, each.failed(INVALID, permanent=True)))
            continue
        there = known.get(each.key, each)
        other = (there.job_id, there.payload) != (each.job_id, each.payload)
        if there.notified_at is not None:
            outcomes.append(Done(there.notified(each.job_id)))
        elif there.status == "sending" and other:
            outcomes.append(Retry("the delivery is being sent with other words", _UNDER_WAY_SECONDS))
        else:
            if there.status == "failed" or other:
                known[each.key] = again[there.id] = each._replace(id=there.id)
            outcomes.append(Done())
    _queue(db, list(again.values()))
    return outcomes


def _wanted(command: Received) -> Notification:
    data = command.data
    payload = {"subject": data["subject"], "body": data["body"]}
    return Notification(
        command.id, data["job_id"], data["changelist_id"], data["recipient"], data["review_version"], payload
    )


def _is_valid(delivery: Notification) -> bool:
    """Return True if the table can hold it. Whether the mail can be sent is found out by the channel."""
    texts = (delivery.changelist_id, delivery.recipient, *delivery.payload.values())
    short = all(len(getattr(delivery, name)) <= most for name, most in _LONGEST.items())
    return short and delivery.review_version > 0 and not any("\0" in each for each in texts)


def _recorded(db: Connection, wanted: Sequence[Notification]) -> int:
    """Record those that are new. Return how many."""
    values = {**_keys(wanted), "jobs": [each.job_id for each in wanted], "payloads": _payloads(wanted)}
    return db.execute(_RECORD, values).rowcount if wanted else 0


def _known(db: Connection, wanted: Sequence[Notification]) -> dict[Key, Notification]:
    """Lock these deliveries, and return them by their keys."""
    found = [Notification(*row) for row in db.execute(_LOCK, _keys(wanted)).fetchall()]
    return {each.key: each for each in found}


def _queue(db: Connection, again: Sequence[Notification]) -> None:
    if again:
        values = {"ids": [each.id for each in again], "jobs": [each.job_id for each in again]}
        db.execute(_QUEUE, {**values, "payloads": _payloads(again)})


def _keys(wanted: Sequence[Notification]) -> dict[str, Any]:
    changelists, recipients, versions = (list(column) for column in zip(*(each.key for each in wanted), strict=True))
    return {"changelists": changelists, "recipients": recipients, "versions": versions}


def _payloads(wanted: Sequence[Notification]) -> list[str]:
    return [json.dumps(each.payload) for each in wanted]


def _result(kind: str, delivery: Notification, **more: Any) -> Message:
    data = {
        "job_id": delivery.job_id, "changelist_id": delivery.changelist_id,
        "review_version": delivery.review_version, "recipient": delivery.recipient, **more,
    }  # fmt: skip
    return Message(kind, data, key=delivery.changelist_id)
