"""Each place that a payment can be in has a reason in words, and a command to run next."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ferryman.cli.trace import addressed
from ferryman.cli.trace_story import print_story
from ferryman.evidence.messages import messages_of, result_of, results_of
from ferryman.evidence.trace.journal import merged
from ferryman.evidence.trace.model import (
    Ending,
    Entry,
    Known,
    Operation,
    Payment,
    Receipt,
    Rejection,
    Seen,
    Side,
    Story,
    Stray,
    Times,
    Verdict,
)  # fmt: skip
from ferryman.evidence.trace.story import tell
from ferryman.runtime.settings import Settings
from ferryman.runtime.sources import Loaded
from ferryman.services.payments.rules import message_id

NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)
LATER, LONG_AFTER = NOON + timedelta(minutes=6), NOON + timedelta(days=31)
FOR_EVER = replace(Times.of(Settings()), receipts_seconds=0)
ID = UUID("9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10")
WALLET = UUID("0d3a9c7e-51c4-4f0a-8f7d-2b6c1e9a4d55")
DEDUCT, CANCEL, REFUND = (message_id(ID, f"wallet.{kind}") for kind in ("deduct", "cancel", "refund"))
SECOND = message_id(ID, "wallet.cancel", 2)


def after(milliseconds: float) -> datetime:
    return NOON + timedelta(milliseconds=milliseconds)


def payment(state: str = "DEDUCTING", **changes: Any) -> Payment:
    over = state in ("SUCCEEDED", "FAILED")
    given: dict[str, Any] = {
        "id": ID, "wallet_id": WALLET, "amount": 500, "currency": "EUR", "fulfil": False, "state": state,
        "status": state if over else "PENDING", "reason": None, "attempt": 1, "created_at": NOON,
        "due_at": None if over else after(300_000), "changed_at": after(60) if over else NOON,
    }  # fmt: skip
    return Payment(**(given | changes))


def entry(identity: UUID, kind: str, at: float, status: str = "PUBLISHED", **more: Any) -> Entry:
    return Entry(identity, 4711, kind, "payments.commands", status, after(at), **more)


def receipt(identity: UUID, kind: str, at: float, **changes: Any) -> Receipt:
    given: dict[str, Any] = {
        "id": identity, "type": kind, "topic": "payments.commands", "partition": 2, "offset": 7, "status": "HANDLED",
        "outcome": "DONE", "reason": None, "error": None, "received_at": after(at),
    }  # fmt: skip
    return Receipt(**(given | changes))


def took(at: float = 20, **changes: Any) -> Operation:
    given: dict[str, Any] = {
        "kind": "DEDUCT", "step": "deduct", "wallet_id": WALLET, "amount": -500, "currency": "EUR", "balance": 400,
        "reason": None, "decided_at": after(at),
    }  # fmt: skip
    return Operation(**(given | changes))


ASKED = Side([entry(DEDUCT, "wallet.deduct", 1)], consumers=1)
IDLE = Side(consumers=1)
RESULT = result_of(DEDUCT)
DECIDED = Side(
    [entry(RESULT, "wallet.succeeded", 21)], [receipt(DEDUCT, "wallet.deduct", 22, results=(RESULT,))], consumers=1
)
APPLIED = replace(ASKED, receipts=[receipt(RESULT, "wallet.succeeded", 61)])


def known(
    of: Payment | None = None, orchestrator: Side | None = ASKED, wallet: Side | None = IDLE, **more: Any
) -> Known:
    return Known(ID, after(1000), of or payment(), orchestrator=orchestrator, wallet=wallet, **more)


def literal(wallet: Side = IDLE, *, status: str = "PUBLISHED", ledger: Sequence[Operation] = (), **more: Any) -> Known:
    """A payment of the literal mode."""
    row = replace(entry(ID, "wallet.deduct", 1, status, **more), position=None)
    return known(payment(due_at=None), Side([row], consumers=1), wallet, literal=row, ledger=ledger)


def wallets_named(sources: dict[str, Any], origin: str = "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL") -> Loaded:
    wallets = "postgresql://w/w"
    settings = Settings.model_validate({"payments": {"wallet_database_url": wallets}, "relay": {"sources": sources}})
    return Loaded(settings, {"payments.wallet_database_url": origin})


NOT_DONE = payment("FAILED", reason="NO_WALLET")


def unpublished(status: str, reason: str, command: str, identity: UUID = DEDUCT, kind: str = "wallet.deduct") -> Side:
    return Side([entry(identity, kind, 1, status, reason=reason, next=command)], consumers=1)


def having(side: Side, verdict: Verdict, identity: UUID, status: str = "REJECTED", **more: Any) -> Side:
    """It has this message, and could not handle it."""
    given = receipt(identity, "wallet.deduct", 30, status=status, outcome=None, **more)
    rejection = Rejection(
        identity, "wallet.deduct", "payments.commands", 2, 7, "BUG", "it broke", "REJECTED", after(30)
    )
    rejections = [rejection] if status == "REJECTED" else []
    return replace(side, receipts=[*side.receipts, given], rejections=rejections, verdicts={identity: verdict})


def vanished(identity: UUID, **more: Any) -> Side:
    """It was tried at most once, as `ferryman inbox show` has it."""
    dead = Verdict("RECEIVED, at most once: it failed, had no effect and never will", None)
    perhaps = "RECEIVED, at most once: it is being handled at this moment, or its process died"
    verdict = dead if more else Verdict(perhaps, f"ferryman inbox show {identity}")
    return having(IDLE, verdict, identity, "RECEIVED", **more)


def reopened(consumers: int, identity: UUID = DEDUCT, side: Side = IDLE) -> Side:
    """Requeued by hand, with so many processes of its consumer."""
    absent = Verdict("REOPENED: requeued; no process of its consumer is connected", "ferryman run module:object")
    waits = Verdict("REOPENED: requeued; the relay publishes it", "ferryman outbox stats")
    return replace(having(side, waits if consumers else absent, identity, "REOPENED"), consumers=consumers)


REQUEUE = Verdict("REJECTED (BUG): it broke", "ferryman inbox requeue --id payments.commands/2/7 --consumer wallet")
REQUEST, RECALL = message_id(ID, "fulfilment.request"), message_id(ID, "fulfilment.cancel")


MENDED = f"ferryman reconcile payments --id {ID}"
ENDINGS: list[tuple[Known, str, str, str | None]] = [
    (known(payment("SUCCEEDED"), APPLIED, DECIDED, ledger=[took()]), "SUCCEEDED",
     "the wallet gave 500 EUR, and held 400 then", None),
    (known(payment("FAILED", reason="INSUFFICIENT_FUNDS")), "FAILED", "did not hold enough", None),
    (known(payment("FAILED", reason="TIMED_OUT"), ledger=[took(), took(50, kind="CANCEL", amount=500)]), "FAILED",
     "did not come in time, and what was asked for was undone (TIMED_OUT); nothing is taken", None),
    (known(NOT_DONE, APPLIED, DECIDED, ledger=[took()]), "FAILED",
     "has taken 500 EUR and not given it back", MENDED),
    (known(NOT_DONE, Side([entry(CANCEL, "wallet.cancel", 9)]), Side(), ledger=[took()]), "FAILED",
     "not given it back: the command is published, and no process of wallet", "ferryman run wallet"),
    (known(NOT_DONE, Side([entry(SECOND, "wallet.cancel", 99)]),
           having(IDLE, REQUEUE, CANCEL), ledger=[took()]), "FAILED", "wallet has not come to it yet",
     "ferryman inbox stats"),
    (known(NOT_DONE, ASKED, having(IDLE, REQUEUE, CANCEL), ledger=[took()]), "FAILED",
     "could not handle the command: REJECTED (BUG)", REQUEUE.next),
    (known(NOT_DONE, APPLIED, DECIDED, ledger=[took()], settled=True), "FAILED",
     "a person gave back what was taken for it", None),
    (known(orchestrator=unpublished("PENDING", "PENDING: no relay is connected", "ferryman run relay")),
     "PENDING (DEDUCTING)", "the command is not published (PENDING: no relay is connected). If nothing comes by 20",
     "ferryman run relay"),
    (known(orchestrator=unpublished("PARKED", "PARKED: entry 3 is tried again", "ferryman outbox show 3")),
     "PENDING (DEDUCTING)", "PARKED: entry 3", "ferryman outbox show 3"),
    (known(orchestrator=unpublished("FAILED", "FAILED after 5 attempts", "ferryman outbox replay --id 4711")),
     "PENDING (DEDUCTING)", "not published (FAILED after 5 attempts)", "ferryman outbox replay --id 4711"),
    (known(), "PENDING (DEDUCTING)", "the command is published, and wallet has not come to it yet",
     "ferryman inbox stats"),
    (known(wallet=Side()), "PENDING (DEDUCTING)", "no process of wallet is connected", "ferryman run wallet"),
    (known(wallet=Side(paused="ann since noon (repairs)")), "PENDING (DEDUCTING)", "wallet is paused by ann",
     "ferryman resume wallet --consumer"),
    (known(kafka={DEDUCT: []}), "PENDING (DEDUCTING)", "its topic does not have it any more",
     f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (known(kafka={DEDUCT: [Seen(2, 7, NOON, read=True)]}), "PENDING (DEDUCTING)", "it was skipped",
     f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (known(kafka={DEDUCT: [Seen(2, 7, NOON, read=False)]}), "PENDING (DEDUCTING)", "has not come to it yet",
     "ferryman inbox stats"),
    (known(orchestrator=IDLE), "PENDING (DEDUCTING)", "not among what the outbox retains",
     MENDED),
    (known(wallet=having(IDLE, REQUEUE, DEDUCT)), "PENDING (DEDUCTING)",
     "wallet could not handle the command: REJECTED (BUG): it broke", REQUEUE.next),
    (known(wallet=replace(DECIDED, entries=unpublished("PENDING", "PENDING: it is paused", "ferryman resume outbox",
                                                       RESULT, "wallet.succeeded").entries)),
     "PENDING (DEDUCTING)", "the wallet has answered; its result is not published", "ferryman resume outbox"),
    (known(orchestrator=replace(ASKED, consumers=0), wallet=DECIDED), "PENDING (DEDUCTING)",
     "the wallet has answered; its result is published, and no process of payments", "ferryman run payments"),
    (known(orchestrator=having(ASKED, Verdict("REJECTED (BUG): no", "ferryman inbox requeue --id r/0/1"), RESULT),
           wallet=DECIDED), "PENDING (DEDUCTING)", "payments could not handle its result: REJECTED (BUG): no",
     "ferryman inbox requeue --id r/0/1"),
    (known(orchestrator=replace(ASKED, receipts=[receipt(RESULT, "wallet.succeeded", 61, outcome="REFUSED",
                                                         reason="FORGED")]), wallet=DECIDED),
     "PENDING (DEDUCTING)", "applied to nothing (FORGED)", MENDED),
    (known(payment("CANCELLING", reason="TIMED_OUT"), Side([entry(CANCEL, "wallet.cancel", 9)], consumers=1),
           Side()), "PENDING (CANCELLING)", "give back what it took", "ferryman run wallet"),
    (known(payment("CANCELLING"), Side([entry(CANCEL, "wallet.cancel", 9)]), IDLE), "PENDING (CANCELLING)",
     "it is asked for again", "ferryman inbox stats"),
    (known(payment("REFUNDING"), Side([entry(REFUND, "wallet.refund", 9)]), Side()), "PENDING (REFUNDING)",
     "asked to give the amount back; the command is published", "ferryman run wallet"),
    (known(payment("FULFILLING"), Side([entry(REQUEST, "fulfilment.request", 9)])), "PENDING (FULFILLING)",
     "it is published, and there is no answer yet", None),
    (known(payment("RECALLING"), unpublished("PENDING", "PENDING", "ferryman run relay", RECALL,
                                             "fulfilment.cancel")), "PENDING (RECALLING)",
     "the command is not published", "ferryman run relay"),
    (known(payment("STUCK"), ledger=[took(kind="CANCEL", reason="NO_WALLET", amount=0)]), "STUCK",
     "a person decides (NO_WALLET)", MENDED),
    (known(payment("STUCK"), ledger=[took(), took(50, kind="CANCEL", amount=500)]), "STUCK",
     "the ledger says that nothing stays taken", MENDED),
    (known(orchestrator=Side(consumers=1, whole=False)), "PENDING (DEDUCTING)",
     "was not looked for through all that the outbox retains", MENDED),
    (known(wallet=reopened(0)), "PENDING (DEDUCTING)", "REOPENED: requeued; no process", "ferryman run wallet"),
    (known(orchestrator=reopened(0, RESULT, ASKED), wallet=DECIDED), "PENDING (DEDUCTING)",
     "payments could not handle its result: REOPENED", "ferryman run payments"),
    (literal(reopened(0, ID)), "PENDING (DEDUCTING)", "REOPENED: requeued; no process", "ferryman run wallet-literal"),
    (known(wallet=reopened(1)), "PENDING (DEDUCTING)", "REOPENED: requeued; the relay publishes it",
     "ferryman outbox stats"),
    (known(wallet=DECIDED, kafka={RESULT: [Seen(0, 1, NOON, read=True)]}),
     "PENDING (DEDUCTING)", "it was skipped", f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (known(wallet=replace(DECIDED, entries=[]), kafka={RESULT: [Seen(0, 1, NOON, read=True)]}),
     "PENDING (DEDUCTING)", "the wallet has answered; its result is in its topic", MENDED),
    (known(NOT_DONE, Side([entry(CANCEL, "wallet.cancel", 9)]), vanished(CANCEL, error="it broke"), ledger=[took()]),
     "FAILED", "had no effect and never will", MENDED),
    # The literal mode: its command has the payment's own id, and nothing happens by itself.
    (literal(vanished(ID, error="it broke")), "PENDING (DEDUCTING)",
     "had no effect and never will. No timeout looks at it", MENDED),
    (literal(vanished(ID)), "PENDING (DEDUCTING)", "being handled at this moment, or its process died",
     f"ferryman inbox show {ID}"),
    (replace(literal(vanished(ID)), now=LATER), "PENDING (DEDUCTING)", "or its process died", MENDED),
    (replace(literal(vanished(ID)), times=replace(Times.of(Settings()), answer_seconds=0.5)), "PENDING (DEDUCTING)",
     "or its process died", MENDED),
    # Long ago: receipts are kept for 30 days, and what the ledger has for ever.
    (replace(known(kafka={DEDUCT: [Seen(2, 7, NOON, read=True)]}), now=LONG_AFTER), "PENDING (DEDUCTING)",
     "is past it, and receipts are kept for 30 d: whether wallet received it cannot be told", MENDED),
    (replace(known(orchestrator=IDLE), now=LONG_AFTER), "PENDING (DEDUCTING)",
     "retains, and receipts are kept for 30 d: whether wallet received it cannot be told", MENDED),
    (replace(known(orchestrator=IDLE, ledger=[took()]), now=LONG_AFTER), "PENDING (DEDUCTING)",
     "the wallet has answered; its result is not among what the outbox retains, and receipts are kept", MENDED),
    (replace(literal(ledger=[took()]), now=LONG_AFTER), "PENDING (DEDUCTING)",
     "told so by HTTP, once: it was not heard", MENDED),
    (replace(known(kafka={DEDUCT: [Seen(2, 7, NOON, read=True)]}), now=LONG_AFTER, times=FOR_EVER),
     "PENDING (DEDUCTING)", "it was skipped", f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"),
    (literal(status="RETRYING", reason="RETRYING: 2 of 5 attempts are made, and the relay tries it"),
     "PENDING (DEDUCTING)", "the command is not published (RETRYING: 2 of 5 attempts", None),
    (literal(status="PENDING for good", reason="PENDING for good after 5 attempts: nothing tries again",
             next=MENDED), "PENDING (DEDUCTING)",
     "PENDING for good after 5 attempts", MENDED),
    (literal(Side()), "PENDING (DEDUCTING)", "no process of wallet is connected", "ferryman run wallet-literal"),
    (literal(Side(receipts=[receipt(ID, "wallet.deduct", 22)]), ledger=[took()]), "PENDING (DEDUCTING)",
     "told so by HTTP, once: it was not heard", MENDED),
    (known(payment(due_at=after(-60_000)), replace(ASKED, consumers=0), DECIDED), "PENDING (DEDUCTING)",
     "It was to be looked at 1 min 1 s ago, and no process of payments is connected", "ferryman run payments"),
    (known(wallet=None), "PENDING (DEDUCTING)", "what the wallet made of it is not known", None),
    (Known(ID, NOON, None, ledger=[took()], wallet=DECIDED), "DECIDED BY THE WALLET", "DEDUCT of 500 EUR", None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "now", "why", "following"), ENDINGS)
def test_each_place_has_a_reason_and_the_command_to_run_next(
    what: Known, now: str, why: str, following: str | None
) -> None:
    ending = tell(what).ending
    assert ending.now == now
    assert why in ending.why
    assert ending.next == following


@pytest.mark.parametrize("named", [{}, {"books": {"database_url": "postgresql://w/w"}}])
@pytest.mark.parametrize("what", [each[0] for each in ENDINGS])
def test_what_reads_both_databases_is_never_addressed_to_the_wallets(what: Known, named: dict[str, Any]) -> None:
    """There is no payments.requests there: `reconcile` is run from where the payment is, and of this one alone."""
    ending = tell(what).ending
    following = addressed(ending, wallets_named(named)).next or ""
    assert "module:object" not in following
    if "reconcile" in following:
        assert following == MENDED
    if ending.at == "orchestrator":
        assert following == (ending.next or "")


@pytest.mark.parametrize("what", [literal(vanished(ID, error="it broke")), replace(literal(vanished(ID)), now=LATER)])
def test_what_the_literal_wallet_did_not_do_is_printed_with_what_mends_it(
    what: Known, capsys: pytest.CaptureFixture[str]
) -> None:
    """Section 6: the wallet's consumer failed, or was killed."""
    story = tell(what)
    print_story(what, Story(story.events, addressed(story.ending, wallets_named({}))))
    [*_, now, why, following] = capsys.readouterr().out.splitlines()
    assert now == "Now   PENDING (DEDUCTING)"
    assert why.startswith("Why   the wallet is asked for the amount; wallet took the command: RECEIVED, at most once")
    assert following == f"Next  {MENDED}"


