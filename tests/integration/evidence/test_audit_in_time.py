"""Payments on their way are never called wrong, and those that have had their time must have gone on."""

from typing import Any
from uuid import uuid4

from ferryman import Received
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.transaction import BatchTransaction
from ferryman.evidence.audit import AuditBooks
from ferryman.runtime.desk import audit
from ferryman.services.payments.bodies import Result
from ferryman.services.payments.evidence import facts, invariants
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules, message_id
from ferryman.services.payments.service import tell
from ferryman.services.payments.store import Request
from ferryman.services.wallet.literal_wallet import consumer as silent
from support.paying import accepted, failed
from support.town import ACT, Town, damage, over, whats
from support.walleting import asked, transact


def audited(town: Town) -> AuditBooks:
    """Audit a system in which no payment has ended, and none needs to."""
    return town.audited()


def test_lost_result_is_missed_once_the_orchestrator_hears_younger_ones(town: Town) -> None:
    """That it might have been told by HTTP does not hide it."""
    lost, fresh = town.asks(), town.asks()
    over(town, lost)
    town.desk.db.execute("DELETE FROM ferryman.inbox")
    town.ages(lost)
    assert town.audited().verdict == "ok", "the orchestrator may be away"
    over(town, fresh)
    assert whats(town.audited()) == [("no_result", lost.uuid)]


def literal(town: Town, payment: Request) -> Request:
    """Its command leaves with the payment's own id, and nothing is reported."""
    rules, town.desk.rules = town.desk.rules, Rules(PaymentsSettings(mode="literal"))
    town.desk.record(payment)
    town.desk.rules = rules
    return payment


def test_literal_payments_are_in_order_once_they_are_told(town: Town) -> None:
    """Their commands have their own ids, and nothing comes back but a PUT."""
    paid, poor, untold = (
        literal(town, Request(uuid4(), town.books.open(900), amount, "EUR")) for amount in (500, 901, 1)
    )
    commands = [asked("DEDUCT", each.wallet_id, each.uuid, amount=each.amount, id=each.uuid)
                for each in (paid, poor, untold)]  # fmt: skip
    BatchTransaction(silent(lambda *_: None), HandlerConnection(town.books.db), commands).run()
    for each, status, reason in ((paid, "SUCCEEDED", None), (poor, "FAILED", "INSUFFICIENT_FUNDS")):
        with town.desk.db.transaction():
            result, desk = Result.model_validate({"status": status, "reason": reason}), town.desk
            tell(desk.db, each.uuid, result, rules=desk.rules, headers={})
    town.ages(paid, poor, untold)
    books = town.audited()
    assert whats(books) == []
    assert books.counts["requests.PENDING"] == 1
    assert (books.counts["receipts.found"], books.counts["results.told"]) == (3, 2)


def test_payment_that_was_told_before_its_result_came_is_looked_at_again(town: Town) -> None:
    """Its result came too late to move it, and nothing is given back, since it SUCCEEDED."""
    payment = town.asks()
    town.consume(payment)
    with town.desk.db.transaction():
        result, desk = Result.model_validate({"status": "SUCCEEDED"}), town.desk
        tell(desk.db, payment.uuid, result, rules=desk.rules, headers={})
    town.answer(payment)
    assert town.desk.stands(payment)[0] == "SUCCEEDED"
    assert town.desk.db.execute("SELECT why FROM ferryman.saga_stray").fetchall() == [("LATE",)]
    with damage(town.books.db):
        town.books.db.execute("DELETE FROM wallet.ledger WHERE request_id = %s", (payment.uuid,))
    assert ("success_without_deduction", payment.uuid) in whats(town.audited())


def test_request_without_any_command_is_found_once_it_has_had_its_time(town: Town) -> None:
    """A command in either outbox is on its way, however long it has been there."""
    lost, waits = town.asks(), town.asks()
    unsent = literal(town, Request(uuid4(), uuid4(), 500, "EUR"))
    town.desk.db.execute("DELETE FROM ferryman.outbox WHERE id = %s", (message_id(lost.uuid, "wallet.deduct"),))
    assert audited(town).verdict == "ok"
    town.ages(lost, waits, unsent)
    books = audited(town)
    assert whats(books) == [("no_command", lost.uuid)]
    assert books.wrong[0].next == f"ferryman trace {lost.uuid}   and then ferryman reconcile payments --id {lost.uuid}"
    assert (books.counts["commands.missing"], books.counts["commands.on_their_way"]) == (1, 2)
    town.ages(lost, waits, seconds=2 * 86400)
    town.desk.db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 1")
    books = audited(town)
    assert (whats(books), books.expired[invariants.GONE["commands.expired"]]) == ([], 1)


def test_rejected_command_counts_as_received(town: Town) -> None:
    payment = town.asks()
    [command] = town.commands(payment)
    town.rejects(town.books.db, "wallet", command, "BUG", "KeyError")
    town.desk.db.execute("DELETE FROM ferryman.outbox")
    town.ages(payment)
    assert audited(town).verdict == "ok"


