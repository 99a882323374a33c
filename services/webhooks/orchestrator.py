"""The orchestrator: events are routed to subscriptions, and results and times move their deliveries."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg

from ferryman import Chore, Saga
from ferryman.services.webhooks.machine import DeliveryRules, Job, WebhookDelivery
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings

Connection: TypeAlias = "psycopg.Connection[Any]"

ROUTING = "webhooks-routing"
"""The name of the chore that routes events."""
FIRST_JOBS = 500
"""The most first jobs that one transaction makes."""
PORTION = 1000
"""A transaction that has made so many deliveries routes no more events."""
_COLUMNS = WebhookDelivery._fields.index("limit")

# In one statement: an event is routed to every subscription, or waits in the queue.
ROUTE = """\
-- webhooks.route
WITH taken AS (
    DELETE FROM webhooks.unrouted WHERE event_id = (
        SELECT u.event_id FROM webhooks.unrouted u ORDER BY u.event_id LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING event_id
), wanted AS (
    SELECT e.id AS event_id, s.id AS subscription_id
    FROM taken JOIN webhooks.events e ON e.id = taken.event_id AND e.only_for IS NULL
    JOIN webhooks.subscriptions s ON s.active AND s.event_types @> ARRAY[e.type]
    UNION ALL
    SELECT e.id, s.id FROM taken JOIN webhooks.events e ON e.id = taken.event_id
    JOIN webhooks.subscriptions s ON s.active AND s.id = e.only_for
), routed AS (
    INSERT INTO webhooks.webhook_delivery_sagas (event_id, subscription_id, next_attempt_at)
    SELECT w.event_id, w.subscription_id, clock_timestamp() FROM wanted w
    ORDER BY w.subscription_id
    ON CONFLICT (event_id, subscription_id, generation) DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM routed)
"""

PENDING = """\
-- webhooks.pending
SELECT id FROM webhooks.webhook_delivery_sagas WHERE status = 'Pending' AND next_attempt_at <= clock_timestamp()
ORDER BY next_attempt_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
"""

# A row for each job, in the order of the attempts. The log is only read of a job that failed.
COMPLETE = """\
-- webhooks.complete
SELECT n.id, CASE WHEN p.active THEN coalesce(p.max_retry_limit, %(limit)s) ELSE 0 END,
       coalesce(p.base_seconds, %(base)s)::float8, coalesce(p.cap_seconds, %(cap)s)::float8, j.id, j.status, j.code
FROM unnest(%(ids)b::bigint[], %(subscriptions)b::bigint[]) n (id, subscription_id)
JOIN webhooks.subscriptions p ON p.id = n.subscription_id
LEFT JOIN LATERAL (
    SELECT d.id, d.status, CASE d.status WHEN 'Failed' THEN (
        SELECT a.code FROM ferryman.outbox_attempt a
        WHERE a.outbox = 'webhook-worker' AND a.row_id = d.id::text ORDER BY a.began_at DESC LIMIT 1
    ) END AS code
    FROM webhooks.webhook_delivery_jobs d WHERE d.saga_id = n.id ORDER BY d.attempt
) j ON true
"""


# Subscriptions are few beside deliveries.
MEASURE = """\
-- webhooks.measure
SELECT (SELECT count(*) FROM webhooks.dead_letters WHERE requeued_as IS NULL AND discarded_at IS NULL),
       (SELECT count(*) FROM webhooks.subscriptions WHERE paused AND active),
       (SELECT count(*) FROM webhooks.subscriptions WHERE NOT active),
       coalesce((SELECT greatest(0, extract(epoch FROM clock_timestamp() - e.created_at))::float8
                 FROM webhooks.events e WHERE e.id = (SELECT min(event_id) FROM webhooks.unrouted)), 0)
"""
NUMBERS = ("dead_letters", "subscriptions_paused", "subscriptions_disabled", "unrouted_seconds")
"""The names of the numbers of `MEASURE`, in `ferryman_chore_measured`."""


def webhooks(settings: Any) -> list[Saga[WebhookDelivery] | Chore]:
    """Return the saga of deliveries, and the chores that route events and make first jobs."""
    given: WebhooksSettings = settings.section(WebhooksSettings)
    return [deliveries(given), routing(given), beginning(given)]


def deliveries(given: WebhooksSettings) -> Saga[WebhookDelivery]:
    """Return the saga, whose rules know the limits of each subscription and the jobs of each delivery."""
    saga = DeliveryRules(given).saga
    defaults = {"limit": given.max_retry_limit, "base": given.base_seconds, "cap": given.cap_seconds}

    @saga.complete("limit", "base_seconds", "cap_seconds", "jobs", "last_code")
    def complete(db: Connection, rows: Sequence[WebhookDelivery]) -> list[WebhookDelivery]:
        values = {"ids": [row.id for row in rows], "subscriptions": [row.subscription_id for row in rows], **defaults}
        columns, filled = {row.id: row[:_COLUMNS] for row in rows}, dict[int, WebhookDelivery]()
        for number, limit, base, cap, job, status, code in db.execute(COMPLETE, values).fetchall():
            before = filled[number].jobs if number in filled else ()
            jobs = before if job is None else (*before, Job(job, status))
            filled[number] = WebhookDelivery._make((*columns[number], limit, base, cap, jobs, code))
        return list(filled.values())

    return saga


def routing(given: WebhooksSettings) -> Chore:
    """Return the chore that makes a delivery for each active subscription that wants an event."""
    chore = Chore(ROUTING, every_seconds=given.poll_seconds)

    @chore.work
    def route(db: Connection) -> bool:
        """Route some events. Return True if there may be more."""
        made = 0
        while made < PORTION:
            taken, routed = db.execute(ROUTE).fetchone() or (0, 0)
            if not taken:
                return False
            made += 1 + routed
        return True

    @chore.measured
    def numbers(db: Connection) -> dict[str, float]:
        row = db.execute(MEASURE).fetchone() or (0, 0, 0, 0)
        return dict(zip(NUMBERS, map(float, row), strict=True))

    return chore


def beginning(given: WebhooksSettings) -> Chore:
    """Return the chore that makes first jobs.

    The loop of timeouts does that too, and waits until everybody has listened: a delivery that has asked for nothing
    yet need not wait for that.
    """
    chore, engine = Chore("webhooks-beginning", every_seconds=given.poll_seconds), deliveries(given).engine

    @chore.work
    def begin(db: Connection) -> bool:
        """Make some first jobs. Return True if there may be more."""
        pending = [saga for (saga,) in db.execute(PENDING, {"most": FIRST_JOBS}).fetchall()]
        try:
            with db.transaction():
                engine.act(db, pending, engine.saga.on_due)
        except psycopg.IntegrityError:  # of one of them: that loop takes them one by one
            return False
        return len(pending) == FIRST_JOBS

    return chore


MACHINE = deliveries(WebhooksSettings()).machine
