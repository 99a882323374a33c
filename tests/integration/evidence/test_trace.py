"""A payment's story from two real databases: the relay, the wallet and the orchestrator did what is told."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from ferryman.cli.wiring import settings_class
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.transaction import BatchTransaction
from ferryman.evidence.sides import MAIN, Sides, named_in, open_sides
from ferryman.evidence.trace import JOURNAL_SECONDS, Subject, clues_of, subjects_of
from ferryman.evidence.way import Traced
from ferryman.relay.admin import entries as listing
from ferryman.runtime.desk import Desk as Looking
from ferryman.saga.answers import Key
from ferryman.services.payments import SYSTEM, service
from ferryman.services.payments.bodies import Result
from ferryman.services.payments.evidence import tracing
from ferryman.services.payments.evidence.payment_story import tell
from ferryman.services.payments.evidence.tracing import PaymentTracer, gather
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.services.wallet.consumer import consumer, entry_id
from ferryman.services.wallet.literal_wallet import consumer as silent
from support.paying import failed, refused
from support.town import COMMANDS, RESULTS, Crossing, crossing_of, damage
from support.walleting import asked


@pytest.fixture
def crossing(ferryman_new_database: Callable[[], str]) -> Iterator[Crossing]:
    with crossing_of(ferryman_new_database(), ferryman_new_database()) as made:
        yield made


def told(story: Traced, *without: str) -> list[str]:
    """`where what type`, of what is not of these types."""
    lines = [(each, str(each.detail.get("type", ""))) for each in story.events]
    return [f"{each.where} {each.what} {kind}".strip() for each, kind in lines if kind not in without]


def payments_of(crossing: Crossing, message: UUID) -> set[Key | Subject]:
    """Return the payments that a message leads to."""
    clues = clues_of(crossing.sides, message, ["payment"])
    return set(subjects_of(crossing.sides, message, clues, [PaymentTracer()]))


EVENTS = ("payment.requested", "payment.succeeded", "payment.failed")
WAY = [
    "orchestrator appended wallet.deduct",
    "kafka published wallet.deduct",
    "wallet received wallet.deduct",
    "wallet handled wallet.deduct",
]


def test_succeeded_payment_is_told_from_its_request_to_its_end(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.through()
    story = crossing.story(payment)
    assert told(story, *EVENTS) == [
        "orchestrator requested",
        *WAY,
        "wallet reported wallet.succeeded",
        "kafka published wallet.succeeded",
        "orchestrator received wallet.succeeded",
        "orchestrator applied wallet.succeeded",
        "orchestrator SUCCEEDED",
    ]
    assert (story.ending.now, story.ending.next) == ("SUCCEEDED", None)
    assert "gave 500 EUR, and held 400 then" in story.ending.why


def test_balance_event_is_told_and_leads_to_its_payment(crossing: Crossing) -> None:
    crossing.books.consumer = consumer(events=True)
    payment = crossing.request()
    crossing.publish(crossing.desk.db)
    crossing.taken()
    assert "wallet not published yet wallet.balance-changed" in told(crossing.story(payment))
    crossing.publish(crossing.books.db)
    crossing.applied()
    story = crossing.story(payment)
    [said, published] = [each for each in story.events if each.detail.get("type") == "wallet.balance-changed"]
    assert (said.where, said.what, published.what) == ("wallet", "appended", "published")
    assert published.detail["topic"] == "wallet.events"
    assert (story.ending.now, story.ending.next) == ("SUCCEEDED", None)
    assert payments_of(crossing, entry_id(payment.uuid, "deduct", "DEDUCT")) == {payment.uuid}


def test_payment_of_a_wallet_that_holds_too_little_fails_and_says_so(crossing: Crossing) -> None:
    payment = crossing.request(balance=1)
    crossing.through()
    story = crossing.story(payment)
    handled = next(each for each in story.events if each.what == "handled")
    assert (handled.detail["outcome"], handled.detail["reason"]) == ("REFUSED", "INSUFFICIENT_FUNDS")
    assert (story.ending.now, story.ending.next) == ("FAILED", None)
    assert "nothing is taken for it" in story.ending.why


def test_each_step_of_a_payment_names_what_keeps_it_and_the_command(crossing: Crossing) -> None:
    payment = crossing.request()
    steps: list[tuple[Callable[[], Any], str, str | None]] = [
        (lambda: None, "the command is not published (PENDING", "ferryman run relay"),
        (lambda: crossing.publish(crossing.desk.db), "the command is published, and no process", "ferryman run wallet"),
        (crossing.taken, "the wallet has answered; its result is not published (PENDING", "ferryman run relay"),
        (
            lambda: crossing.publish(crossing.books.db),
            "its result is published, and no process",
            "ferryman run payments",
        ),
        (crossing.applied, "it is done", None),
    ]
    for step, why, following in steps:
        step()
        ending = crossing.story(payment).ending
        assert why in ending.why
        assert ending.next == following


def test_repeated_command_is_told_once_and_counted(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.publish(crossing.desk.db)
    for _ in range(4):
        crossing.taken()
    again = [each for each in crossing.story(payment).events if each.what == "received again"]
    assert [each.times for each in again] == [3]


def test_failed_entry_tells_its_error_and_how_to_replay_it(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.publish(crossing.desk.db, failing=lambda _: ("MSG_SIZE_TOO_LARGE", "too large"))
    story = crossing.story(payment)
    failed = next(each for each in story.events if each.what == "failed for good")
    assert failed.bad
    assert "MSG_SIZE_TOO_LARGE" in failed.detail["error"]
    assert "FAILED after 1 attempt" in story.ending.why
    assert (story.ending.next or "").startswith("ferryman outbox replay --id ")


def test_rejected_command_or_result_leads_to_its_dead_letter(crossing: Crossing) -> None:
    first = crossing.request()
    crossing.publish(crossing.desk.db)
    crossing.rejected(crossing.books.db, consumer(), COMMANDS)
    ending = crossing.story(first).ending
    assert "wallet could not handle the command: REJECTED (BUG): it broke" in ending.why
    assert "ferryman inbox requeue --id payments.commands/0/0 --consumer wallet" in (ending.next or "")
    crossing.topics.clear()
    second = crossing.request()
    crossing.publish(crossing.desk.db)
    crossing.taken()
    crossing.publish(crossing.books.db)
    crossing.topics[RESULTS] = crossing.topics[RESULTS][-1:]
    crossing.rejected(crossing.desk.db, crossing.desk.consumer, RESULTS)
    ending = crossing.story(second).ending
    assert "payments could not handle its result: REJECTED (BUG): it broke" in ending.why
    assert "ferryman inbox requeue" in (ending.next or "")


def test_timed_out_payment_shows_its_cancellation_and_the_late_answer(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.desk.late(payment)
    ending = crossing.story(payment).ending
    assert ending.now == "PENDING (CANCELLING)"
    assert "give back what it took" in ending.why
    crossing.through()
    story = crossing.story(payment)
    did = [each.detail["moved"] for each in story.events if each.what == "handled"]
    assert did == [-500, 500]
    assert "orchestrator applied to nothing: LATE wallet.succeeded" in told(story)
    assert (story.ending.now, story.ending.next) == ("FAILED", None)
    assert "TIMED_OUT" in story.ending.why


def test_a_refund_is_told_with_what_was_given_back(crossing: Crossing) -> None:
    payment = crossing.request(fulfil=True)
    crossing.through()
    assert crossing.story(payment).ending.now == "PENDING (FULFILLING)"
    crossing.desk.apply(refused(payment))
    assert crossing.story(payment).ending.now == "PENDING (REFUNDING)"
    crossing.topics.clear()
    crossing.through()
    story = crossing.story(payment)
    lines = told(story)
    assert lines.index("orchestrator appended fulfilment.request") < lines.index("orchestrator appended wallet.refund")
    assert [each.detail["moved"] for each in story.events if each.what == "handled"] == [-500, 500]
    assert (story.ending.now, story.ending.next) == ("FAILED", None)
    assert "REFUSED_DOWNSTREAM" in story.ending.why


def test_the_id_of_any_message_leads_to_its_payment(crossing: Crossing) -> None:
    others = [crossing.request() for _ in range(3)]
    payment = crossing.request()
    crossing.request(wallet_id=payment.wallet_id, amount=1)
    crossing.through()
    known = crossing.known(payment.uuid)
    assert known.orchestrator is not None
    assert known.wallet is not None
    sides = (known.orchestrator, known.wallet)
    ids = {each.id for side in sides for each in side.entries} | {each.id for side in sides for each in side.receipts}
    assert len(ids) == 4  # the command, its result, and two events
    assert all(payments_of(crossing, each) == {payment.uuid} for each in ids)
    assert payment.uuid not in {each.uuid for each in others}
    nobody = clues_of(crossing.sides, uuid4(), ["payment"])
    assert (nobody.hints, len(nobody.looked)) == ([], 4), "the inboxes and the outboxes of both databases"


def test_one_database_alone_tells_what_it_knows(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.through()
    both = crossing.sides
    ours = gather(Sides({MAIN: both[MAIN]}, settings_class()(), ["the wallet's database: away"]), payment.uuid)
    assert ours.missing == ["the wallet's database: away"]
    assert tell(ours).ending.now == "SUCCEEDED"
    assert "orchestrator applied wallet.succeeded" in told(tell(ours))
    theirs = gather(Sides({"wallet": both["wallet"]}, settings_class()(), ["the main database: away"]), payment.uuid)
    assert tell(theirs).ending.now == "DECIDED BY THE WALLET"
    assert "wallet handled wallet.deduct" in told(tell(theirs))


def test_unreachable_database_is_missing_under_its_own_setting(ferryman_database_url: str) -> None:
    away = "postgresql://nobody@127.0.0.1:1/nowhere"
    for ours, theirs, setting in (
        (ferryman_database_url, away, "payments.wallet_database_url, or FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"),
        (ferryman_database_url, "postgresql://h:port/d", "payments.wallet_database_url, or FERRYMAN_PAYMENTS__WALLET"),
        (away, ferryman_database_url, "database_url, or FERRYMAN_DATABASE_URL"),
    ):
        settings = settings_class().model_validate({"database_url": ours, "payments": {"wallet_database_url": theirs}})
        with open_sides(settings, named_in(settings, SYSTEM.databases), "trace", partly=True) as sides:
            [missing] = sides.missing
        assert f"[setting {setting}" in missing


def test_one_database_that_is_both_tells_each_thing_once(crossing: Crossing) -> None:
    crossing.books.db = crossing.desk.db
    payment = crossing.request()
    crossing.through()
    story = crossing.story(payment)
    assert len(told(story)) == len(set(told(story))) == 14
    assert story.ending.now == "SUCCEEDED"


def test_monitor_role_is_enough_to_trace(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.publish(crossing.desk.db)
    crossing.rejected(crossing.books.db, consumer(), COMMANDS)
    late = crossing.request()
    crossing.desk.late(late)
    for db in (crossing.desk.db, crossing.books.db):
        db.execute("SET ROLE ferryman_monitor")
    assert "ferryman inbox requeue" in (crossing.story(payment).ending.next or "")
    assert crossing.story(late).ending.next == "ferryman run relay"
    assert crossing.known(payment.uuid).missing == []


def test_entry_is_found_however_slowly_the_database_answers(
    crossing: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bisections alone took longer than all of the time, and what waits was taken for not there."""
    payment, quickly = crossing.request(), listing.at_time

    def slowly(desk: Looking, moment: datetime) -> int:
        time.sleep(JOURNAL_SECONDS + 0.1)
        return quickly(desk, moment)

    monkeypatch.setattr(listing, "at_time", slowly)
    known = crossing.known(payment.uuid)
    ending = tell(known).ending
    assert "the command is not published (PENDING" in ending.why
    assert (ending.next, known.missing) == ("ferryman run relay", [])


