"""Where a payment is now, why, and the command to run next. Pure: what is known is passed, the time too."""

from dataclasses import dataclass
from uuid import UUID

from ferryman.evidence.messages import ASKED, result_of
from ferryman.evidence.trace.model import ORCHESTRATOR, WALLET, Ending, Entry, Known, Operation, Payment, Side, Where
from ferryman.runtime.times import moment, span
from ferryman.services.payments.rules import message_id

RECONCILE = "ferryman reconcile payments"
_OVERDUE_SECONDS = 5.0
_REASONS = {
    "TIMED_OUT": "an answer did not come in time, and what was asked for was undone",
    "REFUSED_DOWNSTREAM": "whoever fulfils refused it, and the amount was given back",
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
    "FULFILLING": "the amount is taken, and whoever fulfils is asked",
    "RECALLING": "whoever fulfils did not answer in time, and is asked to stop or to say that it has accepted",
}


def conclude(known: Known) -> Ending:
    payment = known.payment
    if payment is None:
        return _without(known)
    match payment.state:
        case "SUCCEEDED":
            return Ending("SUCCEEDED", f"it is done{_taken(known)}")
        case "FAILED":
            return _failed(known, payment)
        case "STUCK":
            why = "the wallet refuses to give the amount back, and a person decides"
            refused = next((each for each in known.ledger if each.kind != "DEDUCT" and each.reason), None)
            return Ending("STUCK", f"{why}{f' ({refused.reason})' if refused else ''}", RECONCILE)
    return _on_its_way(known, payment)


def _without(known: Known) -> Ending:
    """What the wallet's side says alone."""
    if known.ledger:
        said = "; ".join(_said(each) for each in known.ledger)
        return Ending("DECIDED BY THE WALLET", f"the wallet has decided ({said}); how the payment stands is not known")
    return Ending("NOT KNOWN", "messages of it are known, the payment itself is not; it may have been archived")


def _said(operation: Operation) -> str:
    if operation.reason:
        return f"{operation.kind} refused: {operation.reason}"
    return f"{operation.kind} of {abs(operation.amount)} {operation.currency}"


def _taken(known: Known) -> str:
    deduct = next((each for each in known.ledger if each.kind == "DEDUCT" and not each.reason), None)
    if deduct is None:
        return ""
    return f": the wallet gave {abs(deduct.amount)} {deduct.currency}, and held {deduct.balance} then"


def _failed(known: Known, payment: Payment) -> Ending:
    why = _REASONS.get(payment.reason or "", payment.reason or "no reason was given")
    kept = -sum(each.amount for each in known.ledger)
    if kept <= 0:
        return Ending("FAILED", f"{why} ({payment.reason}); nothing is taken for it")
    cancelled = _chain(known, message_id(payment.id, "wallet.cancel"))
    said = f"{why} ({payment.reason}); but the wallet has taken {kept} {payment.currency} and not given it back"
    if cancelled is not None:
        return Ending("FAILED", f"{said}: {cancelled.why}", cancelled.next or RECONCILE, cancelled.at)
    return Ending("FAILED", said, RECONCILE)


def _on_its_way(known: Known, payment: Payment) -> Ending:
    """Where the message stands whose answer would move it on."""
    kind = ASKED.get(payment.state)
    assert kind is not None
    now = f"PENDING ({payment.state})"
    found = _chain(known, message_id(payment.id, kind, payment.attempt), ours=kind.startswith("fulfilment."))
    why = f"{_WAITS[payment.state]}; {found.why}" if found else _WAITS[payment.state]
    overdue = payment.due_at is not None and (known.now - payment.due_at).total_seconds() > _OVERDUE_SECONDS
    said, command = _due(known, payment, overdue=overdue)
    if found and found.next:
        return Ending(now, f"{why}. {said}", found.next, found.at)
    return Ending(now, f"{why}. {said}", command)


def _due(known: Known, payment: Payment, *, overdue: bool) -> tuple[str, str | None]:
    """What happens by itself, and when."""
    if payment.due_at is None:
        return "Nothing more happens by itself", RECONCILE
    if overdue:
        late = span((known.now - payment.due_at).total_seconds())
        said = f"It was to be looked at {late} ago"
        if known.orchestrator is not None and not known.orchestrator.consumers:
            return f"{said}, and no process of payments is connected", "ferryman run payments"
        return said, None
    happens = "asked for again" if payment.state in ("CANCELLING", "RECALLING", "REFUNDING") else "cancelled"
    return f"If nothing comes by {moment(payment.due_at)}, it is {happens}", None


