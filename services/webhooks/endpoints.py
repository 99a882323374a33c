"""Endpoints that are gone, or that only fail, are disabled: a second consumer of the results of attempts.

A result only says that it is time to look. Its job's row, and the rows of later successes, say whether it is true: so
a result that comes twice, late or out of order disables nothing that works. A dead endpoint whose result is lost is
disabled by its next one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import psycopg

from ferryman import Consumer, Done, Message, Received
from ferryman.services.webhooks.machine import DISABLED, FAILED, LOST, SUCCEEDED
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings
from ferryman.services.webhooks.worker import NO_SECRET

Connection: TypeAlias = "psycopg.Connection[Any]"

ENDPOINT_GONE, ENDPOINT_FAILING = "GONE", "FAILING"
GONE_STATUS = 410
OURS = frozenset({
    DISABLED, LOST, NO_SECRET, "SECRET_INVALID", "ID_INVALID", "HEADER_INVALID", "BODY_TOO_LARGE", "CHANNEL_BUG",
    "DEADLINE_PASSED",
})  # fmt: skip
"""The codes of failures that say nothing about the endpoint."""

# In one order, so that two processes never wait for each other. Successes concern endpoints that were failing.
_LOCK = """\
-- webhooks.lock_endpoints
SELECT s.id, s.enabled_at, s.failing_since FROM webhooks.subscriptions s
WHERE s.active AND (s.id = ANY (%(failed)s) OR s.failing_since IS NOT NULL AND s.id = ANY (%(succeeded)s))
ORDER BY s.id FOR NO KEY UPDATE
"""

_JOBS = """\
-- webhooks.failed_jobs
SELECT j.id, j.subscription_id, j.leased_at FROM webhooks.webhook_delivery_jobs j
WHERE j.id = ANY (%(jobs)s) AND j.status = 'Failed' AND j.leased_at IS NOT NULL
"""

SUCCESSES = """\
-- webhooks.last_successes
SELECT n.id, j.completed_at FROM unnest(%(ids)s::bigint[]) n (id)
CROSS JOIN LATERAL (
    SELECT d.completed_at FROM webhooks.webhook_delivery_jobs d
    WHERE d.subscription_id = n.id AND d.status = 'Completed' ORDER BY d.completed_at DESC LIMIT 1
) j
"""

_JUDGE = """\
-- webhooks.judge_endpoints
UPDATE webhooks.subscriptions s
SET failing_since = n.failing_since, active = n.reason IS NULL, disabled_reason = n.reason,
    updated_at = CASE WHEN n.reason IS NULL THEN s.updated_at ELSE clock_timestamp() END
FROM unnest(%(ids)s::bigint[], %(sinces)s::timestamptz[], %(reasons)s::text[]) n (id, failing_since, reason)
WHERE s.id = n.id
RETURNING s.id, s.disabled_reason, s.failing_since, s.disabled_at
"""


class Endpoint(NamedTuple):
    """An endpoint that is not disabled, as its subscription and its jobs have it."""

    subscription: int
    enabled_at: datetime
    """Attempts that began before this do not count: it was disabled then, or had another URL."""
    failing_since: datetime | None
    """The first failure since the last success, as far as results told it."""
    succeeded_at: datetime | None = None
    """The last success that there is, whether its result has come or not."""


class EndpointFailure(NamedTuple):
    """An attempt that failed, as its job's row has it: that knows when it began."""

    began_at: datetime
    is_gone: bool


class Judgement(NamedTuple):
    """Since when an endpoint fails, and the reason to disable it, if there is one."""

    failing_since: datetime | None
    reason: str | None = None


def endpoints(settings: Any) -> Consumer:
    """Return the consumer with the settings under [webhooks]."""
    after = timedelta(seconds=settings.section(WebhooksSettings).disable_after_seconds)
    made = Consumer("webhook-endpoints", topics=["webhooks.results"], connection=psycopg.Connection)

    @made.handles_batch(SUCCEEDED, FAILED)
    def look(db: Connection, results: Sequence[Received]) -> list[Done]:
        """Look at the endpoints of these results, and tell of each that is disabled with its last result."""
        told = _disable(db, results, after)
        outcomes = [Done(*told.pop(int(each.data["subscription_id"]), ())) for each in reversed(results)]
        return outcomes[::-1]

    return made


def judge(endpoint: Endpoint, failures: Iterable[EndpointFailure], after: timedelta) -> Judgement:
    """Decide about an endpoint by its new failures. One that began before its last success says nothing."""
    last = endpoint.succeeded_at
    known = endpoint.failing_since
    since = None if known is None or (last and known <= last) else known
    counted = [
        each for each in failures
        if each.began_at >= endpoint.enabled_at and (last is None or each.began_at > last)
    ]  # fmt: skip
    if not counted:
        return Judgement(since)
    since = min([each.began_at for each in counted] + ([since] if since else []))
    if any(each.is_gone for each in counted):
        return Judgement(since, ENDPOINT_GONE)
    lasts = max(each.began_at for each in counted) - since
    return Judgement(since, ENDPOINT_FAILING if after and lasts >= after else None)


def _disable(db: Connection, results: Sequence[Received], after: timedelta) -> dict[int, tuple[Message]]:
    """Judge the endpoints of these results. Return the messages about those that are disabled now."""
    failed = [each for each in results if each.type == FAILED and each.data["error_code"] not in OURS]
    succeeded = [each for each in results if each.type == SUCCEEDED]
    subscriptions = {"failed": _subscriptions(failed), "succeeded": _subscriptions(succeeded)}
    found = [Endpoint(*row) for row in db.execute(_LOCK, subscriptions).fetchall()]
    if not found:
        return {}
    failures = _failures(db, failed)
    successes = dict(db.execute(SUCCESSES, {"ids": [each.subscription for each in found]}).fetchall())
    judged = {
        each.subscription: judge(
            each._replace(succeeded_at=successes.get(each.subscription)), failures[each.subscription], after
        )
        for each in found
    }
    known = {each.subscription: Judgement(each.failing_since) for each in found}
    changed = {subscription: now for subscription, now in judged.items() if now != known[subscription]}
    values = {
        "ids": list(changed),
        "sinces": [each.failing_since for each in changed.values()],
        "reasons": [each.reason for each in changed.values()],
    }
    rows = db.execute(_JUDGE, values).fetchall() if changed else []
    return {row[0]: (_told(*row),) for row in rows if row[1]}


def _subscriptions(results: Sequence[Received]) -> list[int]:
    return sorted({int(each.data["subscription_id"]) for each in results})


def _failures(db: Connection, failed: Sequence[Received]) -> Mapping[int, list[EndpointFailure]]:
    """Return the failures whose jobs say the same, by subscription. A job that the worker never had counts for none."""
    told = {int(each.data["job_id"]): each.data for each in failed}
    found: dict[int, list[EndpointFailure]] = defaultdict(list)
    for job, subscription, began_at in db.execute(_JOBS, {"jobs": list(told)}).fetchall():
        if told[job]["subscription_id"] == subscription:
            is_gone = told[job]["http_status"] == GONE_STATUS
            found[subscription].append(EndpointFailure(began_at, is_gone))
    return found


def _told(subscription: int, reason: str, failing_since: datetime | None, disabled_at: datetime) -> Message:
    data = {
        "subscription_id": subscription, "reason": reason, "failing_since": failing_since, "disabled_at": disabled_at,
    }  # fmt: skip
    return Message("webhook.subscription-disabled", data, key=str(subscription))
