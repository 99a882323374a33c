"""The story of a payment, decided from values: where it is now, why, what to run next, and what happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from ferryman.evidence import journey, span
from ferryman.evidence.journey import ONE_BATCH_SECONDS, Detail, Event, Journey, Moment, StoryTeller, Times, Witness
from ferryman.evidence.kafka import SeenRecord
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, StrayResult
from ferryman.evidence.way import Ending, Traced, Way, due
from ferryman.services.payments.evidence import case
from ferryman.services.payments.evidence.case import ORCHESTRATOR, Booked, LedgerRow, PaymentRow, messages_of, result_of
from ferryman.services.payments.rules import message_id

_ONE_TRANSACTION_SECONDS = 60
_FACTS = ("wallet_id", "amount", "currency", "fulfil", "status", "state", "reason", "attempt", "created_at",
          "changed_at", "due_at")  # fmt: skip

_REASONS = {
    "TIMED_OUT": "an answer did not come in time, and what was asked for was undone",
    "REFUSED_DOWNSTREAM": "the fulfilment was refused, and the amount was given back",
    "INSUFFICIENT_FUNDS": "the wallet did not hold enough",
    "NO_WALLET": "there is no such wallet",
    "WRONG_CURRENCY": "the wallet is of another currency",
    "CANCELLED": "it was cancelled before the wallet came to it",
    "INVALID_AMOUNT": "the wallet refuses such an amount",
}
_WAITS = {
    "DEDUCTING": "the wallet is asked for the amount",
    "CANCELLING": "nothing came in time: the wallet is asked to give back what it took, or to take nothing any more",
    "REFUNDING": "it will not be fulfilled: the wallet is asked to give the amount back",
    "FULFILLING": "the amount is taken, and the fulfilment is asked for",
    "RECALLING": "the fulfilment did not answer in time, and is asked to stop or to say that it has accepted",
}


@dataclass(frozen=True, slots=True)
class KnownPayment(Booked):
    """Everything that is known of a payment. A witness is None if its database was not asked; `missing` says why."""

    id: UUID
    now: datetime
    payment: PaymentRow | None = None
    ledger: Sequence[LedgerRow] = ()
    strays: Sequence[StrayResult] = ()
    orchestrator: Witness | None = None
    wallet: Witness | None = None
    kafka: Mapping[UUID, Sequence[SeenRecord]] | None = None
    missing: Sequence[str] = ()
    literal: OutboxEntry | None = None
    """Its row in the literal mode's outbox, if it was recorded in that mode."""
    settled: bool = False
    """True if a person said that it was given back by hand."""
    times: Times = field(default_factory=lambda: Times(300.0, 2_592_000.0, 86_400.0))

    @property
    def journey(self) -> Journey:
        witnesses = [each for each in (self.orchestrator, self.wallet) if each]
        return Journey(self.now, witnesses, self.kafka, self.times)

    @property
    def messages(self) -> dict[UUID, case.Said]:
        """The messages that it may have."""
        return messages_of(self.id, self.payment.attempt if self.payment else 1)

    @property
    def begun(self) -> datetime:
        """When it was requested; or else, when the wallet first decided about it."""
        if self.payment:
            return self.payment.created_at
        return self.ledger[0].decided_at if self.ledger else self.now

    @property
    def mend(self) -> str:
        """The command that looks at this payment alone, and mends what is safe to mend."""
        return f"ferryman reconcile payments --id {self.id}"

    def mended(self, why: str, now: str = "") -> Ending:
        return Ending(now, why, self.mend)


def tell(known: KnownPayment) -> Traced:
    """Return what happened in order of time, and how it ends."""
    ending, left = conclude(known), expired(known)
    if left:
        ending = replace(ending, why=f"{ending.why}. {left}")
    payment, headline, facts = known.payment, [f"payment {known.id}"], None
    if payment:
        at = payment.created_at.astimezone().isoformat(sep=" ", timespec="milliseconds")
        said = f"{payment.amount:,} {payment.currency} from wallet {payment.wallet_id}, requested {at}"
        headline.append(said + (", to be fulfilled" if payment.fulfil else ""))
        facts = {name: getattr(payment, name) for name in _FACTS}
    over = ending.now in (case.SUCCEEDED, case.FAILED)
    return Traced(known.id, "payment", facts, headline, events(known), ending, known.missing, over)


