"""`ferryman trace` of webhooks: an event, a delivery or a job, with its attempts, its dead letter and its requeue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from ferryman import FerrymanError
from ferryman.evidence.journey import Event, merged
from ferryman.evidence.messages import has_table, reader, rows, tuples
from ferryman.evidence.row_trace import row_in
from ferryman.evidence.saga_case import RowsBeside, SagaTracer
from ferryman.evidence.sides import Side, Sides
from ferryman.evidence.trace import AskKafka, Hint, Subject
from ferryman.evidence.way import Ending, Traced
from ferryman.services.webhooks.machine import SAGAS, event_id, result_id
from ferryman.services.webhooks.orchestrator import MACHINE, ROUTING, deliveries
from ferryman.services.webhooks.webhooks_settings import WORKER, WebhooksSettings

RUN = "webhooks"
_EVENTS = ("webhook.delivered", "webhook.dead-lettered")
_MOST = 50

_OF: Mapping[str, LiteralString] = {
    "event": "-- webhooks.trace_event\nSELECT %(key)s::bigint, NULL::bigint",
    "delivery": """\
-- webhooks.trace_delivery
SELECT event_id, subscription_id FROM webhooks.webhook_delivery_sagas WHERE id = %(key)s""",
    "job": """\
-- webhooks.trace_job
SELECT event_id, subscription_id FROM webhooks.webhook_delivery_jobs WHERE id = %(key)s""",
}
"""The event and the subscription of each kind of subject."""

_EVENT = """\
-- webhooks.traced_event
SELECT e.id, e.type, e.created_at, EXISTS (SELECT FROM webhooks.unrouted u WHERE u.event_id = e.id) AS unrouted
FROM webhooks.events e WHERE e.id = %(event)s
"""

# Of one subscription: every generation. Of an event: those that are not over come first.
_DELIVERIES = """\
-- webhooks.traced_deliveries
SELECT s.id, s.subscription_id, s.status::text, s.generation, s.created_at, s.updated_at, p.active, p.paused,
       d.created_at AS dead_at, d.attempts AS dead_attempts,
       CASE WHEN s.generation > 0 THEN (
           SELECT a.who || ': ' || a.reason FROM ferryman.outbox_audit a
           WHERE a.act = 'requeue' AND a.filter @> jsonb_build_object('machine', 'webhook_delivery')
             AND a.filter -> 'dead' @> to_jsonb(s.requeued_from) ORDER BY a.id LIMIT 1
       ) END AS requeued_by
FROM webhooks.webhook_delivery_sagas s
JOIN webhooks.subscriptions p ON p.id = s.subscription_id
LEFT JOIN webhooks.dead_letters d ON d.saga_id = s.id
WHERE s.event_id = %(event)s AND s.subscription_id = coalesce(%(subscription)s::bigint, s.subscription_id)
ORDER BY s.status IN ('Completed', 'DeadLettered') AND %(subscription)s::bigint IS NULL, s.generation DESC, s.id
LIMIT %(most)s
"""

_COUNTS = """\
-- webhooks.traced_counts
SELECT n.status, count(*), min(n.id) FROM (
    SELECT DISTINCT ON (s.subscription_id) s.status::text, s.id FROM webhooks.webhook_delivery_sagas s
    WHERE s.event_id = %(event)s ORDER BY s.subscription_id, s.generation DESC
) n GROUP BY 1 ORDER BY 1
"""

_JOBS = """\
-- webhooks.traced_jobs
SELECT j.id, j.attempt, j.status, (extract(epoch FROM j.created_at) * 1000000)::bigint AS created_us,
       s.status = 'InProgress' AND j.attempt > s.attempt_count AS awaited
