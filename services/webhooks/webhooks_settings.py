"""The settings under [webhooks], and the table of jobs that they describe."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from ferryman import Section, setting

JOBS = "webhooks.webhook_delivery_jobs"
WORKER = "webhook-worker"

MAX_PAYLOAD_BYTES = 1 << 20
"""The size of a payload that the table of events takes."""
EventType = Annotated[str, Field(min_length=1, max_length=255)]


class WebhooksSettings(Section):
    """The settings of the processes and of the API of webhooks."""

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
    event_types: list[EventType] = setting(
        [], "The types of events: the API takes no others, and `webhook-events` records no others. Empty: "
        "the API takes any.",
    )  # fmt: skip
    event_topics: list[str] = setting([], "The topics of Kafka whose messages `webhook-events` records as events.")
    allow_http: bool = setting(
        False, "Whether the API takes endpoints with http:// too.",
        danger="payloads travel unencrypted, and whoever is on the way can read and answer them",
    )  # fmt: skip

    def unknown(self, types: Iterable[str]) -> list[str]:
        """Return those of these types that `event_types` lacks; none if it is empty."""
        return [each for each in types if self.event_types and each not in self.event_types]


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
