"""The payment orchestrator on a real database: each payment is recorded once, moved once, and ends once."""

import threading
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from ferryman import Received
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.transaction import BatchTransaction
from ferryman.services.payments import requests
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.requests import AnotherRequest, OutOfBounds
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request, listed
from support.paying import Desk, accepted, failed, refused, succeeded

Database = psycopg.Connection[tuple[Any, ...]]


# --- recording


def test_a_request_and_its_command_are_recorded_together(desk: Desk) -> None:
    """N1, N2: the request and its command are in one transaction."""
    asked = Request(uuid4(), uuid4(), 500, "EUR", reference="Invoice 17")
    [recorded] = desk.record(asked)
    assert (recorded.status, recorded.state, recorded.request) == ("PENDING", "DEDUCTING", asked)
    (command, said), (event, told) = desk.left(asked)
    assert (command, event) == ("wallet.deduct", "payment.requested")
    assert (said["request_id"], said["wallet_id"], said["amount"], said["attempt"]) == (*asked[:3], 1)
    assert told["wallet_id"] == asked.wallet_id
    with desk.db.transaction(force_rollback=True):
        desk.request()
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (1,)
    assert desk.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (2,)


@pytest.mark.parametrize("together", [False, True])
def test_erased_reference_stands_in_no_table_and_no_message(desk: Desk, together: bool) -> None:
    """N14: it is personal data, and events are kept by others: only a setting puts it into one."""
    asked = Request(uuid4(), uuid4(), 500, "EUR", reference="Invoice of Ann")
    others = [Request(uuid4(), uuid4(), 1, "EUR")] if together else []
    desk.record(asked, *others)
    desk.db.execute("DELETE FROM payments.reference WHERE uuid = %s", (asked.uuid,))
    left = desk.db.execute("SELECT o::text, encode(o.payload, 'escape') FROM ferryman.outbox o").fetchall()
    left += desk.db.execute("SELECT r::text, '' FROM payments.requests r").fetchall()
    assert len(left) > 2
    assert "Ann" not in str(left)
    desk.rules = Rules(PaymentsSettings(reference_in_event=True))
    _command, (_event, told) = desk.left(desk.request(reference="Invoice of Ann"))
    assert told["reference"] == "Invoice of Ann"


def test_a_repeated_request_is_answered_with_its_state_and_appends_nothing(desk: Desk) -> None:
    asked = Request(uuid4(), uuid4(), 500, "EUR")
    [first] = desk.record(asked)
    desk.apply(succeeded(asked))
    [again, twin] = desk.record(asked, asked)
    assert again == twin
    assert (first.status, again.status) == ("PENDING", "SUCCEEDED")
    assert desk.kinds(asked) == ["wallet.deduct", "payment.requested", "payment.succeeded"]


@pytest.mark.parametrize("another", [{"amount": 501}, {"currency": "USD"}, {"fulfil": True}, {"reference": "another"}])
def test_another_request_with_the_same_uuid_is_refused_and_leaves_nothing(desk: Desk, another: dict[str, Any]) -> None:
    asked = Request(uuid4(), uuid4(), 500, "EUR")
    innocent = Request(uuid4(), uuid4(), 1, "EUR")
    desk.record(asked)
    for batch in (
        [asked._replace(**another)],
        [innocent, asked._replace(**another)],
        [asked, asked._replace(**another)],
    ):
        with pytest.raises(AnotherRequest, match=str(asked.uuid)):
            desk.record(*batch)
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (1,)


def test_recording_is_all_or_nothing_in_autocommit_mode_too(desk: Desk) -> None:
    """N1, N2."""
    assert desk.db.autocommit
    asked, innocent = (Request(uuid4(), uuid4(), amount, "EUR") for amount in (500, 1))
    requests.record(desk.db, [asked], desk.rules)
    with pytest.raises(AnotherRequest):
        requests.record(desk.db, [innocent, asked._replace(amount=501)], desk.rules)
    assert desk.kinds(asked) == ["wallet.deduct", "payment.requested"]
    assert desk.kinds(innocent) == []
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (1,)
    assert requests.record(desk.db, [], desk.rules) == ([], False)


