"""Every place that a payment can be in has a reason in words, and a command to run next."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from ferryman.cli.trace import print_story
from ferryman.cli.wiring import settings_class
from ferryman.evidence.journal import merged
from ferryman.evidence.journey import Times, Witness
from ferryman.evidence.kafka import SeenRecord
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, RejectedMessage, StrayResult
from ferryman.evidence.sides import MAIN, Side, Sides, address_of
from ferryman.evidence.trace import addressed
from ferryman.evidence.way import Ending, Traced
from ferryman.runtime.desk import Story
from ferryman.runtime.settings import Settings
from ferryman.services.payments.evidence.case import LedgerRow, PaymentRow, messages_of, result_of
from ferryman.services.payments.evidence.payment_story import KnownPayment, tell
from ferryman.services.payments.rules import message_id

GOLDEN = Path(__file__).parent / "golden"
NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)
LATER, LONG_AFTER = NOON + timedelta(minutes=6), NOON + timedelta(days=31)
FOR_EVER = replace(Times.of(Settings()), receipts_seconds=0)
ID = UUID("9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10")
WALLET = UUID("0d3a9c7e-51c4-4f0a-8f7d-2b6c1e9a4d55")
DEDUCT, CANCEL, REFUND = (message_id(ID, f"wallet.{kind}") for kind in ("deduct", "cancel", "refund"))
SECOND = message_id(ID, "wallet.cancel", 2)


def after(milliseconds: float) -> datetime:
    return NOON + timedelta(milliseconds=milliseconds)


def payment(state: str = "DEDUCTING", **changes: Any) -> PaymentRow:
    over = state in ("SUCCEEDED", "FAILED")
    given: dict[str, Any] = {
        "uuid": ID, "wallet_id": WALLET, "amount": 500, "currency": "EUR", "fulfil": False, "state": state,
        "reason": None, "attempt": 1, "created_at": NOON, "now": NOON,
        "due_at": None if over else after(300_000), "changed_at": after(60) if over else NOON,
    }  # fmt: skip
    return PaymentRow(**(given | changes))


def entry(identity: UUID, kind: str, at: float, status: str = "PUBLISHED", **more: Any) -> OutboxEntry:
    topic = {"wallet.deduct": COMMANDS, "wallet.cancel": COMMANDS, "wallet.refund": COMMANDS}.get(
        kind, "wallet.results"
    )
    return OutboxEntry(identity, 4711, status, kind, topic, created_at=after(at), **more)


def receipt(identity: UUID, kind: str, at: float, **changes: Any) -> InboxReceipt:
    given: dict[str, Any] = {
        "id": identity, "type": kind, "topic": "payments.commands", "partition": 2, "offset": 7, "status": "HANDLED",
        "outcome": "DONE", "reason": None, "error": None, "at": after(at),
    }  # fmt: skip
    return InboxReceipt(**(given | changes))


def took(at: float = 20, **changes: Any) -> LedgerRow:
    given: dict[str, Any] = {
        "request_id": ID, "kind": "DEDUCT", "step": "deduct", "wallet_id": WALLET, "amount": -500, "currency": "EUR",
        "balance": 400, "reason": None, "decided_at": after(at),
    }  # fmt: skip
    return LedgerRow(**(given | changes))


COMMANDS = "payments.commands"
ASKED = Witness([entry(DEDUCT, "wallet.deduct", 1)], processes=1)
IDLE = Witness(processes=1)
RESULT = result_of(DEDUCT)
EVERYBODY = frozenset({"payments", "wallet"})
REPORTS = json.dumps([["wallet.results", str(ID), "wallet.succeeded", "", None, str(RESULT), ""]])
DECIDED = Witness(
    [entry(RESULT, "wallet.succeeded", 21)], [receipt(DEDUCT, "wallet.deduct", 22, reports=REPORTS)], processes=1
)
APPLIED = replace(ASKED, receipts=[receipt(RESULT, "wallet.succeeded", 61)])


def known(
    of: PaymentRow | None = None, orchestrator: Witness | None = ASKED, wallet: Witness | None = IDLE, **more: Any
) -> KnownPayment:
    return KnownPayment(
        ID, after(1000), of or payment(), orchestrator=orchestrator and replace(orchestrator, **OURS),
        wallet=wallet and replace(wallet, **THEIRS), **more,
    )  # fmt: skip


OURS: dict[str, Any] = {"where": "orchestrator", "consumer": "payments", "reads": frozenset(["wallet.results"])}
THEIRS: dict[str, Any] = {"where": "wallet", "consumer": "wallet", "reads": frozenset([COMMANDS])}


def literal(
    wallet: Witness = IDLE, *, status: str = "PUBLISHED", ledger: Sequence[LedgerRow] = (), **more: Any
) -> KnownPayment:
    """Return a payment of the literal mode."""
    row = entry(ID, "wallet.deduct", 1, status, **more)._replace(position=None)
    return known(payment(due_at=None, literal=True), Witness([row], processes=1), wallet, literal=row, ledger=ledger)


def wallets_named(sources: dict[str, Any], origin: str = "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL") -> Sides:
    url, setting, nowhere = "postgresql://w/w", "payments.wallet_database_url", cast(Any, None)
    settings = settings_class().model_validate(
        {"payments": {"wallet_database_url": url}, "relay": {"sources": sources}}
    )
    wallet = Side(nowhere, nowhere, "wallet", address_of(settings, "wallet", setting, origin))
    return Sides({MAIN: Side(nowhere, nowhere, MAIN), "wallet": wallet}, settings)


def following_of(ending: Ending, sides: Sides) -> str | None:
    return addressed(sides, Traced(ID, "payment", None, (), (), ending)).ending.next


NOT_DONE = payment("FAILED", reason="NO_WALLET")


def unpublished(
    status: str, reason: str, command: str, identity: UUID = DEDUCT, kind: str = "wallet.deduct"
) -> Witness:
    return Witness([entry(identity, kind, 1, status, reason=reason, next=command)], processes=1)


def rejected_record(identity: UUID, status: str = "REJECTED", **more: Any) -> RejectedMessage:
    return RejectedMessage(
        identity, "BUG", "it broke", status, "wallet.deduct", COMMANDS, 2, 7, after(30), **more
    )  # fmt: skip


def having(side: Witness, verdict: Story, identity: UUID, status: str = "REJECTED", **more: Any) -> Witness:
    """Return a consumer that has this message and could not handle it."""
    given = receipt(identity, "wallet.deduct", 30, status=status, outcome=None, **more)
    rejection = rejected_record(identity)
    rejections = [rejection] if status == "REJECTED" else []
    return replace(side, receipts=[*side.receipts, given], rejections=rejections, stories={identity: verdict})


def vanished(identity: UUID, **more: Any) -> Witness:
    """Return a receipt of one try at most, as `ferryman inbox show` has it."""
    dead = Story("RECEIVED, at most once: it failed, had no effect and never will", None)
    perhaps = "RECEIVED, at most once: it is being handled at this moment, or its process died"
    verdict = dead if more else Story(perhaps, f"ferryman inbox show {identity}")
    return having(IDLE, verdict, identity, "RECEIVED", **more)


def reopened(consumers: int, identity: UUID = DEDUCT, side: Witness = IDLE) -> Witness:
    """Requeued by hand, with so many processes of its consumer."""
    absent = Story("REOPENED: requeued; no process of its consumer is connected", "ferryman run module:object")
    waits = Story("REOPENED: requeued; the relay publishes it", "ferryman outbox stats")
    return replace(having(side, waits if consumers else absent, identity, "REOPENED"), processes=consumers)


REQUEUE = Story("REJECTED (BUG): it broke", "ferryman inbox requeue --id payments.commands/2/7 --consumer wallet")
REQUEST, RECALL = message_id(ID, "fulfilment.request"), message_id(ID, "fulfilment.cancel")


MENDED = f"ferryman reconcile payments --id {ID}"
ENDINGS: list[tuple[KnownPayment, str, str | None]] = [
    (known(payment("SUCCEEDED"), APPLIED, DECIDED, ledger=[took()]), "SUCCEEDED", None),
    (known(payment("FAILED", reason="INSUFFICIENT_FUNDS")), "FAILED", None),
    (known(payment("FAILED", reason="TIMED_OUT"), ledger=[took(), took(50, kind="CANCEL", amount=500)]),
     "FAILED", None),
    (known(NOT_DONE, APPLIED, DECIDED, ledger=[took()]), "FAILED", MENDED),
    (known(NOT_DONE, Witness([entry(CANCEL, "wallet.cancel", 9)]), Witness(), ledger=[took()]),
     "FAILED", "ferryman run wallet"),
    (known(NOT_DONE, Witness([entry(SECOND, "wallet.cancel", 99)]),
           having(IDLE, REQUEUE, CANCEL), ledger=[took()]), "FAILED", "ferryman inbox stats"),
    (known(NOT_DONE, ASKED, having(IDLE, REQUEUE, CANCEL), ledger=[took()]), "FAILED", REQUEUE.next),
    (known(NOT_DONE, APPLIED, DECIDED, ledger=[took()], settled=True), "FAILED", None),
    (known(orchestrator=unpublished("PENDING", "PENDING: no relay is connected", "ferryman run relay")),
     "PENDING (DEDUCTING)", "ferryman run relay"),
    (known(orchestrator=unpublished("PARKED", "PARKED: entry 3 is tried again", "ferryman outbox show 3")),
     "PENDING (DEDUCTING)", "ferryman outbox show 3"),
    (known(orchestrator=unpublished("FAILED", "FAILED after 5 attempts", "ferryman outbox replay --id 4711")),
     "PENDING (DEDUCTING)", "ferryman outbox replay --id 4711"),
    (known(), "PENDING (DEDUCTING)", "ferryman inbox stats"),
    (known(wallet=Witness()), "PENDING (DEDUCTING)", "ferryman run wallet"),
    (known(wallet=Witness(paused="ann since noon (repairs)")), "PENDING (DEDUCTING)",
     "ferryman resume wallet --consumer"),
    (known(kafka={DEDUCT: []}), "PENDING (DEDUCTING)", f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (known(kafka={DEDUCT: [SeenRecord(2, 7, NOON, past=EVERYBODY)]}), "PENDING (DEDUCTING)",
     f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (known(kafka={DEDUCT: [SeenRecord(2, 7, NOON)]}), "PENDING (DEDUCTING)", "ferryman inbox stats"),
    (known(orchestrator=IDLE), "PENDING (DEDUCTING)", MENDED),
    (known(wallet=having(IDLE, REQUEUE, DEDUCT)), "PENDING (DEDUCTING)", REQUEUE.next),
    (known(wallet=replace(DECIDED, entries=unpublished("PENDING", "PENDING: it is paused", "ferryman resume outbox",
                                                       RESULT, "wallet.succeeded").entries)),
     "PENDING (DEDUCTING)", "ferryman resume outbox"),
    (known(orchestrator=replace(ASKED, processes=0), wallet=DECIDED), "PENDING (DEDUCTING)", "ferryman run payments"),
    (known(orchestrator=having(ASKED, Story("REJECTED (BUG): no", "ferryman inbox requeue --id r/0/1"),
                               RESULT),
           wallet=DECIDED), "PENDING (DEDUCTING)", "ferryman inbox requeue --id r/0/1"),
    (known(orchestrator=replace(ASKED, receipts=[receipt(RESULT, "wallet.succeeded", 61, outcome="REFUSED",
                                                         reason="FORGED")]), wallet=DECIDED),
     "PENDING (DEDUCTING)", MENDED),
    (known(payment("CANCELLING", reason="TIMED_OUT"), Witness([entry(CANCEL, "wallet.cancel", 9)], processes=1),
           Witness()), "PENDING (CANCELLING)", "ferryman run wallet"),
    (known(payment("CANCELLING"), Witness([entry(CANCEL, "wallet.cancel", 9)]), IDLE),
     "PENDING (CANCELLING)", "ferryman inbox stats"),
    (known(payment("REFUNDING"), Witness([entry(REFUND, "wallet.refund", 9)]), Witness()),
     "PENDING (REFUNDING)", "ferryman run wallet"),
    (known(payment("FULFILLING"), Witness([entry(REQUEST, "fulfilment.request", 9)])), "PENDING (FULFILLING)", None),
    (known(payment("RECALLING"), unpublished("PENDING", "PENDING", "ferryman run relay", RECALL,
                                             "fulfilment.cancel")), "PENDING (RECALLING)", "ferryman run relay"),
    (known(payment("STUCK"), ledger=[took(kind="CANCEL", reason="NO_WALLET", amount=0)]), "STUCK", MENDED),
    (known(payment("STUCK"), ledger=[took(), took(50, kind="CANCEL", amount=500)]), "STUCK", MENDED),
    (known(orchestrator=Witness(processes=1, whole=False)), "PENDING (DEDUCTING)", MENDED),
    (known(wallet=reopened(0)), "PENDING (DEDUCTING)", "ferryman run wallet"),
    (known(orchestrator=reopened(0, RESULT, ASKED), wallet=DECIDED), "PENDING (DEDUCTING)", "ferryman run payments"),
    (literal(reopened(0, ID)), "PENDING (DEDUCTING)", "ferryman run wallet-literal"),
    (known(wallet=reopened(1)), "PENDING (DEDUCTING)", "ferryman outbox stats"),
    (known(wallet=DECIDED, kafka={RESULT: [SeenRecord(0, 1, NOON, past=EVERYBODY)]}),
     "PENDING (DEDUCTING)", f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (known(wallet=replace(DECIDED, entries=[]), kafka={RESULT: [SeenRecord(0, 1, NOON, past=EVERYBODY)]}),
     "PENDING (DEDUCTING)", MENDED),
    (known(NOT_DONE, Witness([entry(CANCEL, "wallet.cancel", 9)]), vanished(CANCEL, error="it broke"), ledger=[took()]),
     "FAILED", MENDED),
    # The literal mode: its command has the payment's own id, and nothing happens by itself.
    (literal(vanished(ID, error="it broke")), "PENDING (DEDUCTING)", MENDED),
    (literal(vanished(ID)), "PENDING (DEDUCTING)", f"ferryman inbox show {ID}"),
    (replace(literal(vanished(ID)), now=LATER), "PENDING (DEDUCTING)", MENDED),
    (replace(literal(vanished(ID)), times=replace(Times.of(Settings()), answer_seconds=0.5)),
     "PENDING (DEDUCTING)", MENDED),
    # Long ago: receipts are kept for 30 days, and what the ledger has for ever.
    (replace(known(kafka={DEDUCT: [SeenRecord(2, 7, NOON, past=EVERYBODY)]}), now=LONG_AFTER),
     "PENDING (DEDUCTING)", MENDED),
    (replace(known(orchestrator=IDLE), now=LONG_AFTER), "PENDING (DEDUCTING)", MENDED),
    (replace(known(orchestrator=IDLE, ledger=[took()]), now=LONG_AFTER), "PENDING (DEDUCTING)", MENDED),
    (replace(literal(ledger=[took()]), now=LONG_AFTER), "PENDING (DEDUCTING)", MENDED),
    (replace(known(kafka={DEDUCT: [SeenRecord(2, 7, NOON, past=EVERYBODY)]}), now=LONG_AFTER, times=FOR_EVER),
     "PENDING (DEDUCTING)", f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (literal(status="RETRYING", reason="RETRYING: 2 of 5 attempts are made, and the relay tries it"),
     "PENDING (DEDUCTING)", None),
    (literal(status="PENDING for good", reason="PENDING for good after 5 attempts: nothing tries again",
             next=MENDED), "PENDING (DEDUCTING)", MENDED),
    (literal(Witness()), "PENDING (DEDUCTING)", "ferryman run wallet-literal"),
    (literal(Witness(receipts=[receipt(ID, "wallet.deduct", 22)]), ledger=[took()]), "PENDING (DEDUCTING)", MENDED),
    (known(payment(due_at=after(-60_000)), replace(ASKED, processes=0), DECIDED),
     "PENDING (DEDUCTING)", "ferryman run payments"),
    (known(wallet=None), "PENDING (DEDUCTING)", None),
    (replace(known(wallet=DECIDED, ledger=[took()]), payment=None, orchestrator=None),
     "DECIDED BY THE WALLET", None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "now", "following"), ENDINGS)
def test_each_place_has_its_state_and_the_command_to_run_next(
    what: KnownPayment, now: str, following: str | None
) -> None:
    ending = tell(what).ending
    assert (ending.now, ending.next) == (now, following)


def test_reasons_are_told_as_in_the_golden_file() -> None:
    """In the order of `ENDINGS`: the sentences may be reworded here, and nowhere else."""
    endings = [tell(what).ending for what, _, _ in ENDINGS]
    told = "".join(f"{each.now}\n  {each.why}\n  {each.next or 'nothing to run'}\n" for each in endings)
    times = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d")
    assert times.sub("TIME", told) == (GOLDEN / "endings.txt").read_text()


@pytest.mark.parametrize("named", [{}, {"books": {"database_url": "postgresql://w/w"}}])
@pytest.mark.parametrize("what", [each[0] for each in ENDINGS])
def test_reconcile_is_never_addressed_to_the_wallets_database(what: KnownPayment, named: dict[str, Any]) -> None:
    """There is no payments.requests there: `reconcile` is run from where the payment is, and of this one alone."""
    ending = tell(what).ending
    following = following_of(ending, wallets_named(named)) or ""
    assert "module:object" not in following
    if "reconcile" in following:
        assert following == MENDED
    if ending.at != "wallet":
        assert following == (ending.next or "")


@pytest.mark.parametrize("what", [literal(vanished(ID, error="it broke")), replace(literal(vanished(ID)), now=LATER)])
def test_literal_wallets_failure_is_printed_with_the_command_that_mends_it(
    what: KnownPayment, capsys: pytest.CaptureFixture[str]
) -> None:
    """Section 6: the wallet's consumer failed, or was killed."""
    print_story(addressed(wallets_named({}), tell(what)))
    [*_, now, _, following] = capsys.readouterr().out.splitlines()
    assert now == "Now   PENDING (DEDUCTING)"
    assert following == f"Next  {MENDED}"


