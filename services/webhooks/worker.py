"""The worker: a courier that posts events to the endpoints of subscriptions, and reports each attempt.

It owns the leases of jobs. It changes no delivery, no event and no subscription.
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import psycopg

from ferryman import Claimed, Courier, Ended, Message, Post, Refused
from ferryman.services.webhooks.machine import DISABLED, FAILED, SUCCEEDED, result_id
from ferryman.services.webhooks.webhooks_settings import WORKER, described

Connection: TypeAlias = "psycopg.Connection[Any]"

NO_SECRET = "SECRET_MISSING"  # noqa: S105 - the name of a reason

# When it is sent: a corrected endpoint and a new secret are used by the next attempt.
_READ = """\
-- webhooks.prepare
SELECT s.id, s.endpoint, s.active, e.id, (extract(epoch FROM e.created_at) * 1000000)::bigint, e.payload,
       e.content_type, ARRAY(
    SELECT k.secret FROM webhooks.subscription_secrets k
    WHERE k.subscription_id = s.id AND k.expires_at > clock_timestamp() ORDER BY k.created_at DESC
)
FROM unnest(%(events)s::bigint[], %(subscriptions)s::bigint[]) WITH ORDINALITY n (event_id, subscription_id, number)
JOIN webhooks.events e ON e.id = n.event_id
JOIN webhooks.subscriptions s ON s.id = n.subscription_id
ORDER BY n.number
"""

# The jobs of a disabled subscription are claimed, and refused.
_PAUSED = """\
-- webhooks.paused
SELECT s.id::text FROM webhooks.subscriptions s WHERE s.paused AND s.active
"""


class _Sent(NamedTuple):
    """The content of a job, read when it is sent."""

    subscription: int
    endpoint: str
    active: bool
    event: int
    created_us: int
    payload: bytes
    content_type: str
    secrets: Sequence[str]


def worker(settings: Any) -> Courier:
    """Return the courier of the jobs."""
    courier = Courier(WORKER, outbox=described(settings.http.timeout_seconds))
    closed: dict[str, float] = {}
    """Until when each subscription's endpoint takes nothing more, as it said itself."""

    @courier.prepare
    def posts(db: Connection, jobs: Sequence[Claimed]) -> list[Post | Refused]:
        facts = [json.loads(job.content) for job in jobs]
        values = {f"{name}s": [each[f"{name}_id"] for each in facts] for name in ("event", "subscription")}
        found = db.execute(_READ, values).fetchall()
        return [_post(_Sent(*row)) for row in found]

    @courier.settled
    def results(_: Connection, ended: Sequence[Ended]) -> list[Message]:
        for each in ended:
            if each.after_seconds:
                closed[each.row.destination] = time.monotonic() + each.after_seconds
        return [_result(each) for each in ended]

    @courier.held
    def waiting(db: Connection) -> list[str]:
        now = time.monotonic()
        for each in [subscription for subscription, until in closed.items() if until <= now]:
            del closed[each]
        return [*closed, *(subscription for (subscription,) in db.execute(_PAUSED).fetchall())]

    return courier


def webhook_id(event: int, created_us: int, subscription: int) -> str:
    """Return the id by which a receiver recognizes an event: the same in every attempt, and after a requeue.

    In a restored database other events get the same numbers, at other times.
    """
    return f"msg_{sha256(f'{event}/{created_us}/{subscription}'.encode()).hexdigest()[:32]}"


def _post(sent: _Sent) -> Post | Refused:
    if not sent.active:
        return Refused(DISABLED)
    if not sent.secrets:  # nobody could verify the request
        return Refused(NO_SECRET)
    identity = webhook_id(sent.event, sent.created_us, sent.subscription)
    return Post(sent.endpoint, sent.payload, identity, sent.content_type, secrets=tuple(sent.secrets))


def _result(ended: Ended) -> Message:
    job = int(ended.row.id)
    data: dict[str, Any] = {
        **json.loads(ended.row.content), "job_id": job, "http_status": ended.http_status,
        "duration_ms": round(ended.seconds * 1000), "finished_at": datetime.now(UTC),
    }  # fmt: skip
    if not ended.delivered:
        unsent = ended.code == "REFUSED" and ended.http_status is None  # by us, for a reason that is a code
        data["error_code"] = (ended.error if unsent else ended.code) or "OTHER"
    kind, identity = SUCCEEDED if ended.delivered else FAILED, result_id(job, ended.row.created_us)
    return Message(kind, data, key=str(data["saga_id"]), id=identity)
