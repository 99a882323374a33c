"""Sections 6.1, 6.2, 6.5 and 10 of the document on real tables: jobs, reruns, recipients and their ends."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ferryman import Message, use_schemas
from ferryman.schemas import active
from ferryman.services.reviews import job_rules, orchestrator
from ferryman.services.reviews.acts import ActRefused, give_up
from ferryman.services.reviews.jobs import InvalidReview, ReviewConflict, create_job
from ferryman.testing import prove
from support.reviewing import (
    CHANGE,
    JOB,
    WORDS,
    Database,
    ReviewsDesk,
    appended,
    not_notified,
    notified,
    request,
)

ADA, BEN, CAT = "ada@example.com", "ben@example.com", "cat@example.com"
COUNT = "SELECT count(*) FROM reviews.jobs"


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[ReviewsDesk]:
    use_schemas()
    yield ReviewsDesk(ferryman_db)
    active.forget()


def events(db: Database) -> list[str]:
    return [kind for kind, _ in appended(db) if kind in ("review.succeeded", "review.failed")]


# --- 6.1 and 10.1: creating


def test_rule_6_3_a_job_is_created_with_its_recipients_and_a_command_for_each(desk: ReviewsDesk) -> None:
    """The domain is folded, and doubles are removed."""
    job, is_new = desk.create(BEN, ADA, "ben@EXAMPLE.com", "Ben@example.com")
    assert is_new
    assert desk.stands(job) == "in_progress"
    assert desk.recipients(job) == dict.fromkeys(["ada@example.com", "ben@example.com", "Ben@example.com"], "waiting")
    sent = appended(desk.db)
    assert sorted(data["recipient"] for _, data in sent) == sorted(desk.recipients(job))
    assert all({**WORDS, "job_id": job, "review_version": 3}.items() <= data.items() for _, data in sent)


def test_rule_10_1_a_repeated_key_returns_the_job_and_makes_no_second_one(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA, BEN)
    assert desk.create(BEN, ADA) == (job, False)
    assert len(desk.asked()) == 2
    assert desk.db.execute(COUNT).fetchone() == (1,)
    with pytest.raises(psycopg.errors.UniqueViolation, match="created_once"):
        desk.db.execute(
            "INSERT INTO reviews.jobs (idempotency_key, changelist_id, review_version, due_at) "
            "SELECT idempotency_key, 'other', 1, now() FROM reviews.jobs"
        )


def test_rule_10_1_callers_at_once_create_one_job(desk: ReviewsDesk, ferryman_database_url: str) -> None:
    """Twenty with one key, then twenty with keys of their own for one version."""

    def create(key: str, change: str) -> tuple[Any, bool]:
        with psycopg.connect(ferryman_database_url) as db:
            return create_job(db, request(ADA, idempotency_key=key, changelist_id=change))

    with ThreadPoolExecutor(20) as pool:
        for change, keys in (("c1", ["k"] * 20), ("c2", [f"k{n}" for n in range(20)])):
            made = list(pool.map(create, keys, [change] * 20))
            assert len({job for job, _ in made}) == 1
            assert [is_new for _, is_new in made].count(True) == 1
    assert len(desk.asked()) == 2


@pytest.mark.parametrize("isolation", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_caller_that_sees_the_past_is_told_to_try_again(
    desk: ReviewsDesk, ferryman_database_url: str, isolation: psycopg.IsolationLevel
) -> None:
    """N5: it creates neither a second job nor one of a lower version."""
    with psycopg.connect(ferryman_database_url) as db:
        db.isolation_level = isolation
        db.execute("SELECT FROM reviews.jobs")
        desk.create(ADA, review_version=4)
        with pytest.raises(psycopg.errors.SerializationFailure):
            create_job(db, request(ADA, review_version=3))


def test_a_request_that_is_rolled_back_leaves_nothing(desk: ReviewsDesk, ferryman_database_url: str) -> None:
    """N2."""
    with psycopg.connect(ferryman_database_url) as db:
        create_job(db, request(ADA))
        db.rollback()
    assert desk.db.execute(COUNT).fetchone() == (0,)
    assert appended(desk.db) == []
    assert desk.create(ADA)[1]


@pytest.mark.parametrize(
    "changed", [{"body": "Other"}, {"subject": "Other"}, {"review_version": 4}, {"changelist_id": "CL-1"},
                {"recipients": (ADA, BEN)}],
)  # fmt: skip
def test_a_known_key_with_another_body_is_refused(desk: ReviewsDesk, changed: dict[str, Any]) -> None:
    job, _ = desk.create(ADA, idempotency_key="k")
    with pytest.raises(ReviewConflict, match=str(job)):
        desk.create(**{"recipients": (ADA,), "idempotency_key": "k", "rerun": True, **changed})
    assert desk.db.execute(COUNT).fetchone() == (1,)


# --- 6.2 and 10.4: reruns


def test_rule_6_2_the_same_version_under_another_key_returns_the_job_and_sends_nothing(desk: ReviewsDesk) -> None:
    """Also with other words, before and after its success, and where a higher version exists."""
    job, _ = desk.create(ADA)
    assert desk.create(BEN, idempotency_key="other") == (job, False)
    desk.apply(notified(job))
    assert desk.stands(job) == "succeeded"
    assert desk.create(BEN, idempotency_key="other", rerun=True) == (job, False)
    desk.create(ADA, review_version=4, rerun=True)
    assert desk.create(BEN, idempotency_key="other") == (job, False)
    assert desk.asked() == [ADA, ADA]


def test_rule_6_2_a_lower_version_is_refused(desk: ReviewsDesk) -> None:
    desk.create(ADA, review_version=4)
    for rerun in (False, True):
        with pytest.raises(ReviewConflict, match="version 4"):
            desk.create(ADA, review_version=3, rerun=rerun)


def test_rule_6_2_a_higher_version_needs_the_callers_word(desk: ReviewsDesk) -> None:
    """It is a new attempt at the same change, with commands of its own."""
    job, _ = desk.create(ADA)
    with pytest.raises(ReviewConflict, match="rerun"):
        desk.create(ADA, review_version=4)
    rerun, is_new = desk.create(ADA, review_version=4, rerun=True)
    assert is_new
    row = desk.db.execute("SELECT changelist_id, rerun_of FROM reviews.jobs WHERE id = %s", (rerun,)).fetchone()
    assert row == (CHANGE, job)
    assert [data["review_version"] for _, data in appended(desk.db)] == [3, 4]


def test_an_archived_version_is_not_told_again(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA)
    desk.apply(notified(job))
    assert len(desk.db.execute("SELECT reviews.archive(now() + '1 s', 'ann', 'tidying')").fetchall()) == 1
    for table in ("jobs", "requests", "recipients"):
        assert desk.db.execute(f"SELECT count(*) FROM reviews.{table}").fetchone() == (0,)
    with pytest.raises(ReviewConflict, match="version 3"):
        desk.create(ADA)
    assert desk.create(ADA, review_version=4, rerun=True)[1]


# --- bad input


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"recipients": ()}, "recipients"),
        ({"recipients": ("a@example.com",) * 10_001}, "recipients"),
        ({"recipients": (ADA, "ben@example.com\r\nBcc: eve@example.com")}, "recipients.1"),
        ({"recipients": ("ada",)}, "recipients.0"),
        ({"review_version": 0}, "review_version"),
        ({"review_version": 2**31}, "review_version"),
        ({"subject": "s" * 1000}, "subject"),
        ({"subject": "a\r\nb"}, "subject"),
        ({"subject": ""}, "subject"),
        ({"body": "a\0b"}, "body"),
        ({"body": "b" * 100_001}, "body"),
        ({"idempotency_key": "k" * 1000}, "idempotency_key"),
        ({"idempotency_key": "k\0"}, "idempotency_key"),
        ({"changelist_id": ""}, "changelist_id"),
    ],
)
def test_a_request_that_no_job_can_have_is_refused_with_its_field(
    desk: ReviewsDesk, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidReview) as refused:
        desk.create(**{"recipients": (ADA,), **wrong})
    assert refused.value.field == field
    assert "eve@" not in refused.value.message
    assert desk.db.execute(COUNT).fetchone() == (0,)


def test_sql_alone_creates_a_job_whose_commands_the_orchestrator_sends(
    desk: ReviewsDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In portions, each recipient once."""
    monkeypatch.setattr(job_rules, "PORTION", 2)
    monkeypatch.setattr(orchestrator, "PORTION", 2)
    desk.db.execute(
        "SELECT reviews.create_job('k', 'c', 1, '{ada@Example.com,ben@example.com,cat@example.com}', 's', 'b')"
    )
    assert appended(desk.db) == []
    desk.due(hastened=False)
    assert desk.asked() == [ADA, BEN]
    for _ in range(2):
        desk.due()
    assert desk.asked()[:3] == [ADA, BEN, CAT]
    for recipients in ("'{}'", "array_fill('a@b'::text, '{0}')", "'{ada}'", "'{a@b@c}'"):
        with pytest.raises(psycopg.errors.CheckViolation):
            desk.db.execute(f"SELECT reviews.create_job('k2', 'c2', 1, {recipients}, 's', 'b')")


