"""The settings under [payments], and the outbox of the literal mode."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import SecretStr

from ferryman import Section, setting


class PaymentsSettings(Section):
    """The settings of `ferryman run payments`."""

    mode: Literal["saga", "literal"] = setting(
        "saga", "`literal` runs payments without sagas (docs/literal-mode.md).",
        danger="with literal, a payment whose message is lost stays PENDING for ever, and its amount may be lost",
    )  # fmt: skip
    answer_seconds: float = setting(
        300.0, "How long a participant may take to answer; then the operation it was asked for is cancelled.",
        unit="seconds", gt=0, le=86400, danger="too low, and payments fail that would have succeeded",
    )  # fmt: skip
    wallet_group: str = setting(
        "wallet", "The consumer group that reads the wallet's commands: `answer_seconds` count only while it has read "
        "them. Empty: they always count.",
    )  # fmt: skip
    again_seconds: float = setting(
        10.0, "How long to wait before a cancellation or a refund is requested again; the wait doubles each time.",
        unit="seconds", gt=0, le=86400,
    )  # fmt: skip
    longest_seconds: float = setting(
        3600.0, "The longest wait between two such requests.", unit="seconds", gt=0, le=86400
    )
    most_attempts: int = setting(
        12, "How often it is requested; then the payment waits for a person: `ferryman reconcile payments`.",
        ge=1, le=1000,
    )  # fmt: skip
    events: bool = setting(
        True, "Whether events are published on `payments.events`: two more entries for each payment.",
        danger="without them, that topic stays silent",
    )  # fmt: skip
    reference_in_event: bool = setting(
        False, "Whether `payment.requested` carries the client's own words.",
        danger="what a topic has cannot be erased: they may be personal data, and stay in it for its retention",
    )  # fmt: skip
    wallet_database_url: SecretStr | None = setting(
        None, "The wallet's database, for the commands that look at both: `trace`, `reconcile` and `audit`. If `run "
        "payments` has it too, `answer_seconds` do not count while the wallet's results wait there to be published.",
        danger="it holds a password; the name with _FILE behind it names a file that holds it instead",
    )  # fmt: skip
    internal_url: str | None = setting(
        None, "Where the wallet reports payments in the literal mode: http(s)://host:port of the API."
    )
    internal_token: SecretStr | None = setting(
        None, "The bearer token that the wallet sends there.",
        danger="who has it can report payments as succeeded",
    )  # fmt: skip


LITERAL_OUTBOX: Mapping[str, Any] = {
    "table": "payments.outbox",
    "columns": {"id": "uuid", "attempts": "try_count", "error": "last_error", "done_at": "published_at"},
    "words": {"pending": ["PENDING"], "done": "PUBLISHED"},
    "lease": {"column": "last_attempt_at", "seconds": 60},
    "retry": {"limit": 5, "base_seconds": 1, "cap_seconds": 60, "count_outages": True},
}


def outboxes(settings: Any) -> Mapping[str, Any]:
    """Return the described outboxes that the relay sends: `[outbox.payments]` in the literal mode, else none."""
    return {"payments": LITERAL_OUTBOX} if settings.section(PaymentsSettings).mode == "literal" else {}
