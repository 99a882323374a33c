"""Why a payment is still pending: each cause of section 6 made on real databases, named from evidence, and mended."""

import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ferryman.cli.wiring import settings_class
from ferryman.evidence.kafka import Lag, lags
from ferryman.evidence.reconcile import Repair, Repaired, repair_all
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka
from ferryman.services.payments import requests
from ferryman.services.payments.evidence import reconciling
from ferryman.services.payments.evidence.case import READS
from ferryman.services.payments.evidence.causes import Cause
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules, message_id
from ferryman.services.payments.store import Request
from support.pace import in_time
from support.paying import failed, succeeded
from support.published import poll_until
from support.topics import create
from support.town import ACT, Town
from support.walleting import transact


@dataclass(frozen=True)
class Retained:
    """A topic of one partition with old messages, of which Kafka deletes, and a group that is to read it."""

    servers: str
    topic: str
    group: str

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for _ in range(count):
            producer.produce(self.topic, b"x", timestamp=int((time.time() - 3600) * 1000))
        producer.flush(10)

    def delete(self, *, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers})
        [answer] = admin.delete_records([TopicPartition(self.topic, 0, before)]).values()
        assert answer.result(10).low_watermark == before

    def commit(self, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})
        consumer.commit(offsets=[TopicPartition(self.topic, 0, offset)], asynchronous=False)
        consumer.close()

    @property
    def lag(self) -> Lag:
        return lags(Kafka.model_validate({"bootstrap_servers": self.servers}), {self.group: self.topic}, 300)[
            self.group
        ]


def done(town: Town, payment: Request) -> str:
    """Carry what was asked again all the way. Return the payment's status."""
    town.published(town.desk.db)
    town.consume(payment)
    town.published(town.books.db)
    town.answer(payment)
    return town.desk.stands(payment)[1]


def test_unread_command_is_never_published_and_needs_only_the_relay(town: Town) -> None:
    """Section 6, first reason: nothing is asked again while it is on its way."""
    payment = town.asks()
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEVER_PUBLISHED, Repair.NONE)
    assert "PENDING" in case.evidence
    assert case.next == "ferryman run relay"
    assert town.repair() == {}
    assert town.desk.kinds(payment) == ["wallet.deduct", "payment.requested"]
    town.desk.db.execute("INSERT INTO ferryman.outbox_paused (topic, who, reason) VALUES ('', 'ann', 'a move')")
    assert town.case(payment).next == "ferryman resume outbox"


@pytest.mark.parametrize("status", ["PARKED", "RETRYING"])
def test_command_that_waits_in_the_outbox_says_why(town: Town, status: str) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.excepted(town.desk.db, "wallet.deduct", status, "the broker says no")
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEVER_PUBLISHED, Repair.NONE)
    assert status in case.evidence
    assert "the broker says no" in case.evidence


def test_failed_command_is_replayed_once_and_then_left_to_the_relay(town: Town) -> None:
    """The document's first reason: all attempts failed. The entry itself goes again, with its id."""
    payment = town.asks()
    town.published(town.desk.db)
    town.excepted(town.desk.db, "wallet.deduct", "FAILED")
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEVER_PUBLISHED, Repair.REPLAY)
    assert "MSG_SIZE_TOO_LARGE" in case.evidence
    assert case.next == f"ferryman outbox replay --id {case.position} --yes --reason 'its cause is mended'"
    assert town.repair() == {"replay": 1}
    assert town.repair() == {}
    assert "REPLAYING" in town.case(payment).evidence
    assert town.acts() == [("reconcile", "replay", 1), ("replay", "", 1)]
    town.excepted(town.desk.db, "wallet.deduct", "FAILED")
    again = town.case(payment)
    assert (again.cause, again.repair) == (Cause.NEVER_PUBLISHED, Repair.NONE)


def test_discarded_command_is_asked_for_again(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.excepted(town.desk.db, "wallet.deduct", "DISCARDED")
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEVER_PUBLISHED, Repair.REPUBLISH)
    assert town.repair() == {"republish": 1}
    assert done(town, payment) == "SUCCEEDED"