def lines(story: Story) -> list[str]:
    return [f"{each.where} {each.what}" for each in story.events]


def test_a_cause_stands_before_its_effect_whatever_the_clock_of_the_other_database_says() -> None:
    behind = replace(DECIDED, receipts=[receipt(DEDUCT, "wallet.deduct", -5000, results=(RESULT,))],
                     entries=[entry(RESULT, "wallet.succeeded", -5001)])  # fmt: skip
    story = tell(known(payment("SUCCEEDED"), APPLIED, behind, ledger=[took(-5002)]))
    assert lines(story) == [
        "orchestrator requested", "orchestrator appended", "kafka published", "wallet received", "wallet handled",
        "wallet reported", "kafka published", "orchestrator received", "orchestrator applied", "orchestrator SUCCEEDED",
    ]  # fmt: skip


def test_a_dead_letter_of_a_message_that_was_handled_is_no_obstacle() -> None:
    """Another message with its id came: a conflict, which changes nothing about the first."""
    conflict = having(DECIDED, REQUEUE, DEDUCT)
    conflict = replace(conflict, receipts=DECIDED.receipts)
    assert tell(known(orchestrator=replace(ASKED, consumers=0), wallet=conflict)).ending.next == "ferryman run payments"


ENDED = known(payment("SUCCEEDED"), IDLE, IDLE, ledger=[took()])


