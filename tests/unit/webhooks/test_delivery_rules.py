"""The rules of deliveries, without a database."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ferryman import Go, Received
from ferryman.consumer.model import Record
from ferryman.services.webhooks.machine import COLUMNS, DISABLED, FAILED, SUCCEEDED, DeliveryRules, Job, WebhookDelivery
from ferryman.services.webhooks.machine import wait_seconds as wait
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings

NOW = datetime(2026, 1, 31, tzinfo=UTC)
RULES = DeliveryRules(WebhooksSettings(answer_seconds=300), lambda: NOW)


def delivery(state: str, attempt: int, limit: int = 3, *jobs: str, **more: Any) -> WebhookDelivery:
    made = tuple(Job(number, status) for number, status in enumerate(jobs, 1))
    return WebhookDelivery(7, 8, 9, state, attempt, None, limit, 10.0, 60.0, made, **more)


def result(kind: str, **more: Any) -> Received:
    data = {"saga_id": 7, "event_id": 8, "subscription_id": 9, "job_id": 1, "attempt": 1, "finished_at": NOW, **more}
    return Received(None, kind, data, "7", Record("webhooks.results", 0, 0, b"7", b"", [], 0), b"")  # type: ignore[arg-type]


def states(answer: Any) -> list[str]:
    return [each.state for each in ([answer] if isinstance(answer, Go) else answer or [])]


@pytest.mark.parametrize(
    ("state", "attempt", "limit", "to", "jobs"),
    [
        ("Pending", 0, 3, ["InProgress"], 1),
        ("PendingRetry", 2, 3, ["InProgress"], 1),
        ("PendingRetry", 3, 3, ["DeadLettered"], 0),
        ("PendingRetry", 4, 3, ["DeadLettered"], 0),
        ("PendingRetry", 1, 0, ["DeadLettered"], 0),
        ("Pending", 0, 0, ["InProgress", "PendingRetry", "DeadLettered"], 0),
    ],
)
def test_rules_6_1_and_7_2_and_7_3_a_job_is_made_while_attempts_are_left(
    state: str, attempt: int, limit: int, to: list[str], jobs: int
) -> None:
    answer = RULES.next_job(delivery(state, attempt, limit))
    assert states(answer) == to
    made = [row.values for each in answer for row in each.rows if row.values.get("status") == "Pending"]
    assert [each["attempt"] for each in made] == [attempt + 1] * jobs


def test_rule_6_2_the_wait_is_the_documented_formula() -> None:
    assert [wait(attempts, 10.0, 100.0) for attempts in (1, 2, 3, 4, 5)] == [10, 20, 40, 80, 100]
    assert wait(100, 10.0, 3600.0) == 3600
    assert wait(10**6, 1e-3, 604_800.0) == 604_800


@pytest.mark.parametrize(
    ("attempt", "limit", "to"),
    [(0, 2, ["PendingRetry"]), (1, 2, ["PendingRetry", "DeadLettered"]), (0, 1, ["PendingRetry", "DeadLettered"])],
)
def test_rule_8_1_a_failed_job_counts_and_the_last_one_dead_letters(attempt: int, limit: int, to: list[str]) -> None:
    asked = delivery("InProgress", attempt, limit)
    answer = RULES.failed(asked, result(FAILED, attempt=attempt + 1, error_code="X" * 150))
    assert answer is not None
    assert states(answer) == to
    assert answer[0].set == {"attempt": attempt + 1}
    assert answer[0].due == 10.0 * 2**attempt
    assert answer[0].reason == "X" * 100
    letters = [row.values for row in answer[-1].rows]
    assert [each["attempts"] for each in letters] == [attempt + 1] * (len(to) - 1)


def test_rule_8_1_a_disabled_subscription_ends_with_its_own_code() -> None:
    [_, dead] = RULES.failed(delivery("InProgress", 0, 0), result(FAILED, error_code="TIMED_OUT")) or []
    assert (dead.state, dead.reason) == ("DeadLettered", DISABLED)


@pytest.mark.parametrize(
    ("jobs", "to", "code"),
    [
        (["Failed", "Pending"], ["InProgress"], None),
        (["Failed", "Leased"], ["InProgress"], None),
        (["Failed"], ["InProgress"], None),
        (["Failed", "Completed"], ["Completed"], None),
        (["Failed", "Failed"], ["PendingRetry"], "GONE"),
    ],
)
def test_a_delivery_without_a_result_believes_the_row_of_its_job(
    jobs: list[str], to: list[str], code: str | None
) -> None:
    answer = RULES.unanswered(delivery("InProgress", 1, 3, *jobs, last_code="GONE"))
    assert states(answer) == to
    if code:
        assert isinstance(answer, list)
        assert answer[0].reason == code


@pytest.mark.parametrize(
    ("kind", "changed", "fits"),
    [
        (SUCCEEDED, {"job_id": 2, "attempt": 2}, True),
        (FAILED, {"job_id": 1, "attempt": 1}, True),
        (FAILED, {"job_id": 2, "attempt": 2}, False),
        (SUCCEEDED, {"job_id": 3, "attempt": 2}, False),
        (SUCCEEDED, {"job_id": 2, "attempt": 1}, False),
        (SUCCEEDED, {"job_id": 2, "attempt": 3}, False),
        (SUCCEEDED, {"job_id": 2, "attempt": 0}, False),
        (SUCCEEDED, {"job_id": 2, "attempt": 2, "event_id": 1}, False),
        (SUCCEEDED, {"job_id": 2, "attempt": 2, "subscription_id": 1}, False),
    ],
)
def test_a_result_is_believed_only_if_the_row_of_its_job_says_the_same(
    kind: str, changed: dict[str, Any], fits: bool
) -> None:
    fitting = RULES.saga.fits
    assert fitting is not None
    assert fitting(delivery("InProgress", 1, 3, "Failed", "Completed"), result(kind, **changed)) is fits


def test_rule_6_4_a_result_of_an_earlier_attempt_moves_nothing() -> None:
    asked = delivery("InProgress", 1, 3, "Failed", "Leased")
    assert RULES.failed(asked, result(FAILED, error_code="GONE")) is None
    assert RULES.succeeded(asked, result(SUCCEEDED)) is None


def test_rule_8_2_success_counts_and_leaves_the_last_code() -> None:
    answer = RULES.succeeded(delivery("InProgress", 0, 3, "Completed"), result(SUCCEEDED))
    assert answer is not None
    assert (answer.state, answer.set, repr(answer.reason)) == ("Completed", {"attempt": 1}, "KEEP")
    [told] = answer.messages
    assert told.type == "webhook.delivered"


def test_rule_2_1_the_columns_have_the_names_of_the_document() -> None:
    assert tuple(COLUMNS.__getattribute__(each) for each in ("state", "attempt", "reason", "due_at", "changed_at")) == (
        "status", "attempt_count", "final_error_code", "next_attempt_at", "updated_at",
    )  # fmt: skip