def test_command_lost_after_publishing_is_asked_for_again_and_taken_once(town: Town) -> None:
    """N5: also when what was lost turns up later."""
    payment = town.asks()
    town.published(town.desk.db)
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NOT_CONSUMED, Repair.REPUBLISH)
    assert town.repair() == {"republish": 1}
    assert [each.id for each in town.commands(payment)] == [
        message_id(payment.uuid, "wallet.deduct", attempt) for attempt in (1, 2)
    ]
    assert done(town, payment) == "SUCCEEDED"
    assert town.books.balance(payment.wallet_id) == 10_000 - 500
    assert town.cases(older=0) == []


def test_payment_asked_for_again_is_left_alone_until_its_answer_is_due(town: Town) -> None:
    """However often --yes runs, nothing is asked twice in that time."""
    payments = [town.asks() for _ in range(5)]
    town.published(town.desk.db)
    town.ages(*payments)
    assert town.repair() == {"republish": 5}
    town.published(town.desk.db)
    for _ in range(3):
        assert town.repair() == {}
        assert town.repair(*payments) == {}
    assert {case.repair for case in town.cases()} == {Repair.NONE}
    assert [case.next for case in town.cases()] == [f"ferryman trace {case.uuid}" for case in town.cases()]
    assert town.acts() == [("reconcile", "republish", 5)]
    assert len(town.commands()) == 10


def test_payment_that_moved_since_it_was_judged_is_left_alone(town: Town) -> None:
    payment, other = town.asks(), town.asks()
    town.published(town.desk.db)
    town.ages(payment, other)
    judged = town.cases()
    town.desk.apply(succeeded(payment))
    mended = Repaired()
    repair_all(town.reconciler, judged, ACT, mended)
    repair_all(town.reconciler, judged, ACT, mended)
    assert (mended.by_repair, mended.moved) == ({"republish": 1}, 3)


def test_rejected_command_is_named_with_its_error_and_asked_for_again(town: Town) -> None:
    """Section 6, second reason."""
    payment = town.asks()
    town.published(town.desk.db)
    [command] = town.commands(payment)
    town.rejects(town.books.db, "wallet", command, "BUG", "KeyError: 'currency'")
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.CONSUMER_FAILED, Repair.REPUBLISH)
    assert "BUG: KeyError: 'currency'" in case.evidence
    assert town.repair() == {"republish": 1}
    assert [each.data["attempt"] for each in town.commands(payment)] == [1, 2]
    transact(town.books.db, town.commands(payment)[1:])
    town.answer(payment)
    assert town.desk.stands(payment)[1] == "SUCCEEDED"


def test_command_received_at_most_once_without_effect_is_asked_for_again(town: Town) -> None:
    """Sections 3 and 6: an exception was swallowed, and only a receipt is left."""
    payment = town.asks()
    town.published(town.desk.db)
    [command] = town.commands(payment)
    town.receives(command, "ConnectionResetError")
    town.ages(payment)
    case = town.case(payment)
    assert case.cause == Cause.CONSUMER_FAILED
    assert "ConnectionResetError" in case.evidence
    assert town.repair() == {"republish": 1}


def test_lost_result_heals_because_the_wallet_answers_again(town: Town) -> None:
    """Section 6, third reason; N5: it is not taken again."""
    payment, poor = town.asks(), town.asks(amount=50_000)
    town.published(town.desk.db)
    town.consume()
    town.published(town.books.db)
    town.ages(payment, poor)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.RESULT_LOST, Repair.REREPORT)
    assert "DEDUCT" in case.evidence
    assert "INSUFFICIENT_FUNDS" in town.case(poor).evidence
    assert town.repair() == {"rereport": 2}
    assert town.repair() == {}
    assert (done(town, payment), done(town, poor)) == ("SUCCEEDED", "FAILED")
    assert town.books.balance(payment.wallet_id) == 10_000 - 500


@pytest.mark.parametrize(("status", "way"), [("FAILED", Repair.REPLAY), ("PARKED", Repair.NONE)])
def test_unpublished_result_is_found_in_the_wallets_outbox(town: Town, status: str, way: Repair) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.published(town.books.db)
    town.excepted(town.books.db, "wallet.succeeded", status)
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.RESULT_LOST, way)
    assert status in case.evidence
    assert case.next.startswith("FERRYMAN_DATABASE_URL=<the wallet's URL> ferryman ")
    assert town.repair() == ({"replay": 1} if way is Repair.REPLAY else {})
    assert town.repair() == {}


