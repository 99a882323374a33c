"""Why a payment is still pending, decided from values."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from ferryman.evidence.audit import derived_ids
from ferryman.evidence.kafka import Lag
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, RejectedMessage
from ferryman.evidence.reconcile import Case, Party, Repair, SystemState
from ferryman.evidence.sides import DatabaseAddress
from ferryman.services.payments.evidence.case import ASKED, ORCHESTRATOR, AskedBack, LedgerRow, PaymentRow
from ferryman.services.payments.evidence.causes import Cause, judge
from ferryman.services.payments.evidence.facts import PaymentFacts
from ferryman.services.payments.rules import MACHINE, message_id

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
ONE, TWO = UUID(int=1), UUID(int=2)
PARTIES = {
    ORCHESTRATOR: Party("payments"),
    "wallet": Party("wallet", address=DatabaseAddress("<the wallet's URL>")),
}
HOUSE = SystemState(300.0, 30 * 86400.0, PARTIES)


def house(where: str, **changes: Any) -> SystemState:
    """Return the same with changes at one database."""
    return replace(HOUSE, parties=PARTIES | {where: replace(PARTIES[where], **changes)})


RECORD = RejectedMessage(TWO, "BUG", "no", "REJECTED")


def pending(
    state: str = "DEDUCTING", *, asked: float = 3600, exhausted: bool = False, literal: bool = False
) -> PaymentRow:
    at = NOW - timedelta(seconds=asked)
    due_at = None if exhausted else at
    return PaymentRow(ONE, TWO, 500, "EUR", False, state, 1, at, at, NOW, due_at, literal=literal)


def decided(kind: str = "DEDUCT", reason: str | None = None, *, ago: float = 3600) -> LedgerRow:
    return operation(kind, 0, reason, NOW - timedelta(seconds=ago))


def operation(kind: str, amount: int = 0, reason: str | None = None, at: datetime = NOW) -> LedgerRow:
    return LedgerRow(ONE, "deduct", kind, TWO, amount, "EUR", reason, at)


def entry(status: str, *, replay: int | None = None, ago: float = 3600) -> OutboxEntry:
    at = NOW - timedelta(seconds=ago)
    return OutboxEntry(TWO, 17, status, attempts=5, error="no", replay=replay, changed_at=at)


def receipt(status: str, reason: str | None = None) -> InboxReceipt:
    return InboxReceipt(TWO, status, None, reason, None, NOW)


def told(known: PaymentFacts, house: SystemState = HOUSE) -> tuple[str, Repair]:
    case: Case = judge(known, house)
    assert case.evidence
    assert case.next
    return case.cause, case.repair


def test_every_waiting_state_has_its_command() -> None:
    assert set(ASKED) == set(MACHINE.states) - set(MACHINE.terminals) - {"STUCK"}


def test_the_ledger_speaks_before_the_outbox_and_the_inbox() -> None:
    known = PaymentFacts(pending(), (decided(),), command=entry("FAILED"), receipts=(receipt("REJECTED"),))
    assert told(known) == (Cause.RESULT_LOST, Repair.REREPORT)


CAUSES: list[tuple[PaymentFacts, tuple[Cause, Repair]]] = [
    (PaymentFacts(pending("STUCK")), (Cause.NEEDS_PERSON, Repair.NONE)),
    (PaymentFacts(pending(), command=entry("PENDING")), (Cause.NEVER_PUBLISHED, Repair.NONE)),
    (PaymentFacts(pending(), command=entry("FAILED")), (Cause.NEVER_PUBLISHED, Repair.REPLAY)),
    (PaymentFacts(pending(), command=entry("FAILED", replay=1, ago=9)), (Cause.NEVER_PUBLISHED, Repair.NONE)),
    (PaymentFacts(pending(), command=entry("FAILED", replay=1)), (Cause.NEVER_PUBLISHED, Repair.REPLAY)),
    (PaymentFacts(pending(), command=entry("DISCARDED")), (Cause.NEVER_PUBLISHED, Repair.REPUBLISH)),
    (PaymentFacts(pending(), receipts=(receipt("RECEIVED"),)), (Cause.CONSUMER_FAILED, Repair.REPUBLISH)),
    (
        PaymentFacts(pending(), receipts=(receipt("RECEIVED"),), commands=(ONE,)),
        (Cause.NOT_CONSUMED, Repair.REPUBLISH),
    ),
    (PaymentFacts(pending(), receipts=(receipt("REOPENED"),)), (Cause.NOT_CONSUMED, Repair.REPUBLISH)),
    (
        PaymentFacts(pending(), receipts=(receipt("REJECTED"),), rejected=(RECORD,)),
        (Cause.CONSUMER_FAILED, Repair.REPUBLISH),
    ),
    (PaymentFacts(pending()), (Cause.NOT_CONSUMED, Repair.REPUBLISH)),
    (PaymentFacts(pending(asked=31 * 86400)), (Cause.EVIDENCE_EXPIRED, Repair.REPUBLISH)),
    (PaymentFacts(pending(exhausted=True)), (Cause.NEEDS_PERSON, Repair.REPUBLISH)),
    (PaymentFacts(pending("FULFILLING")), (Cause.WAITS_DOWNSTREAM, Repair.REPUBLISH)),
    (PaymentFacts(pending(), (decided(),), result=entry("FAILED")), (Cause.RESULT_LOST, Repair.REPLAY)),
    (PaymentFacts(pending(), (decided(),), result=entry("PARKED")), (Cause.RESULT_LOST, Repair.NONE)),
    (PaymentFacts(pending(), (decided(),), result=entry("DISCARDED")), (Cause.RESULT_LOST, Repair.REREPORT)),
    (
        PaymentFacts(pending(), (decided(),), applied=(receipt("HANDLED", "LATE"),)),
        (Cause.RESULT_LOST, Repair.REREPORT),
    ),
    (PaymentFacts(pending(), (decided(),), strays=("FORGED",)), (Cause.NEEDS_PERSON, Repair.NONE)),
]


@pytest.mark.parametrize(("known", "expected"), CAUSES)
def test_first_cause_that_applies_is_named(known: PaymentFacts, expected: tuple[Cause, Repair]) -> None:
    assert told(known) == expected


@pytest.mark.parametrize(
    "known",
    [
        PaymentFacts(pending(asked=299)),
        PaymentFacts(pending(), (decided(ago=299),)),
        PaymentFacts(pending("RECALLING", asked=0)),
        PaymentFacts(pending(asked=1), receipts=(receipt("RECEIVED"),)),
    ],
)
def test_nothing_is_asked_again_before_its_answer_had_its_time(known: PaymentFacts) -> None:
    assert told(known)[1] is Repair.NONE


def test_pause_or_missing_relay_decides_the_command() -> None:
    known = PaymentFacts(pending(), command=entry("PARKED"))
    assert judge(known, HOUSE).next == "ferryman run relay"
    paused = house(ORCHESTRATOR, relays=1, pauses=("payments.commands",))
    assert judge(known, paused).next == "ferryman resume payments.commands"
    assert judge(known, house(ORCHESTRATOR, relays=1)).next == "ferryman outbox show 17"


def test_lag_of_the_reader_is_part_of_the_evidence() -> None:
    lag = Lag("Kafka: the group wallet is 7 messages behind", 0)
    assert lag.said in judge(PaymentFacts(pending()), house("wallet", lag=lag)).evidence


LOST, UNHEARD = PaymentFacts(pending()), PaymentFacts(pending(), (decided(),))
FAR, NEAR = Lag("Kafka: it is 9 messages behind", 2), Lag("Kafka: it is 9 messages behind", 0)
THERE = "FERRYMAN_DATABASE_URL=<the wallet's URL> "
GONE = Lag("Kafka: 2 messages were deleted before it read them", 0, "kafka-consumer-groups --group wallet")
BOOKS = DatabaseAddress('"$URL"', "books")


@pytest.mark.parametrize(
    ("known", "where", "reader", "expected", "following"),
    [
        (LOST, "wallet", {"processes": 0}, (Repair.NONE, True), f"{THERE}ferryman run wallet"),
        (
            PaymentFacts(pending(literal=True)),
            "wallet",
            {"processes": 0},
            (Repair.NONE, True),
            f"{THERE}ferryman run wallet-literal",
        ),
        (LOST, "wallet", {"processes": 0, "lag": NEAR}, (Repair.REPUBLISH, False), "ferryman reconcile payments --id"),
        (LOST, "wallet", {"processes": 0, "lag": FAR}, (Repair.NONE, True), f"{THERE}ferryman run wallet"),
        (LOST, "wallet", {"lag": FAR}, (Repair.NONE, False), f"{THERE}ferryman inbox stats"),
        (LOST, "wallet", {"paused": "ann"}, (Repair.NONE, True), f"{THERE}ferryman resume wallet --consumer"),
        (LOST, "wallet", {"lag": GONE}, (Repair.NONE, True), "kafka-consumer-groups --group wallet"),
        (LOST, "wallet", {"processes": 0, "lag": GONE}, (Repair.NONE, True), "kafka-consumer-groups --group wallet"),
        (UNHEARD, ORCHESTRATOR, {"lag": GONE}, (Repair.NONE, True), "kafka-consumer-groups --group wallet"),
        (LOST, ORCHESTRATOR, {"processes": 0}, (Repair.REPUBLISH, False), "ferryman reconcile payments --id"),
        (UNHEARD, ORCHESTRATOR, {"processes": 0}, (Repair.NONE, True), "ferryman run payments"),
        (UNHEARD, ORCHESTRATOR, {"lag": FAR}, (Repair.NONE, False), "ferryman inbox stats"),
        (UNHEARD, ORCHESTRATOR, {"paused": "ann"}, (Repair.NONE, True), "ferryman resume payments --consumer"),
        (UNHEARD, "wallet", {"processes": 0}, (Repair.NONE, True), f"{THERE}ferryman run wallet"),
        (
            PaymentFacts(pending(literal=True), (decided(),)),
            ORCHESTRATOR,
            {"processes": 0},
            (Repair.REREPORT, False),
            "ferryman reconcile payments",
        ),
    ],
)
def test_absent_paused_or_lagging_reader_is_not_asked_again(
    known: PaymentFacts, where: str, reader: dict[str, Any], expected: tuple[Repair, bool], following: str
) -> None:
    """N8: what stands in Kafka is not lost, and burns no attempt."""
    case = judge(known, house(where, **reader))
    assert (case.repair, case.person) == expected
    assert case.next.startswith(following)


@pytest.mark.parametrize(
    ("known", "reader", "expected"),
    [
        (LOST, {"processes": 0}, 'FERRYMAN_DATABASE_URL="$URL" ferryman run wallet'),
        (LOST, {"paused": "ann"}, "ferryman resume wallet --consumer --source books"),
        (LOST, {"lag": FAR}, "ferryman inbox stats --source books"),
        (replace(UNHEARD, result=entry("PENDING")), {}, "ferryman run relay"),
        (
            replace(UNHEARD, result=entry("FAILED")),
            {},
            "ferryman outbox replay --id 17 --yes --reason 'its cause is mended' --source books",
        ),
        (
            replace(UNHEARD, result=entry("FAILED", replay=1, ago=9)),
            {},
            "ferryman outbox show 17 --source books",
        ),
        (replace(LOST, command=entry("PENDING")), {}, "ferryman run relay"),
    ],
)
def test_command_for_the_wallets_database_finds_it(known: PaymentFacts, reader: dict[str, Any], expected: str) -> None:
    assert judge(known, house("wallet", address=BOOKS, **reader)).next == expected


LITERAL = PaymentFacts(pending(literal=True))
UNDONE = PaymentFacts(pending("CANCELLING", literal=True))


def test_literal_payment_is_never_said_to_be_due() -> None:
    """No timeout looks at it, and `ferryman run payments` does not start there: also where it was given a time."""
    assert "ferryman run payments" in judge(LOST, HOUSE).evidence
    assert "ferryman run payments" not in judge(LITERAL, HOUSE).evidence
    assert told(PaymentFacts(pending(exhausted=True, literal=True))) == (Cause.NOT_CONSUMED, Repair.REPUBLISH)


def test_literal_payment_undone_by_a_timeout_waits_for_a_message() -> None:
    """The literal wallet handles its cancellation, and tells nobody."""
    done = replace(UNDONE, ledger=(decided("CANCEL"),))
    assert told(done) == (Cause.RESULT_LOST, Repair.REREPORT)
    assert "ferryman run wallet" in judge(done, HOUSE).evidence
    assert "HTTP" not in judge(done, HOUSE).evidence
    assert "ferryman run payments" in judge(UNDONE, HOUSE).evidence
    away = house("wallet", processes=0)
    assert judge(UNDONE, away).next == f"{THERE}ferryman run wallet"
    used_up = PaymentFacts(pending("CANCELLING", exhausted=True, literal=True))
    assert told(used_up) == (Cause.NEEDS_PERSON, Repair.REPUBLISH)


def test_only_entries_of_the_journal_are_shown_by_position() -> None:
    there = house(ORCHESTRATOR, relays=1)
    row = OutboxEntry(ONE, None, "PENDING", attempts=2, error="no", changed_at=NOW)
    assert judge(replace(LITERAL, command=row), there).next == f"ferryman trace {ONE}"
    assert judge(replace(LITERAL, command=entry("PENDING")), there).next == "ferryman outbox show 17"


def test_a_person_is_needed_only_once_an_answer_should_have_come() -> None:
    used_up = PaymentFacts(pending(exhausted=True))
    assert judge(used_up, HOUSE).person
    assert not judge(PaymentFacts(pending(exhausted=True, asked=9)), HOUSE).person
    assert judge(PaymentFacts(pending(), command=entry("PENDING")), HOUSE).person, "no relay is connected"
    assert not judge(PaymentFacts(pending(asked=9), command=entry("PENDING")), HOUSE).person


TAKEN, BACK, NOTHING = operation("DEDUCT", -500), operation("CANCEL", 500), operation("DEDUCT", 0, "NO_WALLET")


SETTLE = f"ferryman reconcile payments --settle {ONE} --yes --reason"
STUCKS: list[tuple[PaymentFacts, str]] = [
    (PaymentFacts(pending("STUCK"), (TAKEN,)), f"{SETTLE} 'given back by hand: ...'"),
    (PaymentFacts(pending("STUCK"), (TAKEN, BACK)), f"{SETTLE} 'nothing is taken for it'"),
    (PaymentFacts(pending("STUCK"), (NOTHING,)), f"{SETTLE} 'nothing is taken for it'"),
    (PaymentFacts(pending("STUCK")), f"ferryman trace {ONE}"),
]


@pytest.mark.parametrize(("known", "following"), STUCKS)
def test_stuck_payment_is_given_back_by_hand_only_if_the_ledger_still_has_it(
    known: PaymentFacts, following: str
) -> None:
    case = judge(known, HOUSE)
    assert (case.cause, case.repair, case.person, case.next) == (Cause.NEEDS_PERSON, Repair.NONE, True, following)


FAILURE = PaymentFacts(pending("FAILED", exhausted=True), (TAKEN,), back=AskedBack(NOW, 0))


FAILURES: list[tuple[PaymentFacts, tuple[Cause, Repair]]] = [
    (FAILURE, (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
    (replace(FAILURE, back=None), (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
    (replace(FAILURE, receipts=(receipt("REJECTED"),)), (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
    (replace(FAILURE, command=entry("DISCARDED")), (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
    (replace(FAILURE, command=entry("FAILED")), (Cause.NOT_GIVEN_BACK, Repair.REPLAY)),
    (replace(FAILURE, command=entry("PENDING")), (Cause.NOT_GIVEN_BACK, Repair.NONE)),
    (replace(FAILURE, request=pending("FAILED", asked=9)), (Cause.NOT_GIVEN_BACK, Repair.NONE)),
    (replace(FAILURE, ledger=(TAKEN, decided("CANCEL", "NO_WALLET"))), (Cause.NEEDS_PERSON, Repair.NONE)),
]


@pytest.mark.parametrize(("known", "expected"), FAILURES)
def test_failed_payment_is_asked_back_as_soon_as_its_cancellation_failed(
    known: PaymentFacts, expected: tuple[Cause, Repair]
) -> None:
    assert told(known) == expected


def test_evidence_is_told_as_in_the_golden_file() -> None:
    """In the order of the lists: the sentences may be reworded here, and nowhere else."""
    cases = [judge(known, HOUSE) for known, _ in (*CAUSES, *STUCKS, *FAILURES)]
    told = "".join(f"{each.cause} {each.repair}\n  {each.evidence}\n" for each in cases)
    times = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d")
    assert times.sub("TIME", told) == (Path(__file__).parent / "golden" / "causes.txt").read_text()


def test_ids_of_a_whole_column_are_those_that_the_rules_give() -> None:
    """`message_id`, and the library's uuid5, for as many at once as a page has."""
    uuids = [UUID(int=n * 7**40 % 2**128) for n in range(1, 50)]
    expected = [message_id(each, "wallet.deduct", 1) for each in uuids]
    for given in (map(str, uuids), (each.hex for each in uuids)):
        made = derived_ids(f"{{{','.join(given)}}}", "wallet.deduct/1")
        assert [UUID(each) for each in made[1:-1].split(",")] == expected
    assert message_id(ONE, "wallet.cancel", 3) == uuid5(ONE, "wallet.cancel/3")