FROM webhooks.webhook_delivery_jobs j JOIN webhooks.webhook_delivery_sagas s ON s.id = j.saga_id
WHERE j.saga_id = %(saga)s ORDER BY j.attempt DESC LIMIT %(most)s
"""


class TracedEvent(NamedTuple):
    """An event without its payload."""

    id: int
    type: str
    created_at: datetime
    unrouted: bool


class TracedDelivery(NamedTuple):
    """A delivery with its dead letter, and with who requeued it and why."""

    id: int
    subscription_id: int
    status: str
    generation: int
    created_at: datetime
    updated_at: datetime
    active: bool
    paused: bool
    dead_at: datetime | None
    dead_attempts: int | None
    requeued_by: str | None


class TracedJob(NamedTuple):
    """A job; `awaited` if its result is what its delivery waits for."""

    id: int
    attempt: int
    status: str
    created_us: int
    awaited: bool


class FoundDeliveries(NamedTuple):
    """An event and its deliveries, the oldest generation first."""

    event: TracedEvent
    deliveries: Sequence[TracedDelivery]
    counts: Mapping[str, tuple[int, int]]
    """By status: how many subscriptions, and one delivery of them."""


class DeliveryTracer:
    """Tells of events, deliveries and jobs. A number alone is a delivery's."""

    machine = MACHINE.name

    def tell(self, sides: Sides, identity: UUID | int | Subject, ask: AskKafka) -> Traced | None:
        kind, key = identity if isinstance(identity, Subject) else ("delivery", identity)
        of = _OF.get("delivery" if kind == self.machine else kind)
        if of is None or not isinstance(key, int):
            return None
        for side in sides.each:
            try:
                found = side.ask(_found, of, key) if side.ask(has_table, SAGAS) else None
            except FerrymanError as error:
                sides.missing.append(f"the deliveries: {error}")
                continue
            if found and len({each.subscription_id for each in found.deliveries}) == 1:
                return _delivery_told(sides, side, found, ask)
            if found:
                return _event_told(sides, side, found)
        return None

    def subject_of(self, sides: Sides, identity: UUID, hint: Hint) -> Subject | None:
        """Return the delivery of a result or of an event about it, whose key is the delivery's."""
        if not hint.type.startswith("webhook."):
            return None
        found = _tracer().subject_of(sides, identity, hint)
        return Subject("delivery", found) if isinstance(found, int) else None


TRACER = DeliveryTracer()


def _tracer(paused: int | None = None) -> SagaTracer:
    return SagaTracer(deliveries(WebhooksSettings()), RUN, partial(_beside, paused))


def _found(db: Any, of: LiteralString, key: int) -> FoundDeliveries | None:
    for event, subscription in tuples(db, of, {"key": key}):
        given = {"event": event, "subscription": subscription, "most": _MOST}
        for known in rows(db, TracedEvent, _EVENT, given):
            counts = {status: (many, one) for status, many, one in tuples(db, _COUNTS, given)}
            return FoundDeliveries(known, rows(db, TracedDelivery, _DELIVERIES, given)[::-1], counts)
    return None


# --- one subscription's delivery, with everything that it was requeued as


def _delivery_told(sides: Sides, side: Side, found: FoundDeliveries, ask: AskKafka) -> Traced | None:
    event, last = found.event, found.deliveries[-1]
    tracer = _tracer(last.subscription_id if last.paused and last.active else None)
    told = [story for each in found.deliveries if (story := tracer.tell(sides, each.id, ask))]
    events = merged(_beginnings(found, side.name), *(each.events for each in told))
    about = f"{event.type} of event {event.id} to subscription {last.subscription_id}"
    again = f", generation {last.generation}" if last.generation else ""
    facts = {
        "event_id": event.id, "event_type": event.type, "generation": last.generation,
        "deliveries": [each.id for each in found.deliveries],
    }  # fmt: skip
    story = told[-1]
    return replace(
        story, kind="delivery", facts={**(story.facts or {}), **facts}, headline=[f"delivery {last.id}", about + again],
        events=events, ending=_ending(story.ending, last, side), over=story.over and last.dead_at is None,
    )  # fmt: skip


def _ending(ending: Ending, last: TracedDelivery, side: Side) -> Ending:
    """Name the command that requeues a dead delivery."""
    if last.status != "DeadLettered":
        return ending
    if not last.active:
        rest = f"nothing goes on by itself: subscription {last.subscription_id} is disabled"
        return replace(ending, rest=rest)
    requeue = f"ferryman dead-letters requeue --id {last.id} --yes --reason 'trace delivery:{last.id}'"
    return replace(ending, next=requeue, at=side.name)


