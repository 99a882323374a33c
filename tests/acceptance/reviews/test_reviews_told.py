"""Reviews from a job to the provider and back, through every process, each under its role alone."""

from collections.abc import Iterator

import pytest

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from ferryman.testing.resend import refusal
from support.launch import KillAt, Launcher
from support.published import poll_until, read_topic
from support.review_town import ReviewPlace, ReviewTown, new_place

# Topics and groups have the names that they have everywhere: on a broker of its own.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]


@pytest.fixture(scope="module")
def place(ferryman_postgres: str) -> Iterator[ReviewPlace]:
    kafka = started(LocalKafka())
    use_schemas()
    yield new_place(kafka.url, ferryman_postgres)
    active.forget()
    kafka.close()


@pytest.fixture
def town(ferryman: Launcher, place: ReviewPlace) -> Iterator[ReviewTown]:
    with place.open(ferryman) as made:
        yield made


def readers(count: int) -> list[str]:
    return [f"reader-{number}@example.com" for number in range(count)]


def test_jobs_of_one_recipient_are_told_and_succeed(town: ReviewTown) -> None:
    """From a job in one database to a delivery in the other, a mail, its mark, and the job's success; also by SQL."""
    town.start_all()
    job = town.create("ada@example.com", changelist_id="one", subject="one")
    by_sql = "SELECT id FROM reviews.create_job('sql', 'sql', 1, '{ada@example.com}', 'sql', 'text')"
    [(of_sql,)] = town.db.execute(by_sql).fetchall()
    town.until(of_sql, "succeeded")
    assert town.received("sql") == {"ada@example.com": 1}
    town.until(job, "succeeded")
    assert town.received("one") == {"ada@example.com": 1}
    [row] = town.notifier.execute(
        "SELECT d.status, d.notification_id, d.job_id FROM notifier.deliveries d WHERE d.changelist_id = 'one'"
    ).fetchall()
    [sent] = [each for each in town.resend.sent if each.content["subject"] == "one"]
    assert row == ("sent", sent.id, job)
    [noted] = town.db.execute("SELECT notification_id FROM reviews.recipients WHERE job_id = %s", (job,)).fetchall()
    assert noted == (sent.id,)
    poll_until(lambda: read_topic(town.kafka, "reviews.events"), "the event")
    town.stop()


def test_rule_10_3_each_recipient_is_told_once_wherever_the_notifier_is_killed(town: ReviewTown) -> None:
    """N1, N3, N5, N11: kill -9 before the commit of its commands, and at each boundary of a send."""
    town.start("reviews relay", "notifier relay", "reviews")
    everybody = readers(40)
    job = town.create(*everybody, changelist_id="kills", subject="kills")
    for kill_at in (
        KillAt("ferryman.services.notifier.mailer:record", "after"),
        KillAt.before_step("courier", "send rows"),
        KillAt.before_step("courier", "settle rows"),
        KillAt.before_step("courier", "commit rows"),
    ):
        town.start("notifier", kill_at=kill_at)
        town.await_kill("notifier")
        town.expire()
    town.start("notifier", "notifier 2")
    town.until(job, "succeeded")
    assert town.received("kills") == dict.fromkeys(everybody, 1)
    unmarked = town.notifier.execute("SELECT count(*) FROM notifier.deliveries WHERE notified_at IS NULL").fetchone()
    assert unmarked == (0,)
    town.stop()


def test_results_are_noted_once_wherever_the_orchestrator_is_killed(town: ReviewTown) -> None:
    """N1, N5, N11: kill -9 before and after results are applied, and both orchestrators go on."""
    town.start("reviews relay", "notifier relay", "notifier")
    everybody = readers(20)
    job = town.create(*everybody, changelist_id="results", subject="results")
    for kill_at in (
        KillAt("ferryman.saga.engine:SagaEngine.apply", "before"),
        KillAt("ferryman.saga.engine:SagaEngine.apply", "after"),
    ):
        town.start("reviews", kill_at=kill_at)
        town.await_kill("reviews")
    town.start("reviews", "reviews 2")
    town.until(job, "succeeded")
    assert town.received("results") == dict.fromkeys(everybody, 1)
    assert set(town.statuses(job).values()) == {"notified"}
    town.stop()


def test_rule_8_1_a_recipient_that_the_provider_refuses_is_replaced(town: ReviewTown) -> None:
    """The job waits for its caller, and succeeds once another address is told."""
    town.resend.before = lambda sent: refusal(422, "validation_error") if b"reader-1@" in sent.body else None
    town.start_all()
    job = town.create(*readers(3), changelist_id="wrong", subject="wrong")
    town.until(job, "retryable_failed")
    assert town.statuses(job)["reader-1@example.com"] == "failed"
    town.correct(job, "reader-1@example.com", "replace", by="ben@example.com")
    town.until(job, "succeeded")
    told = ["reader-0@example.com", "reader-2@example.com", "ben@example.com"]
    assert town.received("wrong") == dict.fromkeys(told, 1)
    town.stop()


def test_rule_10_4_a_rerun_tells_everybody_once_more_and_a_repetition_nobody(town: ReviewTown) -> None:
    town.start_all()
    everybody = readers(5)
    job = town.create(*everybody, changelist_id="rerun", subject="rerun")
    town.until(job, "succeeded")
    assert town.create(*everybody, changelist_id="rerun", subject="rerun", idempotency_key="other") == job
    rerun = town.create(*everybody, changelist_id="rerun", subject="rerun", review_version=4, rerun=True)
    town.until(rerun, "succeeded")
    assert town.received("rerun") == dict.fromkeys(everybody, 2)
    assert len({each.key for each in town.resend.sent}) == 10
    town.stop()


def test_a_result_that_was_lost_is_healed_by_the_row_of_its_delivery(town: ReviewTown) -> None:
    """N11: the job asks again, the notifier answers from its row, and nobody is told twice."""
    town.env["FERRYMAN_REVIEWS__ANSWER_SECONDS"] = "1"
    town.start("reviews relay", "notifier")
    job = town.create(*readers(2), changelist_id="lost", subject="lost")
    sent = "SELECT count(*) FROM notifier.deliveries WHERE changelist_id = 'lost' AND status = 'sent'"
    poll_until(lambda: town.notifier.execute(sent).fetchone() == (2,), "both mails")
    town.notifier.execute("DELETE FROM ferryman.outbox")
    town.start("notifier relay", "reviews")
    town.db.execute("UPDATE reviews.jobs SET due_at = now() WHERE id = %s", (job,))
    town.until(job, "succeeded")
    assert town.received("lost") == dict.fromkeys(readers(2), 1)
    town.stop()
