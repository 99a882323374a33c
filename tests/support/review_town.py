"""Reviews and the notifier in processes of their own, on two databases, each under its role; the provider judges."""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman.services.reviews.acts import Correction, correct
from ferryman.services.reviews.jobs import create_job, find_jobs, find_recipients
from ferryman.services.reviews.orchestrator import rules_of
from ferryman.services.reviews.reviews_settings import ReviewsSettings
from ferryman.testing import stack
from ferryman.testing.resend import KEY, ResendServer
from support.launch import KillAt, Launched, Launcher
from support.published import PAYLOAD, poll_until
from support.reviewing import Database, request
from support.topics import create

TOPICS = ("reviews.commands", "reviews.results", "reviews.events")
ROLES = {"reviews": {"relay": "ferryman_relay", "reviews": "ferryman_reviews", "writer": "ferryman_review_writer"},
         "notifier": {"relay": "ferryman_relay", "notifier": "ferryman_notifier"}}  # fmt: skip
"""The roles of the processes in each database."""


@dataclass
class ReviewTown:
    """Two databases, Kafka with our topics, the processes, and the provider."""

    ferryman: Launcher
    kafka: str
    db: Database
    notifier: Database
    resend: ResendServer
    logins: Mapping[str, str]
    running: dict[str, Launched] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *names: str, kill_at: KillAt | None = None) -> None:
        """Start processes: `reviews`, `notifier`, and the relay of each, `reviews relay` and `notifier relay`."""
        for called in names:
            database, _, command = called.partition(" ")
            command = command.strip(" 2") or database
            given = {
                "FERRYMAN_DATABASE_URL": self.logins[f"{database} {command}"],
                "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
                "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "2000",
                "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
                "FERRYMAN_NOTIFIER__BASE_SECONDS": "0.05",
                "FERRYMAN_EMAIL__PROVIDER": "resend",
                "FERRYMAN_EMAIL__SENDER": "Reviews <reviews@example.com>",
                "FERRYMAN_EMAIL__RESEND__URL": self.resend.url,
                "FERRYMAN_EMAIL__RESEND__KEY": KEY,
                **self.env,
            }
            self.running[called] = self.ferryman.start("run", command, env=given, kill_at=kill_at)

    def start_all(self) -> None:
        self.start("reviews relay", "notifier relay", "reviews", "notifier")

    def await_kill(self, name: str) -> None:
        assert self.running.pop(name).wait() == -signal.SIGKILL

    def expire(self) -> None:
        """Set each lease back by an hour."""
        self.notifier.execute("UPDATE notifier.deliveries SET begun_at = begun_at - interval '1 h'")

    def stop(self) -> None:
        """Stop every process with SIGTERM, and assert that each exits 0 and told no address, no text and no key."""
        for each in self.running.values():
            poll_until(lambda: '"started"' in each.stderr, "start")  # noqa: B023 - called before the next
            each.send(signal.SIGTERM)
        for each in self.running.values():
            assert each.wait() == 0, each.transcript()
            for secret in (PAYLOAD, KEY, "reader-"):
                assert secret not in each.transcript()  # N14
        self.running.clear()

    def create(self, *recipients: str, **more: Any) -> UUID:
        """Create a job under the writer's role."""
        with psycopg.connect(self.logins["reviews writer"]) as db:
            return create_job(db, request(*recipients, **more))[0]

    def correct(self, job: UUID, recipient: str, act: str, **more: Any) -> None:
        with psycopg.connect(self.logins["reviews reviews"]) as db:
            assert correct(db, rules_of(ReviewsSettings()), job, recipient, Correction(act, **more))

    def until(self, job: UUID, status: str, seconds: float = 60) -> None:
        poll_until(lambda: find_jobs(self.db, job)[0].status == status, status, seconds)

    def statuses(self, job: UUID) -> dict[str, str]:
        return {each.recipient: each.status for each in find_recipients(self.db, job)}

    def received(self, subject: str) -> Counter[str]:
        """Count the mails with this subject that the provider sent to each recipient."""
        return Counter(each.content["to"][0] for each in self.resend.sent if each.content["subject"] == subject)


@dataclass(frozen=True)
class ReviewPlace:
    """Two databases and a broker with the topics of the catalogue."""

    kafka: str
    reviews: str
    notifier: str
    logins: Mapping[str, str]

    @contextmanager
    def open(self, ferryman: Launcher) -> Iterator[ReviewTown]:
        with (
            psycopg.connect(self.reviews, autocommit=True) as db,
            psycopg.connect(self.notifier, autocommit=True) as notifier,
            ResendServer() as resend,
        ):
            yield ReviewTown(ferryman, self.kafka, db, notifier, resend, self.logins)


def new_place(kafka: str, postgres: str) -> ReviewPlace:
    for topic in TOPICS:
        create(kafka, topic, partitions=3)
    urls, logins = dict[str, str](), dict[str, str]()
    for name, roles in ROLES.items():
        urls[name] = stack.new_database(postgres, f"{name}_{uuid4().hex[:10]}")
        stack.migrate(urls[name], ["engine", name])
        logins |= {f"{name} {each}": stack.login(urls[name], f"{name}_{each}", role) for each, role in roles.items()}
    return ReviewPlace(kafka, urls["reviews"], urls["notifier"], logins)