def test_a_refusal_leaves_nothing_in_a_transaction_that_goes_on(desk: Desk, ferryman_database_url: str) -> None:
    """N1, N2: the owner of the transaction commits exactly the payments that were returned as recorded."""
    asked, innocent, last = (Request(uuid4(), uuid4(), amount, "EUR") for amount in (500, 1, 2))
    with psycopg.connect(ferryman_database_url) as db:
        requests.record(db, [asked, last], desk.rules)
        with pytest.raises(AnotherRequest):
            requests.record(db, [innocent, asked._replace(amount=501)], desk.rules)
        assert db.info.transaction_status == TransactionStatus.INTRANS
    assert [desk.kinds(each)[:1] for each in (asked, innocent, last)] == [["wallet.deduct"], [], ["wallet.deduct"]]
    with psycopg.connect(ferryman_database_url) as db:
        requests.record(db, [innocent, last], desk.rules)
        db.rollback()
    assert desk.kinds(innocent) == []


@pytest.mark.parametrize(
    "wrong", [{"amount": 0}, {"amount": 10**15 + 1}, {"currency": "eur"}, {"currency": "EÜR"}, {"reference": "\0"}]
)
def test_values_that_the_api_refuses_cannot_be_recorded_in_python_either(desk: Desk, wrong: dict[str, Any]) -> None:
    """Otherwise it would be recorded, but the API could not show it."""
    with pytest.raises(OutOfBounds, match=r"has (an amount|the currency|a reference)"):
        desk.request(**wrong)
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (0,)


def test_two_clients_that_send_the_same_payments_at_once_record_each_once(
    desk: Desk, ferryman_database_url: str
) -> None:
    wanted = [Request(uuid4(), uuid4(), 1, "EUR") for _ in range(50)]

    def send(batch: list[Request]) -> None:
        with psycopg.connect(ferryman_database_url) as db:
            for each in batch[:10]:
                Desk(db, desk.codecs).record(each)
            Desk(db, desk.codecs).record(*batch)

    clients = [threading.Thread(target=send, args=(batch,)) for batch in (wanted, wanted[::-1], wanted, wanted[::-1])]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (50,)
    assert desk.db.execute("SELECT count(*) FROM ferryman.outbox WHERE type = 'wallet.deduct'").fetchone() == (50,)


def test_requests_are_listed_newest_first_and_pages_continue(desk: Desk) -> None:
    asked = [desk.request() for _ in range(7)]
    desk.apply(succeeded(asked[0]), failed(asked[1], "INSUFFICIENT_FUNDS"))
    first = listed(desk.db, 4)
    rest = listed(desk.db, 4, behind=(first[-1].created_at, first[-1].uuid))
    assert [each.uuid for each in (*first, *rest)] == [each.uuid for each in reversed(asked)]
    assert [each.uuid for each in listed(desk.db, 9, status="SUCCEEDED")] == [asked[0].uuid]
    assert [each.uuid for each in listed(desk.db, 9, status="FAILED")] == [asked[1].uuid]
    assert len(listed(desk.db, 9, status="PENDING")) == 5
    assert [each.uuid for each in listed(desk.db, 9, wallet_id=asked[3].wallet_id)] == [asked[3].uuid]
    assert len(listed(desk.db, 9, since=first[-1].created_at)) == 4
    assert len(listed(desk.db, 9, until=first[-1].created_at)) == 3


# --- one step


def test_the_wallets_answer_ends_a_payment_and_an_event_is_sent(desk: Desk) -> None:
    good, poor = desk.request(), desk.request()
    tally = desk.apply(succeeded(good), failed(poor, "INSUFFICIENT_FUNDS"))
    assert tally["done"] == 2
    assert desk.stands(good) == ("SUCCEEDED", "SUCCEEDED", None)
    assert desk.stands(poor) == ("FAILED", "FAILED", "INSUFFICIENT_FUNDS")
    assert desk.left(poor)[-1][1]["reason"] == "INSUFFICIENT_FUNDS"
    assert desk.kinds(good) == ["wallet.deduct", "payment.requested", "payment.succeeded"]


def test_without_events_only_the_command_leaves(desk: Desk) -> None:
    desk.rules = Rules(PaymentsSettings(events=False))
    asked = desk.request()
    desk.apply(succeeded(asked))
    assert desk.kinds(asked) == ["wallet.deduct"]


def test_a_result_that_comes_twice_is_applied_once(desk: Desk) -> None:
    """N6: the duplicate comes in the same batch, in the next one, or with another id."""
    asked = desk.request()
    once = succeeded(asked)
    assert desk.apply(once, once)["duplicate"] == 1
    assert desk.apply(once)["duplicate"] == 1
    assert desk.apply(succeeded(asked, attempt=2))["refused"] == 1
    assert desk.stands(asked)[0] == "SUCCEEDED"
    assert desk.kinds(asked).count("payment.succeeded") == 1
    assert desk.strays() == [(asked.uuid, "LATE")]


