"""FAILED payments that were taken all the same are found by the ledger, and given back."""

import pytest

from ferryman.evidence.reconcile import Repair, Repaired, repair_all
from ferryman.services.payments.evidence.causes import Cause
from ferryman.services.payments.rules import message_id
from ferryman.services.payments.store import Request
from support.paying import failed, succeeded
from support.town import ACT, Town, damage
from support.walleting import asked, transact


def taken(town: Town) -> Request:
    """Told to have FAILED, and taken all the same: its cancellation is in the outbox."""
    payment = town.asks()
    town.desk.apply(failed(payment, "NO_WALLET"))
    town.consume(payment)
    town.answer(payment)
    assert town.desk.kinds(payment)[-1] == "wallet.cancel"
    return payment


def cancels(town: Town, payment: Request) -> list[int]:
    """Their attempts."""
    return [each.data["attempt"] for each in town.commands(payment) if each.type == "wallet.cancel"]


def verdict(town: Town) -> list[str]:
    return [each.what for each in town.audited().wrong]


@pytest.mark.parametrize("named", [False, True])
def test_rejected_cancellation_is_made_once_more_and_gives_the_amount_back(town: Town, named: bool) -> None:
    """N5, also where nobody names the payment."""
    payment, fine = taken(town), taken(town)
    town.published(town.desk.db)
    town.rejects(town.books.db, "wallet", town.commands(payment)[-1], "BUG", "KeyError")
    town.ages(payment, fine)
    transact(town.books.db, town.commands(fine)[1:])
    assert "failure_with_deduction" in verdict(town)
    [case] = town.cases(payment) if named else town.cases()
    assert (case.uuid, case.cause, case.repair) == (payment.uuid, Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)
    assert "BUG: KeyError" in case.evidence
    assert town.repair(*([payment] if named else [])) == {"give_back": 1}
    assert cancels(town, payment) == [1, 2]
    assert verdict(town) == []
    assert town.cases(payment)[0].repair is Repair.NONE
    assert "PENDING" in town.cases(payment)[0].evidence
    transact(town.books.db, town.commands(payment)[-1:])
    town.answer(payment)
    assert town.books.balance(payment.wallet_id) == 10_000
    assert (town.cases(), town.cases(payment), verdict(town)) == ([], [], [])
    assert town.desk.stands(payment)[0] == "FAILED"


def test_payment_judged_twice_is_asked_back_once(town: Town) -> None:
    """N8: by two who reconcile at the same time."""
    payment = taken(town)
    town.published(town.desk.db)
    town.ages(payment)
    judged = town.cases()
    done = Repaired()
    repair_all(town.reconciler, judged, ACT, done)
    repair_all(town.reconciler, judged, ACT, done)
    assert (done.by_repair, done.moved) == ({"give_back": 1}, 1)
    assert cancels(town, payment) == [1, 2]
    town.published(town.desk.db)
    assert town.repair() == {}, "it has its time"
    assert town.acts() == [("reconcile", "give_back", 1)]


def test_waiting_or_failed_cancellation_is_found_in_the_outbox(town: Town) -> None:
    payment = taken(town)
    town.ages(payment)
    case = town.case(payment)
    assert (case.repair, case.next) == (Repair.NONE, "ferryman run relay")
    town.published(town.desk.db)
    town.excepted(town.desk.db, "wallet.cancel", "FAILED")
    assert town.case(payment).repair is Repair.REPLAY
    assert town.repair() == {"replay": 1}
    town.excepted(town.desk.db, "wallet.cancel", "DISCARDED")
    assert town.repair() == {"give_back": 1}


def test_amount_nobody_asked_back_is_asked_back_when_named(town: Town) -> None:
    """No result told that it was taken: only the ledger knows."""
    payment, paid = town.asks(), town.asks()
    town.desk.apply(failed(payment, "NO_WALLET"))
    town.consume(payment, paid)
    town.desk.apply(succeeded(paid))
    town.ages(payment, paid)
    assert town.cases() == []
    assert [case.uuid for case in town.cases(payment, paid)] == [payment.uuid]
    assert (town.case(payment).cause, town.case(payment).repair) == (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)
    assert town.repair(payment) == {"give_back": 1}
    transact(town.books.db, town.commands(payment)[-1:])
    assert town.books.balance(payment.wallet_id) == 10_000
    town.answer(payment)  # which cancels it once more, in vain
    town.consume(payment)
    assert town.books.balance(payment.wallet_id) == 10_000


def test_amount_that_the_wallet_refuses_to_return_is_settled_by_a_person(town: Town) -> None:
    payment = taken(town)
    town.ages(payment)
    with damage(town.books.db):
        town.books.db.execute(
            "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, reason) "
            "VALUES (%s, 'deduct', 'CANCEL', %s, 0, 'NO_WALLET')",
            (payment.uuid, payment.wallet_id),
        )
    [case] = town.cases()
    assert (case.cause, case.repair, case.person) == (Cause.NEEDS_PERSON, Repair.NONE, True)
    assert case.next.startswith(f"ferryman reconcile payments --settle {payment.uuid}")
    assert town.reconciler.settle(payment.uuid, ACT, yes=True)
    assert (town.cases(), town.cases(payment)) == ([], [])
    assert "failure_with_deduction" not in verdict(town)


@pytest.mark.parametrize("gave", [False, True])
def test_stuck_payment_with_nothing_taken_is_settled_and_not_paid_twice(town: Town, gave: bool) -> None:
    """N5: the ledger speaks before the state."""
    payment = town.asks(amount=500 if gave else 99_999)
    town.consume(payment)
    town.desk.late(payment)
    if gave:
        transact(town.books.db, [asked("CANCEL", payment.wallet_id, payment.uuid,
                                       id=message_id(payment.uuid, "wallet.cancel"))])  # fmt: skip
    town.desk.apply(failed(payment, "UNKNOWN", "CANCEL"))
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEEDS_PERSON, Repair.NONE)
    assert case.next == (
        f"ferryman reconcile payments --settle {payment.uuid} --yes --reason 'nothing is taken for it'"
    )
    assert town.reconciler.settle(payment.uuid, ACT, yes=True)
    assert town.desk.stands(payment)[0] == "FAILED"
    assert "failure_with_deduction" not in verdict(town)
