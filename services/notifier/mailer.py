"""The parts of `ferryman run notifier`: the consumer of commands, and the courier that sends and reports."""

from collections.abc import Sequence
from typing import Any

import psycopg

from ferryman import Consumer, Courier, Ended, Message, Misconfigured
from ferryman.services.notifier.deliveries import NOTIFY, Connection, Notification, record
from ferryman.services.notifier.notifier_settings import NotifierSettings, described

COMMANDS = "reviews.commands"

# In the transaction that marks them: what is told is what is marked.
_ENDED = """\
-- notifier.ended
SELECT d.id::text, d.id, d.job_id, d.changelist_id, d.recipient, d.review_version, d.payload, d.status,
       d.notification_id, d.notified_at
FROM notifier.deliveries d WHERE d.id = ANY (%(ids)s::uuid[])
"""


def notifier(settings: Any) -> list[Consumer | Courier]:
    """Return the consumer and the courier."""
    if settings.email.provider is None:
        raise Misconfigured(
            "there is nobody to send mails by", setting="email.provider", remedy="set it to smtp, resend or file"
        )
    return [commands(), courier(settings.section(NotifierSettings))]


def commands() -> Consumer:
    """Return the consumer that records deliveries."""
    made = Consumer("notifier", topics=[COMMANDS], connection=psycopg.Connection, unknown="reject")
    made.handles_batch(NOTIFY)(record)
    return made


def courier(given: NotifierSettings) -> Courier:
    """Return the courier that sends mails, and tells of each that has ended."""
    made = Courier("notifier", outbox=described(given))

    @made.settled
    def results(db: Connection, ended: Sequence[Ended]) -> list[Message]:
        rows = db.execute(_ENDED, {"ids": [each.row.id for each in ended]}).fetchall()
        by_id = {identity: Notification(*row) for identity, *row in rows}
        return [_told(by_id[each.row.id], each) for each in ended]

    return made


def _told(delivery: Notification, ended: Ended) -> Message:
    if ended.delivered:
        return delivery.notified(delivery.job_id)
    return delivery.failed(ended.code or "OTHER", permanent=ended.permanent)