def test_entry_there_was_no_time_to_find_is_missing_and_not_called_gone(
    crossing: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry stands seconds before the moment that it is looked for at: as by two servers' clocks."""
    payment = crossing.request()
    with damage(crossing.desk.db):
        later = "created_at = created_at + interval '9 s', changed_at = changed_at + interval '9 s'"
        crossing.desk.db.execute(f"UPDATE payments.requests SET {later}")
    assert crossing.story(payment).ending.next == "ferryman run relay"
    monkeypatch.setattr(tracing, "JOURNAL_SECONDS", 0.0)
    known = crossing.known(payment.uuid)
    assert known.missing == ["all of the orchestrator's outbox: what must be in it was not found within 0 s of reading"]
    ending = tell(known).ending
    assert "no time to look for the command in all that the outbox retains" in ending.why
    assert ending.next == f"ferryman reconcile payments --id {payment.uuid}"


def test_old_payment_is_told_with_its_money_and_with_what_is_gone(crossing: Crossing) -> None:
    """Its receipts were forgotten, its entries deleted; nobody can ever mend that, so nothing is missing."""
    payment = crossing.request()
    crossing.through()
    long_ago = {"payments.requests": ("created_at", "changed_at"), "wallet.ledger": ("decided_at",)}
    for db, table in zip((crossing.desk.db, crossing.books.db), long_ago, strict=True):
        with damage(db):
            earlier = ", ".join(f"{each} = {each} - interval '31 d'" for each in long_ago[table])
            db.execute(f"UPDATE {table} SET {earlier}")
            db.execute("DELETE FROM ferryman.inbox")
            db.execute("TRUNCATE ferryman.outbox")
    known = crossing.known(payment.uuid)
    story = tell(known)
    assert told(story) == ["orchestrator requested", "wallet handled wallet.deduct", "orchestrator SUCCEEDED"]
    assert story.events[1].detail["moved"] == -500
    assert "receipts are kept for 30 d, and an outbox keeps what it published for 1 d" in story.ending.why
    assert (story.ending.now, story.ending.next, known.missing) == ("SUCCEEDED", None, [])


RETAINED, RECEIPTS = 1_000_000, 300_000
FILL_JOURNAL = """
INSERT INTO ferryman.outbox (lane, id, created_at, topic, key, type, payload)
SELECT n %% 8, gen_random_uuid(), clock_timestamp() + (n - %(before)s) * interval '1 ms', 'payments.commands',
       gen_random_uuid()::text, 'wallet.deduct', decode(repeat('00', 60), 'hex')
FROM generate_series(%(first)s, %(last)s) n
"""
FILL_RECEIPTS = """
INSERT INTO ferryman.inbox (consumer, id, status, outcome, hash, type, topic, partition, "offset", received_at)
SELECT %s, gen_random_uuid(), 'HANDLED', 'DONE', 'x', 'wallet.deduct', 'payments.commands', n %% 12, n,
       clock_timestamp() - n * interval '1 ms'
FROM generate_series(1, %s) n
"""


@pytest.mark.prove
def test_trace_takes_under_a_second_in_a_journal_of_a_million_entries(crossing: Crossing) -> None:
    """Long, because a million entries are appended: half before the payment and half behind it."""
    ours, theirs = crossing.desk.db, crossing.books.db
    sizes = ((ours, RETAINED // 2), (theirs, RECEIPTS // 2))
    for db, half in sizes:
        db.execute(FILL_JOURNAL, {"before": half, "first": 1, "last": half})
    ours.execute(FILL_RECEIPTS, ("payments", RECEIPTS))
    theirs.execute(FILL_RECEIPTS, ("wallet", RECEIPTS))
    payment = crossing.request()
    crossing.done_beside(payment)
    for db, half in sizes:
        db.execute(FILL_JOURNAL, {"before": half, "first": half + 1, "last": 2 * half})
    found = {(each.where, each.what, each.detail.get("type")) for each in crossing.story(payment).events}
    assert ("orchestrator", "appended", "wallet.deduct") in found
    assert ("wallet", "reported", "wallet.succeeded") in found
    took = []
    for _ in range(5):
        began = time.monotonic()
        crossing.story(payment)
        took.append(time.monotonic() - began)
    print(f"a trace took {', '.join(f'{each * 1000:.0f}' for each in sorted(took))} ms")
    assert sorted(took)[2] < 1


def literally(crossing: Crossing, balance: int = 900) -> Request:
    """Record a payment in the literal mode."""
    rules, crossing.desk.rules = crossing.desk.rules, Rules(PaymentsSettings(mode="literal"))
    payment = crossing.request(balance)
    crossing.desk.rules = rules
    return payment


def test_literal_payment_is_told_from_its_own_outbox_to_the_wallets_answer(crossing: Crossing) -> None:
    payment = literally(crossing)
    story = crossing.story(payment)
    [appended] = [each for each in story.events if each.what == "appended"]
    assert (appended.detail["id"], appended.detail["table"]) == (str(payment.uuid), "payments.outbox")
    assert story.ending.next == "ferryman run relay"
    outbox = "UPDATE payments.outbox SET try_count = 5, last_error = 'Kafka was away', last_attempt_at = now()"
    crossing.desk.db.execute(outbox)
    story = crossing.story(payment)
    assert "orchestrator failed, and is not tried again wallet.deduct" in told(story)
    assert "PENDING for good after 5 attempts" in story.ending.why
    assert story.ending.next == f"ferryman reconcile payments --id {payment.uuid}"
    crossing.desk.db.execute("UPDATE payments.outbox SET status = 'PUBLISHED', published_at = now()")
    assert crossing.story(payment).ending.next == "ferryman run wallet-literal"
    command = asked("DEDUCT", payment.wallet_id, payment.uuid, amount=500, id=payment.uuid)
    BatchTransaction(silent(lambda *_: None), HandlerConnection(crossing.books.db), [command]).run()
    story = crossing.story(payment)
    assert told(story) == ["orchestrator requested", *WAY]
    assert "told so by HTTP, once: it was not heard" in story.ending.why
    with crossing.desk.db.transaction():
        told_so, desk = Result(status="SUCCEEDED"), crossing.desk
        service.tell(desk.db, payment.uuid, told_so, rules=desk.rules, headers={})
    assert (crossing.story(payment).ending.now, crossing.story(payment).ending.next) == ("SUCCEEDED", None)


def test_failed_payment_still_taken_ends_with_the_command_that_gives_it_back(crossing: Crossing) -> None:
    payment = crossing.request()
    crossing.desk.apply(failed(payment, "NO_WALLET"))
    crossing.publish(crossing.desk.db)
    crossing.taken()
    ending = crossing.story(payment).ending
    assert "has taken 500 EUR and not given it back" in ending.why
    assert ending.next == f"ferryman reconcile payments --id {payment.uuid}"
    crossing.publish(crossing.books.db)
    crossing.applied()
    assert crossing.story(payment).ending.next == "ferryman run relay"
    crossing.through()
    assert (crossing.story(payment).ending.now, crossing.story(payment).ending.next) == ("FAILED", None)
