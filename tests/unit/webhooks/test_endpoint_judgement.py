"""The rule by which endpoints are disabled, on every history of attempts and in every order of results."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ferryman.services.webhooks.endpoints import (
    ENDPOINT_FAILING,
    ENDPOINT_GONE,
    Endpoint,
    EndpointFailure,
    Judgement,
    judge,
)

AFTER = timedelta(minutes=10)
START = datetime(2026, 1, 1, tzinfo=UTC)
NEW = Endpoint(3, START, None)


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def failed(minute: float, *, is_gone: bool = False) -> EndpointFailure:
    return EndpointFailure(at(minute), is_gone)


def test_an_endpoint_that_only_fails_for_so_long_is_disabled() -> None:
    assert judge(NEW, [failed(1)], AFTER) == Judgement(at(1))
    assert judge(NEW._replace(failing_since=at(1)), [failed(10.9)], AFTER) == Judgement(at(1))
    assert judge(NEW._replace(failing_since=at(1)), [failed(11)], AFTER) == Judgement(at(1), ENDPOINT_FAILING)
    assert judge(NEW, [failed(11), failed(1)], AFTER) == Judgement(at(1), ENDPOINT_FAILING)


def test_a_success_between_failures_begins_the_count_again() -> None:
    """Its result need not have come."""
    succeeded = NEW._replace(failing_since=at(1), succeeded_at=at(5))
    assert judge(succeeded, [failed(12)], AFTER) == Judgement(at(12))
    assert judge(succeeded, [failed(4)], AFTER) == Judgement(None)
    assert judge(succeeded, [], AFTER) == Judgement(None)


def test_an_endpoint_that_answers_410_is_disabled_at_once_unless_it_answered_better_since() -> None:
    assert judge(NEW, [failed(1, is_gone=True)], AFTER) == Judgement(at(1), ENDPOINT_GONE)
    assert judge(NEW._replace(succeeded_at=at(2)), [failed(1, is_gone=True)], AFTER) == Judgement(None)


def test_an_attempt_that_began_before_the_endpoint_was_enabled_does_not_count() -> None:
    """It may have gone to another URL, and ended after it was corrected."""
    assert judge(Endpoint(3, at(2), None), [failed(1, is_gone=True)], AFTER) == Judgement(None)


def test_with_0_seconds_only_410_disables() -> None:
    assert judge(NEW._replace(failing_since=at(1)), [failed(100)], timedelta(0)) == Judgement(at(1))
    assert judge(NEW, [failed(1, is_gone=True)], timedelta(0)).reason == ENDPOINT_GONE


HISTORIES = st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=12)
"""Attempts: the minutes since the former one, and whether it succeeded."""


def attempts_of(history: Sequence[tuple[int, bool]]) -> list[tuple[int, bool]]:
    """Return the minute and the end of each attempt."""
    minute, found = 0, []
    for pause, succeeded in history:
        minute += pause
        found.append((minute, succeeded))
    return found


@given(HISTORIES)
def test_results_in_order_disable_at_the_first_failure_that_is_long_enough(history: list[tuple[int, bool]]) -> None:
    endpoint, since = NEW, None
    for minute, succeeded in attempts_of(history):
        since = None if succeeded else (minute if since is None else since)
        wanted = since is not None and minute - since >= 10
        if succeeded:
            endpoint = endpoint._replace(succeeded_at=at(minute))
        now = judge(endpoint, [] if succeeded else [failed(minute)], AFTER)
        assert (now.reason == ENDPOINT_FAILING) == wanted
        assert now.failing_since == (None if since is None else at(since))
        if wanted:
            return
        endpoint = endpoint._replace(failing_since=now.failing_since)


@given(HISTORIES, st.randoms())
def test_late_and_reordered_results_disable_no_endpoint_that_worked(
    history: list[tuple[int, bool]], chance: object
) -> None:
    """Each result comes at any time after its attempt, any number of times, or never."""
    attempts = attempts_of(history)
    endpoint = NEW
    for now, _ in attempts:
        past = [each for each in attempts if each[0] <= now]
        successes = [minute for minute, succeeded in past if succeeded]
        failures = [minute for minute, succeeded in past if not succeeded]
        told = chance.choices(failures, k=chance.randint(0, 3)) if failures else []  # type: ignore[attr-defined]
        endpoint = endpoint._replace(succeeded_at=at(max(successes)) if successes else None)
        judged = judge(endpoint, [failed(minute) for minute in told], AFTER)
        if judged.reason:
            rows = [0, *successes, now]
            assert any(
                max(failures_between) - min(failures_between) >= 10
                for first, last in pairwise(rows)
                if (failures_between := [each for each in failures if first < each <= last])
            )
            return
        endpoint = endpoint._replace(failing_since=judged.failing_since)