def test_unread_result_is_found_in_the_wallets_outbox(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.RESULT_LOST, Repair.NONE)
    assert "PENDING" in case.evidence


def test_result_rejected_by_the_orchestrator_is_named_with_its_error(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.published(town.books.db)
    [result] = town.results(payment)
    town.rejects(town.desk.db, "payments", result, "UNREADABLE", "schema 7 is not known")
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.RESULT_LOST, Repair.REREPORT)
    assert str(result.id) in case.evidence
    assert "UNREADABLE: schema 7 is not known" in case.evidence


def test_result_taken_for_forged_needs_a_person(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.published(town.books.db)
    [result] = town.results(payment)
    town.desk.db.execute("UPDATE payments.requests SET amount = 501 WHERE uuid = %s", (payment.uuid,))
    town.desk.apply(result)
    assert town.desk.strays() == [(payment.uuid, "FORGED")]
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEEDS_PERSON, Repair.NONE)
    assert "FORGED" in case.evidence


def test_unanswered_cancellation_is_followed_like_a_deduction(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.desk.late(payment)
    assert town.desk.stands(payment)[0] == "CANCELLING"
    town.published(town.desk.db)
    town.ages(payment)
    assert town.case(payment).cause == Cause.NOT_CONSUMED
    town.consume(payment)  # the deduction, and the cancellation behind it
    town.published(town.books.db)
    town.ages(payment)
    case = town.case(payment)
    assert (case.cause, "CANCEL" in case.evidence) == (Cause.RESULT_LOST, True)
    assert town.repair() == {"rereport": 1}
    assert done(town, payment) == "FAILED"
    assert town.books.balance(payment.wallet_id) == 10_000


def test_unanswered_fulfilment_is_waited_for_and_asked_again(town: Town) -> None:
    payment = town.asks(fulfil=True)
    town.desk.apply(succeeded(payment))
    town.ages(payment)
    assert town.case(payment).cause == Cause.NEVER_PUBLISHED
    town.published(town.desk.db)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.WAITS_DOWNSTREAM, Repair.REPUBLISH)
    assert "ferryman run payments" in case.evidence
    assert town.repair() == {"republish": 1}
    assert town.desk.kinds(payment).count("fulfilment.request") == 2


def test_used_up_attempts_need_a_person_who_may_ask_once_more(town: Town) -> None:
    payment = town.asks()
    for _ in range(town.desk.rules.settings.most_attempts + 1):
        town.desk.late(payment)
    town.published(town.desk.db)
    town.ages(payment)
    assert town.desk.db.execute("SELECT due_at = 'infinity' FROM payments.requests").fetchone() == (True,)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEEDS_PERSON, Repair.REPUBLISH)
    assert town.repair() == {"republish": 1}
    assert done(town, payment) == "FAILED"


@pytest.mark.parametrize("mode", ["saga", "literal"])
def test_only_payments_of_the_saga_mode_get_a_due_time_when_asked_again(town: Town, mode: str) -> None:
    """Both may be in one database, and either process may ask: the payment's own rows say what it is. One of the
    literal mode with a time would be cancelled, which its wallet tells nobody of.
    """
    town.settings = settings_class().model_validate({"payments": {"mode": mode}})
    waits = town.asks()
    letter = by_letter(town)
    dated = by_letter(town)
    town.desk.db.execute("UPDATE payments.requests SET due_at = 'infinity' WHERE uuid = %s", (waits.uuid,))
    town.desk.db.execute("UPDATE payments.requests SET due_at = now() WHERE uuid = %s", (dated.uuid,))
    town.published(town.desk.db)
    town.ages(waits, letter, dated)
    assert town.repair() == {"republish": 3}
    found = town.desk.db.execute("SELECT uuid, due_at < 'infinity', attempt FROM payments.requests").fetchall()
    assert set(found) == {(waits.uuid, True, 2), (letter.uuid, False, 2), (dated.uuid, False, 2)}
    assert all("ferryman run payments" not in town.case(each).evidence for each in (letter, dated))