def test_story_of_a_payment_is_printed_as_in_the_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    copies = {DEDUCT: [SeenRecord(2, 7, after(12))], RESULT: [SeenRecord(0, 3, after(40))]}
    done = known(payment("SUCCEEDED"), APPLIED, DECIDED, ledger=[took()], kafka=copies)
    print_story(replace(tell(done), headline=[f"payment {ID}", f"500 EUR from wallet {WALLET}"]))
    assert capsys.readouterr().out == (GOLDEN / "payment.txt").read_text()


def lines(story: Traced) -> list[str]:
    return [f"{each.where} {each.what}" for each in story.events]


def test_cause_stands_before_its_effect_whatever_the_clocks_say() -> None:
    behind = replace(DECIDED, receipts=[receipt(DEDUCT, "wallet.deduct", -5000, reports=REPORTS)],
                     entries=[entry(RESULT, "wallet.succeeded", -5001)])  # fmt: skip
    story = tell(known(payment("SUCCEEDED"), APPLIED, behind, ledger=[took(-5002)]))
    assert lines(story) == [
        "orchestrator requested", "orchestrator appended", "kafka published", "wallet received", "wallet handled",
        "wallet reported", "kafka published", "orchestrator received", "orchestrator applied", "orchestrator SUCCEEDED",
    ]  # fmt: skip