# --- 6.5: finalization


def test_rule_6_5_a_job_succeeds_when_every_recipient_was_told_and_not_before(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA, BEN, CAT)
    desk.apply(notified(job, ADA))
    assert desk.stands(job) == "in_progress"
    desk.apply(notified(job, ADA), notified(job, BEN))
    assert desk.stands(job) == "in_progress"
    assert desk.apply(notified(job, CAT)) == ["applied"]
    assert desk.stands(job) == "succeeded"
    [(kind, data)] = [each for each in appended(desk.db) if each[0] != "review.notify"]
    assert (kind, data["recipients"]) == ("review.succeeded", 3)


def test_rule_6_5_results_that_come_together_move_the_job_once(desk: ReviewsDesk) -> None:
    """None of them is a stray: the first one's rule knew of all."""
    job, _ = desk.create(ADA, BEN, CAT)
    assert (
        desk.apply(notified(job, ADA), notified(job, BEN), not_notified(job, BEN), notified(job, CAT))
        == ["applied"] * 4
    )
    assert desk.stands(job) == "succeeded"
    assert desk.db.execute("SELECT count(*) FROM ferryman.saga_stray").fetchone() == (0,)
    assert events(desk.db) == ["review.succeeded"]


def test_rule_6_5_a_job_waits_for_a_person_when_nothing_goes_on_by_itself(desk: ReviewsDesk) -> None:
    """While another recipient is under way it is in progress; a late success brings it on."""
    job, _ = desk.create(ADA, BEN)
    desk.apply(not_notified(job, ADA))
    assert desk.stands(job) == "in_progress"
    desk.apply(notified(job, BEN))
    assert desk.stands(job) == "retryable_failed"
    assert desk.due() == 0
    desk.apply(notified(job, ADA))
    assert desk.stands(job) == "succeeded"
    assert events(desk.db) == ["review.succeeded"]