def test_handled_command_without_a_ledger_row_is_found(town: Town) -> None:
    """Though its payment is still on its way."""
    payment = town.asks()
    town.consume(payment)
    with damage(town.books.db):
        town.books.db.execute("DELETE FROM wallet.ledger WHERE request_id = %s", (payment.uuid,))
        town.books.db.execute("UPDATE wallet.wallets SET balance = 10000")
    assert audited(town).verdict == "ok", "a receipt that is that young may be newer than the page of the ledger"
    town.ages(payment)
    assert whats(audited(town)) == [("no_ledger", payment.uuid)]


def test_amount_of_a_failed_payment_is_wrong_only_once_its_cancellation_failed(
    town: Town,
) -> None:
    payment = town.asks()
    town.desk.apply(failed(payment, "NO_WALLET"))
    town.consume(payment)
    books = town.audited()
    assert (whats(books), books.counts["compensations.on_their_way"]) == ([], 1), "its result is on its way"
    town.answer(payment)
    assert town.desk.strays() == [(payment.uuid, "LATE")]
    books = town.audited()
    assert (whats(books), books.sums["EUR"].giving_back) == ([], 500)
    [_, cancel] = town.commands(payment)
    town.rejects(town.books.db, "wallet", cancel, "BUG", "KeyError")
    books = town.audited()
    assert ("failure_with_deduction", payment.uuid) in whats(books)
    assert books.wrong[0].next.endswith(f"ferryman reconcile payments --id {payment.uuid}")
    assert ("unequal_sums", None) in whats(books)


def test_amount_never_given_back_is_wrong_once_it_has_had_its_time(town: Town) -> None:
    """Unless it waits to be published: then it is on its way, however long."""
    payment = town.asks()
    town.desk.apply(failed(payment, "NO_WALLET"))
    town.consume(payment)
    town.answer(payment)
    town.ages(payment)
    assert town.audited().verdict == "ok"
    town.excepted(town.desk.db, "wallet.cancel", "PARKED")
    town.published(town.desk.db)
    for db in (town.desk.db, town.books.db):
        db.execute("SET ROLE ferryman_monitor")
    assert town.audited().verdict == "ok"
    for db in (town.desk.db, town.books.db):
        db.execute("RESET ROLE")
    town.excepted(town.desk.db, "wallet.cancel", "DISCARDED")
    assert ("failure_with_deduction", payment.uuid) in whats(town.audited())
    town.desk.db.execute("DELETE FROM ferryman.outbox_exception")
    assert ("failure_with_deduction", payment.uuid) in whats(town.audited()), "published, and lost"


def asked_for(payment: Request, attempt: int, kind: str = "DEDUCT", **more: Any) -> Received:
    """Make an attempt that took effect, and the only one that the wallet received."""
    type_ = {"DEDUCT": "wallet.deduct", "CANCEL": "wallet.cancel"}[kind]
    return asked(kind, payment.wallet_id, payment.uuid, id=message_id(payment.uuid, type_, attempt), **more)


def test_late_attempt_is_found_in_the_state_it_led_to(town: Town) -> None:
    """`payments.most_attempts` may be a thousand."""
    payment, other = town.asks(), town.asks()
    over(town, other)
    town.desk.late(payment)
    with damage(town.desk.db):
        town.desk.db.execute("UPDATE payments.requests SET attempt = 900 WHERE uuid = %s", (payment.uuid,))
    transact(town.books.db, [asked_for(payment, 900, "CANCEL")])
    town.answer(payment)
    assert town.desk.stands(payment)[0] == "FAILED"
    books = town.audited()
    assert (whats(books), books.counts["receipts.found"], books.counts["results.applied"]) == ([], 2, 2)


def test_attempt_made_by_people_is_found_after_the_state_changed(town: Town, monkeypatch: Any) -> None:
    """It was asked for by hand 40 times. N12: what was asked for so often is looked at few at once."""
    monkeypatch.setattr(facts, "_AT_ONCE", 40)
    payment, lost = town.asks(fulfil=True), town.asks(fulfil=True)
    for _ in range(40):
        said = {"repair": "republish", "payments": [str(payment.uuid), str(uuid4())]}
        audit(town.desk.db, "reconcile", ACT, said=said, entries=2)
    transact(town.books.db, [asked_for(each, 41, amount=each.amount) for each in (payment, lost)])
    town.answer(payment, lost)
    assert town.desk.db.execute("SELECT DISTINCT state, attempt FROM payments.requests").fetchall() == [
        ("FULFILLING", 1)
    ]
    assert whats(town.audited()) == [("no_receipt", lost.uuid)]
    town.desk.apply(accepted(payment))
    for db in (town.desk.db, town.books.db):
        db.execute("SET ROLE ferryman_monitor")
    assert whats(town.audited()) == [("no_receipt", lost.uuid)]
