"""`ferryman trace` of a review's job or of one of its deliveries: both databases, the end, and what to run next."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import FerrymanError, use_schemas
from ferryman.cli.trace import as_dict
from ferryman.cli.wiring import settings_class, with_outboxes
from ferryman.evidence.casefile import tracers_of
from ferryman.evidence.sides import Side, Sides
from ferryman.evidence.trace import Subject, trace
from ferryman.evidence.way import Traced
from ferryman.schemas import active
from ferryman.services import systems
from ferryman.services.reviews.acts import give_up
from ferryman.testing import stack
from ferryman.testing.mail import MailServer, ReceivedMail
from ferryman.testing.resend import ResendServer, refusal
from support.mailing import by_resend, by_smtp
from support.reviewing import NotifierDesk, ReviewsDesk, appended, received
from support.webhooking import MONITOR

ADA, BEN = "ada@example.com", "ben@example.com"


@dataclass
class TracedReviews:
    """The jobs in one database, the deliveries in another; both as a monitor sees them."""

    reviews: ReviewsDesk
    notifier: NotifierDesk
    sides: Sides
    urls: Mapping[str, str]

    def asks(self, *recipients: str) -> None:
        """Bring the commands for these recipients to the notifier."""
        said = [data for _, data in appended(self.reviews.db, "review.notify") if data["recipient"] in recipients]
        self.notifier.tell(*said)

    def applies(self) -> None:
        """Bring every result to the orchestrator."""
        told = [each for each in appended(self.notifier.db) if each[0].startswith("review.not")]
        self.reviews.apply(*(received(kind, data, "reviews.results") for kind, data in told))

    def told(self, identity: UUID | Subject) -> Traced:
        return trace(self.sides, identity, tracers_of(systems()))

    def happened(self, identity: UUID) -> list[tuple[str, str, str]]:
        """Return where and what happened, and to how many."""
        return [(each.where, each.what, str(each.detail.get("type", ""))) for each in self.told(identity).events]

    def delivery(self, recipient: str) -> UUID:
        [(found,)] = self.notifier.db.execute(
            "SELECT id FROM notifier.deliveries WHERE recipient = %s", (recipient,)
        ).fetchall()
        return found  # type: ignore[no-any-return]


@pytest.fixture
def both(ferryman_database_url: str, ferryman_new_database: Callable[[], str]) -> Iterator[TracedReviews]:
    use_schemas()
    urls = {"reviews": ferryman_database_url, "notifier": ferryman_new_database()}
    settings = with_outboxes(settings_class().model_validate({"email": {"provider": "file"}}))
    with ExitStack() as closing:
        opened = {name: closing.enter_context(psycopg.connect(url, autocommit=True)) for name, url in urls.items()}
        for db, other in ((opened["reviews"], "notifier"), (opened["notifier"], "reviews")):
            db.execute(f"DROP SCHEMA {other} CASCADE")
        logins = {name: stack.login(url, f"m_{uuid4().hex[:8]}", MONITOR) for name, url in urls.items()}
        monitors = {
            name: closing.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=None))
            for name, url in logins.items()
        }
        sides = Sides({name: Side(each, settings.database, name) for name, each in monitors.items()}, settings)
        notifier = NotifierDesk(opened["notifier"], urls["notifier"])
        yield TracedReviews(ReviewsDesk(opened["reviews"]), notifier, sides, urls)
    active.forget()


def test_job_is_told_from_its_creation_to_its_end_in_both_databases(both: TracedReviews) -> None:
    """A delivery is told by its own id, with its job."""
    job, _ = both.reviews.create(ADA, BEN)
    with ResendServer(before=lambda sent: refusal(422, "validation_error") if b"ben@" in sent.body else None) as resend:
        both.asks(ADA, BEN)
        both.notifier.send(by_resend(resend))
        both.applies()
        failed = both.told(job)
        assert (failed.ending.now, failed.ending.next, failed.over) == ("retryable_failed", None, False)
        assert f"PATCH /review-jobs/{job}/recipients/" in failed.ending.rest
        both.reviews.correct(job, BEN, "replace", by="cat@example.com")
        both.asks("cat@example.com")
        both.notifier.send(by_resend(resend))
        both.applies()
    told = both.told(job)
    assert sorted(both.happened(job)) == [
        ("notifier", "failed", "1 delivery"), ("notifier", "recorded", "3 deliveries"),
        ("notifier", "rejected", "1 attempt"), ("notifier", "sent", "2 deliveries"),
        ("reviews", "created", "version 3 of CL-4711"), ("reviews", "notified", "2 recipients"),
        ("reviews", "succeeded", ""), ("reviews", "withdrawn", "1 recipient"),
    ]  # fmt: skip
    order = [each.what for each in told.events]
    assert (order[0], order[-1], order.index("recorded") < order.index("failed")) == ("created", "succeeded", True)
    assert (told.ending.now, told.ending.next, told.over, told.missing) == ("succeeded", None, True, [])
    assert json.dumps(as_dict(told), default=str)
    assert "example.com" not in str(told)
    assert both.told(Subject("review_job", job)).id == job
    delivery = both.told(both.delivery(ADA))
    assert (delivery.kind, delivery.ending.now, delivery.over) == ("delivery", "sent", True)
    assert [each.where for each in delivery.events if each.what in ("created", "delivered")] == ["reviews", "notifier"]
    assert str(job) in delivery.headline[1]
    rerun, _ = both.reviews.create(ADA, review_version=4, rerun=True)
    assert both.told(rerun).headline[1] == f"version 4 of CL-4711, a rerun of job {job}"


def test_each_stop_of_a_job_has_its_command(both: TracedReviews) -> None:
    """The first process on its way that is not there; then the row that is under way, or nothing but time."""
    job, _ = both.reviews.create(ADA)
    with ExitStack() as processes:
        for name in ("notifier", "reviews"):
            for command, called in ((f"ferryman run {name}", name), ("ferryman run relay", "relay")):
                ending = both.told(job).ending
                assert (ending.now, ending.next, ending.at) == ("in_progress", command, name)
                url = both.urls[name]
                processes.enter_context(psycopg.connect(url, application_name=f"ferryman {called}"))
        ending = both.told(job).ending
        assert (ending.next, "it asks again" in ending.why) == (None, True)
        both.asks(ADA)
        assert f"delivery {both.delivery(ADA)}: " in both.told(job).ending.why
        both.notifier.db.execute(
            "INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES ('notifier', 'ann', 'a test')"
        )
        assert both.told(job).ending.next == "ferryman resume notifier --consumer"


def test_delivery_that_was_held_leads_to_the_decision_about_it(both: TracedReviews) -> None:
    job, _ = both.reviews.create(ADA)
    both.asks(ADA)

    def cut(_: ReceivedMail) -> str:
        raise ConnectionError

    with MailServer(answer=cut) as mails:
        both.notifier.send(by_smtp(mails))
    both.applies()
    ending = both.told(job).ending
    assert (ending.now, ending.at) == ("retryable_failed", "notifier")
    assert str(ending.next).startswith(f"ferryman outbox resolve notifier --id {both.delivery(ADA)} ")


def test_job_that_was_given_up_is_over(both: TracedReviews) -> None:
    job, _ = both.reviews.create(ADA)
    both.asks(ADA)
    with ResendServer(before=lambda _: refusal(422, "validation_error")) as resend:
        both.notifier.send(by_resend(resend))
    both.applies()
    with both.reviews.db.transaction():
        give_up(both.reviews.db, both.reviews.rules, job, "nobody reads it")
    told = both.told(job)
    assert (told.ending.now, told.ending.next, told.over) == ("failed", None, True)
    assert told.events[-1].detail == {"reason": "nobody reads it"}


def test_database_that_is_not_named_is_missing_and_nobody_knows_another_id(both: TracedReviews) -> None:
    job, _ = both.reviews.create(ADA)
    with pytest.raises(FerrymanError, match="nobody knows"):
        both.told(uuid4())
    alone = Sides({"reviews": both.sides["reviews"]}, both.sides.settings)
    told = trace(alone, job, tracers_of(systems()))
    assert told.id == job
    assert any("notifier.deliveries" in each for each in told.missing)