def by_letter(town: Town) -> Request:
    """Make a payment that was recorded in the literal mode, and published."""
    rules = town.desk.rules
    town.desk.rules = Rules(PaymentsSettings(mode="literal"))
    payment = town.asks()
    town.desk.rules = rules
    town.desk.db.execute("UPDATE payments.outbox SET status = 'PUBLISHED' WHERE uuid = %s", (payment.uuid,))
    return payment


def test_stuck_payment_is_settled_by_a_person_through_the_machine_and_audited(town: Town) -> None:
    payment = stuck(town)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.NEEDS_PERSON, Repair.NONE)
    assert case.next.startswith(f"ferryman reconcile payments --settle {payment.uuid} --yes --reason")
    assert town.repair() == {}
    assert not town.reconciler.settle(payment.uuid, ACT, yes=False)
    assert town.desk.stands(payment)[0] == "STUCK"
    assert town.reconciler.settle(payment.uuid, ACT, yes=True)
    assert town.desk.stands(payment) == ("FAILED", "FAILED", "TIMED_OUT")
    assert town.desk.kinds(payment)[-1] == "payment.failed"
    said = town.desk.db.execute("SELECT who, act, reason, filter FROM ferryman.outbox_audit").fetchall()
    assert said == [("ann@desk", "reconcile", "because", {"settle": str(payment.uuid)})]
    with pytest.raises(FerrymanError, match="FAILED: only what is STUCK"):
        town.reconciler.settle(payment.uuid, ACT, yes=True)


def stuck(town: Town) -> Request:
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.desk.late(payment)
    town.desk.apply(failed(payment, "UNKNOWN", "CANCEL"))
    assert town.desk.stands(payment)[0] == "STUCK"
    town.ages(payment)
    return payment


