"""The settings under [notifier], and the outbox that they describe."""

from collections.abc import Mapping
from typing import Any

from ferryman import Section, setting


class NotifierSettings(Section):
    """The settings of `ferryman run notifier`."""

    max_attempts: int = setting(
        5, "The number of failed attempts that ends a delivery as failed. An outage of the provider counts none.",
        unit="attempts", ge=1, le=100,
    )  # fmt: skip
    base_seconds: float = setting(
        10.0, "The wait after the first failed attempt; it doubles with each.", unit="seconds", gt=0, le=3600
    )
    cap_seconds: float = setting(3600.0, "The longest wait.", unit="seconds", gt=0, le=604_800)


def outboxes(settings: Any) -> Mapping[str, Any]:
    """Return the described outbox `notifier`, if there is a provider."""
    return {} if settings.email.provider is None else {"notifier": described(settings.section(NotifierSettings))}


def described(notifier: NotifierSettings) -> Mapping[str, Any]:
    """Return the description of `notifier.deliveries`."""
    return {
        "table": "notifier.deliveries",
        "channel": "email",
        "columns": {
            "destination": "recipient", "done_at": "notified_at", "reference": "notification_id", "subject": "job_id",
        },
        "words": {"pending": ["queued"], "claimed": "sending", "done": "sent", "dead": "failed"},
        "lease": {"column": "begun_at", "seconds": 60},
        "retry": {
            "limit": notifier.max_attempts, "base_seconds": notifier.base_seconds, "cap_seconds": notifier.cap_seconds,
        },
    }  # fmt: skip
