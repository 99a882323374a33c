"""`ferryman trace` of a review's job, or of a delivery of it: one story from both databases."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import LiteralString, NamedTuple
from uuid import UUID

from ferryman import FerrymanError
from ferryman.evidence import moment
from ferryman.evidence.journey import Event
from ferryman.evidence.messages import has_table, reader, relaying, rows, tuples
from ferryman.evidence.row_trace import row_in
from ferryman.evidence.sides import Side, Sides, database_of
from ferryman.evidence.trace import AskKafka, Hint, Subject
from ferryman.evidence.way import Ending, Traced
from ferryman.services.reviews.job_rules import IN_PROGRESS, RETRYABLE
from ferryman.services.reviews.orchestrator import MACHINE

_STANDINGS = ("notified", "failed", "waiting", "withdrawn")
JOBS, DELIVERIES, NOTIFIER = "reviews.jobs", "notifier.deliveries", "notifier"

_JOB = """\
-- reviews.traced_job
SELECT j.id, j.changelist_id, j.review_version, j.rerun_of, j.status, j.reason,
       nullif(j.due_at, 'infinity') AS due_at, j.created_at, j.changed_at
FROM reviews.jobs j WHERE j.id = %(id)s
"""

_RECIPIENTS = """\
-- reviews.traced_recipients
SELECT r.status, r.error_code AS code, count(*) AS many, max(r.changed_at) AS at
FROM reviews.recipients r WHERE r.job_id = %(id)s GROUP BY 1, 2 ORDER BY 4
"""

# One of them that is under way, or else that was held, says why they do not go on.
_DELIVERIES = """\
-- reviews.traced_deliveries
SELECT d.status, count(*) AS many, max(coalesce(d.notified_at, a.ended_at)) AS at, min(d.created_at) AS first_at,
       min(d.id::text) FILTER (WHERE d.status IN ('queued', 'sending')) AS under_way,
       min(d.id::text) FILTER (WHERE d.status = 'failed' AND d.error LIKE 'in doubt: %%') AS held
FROM notifier.deliveries d LEFT JOIN LATERAL (
    SELECT max(a.ended_at) FROM ferryman.outbox_attempt a
    WHERE d.status = 'failed' AND a.outbox = 'notifier' AND a.row_id = d.id::text
) a (ended_at) ON true
WHERE d.job_id = %(id)s GROUP BY 1 ORDER BY 3
"""

_TROUBLES = """\
-- reviews.traced_troubles
SELECT a.outcome AS status, a.code, count(*) AS many, max(a.ended_at) AS at
FROM notifier.deliveries d JOIN ferryman.outbox_attempt a ON a.outbox = 'notifier' AND a.row_id = d.id::text
WHERE d.job_id = %(id)s AND a.outcome NOT IN ('begun', 'delivered') GROUP BY 1, 2
"""

_OF_DELIVERY = "-- reviews.traced_delivery\nSELECT d.job_id FROM notifier.deliveries d WHERE d.id = %(id)s"

_HAS_SOME = "-- reviews.has_deliveries\nSELECT FROM notifier.deliveries d WHERE d.job_id = %(id)s LIMIT 1"


class TracedReview(NamedTuple):
    """A job, without what a monitor may not read."""

    id: UUID
    changelist_id: str
    review_version: int
    rerun_of: UUID | None
    status: str
    reason: str | None
    due_at: datetime | None
    created_at: datetime
    changed_at: datetime


class AlikeCount(NamedTuple):
    """The number of recipients, or of attempts, that stand alike, and when the last of them changed."""

    status: str
    code: str | None
    many: int
    at: datetime


class DeliveryCount(NamedTuple):
    """The number of deliveries with a status, when the last was sent, and one that needs a look."""

    status: str
    many: int
    at: datetime | None
    first_at: datetime
    under_way: str | None
    held: str | None


class JobTracer:
    """Tells of jobs by their ids, and of deliveries by theirs. A monitor reads no address: recipients are counted."""

    machine = MACHINE.name

    def tell(self, sides: Sides, identity: UUID | int | Subject, _ask: AskKafka) -> Traced | None:
        kind, key = identity if isinstance(identity, Subject) else (self.machine, identity)
        if kind != self.machine or not isinstance(key, UUID):
            return None
        notifiers = _having(sides, DELIVERIES)
        of = [job for side in notifiers for (job,) in side.ask(tuples, _OF_DELIVERY, {"id": key})]
        given = {"id": of[0] if of else key}
        found = [(side, job) for side in _having(sides, JOBS) for job in side.ask(rows, TracedReview, _JOB, given)]
        if not found:
            return None
        side, job = found[0]
        notifier = next((each for each in notifiers if each.ask(tuples, _HAS_SOME, given)), next(iter(notifiers), None))
        if notifier is None:
            sides.missing.append(f"the table {DELIVERIES}: no database here has it")
        if of and notifier and NOTIFIER in sides.settings.outbox:
            return _delivery_told(sides, notifier, side, job, key)
        return _job_told(sides, side, notifier, job)

    def subject_of(self, _sides: Sides, _identity: UUID, _hint: Hint) -> None:
        """Return nothing: the key of these messages is the change's, and several jobs may have it."""


