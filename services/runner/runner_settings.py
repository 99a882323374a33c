"""The settings under [runner], and the table that they describe."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import SecretStr, TypeAdapter, ValidationInfo, field_validator

from ferryman import BearerToken, HttpUrl, Section, SigningSecret, setting


class RunnerSettings(Section):
    """The settings of `ferryman run runner`."""

    url: HttpUrl | None = setting(None, "Where events are posted: http(s)://host/path.")
    auth: Literal["signature", "bearer"] = setting(
        "signature", "How the runner knows us: by a signature (Standard Webhooks), or by the secret as a bearer token."
    )
    secret: SigningSecret | None = setting(
        None, "The secret that the runner knows: it signs each request, or is its bearer token.",
        danger="whoever has it can post events to the runner",
    )  # fmt: skip
    base_seconds: float = setting(
        1.0, "The unit of the wait: `base * 2 ** attempt_count` after a failure.", unit="seconds", gt=0, le=3600
    )
    cap_seconds: float = setting(3600.0, "The longest wait.", unit="seconds", gt=0, le=86_400)
    jitter: float = setting(0.0, "The share of a wait that is left to chance.", ge=0, le=1)
    sweep_seconds: float = setting(
        30.0, "How often `ferryman.sweep` runs, where Celery's beat starts it.", unit="seconds", gt=0, le=86_400
    )

    @field_validator("secret")
    @classmethod
    def _fits_a_header(cls, secret: SecretStr | None, others: ValidationInfo) -> SecretStr | None:
        if secret is not None and others.data.get("auth") == "bearer":
            TypeAdapter(BearerToken).validate_python(secret)
        return secret


def outboxes(settings: Any) -> Mapping[str, Any]:
    """Return the described outbox `runner`, if there is a runner."""
    runner = settings.section(RunnerSettings)
    return {} if runner.url is None else {"runner": described(runner, settings.http.timeout_seconds)}


def described(runner: RunnerSettings, timeout_seconds: float) -> Mapping[str, Any]:
    """Return the description of `runner.event_outbox`. No event is ever given up."""
    return {
        "table": "runner.event_outbox",
        "channel": "http",
        "url": runner.url,
        "columns": {
            "id": "uuid", "type": "event_type", "attempts": "attempt_count", "error": "last_error",
            "done_at": "delivered_at", "updated_at": "updated_at",
        },
        "words": {"pending": ["PENDING", "FAILED"], "claimed": "SENDING", "done": "DELIVERED"},
        "lease": {"column": "claimed_at", "seconds": max(60, 3 * timeout_seconds)},
        "retry": {
            "limit": 0, "base_seconds": runner.base_seconds, "cap_seconds": runner.cap_seconds, "offset": 0,
            "jitter": runner.jitter,
        },
    }  # fmt: skip