def conclude(known: KnownPayment) -> Ending:
    payment = known.payment
    if payment is None:
        return _without(known)
    match payment.state:
        case "SUCCEEDED":
            return Ending(case.SUCCEEDED, f"it is done{_taken(known)}")
        case "FAILED":
            return _failed(known, payment)
        case "STUCK":
            return _stuck(known)
    return _on_its_way(known, payment)


def _stuck(known: KnownPayment) -> Ending:
    reason = f" ({known.refusal.reason})" if known.refusal else ""
    why = f"the wallet refuses to give the amount back, and a person decides{reason}"
    nothing = any(each.kind == "DEDUCT" for each in known.ledger) and known.kept <= 0
    return known.mended(f"{why}; the ledger says that nothing stays taken" if nothing else why, case.STUCK)


def _without(known: KnownPayment) -> Ending:
    if not known.ledger:
        return Ending("NOT KNOWN", "messages of it are known, the payment itself is not; it may have been archived")
    said = "; ".join(
        f"{each.kind} refused: {each.reason}" if each.reason else f"{each.kind} of {abs(each.amount)} {each.currency}"
        for each in known.ledger
    )
    return Ending("DECIDED BY THE WALLET", f"the wallet has decided ({said}); how the payment stands is not known")


def _taken(known: KnownPayment) -> str:
    if not known.deductions:
        return ""
    deduct = known.deductions[0]
    return f": the wallet gave {abs(deduct.amount)} {deduct.currency}, and held {deduct.balance} then"


def _failed(known: KnownPayment, payment: PaymentRow) -> Ending:
    why = f"{_REASONS.get(payment.reason or '', payment.reason or 'no reason was given')} ({payment.reason})"
    if known.kept <= 0:
        return Ending(case.FAILED, f"{why}; nothing is taken for it")
    if known.settled:
        return Ending(case.FAILED, f"{why}; a person gave back what was taken for it")
    said = f"{why}; but the wallet has taken {known.kept} {payment.currency} and not given it back"
    cancelled = _cancelled(known)
    if cancelled is None or not cancelled.next:
        return known.mended(f"{said}: {cancelled.why}" if cancelled else said, case.FAILED)
    return replace(cancelled, now=case.FAILED, why=f"{said}: {cancelled.why}")


def _cancelled(known: KnownPayment) -> Ending | None:
    """Say where the last of its cancellations stands that anybody knows."""
    there = [(said.attempt, each) for each, said in known.messages.items() if said.type == case.CANCEL
             and any(one.entry(each) or one.receipt(each) for one in known.journey.witnesses)]  # fmt: skip
    return _chain(known, max(there)[1], case.CANCEL) if there else None


def _on_its_way(known: KnownPayment, payment: PaymentRow) -> Ending:
    """Say where the message stands whose answer would move it on."""
    found = _chain(known, case.command_of(payment, payment.attempt), payment.asked)
    why = f"{_WAITS[payment.state]}; {found.why}" if found else _WAITS[payment.state]
    said, following = _due(known, payment)
    ending = found if found and found.next else Ending("", "", following)
    return replace(ending, now=f"PENDING ({payment.state})", why=f"{why}. {said}")


def _due(known: KnownPayment, payment: PaymentRow) -> tuple[str, str | None]:
    """Say what happens by itself, and when; and what a person runs if nothing does."""
    if payment.due_at is None and known.literal is not None:
        waits = known.literal.status in ("PENDING", "RETRYING")
        return "No timeout looks at it", None if waits else known.mend
    if payment.due_at is None:
        return "Nothing more happens by itself", known.mend
    happens = "asked for again" if payment.state in ("CANCELLING", "RECALLING", "REFUNDING") else "cancelled"
    processes = known.orchestrator.processes if known.orchestrator else None
    return due(known.journey, payment.due_at, f"it is {happens}", case.NAME, processes)