def test_a_result_without_a_payment_is_kept_and_counted(desk: Desk) -> None:
    nobodys = Request(uuid4(), uuid4(), 500, "EUR")
    desk.apply(succeeded(nobodys))
    assert desk.strays() == [(nobodys.uuid, "UNKNOWN")]


@pytest.mark.parametrize(
    "how",
    [
        {"amount": 499}, {"currency": "USD"}, {"wallet_id": uuid4()}, {"step": "another"}, {"kind": "REFUND"},
        {"kind": "CANCEL"}, {"kind": "UNKNOWN"},
    ],
)  # fmt: skip
def test_a_result_that_was_never_requested_is_kept_and_not_believed(desk: Desk, how: dict[str, Any]) -> None:
    asked = desk.request()
    desk.apply(succeeded(asked, **how))
    assert desk.stands(asked)[0] == "DEDUCTING"
    assert desk.strays() == [(asked.uuid, "FORGED")]
    [(data,)] = desk.db.execute("SELECT data FROM ferryman.saga_stray").fetchall()
    assert data["request_id"] == str(asked.uuid)
    desk.apply(accepted(asked))
    assert desk.strays()[-1] == (asked.uuid, "FORGED")


@pytest.mark.parametrize("state", ["DEDUCTING", "CANCELLING"])
def test_an_answer_of_a_fulfilment_that_was_never_requested_is_forged(desk: Desk, state: str) -> None:
    asked = desk.request(fulfil=True)
    if state == "CANCELLING":
        desk.late(asked)
    desk.apply(accepted(asked))
    assert desk.stands(asked)[0] == state
    assert desk.strays() == [(asked.uuid, "FORGED")]


@pytest.mark.parametrize(
    ("topic", "believed"),
    [
        ("wallet.results", True), ("wallet.results.retry.payments", True), ("fulfilments.results", False),
        ("fulfilments.results.retry.payments-fulfilments", False), ("wallet.results.retry.wallet", False),
    ],
)  # fmt: skip
def test_the_wallet_is_believed_by_its_own_topic_alone(desk: Desk, topic: str, believed: bool) -> None:
    """A writer of another topic has no say on money."""
    asked, poor = desk.request(), desk.request()
    desk.apply(came_by(topic, succeeded(asked)), came_by(topic, failed(poor, "INSUFFICIENT_FUNDS")))
    states = [desk.stands(each)[0] for each in (asked, poor)]
    assert states == (["SUCCEEDED", "FAILED"] if believed else ["DEDUCTING", "DEDUCTING"])
    assert [why for _, why in desk.strays()] == ([] if believed else ["FORGED", "FORGED"])


@pytest.mark.parametrize(
    ("topic", "believed"),
    [
        ("fulfilments.results", True), ("fulfilments.results.retry.payments-fulfilments", True),
        ("fulfilments.results.retry.payments", False), ("wallet.results", False),
        ("wallet.results.retry.payments", False),
    ],
)  # fmt: skip
def test_fulfilments_are_believed_on_their_own_topic_only(desk: Desk, topic: str, believed: bool) -> None:
    asked = desk.request(fulfil=True)
    desk.apply(succeeded(asked), came_by(topic, accepted(asked)))
    assert desk.stands(asked)[0] == ("SUCCEEDED" if believed else "FULFILLING")
    assert [why for _, why in desk.strays()] == ([] if believed else ["FORGED"])


def test_fulfilments_cannot_use_up_the_ids_of_the_wallets_results(desk: Desk) -> None:
    """Ids of results can be guessed from the payment; the same id on another topic is another message."""
    asked = desk.request()
    genuine = succeeded(asked)
    forged = replace(accepted(asked), id=genuine.id)
    wallet, fulfilments = sorted(desk.rules.saga.consumers(), key=lambda each: each.topics, reverse=True)
    assert (wallet.topics, fulfilments.topics) == (("wallet.results",), ("fulfilments.results",))
    for consumer, result in ((fulfilments, forged), (wallet, genuine)):
        BatchTransaction(consumer, HandlerConnection(desk.db), [result]).run()
    assert desk.stands(asked)[0] == "SUCCEEDED"
    assert desk.strays() == [(asked.uuid, "FORGED")]