def test_a_recipient_that_was_told_stays_told(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA, BEN)
    desk.apply(notified(job, ADA))
    desk.apply(not_notified(job, ADA), notified(job, ADA, notification_id="another"))
    assert desk.recipients(job) == {ADA: "notified", BEN: "waiting"}
    [(known,)] = desk.db.execute(
        "SELECT notification_id FROM reviews.recipients WHERE recipient = %s", (ADA,)
    ).fetchall()
    assert known == f"m-{ADA}"


def test_a_result_that_is_not_about_this_job_notes_nothing(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA)
    strays = desk.apply(
        notified(job, version=4), notified(job, topic="reviews.commands"), notified(JOB), notified(uuid4())
    )
    assert strays == ["FORGED", "FORGED", "UNKNOWN", "UNKNOWN"]
    assert desk.apply(notified(job, "nobody@example.com")) == ["applied"]
    assert desk.recipients(job) == {ADA: "waiting"}
    assert desk.stands(job) == "in_progress"


def test_results_take_effect_once_whatever_dies(desk: ReviewsDesk) -> None:
    """N5, N6: a crash before each step and statement, duplicates, replays, and two owners."""
    job, _ = desk.create(ADA)
    results = [Message(each.type, each.data, key=CHANGE) for each in (not_notified(job, ADA), notified(job, ADA))]
    [consumer] = desk.rules.saga.consumers()

    def told(db: Database) -> bool:
        sent = events(db)
        return desk.stands(job) == "succeeded" and sent == ["review.succeeded"]

    assert prove(consumer, *results, db=desk.db, invariant=told, repeatable=False)


# --- lost results


def test_a_job_that_hears_nothing_asks_again_for_who_is_missing(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA, BEN, CAT)
    desk.apply(notified(job, BEN), not_notified(job, CAT))
    assert desk.due(hastened=False) == 0
    desk.due()
    assert desk.asked()[3:] == [ADA]
    [(wait,)] = desk.db.execute("SELECT extract(epoch FROM due_at - changed_at)::float8 FROM reviews.jobs").fetchall()
    assert round(wait) == 300