def test_expired_evidence_is_named_as_the_cause(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.ages(payment, seconds=town.settings.consumer.receipts_retention_seconds + 60)
    case = town.case(payment)
    assert (case.cause, case.repair) == (Cause.EVIDENCE_EXPIRED, Repair.REPUBLISH)


@pytest.mark.parametrize("received", [False, True])
def test_payment_without_evidence_ends_when_it_is_asked_for_again(town: Town, received: bool) -> None:
    """N5: whether the first command is lost or turns up after its receipt was forgotten."""
    payment = town.asks()
    town.published(town.desk.db)
    if received:
        town.receives(town.commands(payment)[0])
    town.ages(payment, seconds=town.settings.consumer.receipts_retention_seconds + 60)
    town.books.db.execute("DELETE FROM ferryman.inbox WHERE received_at < now() - interval '30 days'")
    assert town.case(payment).cause == Cause.EVIDENCE_EXPIRED
    assert town.repair() == {"republish": 1}
    assert done(town, payment) == "SUCCEEDED"
    assert town.books.balance(payment.wallet_id) == 10_000 - 500
    assert town.cases(older=0) == []


def test_payment_is_looked_at_only_if_it_is_old_enough_or_named(town: Town) -> None:
    young, old = town.asks(), town.asks()
    over = town.asks()
    town.desk.apply(succeeded(over))
    town.ages(old, over)
    assert [case.uuid for case in town.cases()] == [old.uuid]
    assert [case.uuid for case in town.cases(young, over)] == [young.uuid]
    with pytest.raises(FerrymanError, match="there is no payment"):
        town.cases(Request(over.wallet_id, over.wallet_id, 1, "EUR"))


def test_walk_of_many_pages_names_each_once_while_they_are_mended(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "PAGE", 7)
    payments = [town.asks() for _ in range(40)]
    payments += [stuck(town) for _ in range(9)]
    town.published(town.desk.db)
    town.ages(*payments[:40])
    found = [case.uuid for case in town.cases()]
    assert len(found) == len(set(found)) == 49
    assert town.repair() == {"republish": 40}
    assert town.repair() == {}


def test_monitor_role_is_enough_to_look(town: Town) -> None:
    payment, other = town.asks(), town.asks()
    town.published(town.desk.db)
    town.consume(other)
    town.ages(payment, other)
    for db in (town.desk.db, town.books.db):
        db.execute("SET ROLE ferryman_monitor")
    assert {case.cause for case in town.cases()} == {Cause.NOT_CONSUMED, Cause.RESULT_LOST}


def test_a_late_transaction_is_not_yet_published(town: Town, ferryman_database_url: str) -> None:
    """An entry that committed behind the last window is found by its transaction."""
    with psycopg.connect(ferryman_database_url) as late:
        payment = Request(message_id(town.books.open(1), "x", 1), town.books.open(900), 100, "EUR")
        requests.record(late, [payment], town.desk.rules)
        early = town.asks()
        town.published(town.desk.db)
        late.commit()
    town.ages(payment, early)
    causes: dict[Any, str] = {case.uuid: case.cause for case in town.cases()}
    assert causes == {payment.uuid: Cause.NEVER_PUBLISHED, early.uuid: Cause.NOT_CONSUMED}


STEP_IN_PROGRESS = """
WITH w AS (
    INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
    SELECT pg_current_snapshot(), max(position), pg_current_xact_id() FROM ferryman.outbox RETURNING id, position_at
)
INSERT INTO ferryman.outbox_cursor (lane, generation, done, target, position, settled)
SELECT l.lane, l.generation + 1, l.done, w.id, w.position_at, l.settled FROM ferryman.outbox_lanes l, w
"""


def test_entry_published_by_the_step_in_progress_is_not_called_unpublished(
    town: Town, ferryman_database_url: str
) -> None:
    """It committed late, so it is not visible to the last window; the step that goes on has passed it."""
    with psycopg.connect(ferryman_database_url) as late:
        payment = Request(message_id(town.books.open(1), "x", 1), town.books.open(900), 100, "EUR")
        requests.record(late, [payment], town.desk.rules)
        town.asks()
        town.published(town.desk.db)
        late.commit()
    town.ages(payment)
    assert town.case(payment).cause == Cause.NEVER_PUBLISHED
    town.desk.db.execute(STEP_IN_PROGRESS)
    assert town.case(payment).cause == Cause.NOT_CONSUMED


def test_a_thousand_pending_payments_are_judged_in_a_moment(town: Town) -> None:
    """Beside a backlog and as many that wait for results: two seconds are for all of them."""
    of = town.books.open(10**9)
    payments = [Request(message_id(of, "x", n), of, 10, "EUR") for n in range(1_000)]
    town.desk.record(*payments)
    town.published(town.desk.db)
    town.consume(*payments[:500])
    town.desk.record(*[Request(message_id(of, "y", n), of, 10, "EUR") for n in range(5_000)])
    town.published(town.books.db)
    town.ages(*payments)
    seconds: list[float] = []
    while not seconds or (seconds[-1] >= 2 and len(seconds) < 3):  # others may keep the machine busy for a while
        began = time.monotonic()
        causes = Counter(case.cause for case in town.cases())
        seconds.append(time.monotonic() - began)
        assert causes == {Cause.RESULT_LOST: 500, Cause.NOT_CONSUMED: 500}
    assert in_time(min(seconds), 2), f"{seconds} s"


def test_absent_or_paused_wallet_is_not_asked_again_and_burns_no_attempt(town: Town) -> None:
    """N8: what was published is not lost, and stands in Kafka until it comes back."""
    payment = town.asks()
    town.published(town.desk.db)
    town.ages(payment)
    town.books.db.execute(
        "INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES ('wallet', 'ann', 'a move')"
    )
    case = town.case(payment)
    assert (case.cause, case.repair, case.person) == (Cause.NOT_CONSUMED, Repair.NONE, True)
    assert "ann" in case.evidence
    assert case.next.endswith("ferryman resume wallet --consumer")
    town.books.db.execute("DELETE FROM ferryman.inbox_paused")
    town.processes[1].close()
    poll_until(lambda: town.case(payment).repair is Repair.NONE, "the end of its session")
    assert town.case(payment).next.endswith("ferryman run wallet")
    assert town.repair() == {}
    assert [each.data["attempt"] for each in town.commands(payment)] == [1]


def test_absent_orchestrator_is_named_and_its_results_are_not_asked_for_again(town: Town) -> None:
    payment = town.asks()
    town.published(town.desk.db)
    town.consume(payment)
    town.published(town.books.db)
    town.ages(payment)
    town.processes[0].close()
    poll_until(lambda: town.case(payment).repair is Repair.NONE, "the end of its session")
    case = town.case(payment)
    assert (case.cause, case.next) == (Cause.RESULT_LOST, "ferryman run payments")
    assert town.repair() == {}


def test_kafka_says_how_far_each_reader_is_behind(ferryman_kafka: str) -> None:
    settings = Kafka.model_validate({"bootstrap_servers": ferryman_kafka})
    said = lags(settings, READS, 300)
    assert set(said) == {"wallet", "payments"}
    assert all(each.said.startswith("Kafka") for each in said.values())
    away = Kafka.model_validate({"bootstrap_servers": "127.0.0.1:1", "timeout_seconds": 1})
    assert "Kafka does not say how far it is read" in lags(away, READS, 300)["wallet"].said
    assert lags(away, READS, 300)["payments"].overdue is None


@pytest.mark.real_kafka
def test_group_is_behind_by_messages_older_than_an_answer_may_take(
    ferryman_kafka: str,
) -> None:
    topic = create(ferryman_kafka, partitions=2)
    reads = {"nobody": topic}
    producer = Producer({"bootstrap.servers": ferryman_kafka})
    hour_ago = int((time.time() - 3600) * 1000)
    for n in range(7):
        producer.produce(topic, b"x", partition=n % 2, timestamp=hour_ago if n < 3 else 0)
    producer.flush(10)
    settings = Kafka.model_validate({"bootstrap_servers": ferryman_kafka})
    behind = Lag(f"Kafka: the group nobody is 7 messages behind in {topic}", 3)
    poll_until(lambda: lags(settings, reads, 300)["nobody"] == behind, "what the group has not read")
    assert lags(settings, reads, 0)["nobody"].overdue == 7
    assert lags(settings, reads, 7200)["nobody"].overdue == 0


@pytest.fixture
def retained(ferryman_kafka: str) -> Retained:
    topic = create(ferryman_kafka)
    return Retained(ferryman_kafka, topic, f"reader-of-{topic}")


@pytest.mark.real_kafka
def test_group_without_offsets_does_not_wait_for_deleted_messages(retained: Retained) -> None:
    """A group whose offsets expired, or a new one on an old topic: it reads what is left, and nobody is held back by
    what will never come.
    """
    retained.produce(7)
    assert retained.lag == Lag(f"Kafka: the group {retained.group} is 7 messages behind in {retained.topic}", 7)
    retained.delete(before=5)
    assert retained.lag == Lag(f"Kafka: the group {retained.group} is 2 messages behind in {retained.topic}", 2)
    retained.delete(before=7)
    assert retained.lag == Lag(f"Kafka: the group {retained.group} has read all of {retained.topic}", 0)


@pytest.mark.real_kafka
def test_unread_messages_that_kafka_deleted_need_a_person(retained: Retained) -> None:
    """The consumer stops there by itself."""
    retained.produce(7)
    retained.commit(3)
    assert retained.lag.resets is None
    retained.delete(before=5)
    lag = retained.lag
    assert (
        f"of {retained.topic}, partition 0, 2 messages were deleted before it read them: it stops there until a "
        "person resets its offsets" in lag.said
    )
    assert f"--group {retained.group} --topic {retained.topic}:0 --reset-offsets --to-earliest" in str(lag.resets)
    retained.delete(before=7)
    lag = retained.lag
    assert (lag.overdue, "4 messages were deleted" in lag.said, bool(lag.resets)) == (0, True, True)
    retained.commit(7)
    assert retained.lag.resets is None


def test_a_cluster_that_takes_too_long_says_nothing() -> None:
    """The command goes on, as with a broker that is away."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = lags(Kafka.model_validate({"bootstrap_servers": address, "timeout_seconds": 1}), READS, 300)
    assert {each.overdue for each in said.values()} == {None}
    assert "does not say how far it is read: " in said["wallet"].said