def test_dead_letter_of_a_handled_message_is_ignored() -> None:
    """Another message with its id came: a conflict, which changes nothing about the first."""
    conflict = having(DECIDED, REQUEUE, DEDUCT)
    conflict = replace(conflict, receipts=DECIDED.receipts)
    assert tell(known(orchestrator=replace(ASKED, processes=0), wallet=conflict)).ending.next == "ferryman run payments"


ENDED = known(payment("SUCCEEDED"), IDLE, IDLE, ledger=[took()])


def test_ledger_is_told_when_its_receipt_is_forgotten() -> None:
    """The money is the part that matters most, and the one that is kept for ever."""
    gone = replace(ENDED, now=LONG_AFTER)
    story = tell(gone)
    assert lines(story) == ["orchestrator requested", "wallet handled", "orchestrator SUCCEEDED"]
    handled = story.events[1]
    assert (handled.at, handled.detail) == (
        after(20), {"type": "wallet.deduct", "outcome": "DONE", "moved": -500, "currency": "EUR", "balance": 400}
    )  # fmt: skip
    refused = took(amount=0, balance=None, reason="NO_WALLET")
    [told] = [each.detail for each in tell(replace(gone, ledger=[refused])).events if each.what == "handled"]
    assert told == {"type": "wallet.deduct", "outcome": "REFUSED", "reason": "NO_WALLET"}