def came_by(topic: str, result: Received) -> Received:
    return replace(result, record=result.record._replace(topic=topic))


# --- nothing comes in time


def test_a_timeout_sends_a_cancellation_and_only_its_answer_ends_the_payment(desk: Desk) -> None:
    asked = desk.request()
    assert desk.late(asked) == 1
    assert desk.stands(asked) == ("CANCELLING", "PENDING", "TIMED_OUT")
    desk.apply(succeeded(asked))  # it was slow: the cancellation, which came behind it, gives it back
    assert desk.stands(asked)[0] == "CANCELLING"
    assert desk.strays() == [(asked.uuid, "LATE")]
    desk.apply(succeeded(asked, "CANCEL", amount=500))
    assert desk.stands(asked) == ("FAILED", "FAILED", "TIMED_OUT")
    assert desk.kinds(asked) == ["wallet.deduct", "payment.requested", "wallet.cancel", "payment.failed"]


@pytest.mark.parametrize(
    ("state", "command"),
    [("CANCELLING", "wallet.cancel"), ("RECALLING", "fulfilment.cancel"), ("REFUNDING", "wallet.refund")],
)
def test_a_cancellation_is_requested_a_bounded_number_of_times_then_waits(desk: Desk, state: str, command: str) -> None:
    """N8."""
    desk.rules = Rules(PaymentsSettings(most_attempts=3))
    asked = desk.request(fulfil=state != "CANCELLING")
    if state != "CANCELLING":
        desk.apply(succeeded(asked))
    if state == "REFUNDING":
        desk.apply(refused(asked))
    for _ in range(6):
        desk.late(asked)
    sent = [said["attempt"] for kind, said in desk.left(asked) if kind == command]
    assert sent == [1, 2, 3]
    assert desk.stands(asked)[0] == state
    row = desk.db.execute("SELECT due_at = 'infinity' FROM payments.requests").fetchone()
    assert row == (True,)


def test_a_cancellation_that_is_refused_waits_for_a_person(desk: Desk) -> None:
    asked = desk.request()
    desk.late(asked)
    desk.apply(failed(asked, "UNKNOWN", "CANCEL"))
    assert desk.stands(asked) == ("STUCK", "PENDING", "TIMED_OUT")
    assert desk.late() == 0


@pytest.mark.parametrize("reason", ["NO_WALLET", "INSUFFICIENT_FUNDS", "CANCELLED"])
def test_a_deduction_refused_after_its_timeout_ends_the_payment(desk: Desk, reason: str) -> None:
    """A refused deduction stays refused, whatever becomes of the cancellation."""
    before, behind = desk.request(), desk.request()
    desk.late(before, behind)
    desk.apply(failed(before, reason), failed(before, "NO_WALLET", "CANCEL"))
    desk.apply(failed(behind, "UNKNOWN", "CANCEL"), failed(behind, reason))
    assert [desk.stands(each) for each in (before, behind)] == [("FAILED", "FAILED", "TIMED_OUT")] * 2
    assert desk.strays() == [(before.uuid, "LATE")]


def test_a_wallet_that_does_not_exist_has_nothing_to_give_back(desk: Desk) -> None:
    """N11: a cancellation overtook its deduction; no person is needed."""
    asked = desk.request()
    desk.late(asked)
    desk.apply(failed(asked, "NO_WALLET", "CANCEL"))
    assert desk.stands(asked) == ("FAILED", "FAILED", "TIMED_OUT")
    desk.apply(failed(asked, "CANCELLED"))
    assert desk.kinds(asked) == ["wallet.deduct", "payment.requested", "wallet.cancel", "payment.failed"]


def test_a_stuck_payment_ends_once_the_wallet_has_given_the_amount_back(desk: Desk) -> None:
    cancelled, refunded = desk.request(), desk.request(fulfil=True)
    desk.late(cancelled)
    desk.apply(failed(cancelled, "UNKNOWN", "CANCEL"))
    desk.apply(succeeded(refunded), refused(refunded), failed(refunded, "INVALID_AMOUNT", "REFUND"))
    assert desk.stands(cancelled)[0] == desk.stands(refunded)[0] == "STUCK"
    desk.apply(succeeded(cancelled, "CANCEL"), succeeded(refunded, "CANCEL"))
    assert desk.stands(cancelled) == ("FAILED", "FAILED", "TIMED_OUT")
    assert desk.stands(refunded) == ("FAILED", "FAILED", "REFUSED_DOWNSTREAM")


