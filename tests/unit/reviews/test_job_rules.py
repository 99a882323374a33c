"""The rules of review jobs: pure decisions on how many recipients were told."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman import Message
from ferryman.saga.answers import KEEP
from ferryman.services.reviews.job_rules import PORTION, Asked, JobRules, ReviewJob

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RULES = JobRules(now=lambda: NOW)


def data(message: Message) -> dict[str, Any]:
    assert isinstance(message.data, dict)
    return message.data


def job(**more: Any) -> ReviewJob:
    return ReviewJob(UUID(int=1), "k", "CL-1", 3, "", "in_progress", 1, None)._replace(**more)


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ({"waiting": True}, "in_progress"),
        ({"waiting": True, "failed": 2}, "in_progress"),
        ({"failed": 1}, "retryable_failed"),
        ({"recipients": 2}, "succeeded"),
    ],
)
@pytest.mark.parametrize("before", ["in_progress", "retryable_failed"])
def test_rule_6_5_a_job_stands_as_its_recipients_do(how: dict[str, Any], state: str, before: str) -> None:
    assert RULES.stands(job(state=before, **how)).state == state


@given(st.booleans(), st.integers(0, 10_000), st.sampled_from(["in_progress", "retryable_failed"]))
def test_rule_6_5_a_job_succeeds_only_if_nobody_is_missing(waiting: bool, failed: int, state: str) -> None:
    went = RULES.stands(job(waiting=waiting, failed=failed, state=state))
    assert (went.state == "succeeded") == (not waiting and not failed)
    assert [each.type for each in went.messages] == (["review.succeeded"] if went.state == "succeeded" else [])


def test_a_job_that_hears_something_asks_later_unless_it_is_asking() -> None:
    assert RULES.stands(job(waiting=True)).due == 300.0
    assert RULES.stands(job(waiting=True, asked_up_to="b@example.com")).due is KEEP


def test_recipients_are_asked_for_in_portions() -> None:
    """N12: a full portion says where the next one begins, and comes soon."""
    missing = [Asked(f"{number:05}@example.com", "s", "b") for number in range(PORTION)]
    full = RULES.unanswered(job(waiting=True, missing=missing))
    assert ([data(each)["recipient"] for each in full.messages], full.set, full.due) == (
        [each.recipient for each in missing], {"asked_up_to": missing[-1].recipient}, 0.05
    )  # fmt: skip
    last = RULES.unanswered(job(waiting=True, missing=missing[:3], asked_up_to="a"))
    assert (len(last.messages), last.set, last.due) == (3, {"asked_up_to": ""}, 300.0)


def test_a_job_whose_last_result_moved_nothing_goes_on_when_it_is_due() -> None:
    assert RULES.unanswered(job(recipients=2)).state == "succeeded"
    assert RULES.unanswered(job(failed=1)).state == "retryable_failed"


def test_only_a_job_that_waits_for_a_person_is_given_up() -> None:
    assert RULES.given_up(job(waiting=True), "why") is None
    ended = RULES.given_up(job(state="retryable_failed", failed=2), "why")
    assert ended is not None
    [event] = ended.messages
    assert (ended.state, ended.reason, event.type) == ("failed", "why", "review.failed")
    assert data(event)["failed_recipients"] == 2