TRACER = JobTracer()


def _having(sides: Sides, table: LiteralString) -> list[Side]:
    """Return the databases that have a table."""
    found = []
    for side in sides.each:
        try:
            found += [side] if side.ask(has_table, table) else []
        except FerrymanError as error:
            sides.missing.append(f"{table} in {database_of(side.name)}: {error}")
    return found


def _about(job: TracedReview) -> str:
    return f"version {job.review_version} of {job.changelist_id}"


def _delivery_told(sides: Sides, notifier: Side, side: Side, job: TracedReview, delivery: UUID) -> Traced:
    events, ending = row_in(notifier, NOTIFIER, sides.settings.outbox[NOTIFIER], str(delivery))
    headline = [f"delivery {delivery}", f"of {_about(job)}, job {job.id}"]
    told = _ordered([_created(side, job), *events, *_ended(side, job)])
    over = ending.now == "sent"
    return Traced(delivery, "delivery", job._asdict(), headline, told, ending, sides.missing, over)


def _job_told(sides: Sides, side: Side, notifier: Side | None, job: TracedReview) -> Traced:
    given = {"id": job.id}
    recipients = side.ask(rows, AlikeCount, _RECIPIENTS, given)
    deliveries = notifier.ask(rows, DeliveryCount, _DELIVERIES, given) if notifier else []
    troubles = notifier.ask(rows, AlikeCount, _TROUBLES, given) if notifier else []
    told = [_created(side, job), *_ended(side, job)]
    told += [_counted(each, side.name, "recipient", each.status == "failed") for each in recipients]
    if notifier:
        told += [_counted(each, notifier.name, "attempt", each.status != "resolved") for each in troubles]
        told += _of_deliveries(deliveries, notifier.name)
    counts = {each: sum(one.many for one in recipients if one.status == each) for each in _STANDINGS}
    ending = _ending(sides, (side, notifier), job, counts, deliveries)
    again = f", a rerun of job {job.rerun_of}" if job.rerun_of else ""
    headline = [f"job {job.id}", f"{_about(job)}{again}"]
    facts, over = {**job._asdict(), **counts}, job.status in MACHINE.terminals
    return Traced(job.id, MACHINE.name, facts, headline, _ordered(told), ending, sides.missing, over)


# --- what happened


def _created(side: Side, job: TracedReview) -> Event:
    return Event(job.created_at, side.name, "created", {"type": _about(job)})


def _ended(side: Side, job: TracedReview) -> list[Event]:
    """Return when the job came to where it stands, if it moved."""
    if job.status == IN_PROGRESS:
        return []
    reason = {"reason": job.reason} if job.reason else {}
    return [Event(job.changed_at, side.name, job.status, reason, bad=job.status != "succeeded")]


