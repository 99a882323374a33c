"""Reviews and the notifier: their commands and results as handlers get them, and deliveries that are sent here."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman import Received
from ferryman.consumer.model import Record
from ferryman.consumer.wire import hash_of
from ferryman.relay.described.couriers import courier_service
from ferryman.relay.described.service import DescribedOutbox
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_email import Email
from ferryman.schemas.active import codecs
from ferryman.services.notifier.deliveries import NOTIFY, record
from ferryman.services.notifier.mailer import courier
from ferryman.services.notifier.notifier_settings import NotifierSettings
from support.hooks import CourierTurns
from support.published import PAYLOAD

Database = psycopg.Connection[tuple[Any, ...]]

JOB = UUID("5b2f7c10-93ad-4e61-b0c2-7f3d8a1e6c42")
CHANGE = "CL-4711"
WORDS = {"subject": "CL-4711 was reviewed", "body": PAYLOAD}


def said(recipient: str = "ada@example.com", version: int = 3, job: UUID = JOB, **more: Any) -> dict[str, Any]:
    """Return what every message about a recipient says."""
    return {"job_id": job, "changelist_id": CHANGE, "review_version": version, "recipient": recipient, **more}


def received(kind: str, data: Mapping[str, Any], topic: str) -> Received:
    """Return a message as a handler gets it."""
    key = str(data["changelist_id"])
    record = Record(topic, 0, 0, key.encode(), b"", [], 0)
    return Received(uuid4(), kind, dict(data), key, record, hash_of(repr(data).encode()))


def appended(db: Database, kind: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Return the type and the data of each message in the outbox, or of those of one type."""
    known = codecs()
    assert known is not None
    rows = db.execute("SELECT type, payload FROM ferryman.outbox ORDER BY position").fetchall()
    return [(each, known.of(each).decode(bytes(value))) for each, value in rows if kind in (None, each)]


@dataclass
class NotifierDesk:
    """The notifier in this process, without Kafka."""

    db: Database
    url: str
    settings: NotifierSettings = field(default_factory=lambda: NotifierSettings(base_seconds=0.01, max_attempts=3))
    told: list[tuple[str, Any]] = field(default_factory=list)
    """The type and data of each report of the last commands."""

    def tell(self, *given: Mapping[str, Any]) -> list[str]:
        """Handle commands as the consumer does. Return their outcomes; what one that waits wrote is rolled back."""
        with self.db.transaction() as transaction:
            outcomes = record(self.db, [received(NOTIFY, {**WORDS, **each}, "reviews.commands") for each in given])
            self.told = [(made.type, made.data) for each in outcomes for made in getattr(each, "reports", ())]
            names = [type(each).__name__ for each in outcomes]
            if "Retry" in names:
                raise psycopg.Rollback(transaction)
        return names

    def service(self, email: Email) -> DescribedOutbox:
        return courier_service(courier(self.settings), Settings(database_url=self.url, email=email))

    @contextmanager
    def sending(self, email: Email) -> Iterator[CourierTurns]:
        service = self.service(email)
        with closing(service.way), service.opened() as table:
            assert service.way.why_not() is None
            yield CourierTurns(service, table)

    def send(self, email: Email) -> None:
        """Send until nothing is due or under way."""
        with self.sending(email) as turns:
            turns.until_quiet()

    def expire(self) -> None:
        """Set each lease back by an hour."""
        self.db.execute("UPDATE notifier.deliveries SET begun_at = begun_at - interval '1 h'")

    def rows(self) -> list[tuple[str, str, str | None]]:
        """Return (recipient, status, notification_id) of each delivery."""
        return self.db.execute(
            "SELECT recipient, status, notification_id FROM notifier.deliveries ORDER BY recipient, review_version"
        ).fetchall()
