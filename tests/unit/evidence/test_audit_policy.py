"""The audit's findings about a payment, decided from values."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ferryman.evidence.messages import InboxReceipt
from ferryman.services.payments.evidence.case import AskedBack, LedgerRow, PaymentRow
from ferryman.services.payments.evidence.facts import PaymentFacts
from ferryman.services.payments.evidence.invariants import Horizon, PaymentSums, add, judge, unequal

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ONE, WALLET = UUID(int=1), UUID(int=2)
FOR_EVER = Horizon(None, None)
AFTER = Horizon(NOW + timedelta(days=1), NOW + timedelta(days=1))


def operation(kind: str = "DEDUCT", amount: int = -500, reason: str | None = None, step: str = "deduct") -> LedgerRow:
    return LedgerRow(ONE, step, kind, WALLET, 0 if reason else amount, None if reason else "EUR", reason, NOW)


def receipt(kind: str, *, reported: bool = False, status: str = "HANDLED") -> InboxReceipt:
    reports = json.dumps([["wallet.results", "", "wallet.succeeded", "", None, str(ONE), ""]]) if reported else None
    return InboxReceipt(ONE, status, "DONE", None, None, NOW, f"wallet.{kind.lower()}", reports=reports)


def facts(
    state: str, *operations: LedgerRow, fulfil: bool = False, literal: bool = False, applied: bool = True,
    reported: bool = False, received: Sequence[str] | None = None, **more: Any,
) -> PaymentFacts:  # fmt: skip
    """Return a payment whose operations came by commands of their kinds, unless other kinds were received."""
    kinds = [each.kind for each in operations] if received is None else received
    given = {"receipts": tuple(receipt(each, reported=reported) for each in kinds), **more}
    row = PaymentRow(ONE, WALLET, 500, "EUR", fulfil, state, 1, NOW, NOW, NOW, literal=literal)
    return PaymentFacts(row, operations, applied=(receipt("RESULT"),) if applied else (), **given)


TAKEN, POOR = operation(), operation(reason="INSUFFICIENT_FUNDS")
BACK, STOPPED = operation("CANCEL", 500), operation(reason="CANCELLED")


@pytest.mark.parametrize(
    ("known", "wrong"),
    [
        (facts("SUCCEEDED", TAKEN), []),
        (facts("FAILED", POOR), []),
        (facts("FAILED", TAKEN, BACK), []),
        (facts("FAILED", STOPPED, operation("CANCEL", 0), received=["CANCEL"]), []),
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
        (facts("SUCCEEDED", TAKEN, received=()), ["no_receipt"]),
        (facts("DEDUCTING", TAKEN, received=()), ["no_receipt"]),
        (facts("DEDUCTING", TAKEN, operation(step="other")), ["two_deductions"]),
        (facts("CANCELLING", TAKEN, BACK, operation("REFUND", 500)), ["given_too_much"]),
    ],
)
def test_wrong_payments_are_named_and_those_on_their_way_are_not(known: PaymentFacts, wrong: list[str]) -> None:
    assert [each.what for each in judge(known, FOR_EVER).wrong] == wrong


def test_missing_receipts_are_not_wrong_once_they_are_forgotten() -> None:
    judged = judge(facts("SUCCEEDED", TAKEN, received=(), applied=False, fulfil=True), AFTER)
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
def test_payment_fulfilled_after_its_result_was_forgotten_is_in_order(known: PaymentFacts, wrong: list[str]) -> None:
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
        (facts("DEDUCTING", applied=False, receipts=(receipt("DEDUCT", status="REJECTED"),)), []),
        (facts("DEDUCTING", applied=False, received=["DEDUCT"]), ["no_ledger"]),
        (facts("FAILED", TAKEN, back=AskedBack(NOW, 0)), ["failure_with_deduction"]),
        (facts("FAILED", TAKEN, back=AskedBack(NOW + HOUR, 0)), []),
    ],
)
def test_payment_that_has_had_its_time_must_have_gone_on(known: PaymentFacts, wrong: list[str]) -> None:
    assert [each.what for each in judge(known, LATER).wrong] == wrong


def test_sums_of_succeeded_and_taken_agree_and_failed_takes_nothing() -> None:
    assert list(unequal("EUR", PaymentSums(5, 5, 3, 9, by_hand=1, giving_back=2))) == []
    assert [each.what for each in unequal("EUR", PaymentSums(5, 4, 3))] == ["unequal_sums", "unequal_sums"]


def test_sums_tell_the_amounts_taken_by_the_payments_state() -> None:
    sums: dict[str, PaymentSums] = {}
    for known in (facts("SUCCEEDED", TAKEN), facts("FAILED", TAKEN, BACK), facts("STUCK", TAKEN)):
        add(sums, known, FOR_EVER)
    assert (sums["EUR"].succeeded, sums["EUR"].deducted, sums["EUR"].failed_net, sums["EUR"].in_flight_net) == (
        500,
        500,
        0,
        500,
    )
