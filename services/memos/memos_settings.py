"""The settings under [memos], and the table that they describe."""

from collections.abc import Mapping
from typing import Any

from ferryman import Section, setting


class MemosSettings(Section):
    """The settings of `ferryman run memos`."""

    base_seconds: float = setting(
        10.0, "The wait after the first failure of a mail; it doubles with each.", unit="seconds", gt=0, le=3600
    )
    cap_seconds: float = setting(3600.0, "The longest wait.", unit="seconds", gt=0, le=604_800)
    count_outages: bool = setting(
        False, "Whether an attempt counts that failed because the provider is away.",
        danger="an outage of a few minutes makes every waiting mail FAILED",
    )  # fmt: skip
    max_outage_seconds: float | None = setting(
        None, "How long mails wait for a provider that is away; then failed attempts count. Default: for ever.",
        unit="seconds", gt=0,
    )  # fmt: skip
    per_second: float | None = setting(
        None, "The most mails that this process begins to send in any second. Default: no limit.",
        unit="mails a second", gt=0, le=100_000,
    )  # fmt: skip
    retention_seconds: float = setting(
        2_592_000.0, "How long SENT mails stay in `memos.email_outbox`: an hour at least. 0 keeps them for ever.",
        unit="seconds", ge=0, le=1e10,
        danger="afterwards the database does not refuse another mail with the same idempotency key",
    )  # fmt: skip
    archive: bool = setting(
        True, "Whether SENT mails go to `memos.email_archive` after that. Otherwise they are deleted.",
        danger="false deletes the record of what was sent to whom",
    )  # fmt: skip


def outboxes(settings: Any) -> Mapping[str, Any]:
    """Return the described outbox `memos`, if there is a provider."""
    if settings.email.provider is None:
        return {}
    return {"memos": described(settings.section(MemosSettings), settings.email.timeout_seconds)}


def described(memos: MemosSettings, timeout_seconds: float) -> Mapping[str, Any]:
    """Return the description of `memos.email_outbox`: the fifth failure is the last."""
    return {
        "table": "memos.email_outbox",
        "archive": "memos.email_archive",
        "channel": "email",
        "columns": {
            "key": "idempotency_key", "destination": "recipient_email", "type": "event_type", "attempts": "retry_count",
            "error": "error_message", "done_at": "sent_at", "created_at": "meta_created_at",
            "updated_at": "meta_updated_at", "subject": "memo_id",
        },
        "words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "FAILED"},
        "per_second": memos.per_second,
        "lease": {"column": "last_attempt_at", "seconds": max(60, 3 * timeout_seconds)},
        "retry": {
            "limit": 5, "base_seconds": memos.base_seconds, "cap_seconds": memos.cap_seconds,
            "count_outages": memos.count_outages, "max_outage_seconds": memos.max_outage_seconds,
        },
    }  # fmt: skip
