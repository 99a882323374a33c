"""Reviews and the notifier: their commands and results as handlers get them, and deliveries that are sent here."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
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
from ferryman.services.reviews.acts import Correction, correct
from ferryman.services.reviews.job_rules import JobRules
from ferryman.services.reviews.jobs import ReviewRequest, create_job, find_jobs, find_recipients
from ferryman.services.reviews.orchestrator import rules_of
from ferryman.services.reviews.reviews_settings import ReviewsSettings
from support.hooks import CourierTurns
from support.published import PAYLOAD

Database = psycopg.Connection[tuple[Any, ...]]

RESULTS = "reviews.results"
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
    rows = db.execute("SELECT type, payload FROM ferryman.outbox ORDER BY position").fetchall()
    return [(each, _decoded(each, bytes(value))) for each, value in rows if kind in (None, each)]


def _decoded(kind: str, payload: bytes) -> dict[str, Any]:
    known = codecs()
    codec = known.of(kind) if known else None
    assert codec is not None
    return codec.decode(payload)


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


@dataclass
class ReviewsDesk:
    """The orchestrator of reviews in this process, without Kafka."""

    db: Database
    settings: ReviewsSettings = field(default_factory=ReviewsSettings)

    @cached_property
    def rules(self) -> JobRules:
        return rules_of(self.settings)

    def create(self, *recipients: str, **more: Any) -> tuple[UUID, bool]:
        """Create a job in a transaction of its own. Return its id, and whether it is new."""
        with self.db.transaction():
            return create_job(self.db, request(*recipients, **more))

    def apply(self, *results: Received) -> list[str]:
        """Apply results as the consumer does. Return their outcomes."""
        with self.db.transaction():
            return [getattr(each, "reason", "applied") for each in self.rules.saga.engine.apply(self.db, results)]

    def correct(self, job: UUID, recipient: str, act: str, **more: Any) -> bool:
        with self.db.transaction():
            return correct(self.db, self.rules, job, recipient, Correction(act, **more))

    def due(self, *, hastened: bool = True) -> int:
        """Move what is due, or everything that goes on by itself."""
        if hastened:
            self.rules.saga.engine.store.hasten(self.db)
        with self.db.transaction():
            return len(self.rules.saga.engine.due(self.db))

    def stands(self, job: UUID) -> str:
        [found] = find_jobs(self.db, job)
        return found.status

    def recipients(self, job: UUID) -> dict[str, str]:
        """Return the status of each recipient."""
        return {each.recipient: each.status for each in find_recipients(self.db, job)}

    def asked(self) -> list[str]:
        """Return the recipient of each command, in the order of the outbox."""
        return [data["recipient"] for _, data in appended(self.db, NOTIFY)]


def request(*recipients: str, **more: Any) -> ReviewRequest:
    """Return a request for a job; the key is that of the version, if no other is given."""
    given: dict[str, Any] = {"changelist_id": CHANGE, "review_version": 3, **WORDS, **more}
    given = {"recipients": recipients or ("ada@example.com",), **given}
    key = f"{given['changelist_id']}/{given['review_version']}"
    return ReviewRequest(**{"idempotency_key": key, **given})


def notified(job: UUID, recipient: str = "ada@example.com", topic: str = RESULTS, **more: Any) -> Received:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    told = {"notification_id": f"m-{recipient}", "notified_at": at, **more}
    return received("review.notified", said(recipient, **{"job": job, **told}), topic)


def not_notified(job: UUID, recipient: str = "ada@example.com", **more: Any) -> Received:
    told = {"permanent": True, "error_code": "REFUSED", "failed_at": datetime.now(UTC), **more}
    return received("review.notify-failed", said(recipient, **{"job": job, **told}), RESULTS)
