"""The worker: a courier that sends the mails about memos, and the chore that moves old ones out of its way."""

from typing import Any

from ferryman import Chore, Courier, Misconfigured
from ferryman.services.memos.archiving import archiving
from ferryman.services.memos.memos_settings import MemosSettings


def worker(settings: Any) -> list[Courier | Chore]:
    """Return the courier of the mails, and the chore."""
    if settings.email.provider is None:
        raise Misconfigured(
            "there is nobody to send mails by", setting="email.provider", remedy="set it to smtp, resend or file"
        )
    memos = settings.section(MemosSettings)
    courier = Courier("memos", outbox="memos")  # as the commands know it
    return [courier, archiving(memos)] if memos.retention_seconds else [courier]
