"""Why a payment is still pending, decided from values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest

from ferryman.evidence.addressing import Address
from ferryman.evidence.audit import columns
from ferryman.evidence.messages import ASKED
from ferryman.evidence.reconcile.model import (
    ORCHESTRATOR,
    Case,
    Cause,
    Entry,
    Evidence,
    Lag,
    Operation,
    Pending,
    Reader,
    Receipt,
    Rejected,
    Repair,
    Standing,
)
from ferryman.evidence.reconcile.policy import judge
from ferryman.services.payments.machine import MACHINE
from ferryman.services.payments.rules import message_id

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
ONE, TWO = UUID(int=1), UUID(int=2)
HOUSE = Standing(300.0, 30 * 86400.0)


def pending(state: str = "DEDUCTING", *, asked: float = 3600, exhausted: bool = False) -> Pending:
    at = NOW - timedelta(seconds=asked)
    return Pending(ONE, TWO, state, 1, None if exhausted else at, at, NOW, asked, "")


def decided(kind: str = "DEDUCT", reason: str | None = None, *, ago: float = 3600) -> Operation:
    return Operation(ONE, kind, reason, NOW - timedelta(seconds=ago))


def entry(status: str, *, replay: int | None = None, ago: float = 3600) -> Entry:
    return Entry(TWO, 17, status, 5, "no", replay, NOW - timedelta(seconds=ago))


def receipt(status: str, reason: str | None = None) -> Receipt:
    return Receipt(TWO, status, None, reason, None, NOW)


def told(known: Evidence, house: Standing = HOUSE) -> tuple[Cause, Repair]:
    case: Case = judge(known, house)
    assert case.evidence
    assert case.next
    return case.cause, case.repair


def test_every_state_in_which_something_is_asked_for_has_its_command() -> None:
    assert set(ASKED) == set(MACHINE.states) - set(MACHINE.terminals) - {"STUCK"}


def test_the_ledger_speaks_before_the_outbox_and_the_inbox() -> None:
    known = Evidence(pending(), decided(), command=entry("FAILED"), receipts=(receipt("REJECTED"),))
    assert told(known) == (Cause.RESULT_LOST, Repair.REREPORT)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Evidence(pending("STUCK")), (Cause.NEEDS_PERSON, Repair.NONE)),
        (Evidence(pending(), command=entry("PENDING")), (Cause.NEVER_PUBLISHED, Repair.NONE)),
        (Evidence(pending(), command=entry("FAILED")), (Cause.NEVER_PUBLISHED, Repair.REPLAY)),
        (Evidence(pending(), command=entry("FAILED", replay=1, ago=9)), (Cause.NEVER_PUBLISHED, Repair.NONE)),
        (Evidence(pending(), command=entry("FAILED", replay=1)), (Cause.NEVER_PUBLISHED, Repair.REPLAY)),
        (Evidence(pending(), command=entry("DISCARDED")), (Cause.NEVER_PUBLISHED, Repair.REPUBLISH)),
        (Evidence(pending(), receipts=(receipt("RECEIVED"),)), (Cause.CONSUMER_FAILED, Repair.REPUBLISH)),
        (
            Evidence(pending(), receipts=(receipt("RECEIVED"),), asked_since=True),
            (Cause.NOT_CONSUMED, Repair.REPUBLISH),
        ),
        (Evidence(pending(), receipts=(receipt("REOPENED"),)), (Cause.NOT_CONSUMED, Repair.REPUBLISH)),
        (
            Evidence(pending(), receipts=(receipt("REJECTED"),), rejected=(Rejected(TWO, "BUG", "no", "REJECTED"),)),
            (Cause.CONSUMER_FAILED, Repair.REPUBLISH),
        ),
        (Evidence(pending()), (Cause.NOT_CONSUMED, Repair.REPUBLISH)),
        (Evidence(pending(asked=31 * 86400)), (Cause.EVIDENCE_EXPIRED, Repair.REPUBLISH)),
        (Evidence(pending(exhausted=True)), (Cause.NEEDS_PERSON, Repair.REPUBLISH)),
        (Evidence(pending("FULFILLING")), (Cause.WAITS_DOWNSTREAM, Repair.REPUBLISH)),
        (Evidence(pending(), decided(), result=entry("FAILED")), (Cause.RESULT_LOST, Repair.REPLAY)),
        (Evidence(pending(), decided(), result=entry("PARKED")), (Cause.RESULT_LOST, Repair.NONE)),
        (Evidence(pending(), decided(), result=entry("DISCARDED")), (Cause.RESULT_LOST, Repair.REREPORT)),
        (Evidence(pending(), decided(), applied=(receipt("HANDLED", "LATE"),)), (Cause.RESULT_LOST, Repair.REREPORT)),
        (Evidence(pending(), decided(), strays=("FORGED",)), (Cause.NEEDS_PERSON, Repair.NONE)),
    ],
)
def test_the_first_that_is_true_is_the_cause(known: Evidence, expected: tuple[Cause, Repair]) -> None:
    assert told(known) == expected


@pytest.mark.parametrize(
    "known",
    [
        Evidence(pending(asked=299)),
        Evidence(pending(), decided(ago=299)),
        Evidence(pending("RECALLING", asked=0)),
        Evidence(pending(asked=1), receipts=(receipt("RECEIVED"),)),
    ],
)
def test_nothing_is_asked_again_before_its_answer_had_its_time(known: Evidence) -> None:
    assert told(known)[1] is Repair.NONE


def test_what_holds_the_outbox_up_is_what_a_person_runs() -> None:
    known = Evidence(pending(), command=entry("PARKED"))
    assert judge(known, HOUSE).next == "ferryman run relay"
    paused = Standing(300.0, 0, {ORCHESTRATOR: 1}, {ORCHESTRATOR: ("payments.commands",)})
    assert judge(known, paused).next == "ferryman resume payments.commands"
    assert judge(known, Standing(300.0, 0, {ORCHESTRATOR: 1})).next == "ferryman outbox show 17"


def test_what_kafka_says_of_the_reader_stands_in_the_evidence() -> None:
    house = Standing(300.0, 0, readers={"wallet": Reader(lag=Lag("Kafka: the group wallet is 7 messages behind", 0))})
    assert "7 messages behind" in judge(Evidence(pending()), house).evidence


LOST, UNHEARD = Evidence(pending()), Evidence(pending(), decided())
FAR, NEAR = Lag("Kafka: it is 9 messages behind", 2), Lag("Kafka: it is 9 messages behind", 0)
THERE = "FERRYMAN_DATABASE_URL=<the wallet's URL> "
GONE = Lag("Kafka: 2 messages were deleted before it read them", 0, "kafka-consumer-groups --group wallet")
BOOKS = Address('"$URL"', "books")


@pytest.mark.parametrize(
    ("known", "name", "reader", "expected", "following"),
    [
        (LOST, "wallet", Reader(0), (Repair.NONE, True), f"{THERE}ferryman run wallet"),
        (replace(LOST, literal=True), "wallet", Reader(0), (Repair.NONE, True), f"{THERE}ferryman run wallet-literal"),
        (LOST, "wallet", Reader(0, lag=NEAR), (Repair.REPUBLISH, False), "ferryman reconcile payments --id"),
        (LOST, "wallet", Reader(0, lag=FAR), (Repair.NONE, True), f"{THERE}ferryman run wallet"),
        (LOST, "wallet", Reader(1, lag=FAR), (Repair.NONE, False), f"{THERE}ferryman inbox stats"),
        (LOST, "wallet", Reader(1, "ann"), (Repair.NONE, True), f"{THERE}ferryman resume wallet --consumer"),
        (LOST, "wallet", Reader(1, lag=GONE), (Repair.NONE, True), "kafka-consumer-groups --group wallet"),
        (LOST, "wallet", Reader(0, lag=GONE), (Repair.NONE, True), "kafka-consumer-groups --group wallet"),
        (UNHEARD, "payments", Reader(1, lag=GONE), (Repair.NONE, True), "kafka-consumer-groups --group wallet"),
        (LOST, "payments", Reader(0), (Repair.REPUBLISH, False), "ferryman reconcile payments --id"),
        (UNHEARD, "payments", Reader(0), (Repair.NONE, True), "ferryman run payments"),
        (UNHEARD, "payments", Reader(1, lag=FAR), (Repair.NONE, False), "ferryman inbox stats"),
        (UNHEARD, "payments", Reader(1, "ann"), (Repair.NONE, True), "ferryman resume payments --consumer"),
        (UNHEARD, "wallet", Reader(0), (Repair.NONE, True), f"{THERE}ferryman run wallet"),
        (
            replace(UNHEARD, literal=True),
            "payments",
            Reader(0),
            (Repair.REREPORT, False),
            "ferryman reconcile payments",
        ),
    ],
)
def test_who_is_away_paused_or_far_behind_is_sent_no_more_of_the_same(
    known: Evidence, name: str, reader: Reader, expected: tuple[Repair, bool], following: str
) -> None:
    """N8: what stands in Kafka is not lost, and burns no attempt."""
    case = judge(known, replace(HOUSE, readers={name: reader}))
    assert (case.repair, case.person) == expected
    assert case.next.startswith(following)


@pytest.mark.parametrize(
    ("known", "reader", "expected"),
    [
        (LOST, Reader(0), 'FERRYMAN_DATABASE_URL="$URL" ferryman run wallet'),
        (LOST, Reader(1, "ann"), "ferryman resume wallet --consumer --source books"),
        (LOST, Reader(1, lag=FAR), "ferryman inbox stats --source books"),
        (replace(UNHEARD, result=entry("PENDING")), Reader(), "ferryman run relay"),
        (
            replace(UNHEARD, result=entry("FAILED")),
            Reader(),
            "ferryman outbox replay --id 17 --yes --reason 'its cause is mended' --source books",
        ),
        (
            replace(UNHEARD, result=entry("FAILED", replay=1, ago=9)),
            Reader(),
            "ferryman outbox show 17 --source books",
        ),
        (replace(LOST, command=entry("PENDING")), Reader(), "ferryman run relay"),
    ],
)
def test_what_is_run_in_the_wallets_database_finds_it(known: Evidence, reader: Reader, expected: str) -> None:
    assert judge(known, replace(HOUSE, readers={"wallet": reader}, wallets=BOOKS)).next == expected


LITERAL = replace(LOST, literal=True)
UNDONE = replace(LITERAL, request=pending("CANCELLING"))


def test_of_a_payment_of_the_literal_mode_nobody_is_told_that_it_was_due() -> None:
    """No timeout looks at it, and `ferryman run payments` does not start there: also where it was given a time."""
    assert "was due" in judge(LOST, HOUSE).evidence
    assert "due" not in judge(LITERAL, HOUSE).evidence
    assert told(replace(LITERAL, request=pending(exhausted=True))) == (Cause.NOT_CONSUMED, Repair.REPUBLISH)


def test_what_a_timeout_has_undone_of_the_literal_mode_waits_for_a_message() -> None:
    """The literal wallet handles its cancellation, and tells nobody."""
    done = replace(UNDONE, outcome=decided("CANCEL"))
    assert told(done) == (Cause.RESULT_LOST, Repair.REREPORT)
    assert "`ferryman run wallet` tells it" in judge(done, HOUSE).evidence
    assert "HTTP" not in judge(done, HOUSE).evidence
    assert "was due" in judge(UNDONE, HOUSE).evidence
    away = replace(HOUSE, readers={"wallet": Reader(0)})
    assert judge(UNDONE, away).next == f"{THERE}ferryman run wallet"
    used_up = replace(UNDONE, request=pending("CANCELLING", exhausted=True))
    assert told(used_up) == (Cause.NEEDS_PERSON, Repair.REPUBLISH)


def test_an_entry_is_shown_where_it_is_one_of_the_journal() -> None:
    house = replace(HOUSE, relays={ORCHESTRATOR: 1})
    row = Entry(ONE, 0, "PENDING", 2, "no", None, NOW)
    assert judge(replace(LITERAL, command=row), house).next == f"ferryman trace {ONE}"
    assert judge(replace(LITERAL, command=entry("PENDING")), house).next == "ferryman outbox show 17"


def test_a_person_is_needed_only_once_an_answer_should_have_come() -> None:
    used_up = Evidence(pending(exhausted=True))
    assert judge(used_up, HOUSE).person
    assert not judge(Evidence(pending(exhausted=True, asked=9)), HOUSE).person
    assert judge(Evidence(pending(), command=entry("PENDING")), HOUSE).person, "no relay is connected"
    assert not judge(Evidence(pending(asked=9), command=entry("PENDING")), HOUSE).person


TAKEN = Operation(ONE, "DEDUCT", None, NOW, -500)
BACK, NOTHING = Operation(ONE, "CANCEL", None, NOW, 500), Operation(ONE, "DEDUCT", "NO_WALLET", NOW)


@pytest.mark.parametrize(
    ("booked", "said", "following"),
    [
        ((TAKEN,), "give it back by hand", "--settle"),
        ((TAKEN, BACK), "the ledger has given it back, so there is nothing to give back", "--settle"),
        ((NOTHING,), "nothing was taken, so there is nothing to give back", "--settle"),
        ((), "one may yet come", "ferryman trace"),
    ],
)
def test_what_is_stuck_is_given_back_by_hand_only_where_the_ledger_says_that_it_stays_taken(
    booked: tuple[Operation, ...], said: str, following: str
) -> None:
    case = judge(Evidence(pending("STUCK"), booked=booked), HOUSE)
    assert said in case.evidence
    assert following in case.next
    assert ("give it back by hand" in case.evidence) == (booked == (TAKEN,))


FAILURE = Evidence(pending("FAILED", exhausted=True), booked=(TAKEN,))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (FAILURE, (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
        (replace(FAILURE, asked_back=False), (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
        (replace(FAILURE, receipts=(receipt("REJECTED"),)), (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
        (replace(FAILURE, command=entry("DISCARDED")), (Cause.NOT_GIVEN_BACK, Repair.GIVE_BACK)),
        (replace(FAILURE, command=entry("FAILED")), (Cause.NOT_GIVEN_BACK, Repair.REPLAY)),
        (replace(FAILURE, command=entry("PENDING")), (Cause.NOT_GIVEN_BACK, Repair.NONE)),
        (replace(FAILURE, request=pending("FAILED", asked=9)), (Cause.NOT_GIVEN_BACK, Repair.NONE)),
        (replace(FAILURE, outcome=decided("CANCEL", "NO_WALLET")), (Cause.NEEDS_PERSON, Repair.NONE)),
    ],
)
def test_what_failed_and_stays_taken_is_asked_back_as_soon_as_that_was_in_vain(
    known: Evidence, expected: tuple[Cause, Repair]
) -> None:
    assert told(known) == expected


def test_ids_of_a_whole_column_are_those_that_the_rules_give() -> None:
    """`message_id`, and the library's uuid5, for as many at once as a page has."""
    uuids = [UUID(int=n * 7**40 % 2**128) for n in range(1, 50)]
    header = (1).to_bytes(4) + bytes(4) + (2950).to_bytes(4) + len(uuids).to_bytes(4) + (1).to_bytes(4)
    given = columns.Uuids(header + b"".join((16).to_bytes(4) + each.bytes for each in uuids))
    made = columns.derived(given, "wallet.deduct/1")
    assert made[:20] == header
    assert [UUID(bytes=made[at : at + 16]) for at in range(24, len(made), 20)] == [
        message_id(each, "wallet.deduct", 1) for each in uuids
    ]
    assert message_id(ONE, "wallet.cancel", 3) == uuid5(ONE, "wallet.cancel/3")