def _chain(known: KnownPayment, command: UUID, kind: str) -> Ending | None:
    """Say what is the first that is not done on the way of a command and of its result; None if nothing is known of it.
    The fulfilment is a participant that is not ours: of what it is asked, only our part is known.
    """
    there = _way(known, command, case.WALLET)
    if kind in case.FULFILMENTS:
        return there.unsent() or Ending("", "it is published, and there is no answer yet: theirs is not our database")
    if known.wallet is None:
        return there.unsent() or Ending("", "it is published; what the wallet made of it is not known")
    decided = any(each.kind == case.KINDS[kind] for each in known.ledger)  # kept for ever
    if there.forgotten and known.wallet.receipt(command) is None and decided:
        return _answered(known, known.wallet, command)
    return there.stopped() or _answered(known, known.wallet, command)


def _answered(known: KnownPayment, wallet: Witness, command: UUID) -> Ending | None:
    """Say where the wallet's answer stands, which is a message except in the literal mode."""
    receipt = wallet.receipt(command)
    if known.literal is not None and not (receipt and receipt.results):
        return known.mended("the wallet has decided, and told so by HTTP, once: it was not heard")
    result = receipt.results[0] if receipt and receipt.results else result_of(command)
    if (stop := _way(known, result, case.NAME).stopped()) is not None:
        return replace(stop, why=f"the wallet has answered; {stop.why}")
    if known.orchestrator and (applied := known.orchestrator.receipt(result)) and applied.outcome == "REFUSED":
        return known.mended(f"the wallet's answer was applied to nothing ({applied.reason})")
    return None


def _way(known: KnownPayment, identity: UUID, service: str) -> Way:
    ours, wallet = known.orchestrator, known.wallet
    literal = "-literal" if service == case.WALLET and known.literal is not None else ""
    sender, receiver, what = (ours, wallet, "the command") if service == case.WALLET else (wallet, ours, "its result")
    since = known.payment.changed_at if known.payment else None
    return Way(
        known.journey, identity, sender, receiver, what, service, f"ferryman run {service}{literal}", known.id,
        known.mend, since,
    )  # fmt: skip


# --- what nobody keeps for so long


def expired(known: KnownPayment) -> str | None:
    """Say what is not told because it is not kept for so long. Money and state are, for ever."""
    kept: list[str] = []
    if _receipts_gone(known):
        kept.append(f"receipts are kept for {span(known.times.receipts_seconds)}")
    if _entries_gone(known):
        kept.append(f"an outbox keeps what it published for {span(known.times.outbox_seconds)}")
    return f"What is told is what is left: {', and '.join(kept)}" if kept else None


def _receipts_gone(known: KnownPayment) -> bool:
    """Return True if the wallet, or the orchestrator, must have written receipts so long ago, and has none."""
    over = known.payment is not None and known.payment.status != case.PENDING and known.literal is None
    wrote = [known.wallet if known.ledger else None, known.orchestrator if over else None]
    return known.journey.forgets(known.begun) and any(each and not each.receipts for each in wrote)


def _entries_gone(known: KnownPayment) -> bool:
    """Return the same of the first command, and of the wallet's results. Those of the literal mode are kept."""
    if known.literal is not None or known.journey.age(known.begun) <= known.times.outbox_seconds:
        return False
    ours, wallet = known.orchestrator, known.wallet
    if known.payment and ours and ours.whole and ours.entry(message_id(known.id, case.DEDUCT)) is None:
        return True
    if not (known.ledger and wallet and wallet.whole):
        return False
    return not any(each.type in case.RESULTS for each in wallet.entries)


# --- what happened, in order of time


