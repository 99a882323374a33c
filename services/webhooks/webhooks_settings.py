"""The settings under [webhooks], and the table of jobs that they describe."""

from collections.abc import Mapping
from typing import Any

from ferryman import Section, setting

JOBS = "webhooks.webhook_delivery_jobs"
WORKER = "webhook-worker"


class WebhooksSettings(Section):
    """The settings of `ferryman run webhooks`, `webhook-worker` and `webhook-endpoints`."""

    max_retry_limit: int = setting(
        8, "The number of failed attempts that ends a delivery as a dead letter; a subscription may have its own.",
        unit="attempts", ge=1, le=100,
    )  # fmt: skip
    base_seconds: float = setting(
        10.0, "The wait after the first failed attempt; it doubles with each. A subscription may have its own.",
        unit="seconds", gt=0, le=86_400,
    )  # fmt: skip
    cap_seconds: float = setting(
        3600.0, "The longest wait. A subscription may have its own.", unit="seconds", gt=0, le=604_800
    )
    answer_seconds: float = setting(
        300.0, "How long after its job was made a delivery without a result is looked at: if the job is over, its row "
        "is believed.", unit="seconds", gt=0, le=86_400,
    )  # fmt: skip
    disable_after_seconds: float = setting(
        432_000.0, "How long every attempt at an endpoint fails until it is disabled: from the first failure since its "
        "last success to the latest. 0: never; 410 disables at once all the same.", unit="seconds", ge=0, le=31_536_000,
    )  # fmt: skip
    poll_seconds: float = setting(
        0.2, "How often to look for new events while there are none.", unit="seconds", gt=0, le=60
    )


def outboxes(settings: Any) -> Mapping[str, Any]:
    """Return the described outbox `webhook-worker`: the jobs."""
    return {WORKER: described(settings.http.timeout_seconds)}


def described(timeout_seconds: float) -> Mapping[str, Any]:
    """Return the description of the jobs. One that fails is over, and one whose worker is lost three times."""
    return {
        "table": JOBS,
        "channel": "http",
        "columns": {
            "payload": "facts", "destination": "subscription_id", "attempts": "claims", "done_at": "completed_at",
        },
        "words": {"pending": ["Pending"], "claimed": "Leased", "done": "Completed", "dead": "Failed"},
        "lease": {"column": "leased_at", "seconds": max(60, 3 * timeout_seconds)},
        "retry": {"limit": 3, "once": True},
    }  # fmt: skip