def test_movement_is_told_once_however_often_it_was_asked_for() -> None:
    asked = [receipt(each, "wallet.cancel", at) for each, at in ((CANCEL, 52), (SECOND, 900))]
    story = tell(known(NOT_DONE, wallet=Witness(receipts=asked), ledger=[took(), took(50, kind="CANCEL", amount=500)]))
    handled = [(each.at, each.detail.get("moved")) for each in story.events if each.what == "handled"]
    assert handled == [(after(20), -500), (after(50), 500), (after(900), None)]


RECEIPTS, OUTBOX = "receipts are kept for 30 d", "an outbox keeps what it published for 1 d"


@pytest.mark.parametrize(
    ("what", "now", "said"),
    [
        (ENDED, after(1000), None),
        (ENDED, NOON + timedelta(days=2), OUTBOX),
        (ENDED, LONG_AFTER, f"{RECEIPTS}, and {OUTBOX}"),
        (replace(ENDED, times=FOR_EVER), LONG_AFTER, OUTBOX),
        (replace(ENDED, orchestrator=ASKED, wallet=Witness(DECIDED.entries)), LONG_AFTER, RECEIPTS),
        (known(payment("SUCCEEDED"), APPLIED, DECIDED, ledger=[took()]), LONG_AFTER, None),
        (replace(ENDED, orchestrator=None, payment=None), LONG_AFTER, f"{RECEIPTS}, and {OUTBOX}"),
        (replace(ENDED, wallet=None, ledger=()), LONG_AFTER, f"{RECEIPTS}, and {OUTBOX}"),
    ],
)  # fmt: skip
def test_expired_evidence_is_said_to_be_gone(what: KnownPayment, now: datetime, said: str | None) -> None:
    """Evidence that is old and still there is told without a remark."""
    why = tell(replace(what, now=now)).ending.why
    assert why.startswith(tell(what).ending.why)
    assert why[len(tell(what).ending.why) :] == (f". What is told is what is left: {said}" if said else "")