def _beginnings(found: FoundDeliveries, where: str) -> list[Event]:
    """Return when the event was recorded, and each delivery made and given up."""
    told = [Event(found.event.created_at, where, "recorded", {"type": found.event.type})]
    for each in found.deliveries:
        by, _, why = (each.requeued_by or "").partition(": ")
        said = {"type": f"delivery {each.id}", **({"by": by, "reason": why} if by else {})}
        told.append(Event(each.created_at, where, "requeued as" if each.generation else "routed", said))
        if each.dead_at:
            letter = {"type": f"delivery {each.id}, {each.dead_attempts} attempts"}
            told.append(Event(each.dead_at, where, "to the dead letters", letter, bad=True))
    return sorted(told, key=lambda each: each.at or found.event.created_at)


def _beside(paused: int | None, sides: Sides, side: Side, saga: UUID | int) -> RowsBeside:
    """Return the jobs of a delivery, and the messages about it."""
    outbox, told = sides.settings.outbox[WORKER], list[Event]()
    messages, awaited, stops = [event_id(kind, int(saga)) for kind in _EVENTS], None, None
    for job in side.ask(rows, TracedJob, _JOBS, {"saga": saga, "most": _MOST})[::-1]:
        seen, ending = row_in(side, WORKER, outbox, str(job.id))
        told.extend(_of_job(seen, job))
        messages.append(result := result_id(job.id, job.created_us))
        if job.awaited:
            over = job.status in ("Completed", "Failed")
            awaited, stops = (result, None) if over else (None, replace(ending, why=f"Job {job.id}: {ending.why}"))
    if stops and paused:
        stops = replace(stops, why=f"{stops.why}; subscription {paused} is paused", next=None, at="")
    return RowsBeside(told, messages, awaited, stops)


def _of_job(seen: Sequence[Event], job: TracedJob) -> Iterator[Event]:
    for event in seen:
        what = "job made" if event.what == "recorded" else f"attempt {event.what}"
        yield replace(event, what=what, detail={**event.detail, "type": f"job {job.id}", "attempt": job.attempt})


# --- an event with several subscriptions, or none


def _event_told(sides: Sides, side: Side, found: FoundDeliveries) -> Traced:
    event, counts = found.event, found.counts
    told = [Event(event.created_at, side.name, "recorded", {"type": event.type})]
    for each in found.deliveries:
        said = {"type": f"delivery {each.id} to subscription {each.subscription_id}"}
        told.append(Event(each.created_at, side.name, "requeued as" if each.generation else "routed", said))
        if each.status in MACHINE.terminals:
            told.append(Event(each.updated_at, side.name, each.status, said, bad=each.status == "DeadLettered"))
    facts = {"type": event.type, "created_at": event.created_at, **{name: many for name, (many, _) in counts.items()}}
    over = not event.unrouted and counts.keys() <= {"Completed"}
    ordered = sorted(told, key=lambda each: each.at or event.created_at)
    headline = [f"event {event.id}", event.type]
    return Traced(event.id, "event", facts, headline, ordered, _standing(side, found), sides.missing, over)


def _standing(side: Side, found: FoundDeliveries) -> Ending:
    """Say how its deliveries stand; the command is for the first that is not Completed."""
    counts = found.counts
    if found.event.unrouted:
        routers, _ = side.ask(reader, ROUTING)
        run = None if routers else f"ferryman run {RUN}"
        why = "it waits to be routed" if routers else "it waits to be routed, and no process of webhooks is connected"
        return Ending("UNROUTED", why, run, side.name if run else "")
    if not counts:
        return Ending("ROUTED", "no active subscription wanted it, or its deliveries are archived")
    left = next((one for status in ("DeadLettered", "PendingRetry", "InProgress", "Pending")
                 for many, one in [counts.get(status, (0, 0))] if many), None)  # fmt: skip
    why = "its deliveries are " + ", ".join(f"{many:,} {status}" for status, (many, _) in counts.items())
    return Ending("ROUTED", why, f"ferryman trace delivery:{left}" if left else None)
