"""What is wrong with a payment, decided from values."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ferryman.evidence.audit.model import Facts, Horizon, Operation, Request, Sums
from ferryman.evidence.audit.policy import add, judge, unequal

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ONE, WALLET = UUID(int=1), UUID(int=2)
FOR_EVER = Horizon(None, None)
AFTER = Horizon(NOW + timedelta(days=1), NOW + timedelta(days=1))


def operation(kind: str = "DEDUCT", amount: int = -500, reason: str | None = None, step: str = "deduct") -> Operation:
    return Operation(ONE, step, kind, WALLET, 0 if reason else amount, None if reason else "EUR", reason, NOW)


def facts(state: str, *operations: Operation, fulfil: bool = False, **more: Any) -> Facts:
    given = {"received": frozenset(each.kind for each in operations), "applied": True, **more}
    return Facts(Request(ONE, WALLET, 500, "EUR", fulfil, state, 1, NOW, NOW), operations, **given)


TAKEN, POOR = operation(), operation(reason="INSUFFICIENT_FUNDS")
BACK, STOPPED = operation("CANCEL", 500), operation(reason="CANCELLED")


@pytest.mark.parametrize(
    ("known", "wrong"),
    [
        (facts("SUCCEEDED", TAKEN), []),
        (facts("FAILED", POOR), []),
        (facts("FAILED", TAKEN, BACK), []),
        (facts("FAILED", STOPPED, operation("CANCEL", 0), received=frozenset({"CANCEL"})), []),
        (facts("FAILED", TAKEN, settled=True), []),
        (facts("DEDUCTING", applied=False), []),
        (facts("DEDUCTING", TAKEN, applied=False), []),
        (facts("STUCK", TAKEN), []),
        (facts("SUCCEEDED"), ["success_without_deduction"]),
        (facts("SUCCEEDED", POOR), ["success_without_deduction"]),
        (facts("SUCCEEDED", TAKEN, BACK), ["success_without_deduction"]),
        (facts("SUCCEEDED", TAKEN, operation("REFUND", 1)), ["success_given_back"]),
        (facts("SUCCEEDED", operation(amount=-499)), ["mismatch"]),
        (facts("FAILED"), ["no_ledger"]),
        (facts("FAILED", TAKEN), ["failure_with_deduction"]),
        (facts("SUCCEEDED", TAKEN, applied=False), []),  # the wallet may have told it beside its results
        (facts("SUCCEEDED", TAKEN, applied=False, reported=True), []),  # and the result comes behind that
        (facts("SUCCEEDED", TAKEN, applied=False, reported=True, literal=True), []),
        (facts("SUCCEEDED", TAKEN, applied=False, fulfil=True), ["no_result"]),
        (facts("FAILED", TAKEN, BACK, applied=False), ["no_result"]),
        (facts("SUCCEEDED", TAKEN, received=frozenset()), ["no_receipt"]),
        (facts("DEDUCTING", TAKEN, received=frozenset()), ["no_receipt"]),
        (facts("DEDUCTING", TAKEN, operation(step="other")), ["two_deductions"]),
        (facts("CANCELLING", TAKEN, BACK, operation("REFUND", 500)), ["given_too_much"]),
    ],
)
def test_what_is_wrong_is_named_and_what_is_on_its_way_is_not(known: Facts, wrong: list[str]) -> None:
    assert [each.what for each in judge(known, FOR_EVER).wrong] == wrong


def test_what_receipts_would_tell_is_not_called_wrong_once_they_are_forgotten() -> None:
    judged = judge(facts("SUCCEEDED", TAKEN, received=frozenset(), applied=False, fulfil=True), AFTER)
    assert judged.wrong == ()
    assert {"receipts.expired", "results.expired"} <= set(judged.counts)


@pytest.mark.parametrize(
    ("known", "wrong"),
    [
        (facts("SUCCEEDED", TAKEN, applied=False, fulfil=True), []),
        (facts("SUCCEEDED", TAKEN._replace(decided_at=NOW + HOUR), applied=False, fulfil=True), ["no_result"]),
        (facts("FAILED", TAKEN, BACK, applied=False, fulfil=True), ["no_result"]),  # by which it was over
    ],
)
def test_a_payment_that_was_fulfilled_after_its_result_was_forgotten_is_in_order(
    known: Facts, wrong: list[str]
) -> None:
    """Each database has its own clock: that of the orchestrator is behind."""
    assert [each.what for each in judge(known, Horizon(NOW + HOUR, NOW - HOUR)).wrong] == wrong


LATER = Horizon(None, None, NOW + HOUR, NOW + HOUR)


@pytest.mark.parametrize(
    ("known", "wrong"),
    [
        (facts("SUCCEEDED", TAKEN, applied=False, reported=True), ["no_result"]),
        (facts("SUCCEEDED", TAKEN, applied=False, reported=True, literal=True), []),
        (facts("SUCCEEDED", TAKEN, applied=False), []),
        (facts("DEDUCTING", applied=False), ["no_command"]),
        (facts("DEDUCTING", applied=False, commanded="found"), []),
        (facts("DEDUCTING", applied=False, commanded="expired"), []),
        (facts("DEDUCTING", applied=False, literal=True), []),
        (facts("DEDUCTING", applied=False, seen=True), []),
        (facts("DEDUCTING", applied=False, seen=True, stale=frozenset({"DEDUCT"})), ["no_ledger"]),
        (facts("FAILED", TAKEN, back_at=NOW), ["failure_with_deduction"]),
        (facts("FAILED", TAKEN, back_at=NOW + HOUR), []),
    ],
)
def test_what_has_had_its_time_must_have_gone_on(known: Facts, wrong: list[str]) -> None:
    assert [each.what for each in judge(known, LATER).wrong] == wrong


def test_all_that_succeeded_is_all_that_was_taken_and_what_failed_takes_nothing() -> None:
    assert list(unequal("EUR", Sums(5, 5, 3, 9, by_hand=1, giving_back=2))) == []
    assert [each.what for each in unequal("EUR", Sums(5, 4, 3))] == ["unequal_sums", "unequal_sums"]


def test_sums_tell_what_was_taken_by_what_became_of_the_payment() -> None:
    sums = Sums()
    for known in (facts("SUCCEEDED", TAKEN), facts("FAILED", TAKEN, BACK), facts("STUCK", TAKEN)):
        add(lambda _currency: sums, known, FOR_EVER)
    assert (sums.succeeded, sums.deducted, sums.failed_net, sums.in_flight_net) == (500, 500, 0, 500)