def test_duplicates_are_folded_and_counted() -> None:
    thrice = replace(DECIDED, entries=[entry(RESULT, "wallet.succeeded", at) for at in (21, 30, 31, 32)])
    copies: dict[UUID, Sequence[SeenRecord]] = {
        DEDUCT: [SeenRecord(2, offset, after(5 + offset)) for offset in (7, 8, 9)]
    }
    story = tell(known(wallet=thrice, kafka=copies))
    folded = {each.what: each.times for each in story.events if each.times > 1}
    assert folded == {"received again": 3, "published again": 2}
    published = next(each for each in story.events if each.what == "published")
    assert (published.at, published.detail["offset"]) == (after(12), 7)


def test_acts_on_a_dead_letter_are_told() -> None:
    requeued = rejected_record(DEDUCT, "REQUEUED", changed_at=after(50), who="ann", why="mended")
    story = tell(known(wallet=replace(DECIDED, rejections=[requeued])))
    assert lines(story)[3:5] == ["wallet rejected, to the dead letters", "wallet requeued"]
    by_hand = next(each for each in story.events if each.what == "requeued")
    assert (by_hand.at, by_hand.detail) == (after(50), {"by": "ann", "reason": "mended"})


def test_strays_of_unknown_messages_are_told() -> None:
    stray = StrayResult(UUID(int=7), "UNKNOWN", "fulfilment.accepted", after(9))
    assert "orchestrator applied to nothing: UNKNOWN" in lines(tell(known(strays=[stray])))