class _PaymentTeller(StoryTeller):
    """Tells a payment's messages by what they ask for, and by what the ledger has of them."""

    def __init__(self, known: KnownPayment) -> None:
        super().__init__(known.journey)
        self.known = known
        self.messages = known.messages
        self.told: list[LedgerRow] = []

    def began(self, reader: Witness, receipt: InboxReceipt) -> datetime:
        moments = [super().began(reader, receipt)]
        if reader.where == case.WALLET:
            kind = case.KINDS.get(receipt.type)
            moments += [each.decided_at for each in self.known.ledger if each.kind == kind and _by(receipt, each)]
        elif receipt.outcome == "DONE" and self.known.payment is not None:
            moved = self.known.payment.changed_at
            moments += [moved] if 0 <= (receipt.at - moved).total_seconds() < ONE_BATCH_SECONDS else []
        return min(moments)

    def received(self, reader: Witness, receipt: InboxReceipt, detail: Detail) -> Detail:
        return {**detail, "topic": receipt.topic, "partition": receipt.partition, "offset": receipt.offset}

    def handled(self, reader: Witness, receipt: InboxReceipt, detail: Detail, after: Moment) -> Moment:
        if reader.where == ORCHESTRATOR and receipt.status == "HANDLED":
            return self.applied(reader, receipt, detail, after)
        untold = [each for each in self.known.ledger if each not in self.told and _by(receipt, each)]
        operation = next((each for each in untold if each.kind == case.KINDS.get(detail["type"])), None)
        if operation is None or receipt.status != "HANDLED":
            return super().handled(reader, receipt, detail, after)
        self.told.append(operation)
        done = journey.answered(receipt) if receipt.outcome == "REFUSED" else _done(operation)
        return self.add(Event(operation.decided_at, case.WALLET, "handled", {**detail, **done}), after)

    def followed(self, receipt: InboxReceipt | None, identity: UUID, after: Moment) -> None:
        """Tell the wallet's result, which may be known though the command's receipt is not, and what it told beside."""
        said = self.messages.get(identity)
        if said is None or said.type not in case.COMMANDS:
            return
        result, *others = (receipt.results if receipt else ()) or (result_of(identity),)
        if self.journey.entry(result) or self.journey.readers(result):
            self.message(result, {"answers": case.KINDS[said.type]}, after, "reported")
        for each in others:
            self.message(each, {}, after)

    def booked(self, begun: Moment) -> None:
        """Tell what the ledger has and no receipt tells any more: it is kept for ever, and receipts are not."""
        for each in self.known.ledger:
            if each not in self.told:
                said = {"type": case.COMMAND_OF[each.kind], **_done(each)}
                self.add(Event(each.decided_at, case.WALLET, "handled", said), begun)


def events(known: KnownPayment) -> list[Event]:
    telling, payment = _PaymentTeller(known), known.payment
    begun: Moment = None
    if payment:
        said = {"amount": payment.amount, "currency": payment.currency, "wallet_id": str(payment.wallet_id)}
        begun = telling.add(Event(payment.created_at, ORCHESTRATOR, "requested", said), None)
    for identity in telling.journey.ids():
        if message := telling.messages.get(identity):
            attempt = {"attempt": message.attempt} if message.type not in case.EVENTS else {}
            telling.message(identity, {"type": message.type, **attempt}, begun)
    telling.unkept(known.strays, ORCHESTRATOR, begun)
    telling.booked(begun)
    if payment and payment.state != "DEDUCTING":
        state = payment.state
        telling.stands(payment.changed_at, ORCHESTRATOR, state, payment.reason, bad=state == case.STUCK)
    return telling.events


def _by(receipt: InboxReceipt, operation: LedgerRow) -> bool:
    """Return True if it was this message that had it decided, and not one long before."""
    return 0 <= (receipt.at - operation.decided_at).total_seconds() < _ONE_TRANSACTION_SECONDS


def _done(operation: LedgerRow) -> dict[str, Any]:
    if operation.reason:
        return {"outcome": "REFUSED", "reason": operation.reason}
    return {
        "outcome": "DONE", "moved": operation.amount, "currency": operation.currency, "balance": operation.balance,
    }  # fmt: skip
