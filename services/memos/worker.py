"""The worker: a courier that sends the mails about memos."""

from typing import Any

from ferryman import Courier, Misconfigured
from ferryman.services.memos.memos_settings import MemosSettings, described


def worker(settings: Any) -> Courier:
    """Return the courier of the mails."""
    if settings.email.provider is None:
        raise Misconfigured(
            "there is nobody to send mails by", setting="email.provider", remedy="set it to smtp, resend or file"
        )
    return Courier("memos", outbox=described(settings.section(MemosSettings)))