def test_what_the_ledger_has_is_told_when_its_receipt_is_forgotten() -> None:
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


def test_what_was_moved_once_is_told_once_however_often_it_was_asked_for() -> None:
    asked = [receipt(each, "wallet.cancel", at) for each, at in ((CANCEL, 52), (SECOND, 900))]
    story = tell(known(NOT_DONE, wallet=Side(receipts=asked), ledger=[took(), took(50, kind="CANCEL", amount=500)]))
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
        (replace(ENDED, orchestrator=ASKED, wallet=Side(DECIDED.entries)), LONG_AFTER, RECEIPTS),
        (known(payment("SUCCEEDED"), APPLIED, DECIDED, ledger=[took()]), LONG_AFTER, None),
        (replace(ENDED, orchestrator=None, payment=None), LONG_AFTER, f"{RECEIPTS}, and {OUTBOX}"),
        (replace(ENDED, wallet=None, ledger=()), LONG_AFTER, f"{RECEIPTS}, and {OUTBOX}"),
    ],
)  # fmt: skip
def test_what_nobody_keeps_for_so_long_is_said_to_be_gone(what: Known, now: datetime, said: str | None) -> None:
    """What is there still, though it is old, is told: nothing is said of it."""
    why = tell(replace(what, now=now)).ending.why
    assert why.startswith(tell(what).ending.why)
    assert why[len(tell(what).ending.why) :] == (f". What is told is what is left: {said}" if said else "")