def test_an_amount_taken_for_a_failed_payment_is_given_back(desk: Desk) -> None:
    """A success after a failure is impossible; if it comes all the same, nobody loses money."""
    asked = desk.request()
    desk.apply(failed(asked, "INSUFFICIENT_FUNDS"))
    desk.apply(succeeded(asked))
    assert desk.stands(asked)[0] == "FAILED"
    assert desk.kinds(asked)[-1] == "wallet.cancel"
    assert desk.strays() == [(asked.uuid, "LATE")]


def test_two_loops_take_each_payment_that_is_due_once(desk: Desk, ferryman_database_url: str) -> None:
    asked = [desk.request() for _ in range(40)]
    desk.db.execute("UPDATE payments.requests SET due_at = now()")
    moved = []

    def turn() -> None:
        with psycopg.connect(ferryman_database_url) as db:
            moved.append(len(desk.sagas.due(db, 30)))

    loops = [threading.Thread(target=turn) for _ in range(3)]
    for each in loops:
        each.start()
    for each in loops:
        each.join()
    while (count := desk.late()) > 0:
        moved.append(count)
    assert sum(moved) == 40
    assert all(desk.kinds(each).count("wallet.cancel") == 1 for each in asked)


# --- several steps


def test_a_payment_with_fulfilment_succeeds_when_it_is_accepted(desk: Desk) -> None:
    asked = desk.request(fulfil=True)
    desk.apply(succeeded(asked))
    assert desk.stands(asked) == ("FULFILLING", "PENDING", None)
    desk.apply(accepted(asked))
    assert desk.stands(asked)[0] == "SUCCEEDED"
    assert desk.kinds(asked) == ["wallet.deduct", "payment.requested", "fulfilment.request", "payment.succeeded"]


def test_what_is_refused_downstream_is_refunded(desk: Desk) -> None:
    asked = desk.request(fulfil=True)
    desk.apply(succeeded(asked), refused(asked))  # two steps of one payment in one batch
    assert desk.stands(asked) == ("REFUNDING", "PENDING", "REFUSED_DOWNSTREAM")
    desk.apply(succeeded(asked, "REFUND"))
    assert desk.stands(asked) == ("FAILED", "FAILED", "REFUSED_DOWNSTREAM")
    assert desk.kinds(asked)[2:] == ["fulfilment.request", "wallet.refund", "payment.failed"]


def test_a_refund_that_fails_waits_for_a_person(desk: Desk) -> None:
    asked = desk.request(fulfil=True)
    desk.apply(succeeded(asked), refused(asked), failed(asked, "NO_WALLET", "REFUND"))
    assert desk.stands(asked) == ("STUCK", "PENDING", "REFUSED_DOWNSTREAM")


def test_a_late_fulfilment_is_recalled_and_its_answer_decides(desk: Desk) -> None:
    stopped, done = desk.request(fulfil=True), desk.request(fulfil=True)
    desk.apply(succeeded(stopped), succeeded(done))
    assert desk.late(stopped, done) == 2
    assert desk.stands(stopped)[0] == desk.stands(done)[0] == "RECALLING"
    desk.apply(refused(stopped, "CANCELLED"), accepted(done))
    assert desk.stands(stopped) == ("REFUNDING", "PENDING", "TIMED_OUT")
    assert desk.stands(done)[0] == "SUCCEEDED"
    desk.apply(succeeded(stopped, "REFUND"))
    assert desk.stands(stopped) == ("FAILED", "FAILED", "TIMED_OUT")


# --- what the roles may


def test_each_role_may_do_its_part_and_no_more(desk: Desk) -> None:
    asked = Request(uuid4(), uuid4(), 500, "EUR", reference="Invoice 17")
    desk.db.execute("SET ROLE ferryman_payments_api")
    desk.record(asked)
    for forbidden in (
        "UPDATE payments.requests SET state = 'FAILED', due_at = NULL",
        "DELETE FROM payments.requests",
        "SELECT payments.archive(now(), 'a', 'b')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.db.execute(forbidden)
    desk.db.execute("SET ROLE ferryman_payments")
    desk.apply(succeeded(asked))
    for forbidden in (
        "UPDATE payments.requests SET amount = 1",
        "INSERT INTO payments.requests (uuid) VALUES (gen_random_uuid())",
        "SELECT * FROM payments.reference",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.db.execute(forbidden)
    desk.db.execute("RESET ROLE")
    assert desk.stands(asked)[0] == "SUCCEEDED"