def _counted(group: AlikeCount, where: str, noun: str, bad: bool) -> Event:
    code = {"code": group.code} if group.code else {}
    at = None if group.status == "waiting" else group.at
    return Event(at, where, group.status, {"type": _many(group.many, noun), **code}, bad=bad)


def _of_deliveries(deliveries: Sequence[DeliveryCount], where: str) -> Iterator[Event]:
    if deliveries:
        many = sum(each.many for each in deliveries)
        yield Event(min(each.first_at for each in deliveries), where, "recorded", {"type": _many(many, "delivery")})
    for each in deliveries:
        at, bad = each.at if each.status in ("sent", "failed") else None, each.status == "failed"
        yield Event(at, where, each.status, {"type": _many(each.many, "delivery")}, bad=bad)


def _ordered(events: Sequence[Event]) -> list[Event]:
    return sorted(events, key=lambda each: (each.at is None, each.at))


def _many(count: int, noun: str) -> str:
    return (
        f"{count:,} {noun}" if count == 1 else f"{count:,} {noun.removesuffix('y')}{'ies' if noun[-1] == 'y' else 's'}"
    )


# --- how it stands


def _ending(
    sides: Sides, both: tuple[Side, Side | None], job: TracedReview, counts: dict[str, int],
    deliveries: Sequence[DeliveryCount],
) -> Ending:  # fmt: skip
    """Say what the job waits for, and the command that brings it on."""
    required = sum(counts.values()) - counts["withdrawn"]
    if job.status == "succeeded":
        return Ending(job.status, f"each of its {_many(required, 'recipient')} was told")
    if job.status != IN_PROGRESS:
        return _failed(
            sides, both[1], job, f"{counts['failed']:,} of {_many(required, 'recipient')} failed", deliveries
        )
    why = f"it waits for the results of {counts['waiting']:,} of {_many(required, 'recipient')}"
    if absent := _absent(both):
        return Ending(job.status, f"{why}, and {absent.why}", absent.next, absent.at)
    under_way = next((each.under_way for each in deliveries if each.under_way), None)
    if both[1] and under_way and NOTIFIER in sides.settings.outbox:
        _, row = row_in(both[1], NOTIFIER, sides.settings.outbox[NOTIFIER], under_way)
        return Ending(job.status, f"{why}; delivery {under_way}: {row.why}", row.next, row.at)
    again = f"; at {moment(job.due_at)} it asks again" if job.due_at else ""
    return Ending(job.status, f"{why}{again}")


def _failed(
    sides: Sides, notifier: Side | None, job: TracedReview, why: str, deliveries: Sequence[DeliveryCount]
) -> Ending:  # fmt: skip
    """Say who acts on a job for which nothing goes on: on deliveries that were held, a person does so first."""
    if job.status != RETRYABLE:
        return Ending(job.status, f"it was given up: {why}")
    held = next((each.held for each in deliveries if each.held), None)
    if held and notifier and NOTIFIER in sides.settings.outbox:
        _, row = row_in(notifier, NOTIFIER, sides.settings.outbox[NOTIFIER], held)
        return Ending(job.status, f"{why}; delivery {held} is {row.why}", row.next, row.at)
    return Ending(
        job.status, why, rest=f"correct them by PATCH /review-jobs/{job.id}/recipients/ADDRESS, or give it up"
    )


def _absent(both: tuple[Side, Side | None]) -> Ending | None:
    """Return which process is not connected, or is paused, of those that bring a job on: the first on its way."""
    for side, name in ((both[1], NOTIFIER), (both[0], "reviews")):
        if side is None:
            continue
        processes, paused = side.ask(reader, name)
        if paused:
            return Ending("", f"{name} was paused by {paused}", f"ferryman resume {name} --consumer", side.name)
        if not processes:
            return Ending("", f"no process of {name} is connected", f"ferryman run {name}", side.name)
        if not side.ask(relaying)[0]:
            return Ending("", f"no relay is connected to {database_of(side.name)}", "ferryman run relay", side.name)
    return None