def test_duplicates_are_folded_and_counted() -> None:
    thrice = replace(DECIDED, entries=[entry(RESULT, "wallet.succeeded", at) for at in (21, 30, 31, 32)])
    copies: dict[UUID, Sequence[Seen]] = {DEDUCT: [Seen(2, offset, after(5 + offset)) for offset in (7, 8, 9)]}
    story = tell(known(wallet=thrice, kafka=copies))
    folded = {each.what: each.times for each in story.events if each.times > 1}
    assert folded == {"received again": 3, "published again": 2}
    published = next(each for each in story.events if each.what == "published")
    assert (published.at, published.detail["offset"]) == (after(12), 7)


def test_what_a_person_did_about_a_dead_letter_is_told() -> None:
    requeued = Rejection(DEDUCT, "wallet.deduct", "payments.commands", 2, 7, "BUG", "it broke", "REQUEUED", after(30),
                         after(50), "ann", "mended")  # fmt: skip
    story = tell(known(wallet=replace(DECIDED, rejections=[requeued])))
    assert lines(story)[3:5] == ["wallet rejected, to the dead letters", "wallet requeued"]
    by_hand = next(each for each in story.events if each.what == "requeued")
    assert (by_hand.at, by_hand.detail) == (after(50), {"by": "ann", "reason": "mended"})


def test_results_of_nobody_we_know_are_told_from_what_was_kept_of_them() -> None:
    stray = Stray(UUID(int=7), "UNKNOWN", "fulfilment.accepted", after(9))
    assert "orchestrator applied to nothing: UNKNOWN" in lines(tell(known(strays=[stray])))


def test_the_ids_of_messages_follow_from_the_payment_and_no_two_are_the_same() -> None:
    messages = messages_of(ID, attempt=40)
    assert messages[DEDUCT] == ("wallet.deduct", 1)
    assert messages[message_id(ID, "wallet.cancel", 40)] == ("wallet.cancel", 40)
    assert messages[ID] == ("wallet.deduct", 1), "of the literal mode"
    assert len(messages) == 5 * 40 + 3 + 1
    assert ID not in messages_of(ID, types=["wallet.cancel"])
    assert results_of(messages)[RESULT] == DEDUCT
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
def test_what_is_to_be_done_in_the_wallets_database_says_so(
    sources: dict[str, Any], origin: str, following: str, expected: str
) -> None:
    loaded = wallets_named(sources, origin)
    assert addressed(Ending("", "", following, "wallet"), loaded).next == expected
    assert addressed(Ending("", "", following, "orchestrator"), loaded).next == following