@dataclass(frozen=True, slots=True)
class _Way:
    """Of one message: from whose outbox to whose inbox, and which service takes it there."""

    known: Known
    identity: UUID
    sender: Side | None
    receiver: Side | None
    at: Where
    """The sender's."""
    service: str

    @property
    def what(self) -> str:
        return "the command" if self.at == ORCHESTRATOR else "its result"

    @property
    def entry(self) -> Entry | None:
        return self.sender.entry(self.identity) if self.sender else None


def _chain(known: Known, command: UUID, *, ours: bool = False) -> Ending | None:
    """The first that is not done on the way of a command and of its result; None where nothing is known of it.

    Of what is asked of a participant that is not ours (`ours`), only our part is known.
    """
    there = _Way(known, command, known.orchestrator, known.wallet, ORCHESTRATOR, "wallet")
    if ours:
        return _sent(there) or Ending("", "it is published, and there is no answer yet: theirs is not our database")
    if known.wallet is None:
        return _sent(there) or Ending("", "it is published; what the wallet made of it is not known")
    if (stop := _stopped(there)) is not None:
        return stop
    receipt = known.wallet.receipt(command)
    result = receipt.results[0] if receipt and receipt.results else result_of(command)
    back = _Way(known, result, known.wallet, known.orchestrator, WALLET, "payments")
    if (stop := _stopped(back)) is not None:
        return Ending("", f"the wallet has answered; {stop.why}", stop.next, stop.at)
    if known.orchestrator and (applied := known.orchestrator.receipt(result)) and applied.outcome == "REFUSED":
        return Ending("", f"the wallet's answer was applied to nothing ({applied.reason})", RECONCILE)
    return None


def _stopped(way: _Way) -> Ending | None:
    """Why it is not handled yet; None when it is."""
    receipt = way.receiver.receipt(way.identity) if way.receiver else None
    if receipt and receipt.status == "HANDLED":
        return None
    other: Where = WALLET if way.at == ORCHESTRATOR else ORCHESTRATOR
    if way.receiver and (verdict := way.receiver.verdicts.get(way.identity)):
        if receipt and receipt.status == "RECEIVED":
            command = RECONCILE if receipt.error else verdict.next
            return Ending("", f"{way.service} took {way.what}: {verdict.reason}", command, other)
        return Ending("", f"{way.service} could not handle {way.what}: {verdict.reason}", verdict.next, other)
    return _sent(way) or _waiting(way, other)


def _sent(way: _Way) -> Ending | None:
    """Why it is not in Kafka; None when it is, or when nobody can say."""
    entry = way.entry
    if entry is None or entry.status == "PUBLISHED":
        return None
    return Ending("", f"{way.what} is not published ({entry.reason or entry.status})", entry.next, way.at)


def _waiting(way: _Way, other: Where) -> Ending:
    """It is published, as far as is known, and its reader has no verdict on it."""
    if lost := _lost(way):
        return lost
    receiver, service = way.receiver, way.service
    if receiver is None:
        return Ending("", f"{way.what} is published; whether it was received is not known")
    if receiver.paused:
        said = f"{way.what} is published; {service} is paused by {receiver.paused}"
        return Ending("", said, f"ferryman resume {service} --consumer", other)
    if not receiver.consumers:
        said = f"{way.what} is published, and no process of {service} is connected to its database"
        return Ending("", said, f"ferryman run {service}", other)
    return Ending("", f"{way.what} is published, and {service} has not come to it yet", "ferryman inbox stats", other)


def _lost(way: _Way) -> Ending | None:
    """Nobody will come to it."""
    entry = way.entry
    copies = None if way.known.kafka is None else way.known.kafka.get(way.identity)
    if entry is None and not copies:
        said = f"{way.what} is not among what the outbox retains, and {way.service} has no receipt of it"
        return Ending("", said, RECONCILE)
    again = RECONCILE
    if entry is not None:
        again = f"ferryman outbox replay --id {entry.position} --yes --reason 'trace {way.known.id}'"
    if copies is not None and not copies:
        return Ending("", f"{way.what} was published, and its topic does not have it any more", again, way.at)
    if copies and all(each.read for each in copies):
        said = f"{way.what} is in its topic, {way.service}'s group is past it, and there is no receipt: it was skipped"
        return Ending("", said, again, way.at)
    return None