# --- again, replace, drop, give up


def failed(desk: ReviewsDesk) -> Any:
    job, _ = desk.create(ADA, BEN)
    desk.apply(not_notified(job, ADA), notified(job, BEN))
    assert desk.stands(job) == "retryable_failed"
    return job


def test_a_recipient_is_asked_for_again_perhaps_with_other_words(desk: ReviewsDesk) -> None:
    job = failed(desk)
    assert desk.correct(job, "ada@EXAMPLE.com", "again", body="Corrected")
    assert desk.stands(job) == "in_progress"
    kind, data = appended(desk.db)[-1]
    assert (kind, data["subject"], data["body"]) == ("review.notify", WORDS["subject"], "Corrected")
    desk.due()
    assert appended(desk.db)[-1][1]["body"] == "Corrected", "a lost command is asked again with the same words"
    desk.apply(notified(job, ADA))
    assert desk.stands(job) == "succeeded"


def test_a_recipient_is_replaced_by_another_address(desk: ReviewsDesk) -> None:
    """The old one is no longer required; a late success of it changes nothing."""
    job = failed(desk)
    for _ in range(2):
        assert desk.correct(job, ADA, "replace", by="cat@Example.com")
    assert desk.asked()[2:] == [CAT]
    assert desk.recipients(job) == {ADA: "withdrawn", BEN: "notified", CAT: "waiting"}
    desk.apply(notified(job, ADA))
    assert desk.stands(job) == "in_progress"
    desk.apply(notified(job, CAT))
    assert desk.stands(job) == "succeeded"


def test_a_replaced_recipient_may_come_back(desk: ReviewsDesk) -> None:
    job = failed(desk)
    desk.correct(job, ADA, "replace", by=CAT)
    desk.correct(job, CAT, "replace", by=ADA)
    assert desk.recipients(job) == {ADA: "waiting", BEN: "notified", CAT: "withdrawn"}
    assert desk.asked()[2:] == [CAT, ADA]


def test_a_dropped_recipient_is_no_longer_required(desk: ReviewsDesk) -> None:
    job = failed(desk)
    for _ in range(2):
        if desk.stands(job) != "succeeded":
            assert desk.correct(job, ADA, "drop")
    assert desk.stands(job) == "succeeded"
    [data] = [data for kind, data in appended(desk.db) if kind == "review.succeeded"]
    assert data["recipients"] == 1


def test_an_act_that_the_state_does_not_allow_is_refused(desk: ReviewsDesk) -> None:
    job = failed(desk)
    for recipient, act, more in (
        (BEN, "again", {}), (BEN, "drop", {}), (ADA, "replace", {"by": BEN}), (ADA, "replace", {"by": ADA}),
    ):  # fmt: skip
        with pytest.raises(ActRefused):
            desk.correct(job, recipient, act, **more)
    with pytest.raises(InvalidReview):
        desk.correct(job, ADA, "replace", by="nobody")
    assert desk.correct(job, CAT, "again") is False
    assert desk.correct(uuid4(), ADA, "again") is False
    alone, _ = desk.create(ADA, changelist_id="alone")
    with pytest.raises(ActRefused, match="only recipient"):
        desk.correct(alone, ADA, "drop")
    desk.apply(notified(job, ADA))
    with pytest.raises(ActRefused, match="over"):
        desk.correct(job, ADA, "again")


def test_only_an_operator_ends_a_job_as_failed(desk: ReviewsDesk) -> None:
    job, _ = desk.create(ADA, BEN)
    desk.apply(not_notified(job, ADA))
    with pytest.raises(ActRefused), desk.db.transaction():
        give_up(desk.db, desk.rules, job, "nobody reads it")
    desk.apply(not_notified(job, BEN))
    with desk.db.transaction():
        give_up(desk.db, desk.rules, job, "nobody reads it")
    assert desk.db.execute("SELECT status, reason FROM reviews.jobs").fetchall() == [("failed", "nobody reads it")]
    [data] = [data for kind, data in appended(desk.db) if kind == "review.failed"]
    assert (data["job_id"], data["failed_recipients"]) == (job, 2)
    assert desk.apply(notified(job, ADA)) == ["LATE"]
    assert desk.recipients(job) == {ADA: "notified", BEN: "failed"}