def test_ids_of_messages_follow_from_the_payment_and_are_unique() -> None:
    messages = messages_of(ID, attempt=40)
    assert messages[DEDUCT] == ("wallet.deduct", 1)
    assert messages[message_id(ID, "wallet.cancel", 40)] == ("wallet.cancel", 40)
    assert messages[ID] == ("wallet.deduct", 1), "of the literal mode"
    assert len(messages) == 5 * 40 + 3 + 1
    assert ID not in messages_of(ID, types=["wallet.cancel"])
    assert DEDUCT in messages
    assert not messages.keys() & messages_of(UUID(int=1)).keys()


def test_moments_that_are_close_are_looked_at_together() -> None:
    assert merged([(after(5), after(9)), (after(0), after(2)), (after(1), after(3)), (after(6), after(7))]) == [
        (after(0), after(3)),
        (after(5), after(9)),
    ]


@pytest.mark.parametrize(
    ("sources", "origin", "following", "expected"),
    [
        ({}, "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL", "ferryman run wallet",
         'FERRYMAN_DATABASE_URL="$FERRYMAN_PAYMENTS__WALLET_DATABASE_URL" ferryman run wallet'),
        ({}, "ferryman.toml", "ferryman run relay", "FERRYMAN_DATABASE_URL=<the wallet's URL> ferryman run relay"),
        ({"books": {"database_url": "postgresql://w/w"}}, "ferryman.toml",
         "then ferryman inbox requeue --id 1   or   ferryman inbox discard --id 1",
         "then ferryman inbox requeue --id 1 --source books   or   ferryman inbox discard --id 1 --source books"),
        ({"books": {"database_url": "postgresql://w/w"}}, "ferryman.toml", "ferryman run relay", "ferryman run relay"),
        ({"books": {"database_url": "postgresql://w/w"}}, "ferryman.toml", "ferryman run wallet",
         "FERRYMAN_DATABASE_URL=<the wallet's URL> ferryman run wallet"),
    ],
)  # fmt: skip
def test_commands_for_the_wallets_database_say_so(
    sources: dict[str, Any], origin: str, following: str, expected: str
) -> None:
    sides = wallets_named(sources, origin)
    assert following_of(Ending("", "", following, "wallet"), sides) == expected
    assert following_of(Ending("", "", following, "orchestrator"), sides) == following
