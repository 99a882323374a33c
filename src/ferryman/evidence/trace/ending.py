"""Where a payment is now, why, and the command to run next. Pure: what is known is passed, the time too."""

from dataclasses import dataclass
from uuid import UUID

from ferryman.evidence.messages import ASKED, DEDUCT, messages_of, result_of
from ferryman.evidence.trace.model import ORCHESTRATOR, WALLET, Ending, Entry, Known, Operation, Payment, Side, Where
from ferryman.runtime.times import moment, span
from ferryman.services.payments.rules import message_id

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
            return _stuck(known)
    return _on_its_way(known, payment)


def again(payment: UUID) -> str:
    """What looks at this payment alone, and mends what is safe to mend."""
    return f"ferryman reconcile payments --id {payment}"


def _mended(known: Known, why: str, now: str = "") -> Ending:
    """By what reads both databases, from the orchestrator's: whatever is to be mended, and wherever it stands."""
    return Ending(now, why, again(known.id), ORCHESTRATOR)


def _stuck(known: Known) -> Ending:
    refused = next((each for each in known.ledger if each.kind != "DEDUCT" and each.reason), None)
    why = f"the wallet refuses to give the amount back, and a person decides{f' ({refused.reason})' if refused else ''}"
    nothing = any(each.kind == "DEDUCT" for each in known.ledger) and _kept(known) <= 0
    return _mended(known, f"{why}; the ledger says that nothing stays taken" if nothing else why, "STUCK")


def _kept(known: Known) -> int:
    """What stays taken, whatever the payment's state."""
    return -sum(each.amount for each in known.ledger)


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
    kept = _kept(known)
    if kept <= 0:
        return Ending("FAILED", f"{why} ({payment.reason}); nothing is taken for it")
    if known.settled:
        return Ending("FAILED", f"{why} ({payment.reason}); a person gave back what was taken for it")
    said = f"{why} ({payment.reason}); but the wallet has taken {kept} {payment.currency} and not given it back"
    cancelled = _cancelled(known)
    if cancelled is None:
        return _mended(known, said, "FAILED")
    said = f"{said}: {cancelled.why}"
    return Ending("FAILED", said, cancelled.next, cancelled.at) if cancelled.next else _mended(known, said, "FAILED")


def _cancelled(known: Known) -> Ending | None:
    """Where the last of its cancellations stands that anybody knows."""
    sides = [each for each in (known.orchestrator, known.wallet) if each is not None]
    ids: set[UUID] = set()
    for side in sides:
        ids |= {each.id for each in side.entries} | {each.id for each in side.receipts}
    said = messages_of(known.id, types=["wallet.cancel"])
    last = max((each for each in ids & said.keys() if said[each].type == "wallet.cancel"), default=None,
               key=lambda each: said[each].attempt)  # fmt: skip
    return _chain(known, last) if last is not None else None


def _on_its_way(known: Known, payment: Payment) -> Ending:
    """Where the message stands whose answer would move it on."""
    kind = ASKED.get(payment.state)
    assert kind is not None
    now = f"PENDING ({payment.state})"
    own = known.literal is not None and (kind, payment.attempt) == (DEDUCT, 1)
    command = payment.id if own else message_id(payment.id, kind, payment.attempt)
    found = _chain(known, command, ours=kind.startswith("fulfilment."))
    why = f"{_WAITS[payment.state]}; {found.why}" if found else _WAITS[payment.state]
    overdue = payment.due_at is not None and (known.now - payment.due_at).total_seconds() > _OVERDUE_SECONDS
    said, following = _due(known, payment, overdue=overdue)
    if found and found.next:
        return Ending(now, f"{why}. {said}", found.next, found.at)
    return Ending(now, f"{why}. {said}", following)


def _due(known: Known, payment: Payment, *, overdue: bool) -> tuple[str, str | None]:
    """What happens by itself, and when."""
    if payment.due_at is None and known.literal is not None:
        waits = known.literal.status in ("PENDING", "RETRYING")
        return "No timeout looks at it", None if waits else again(known.id)
    if payment.due_at is None:
        return "Nothing more happens by itself", again(known.id)
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
    def run(self) -> str:
        """What starts the service; under the name of the wallet one of two reads."""
        literal = "-literal" if self.service == "wallet" and self.known.literal is not None else ""
        return f"ferryman run {self.service}{literal}"

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
    return _stopped(there) or _answered(known, known.wallet, command)


def _answered(known: Known, wallet: Side, command: UUID) -> Ending | None:
    """Where the wallet's answer stands, which is a message but in the literal mode."""
    receipt = wallet.receipt(command)
    if known.literal is not None and receipt and not receipt.results:
        return _mended(known, "the wallet has decided, and told so by HTTP, once: it was not heard")
    result = receipt.results[0] if receipt and receipt.results else result_of(command)
    back = _Way(known, result, wallet, known.orchestrator, WALLET, "payments")
    if (stop := _stopped(back)) is not None:
        return Ending("", f"the wallet has answered; {stop.why}", stop.next, stop.at)
    if known.orchestrator and (applied := known.orchestrator.receipt(result)) and applied.outcome == "REFUSED":
        return _mended(known, f"the wallet's answer was applied to nothing ({applied.reason})")
    return None


def _stopped(way: _Way) -> Ending | None:
    """Why it is not handled yet; None when it is."""
    receipt = way.receiver.receipt(way.identity) if way.receiver else None
    if receipt and receipt.status == "HANDLED":
        return None
    other: Where = WALLET if way.at == ORCHESTRATOR else ORCHESTRATOR
    if way.receiver and (verdict := way.receiver.verdicts.get(way.identity)):
        if receipt and receipt.status == "RECEIVED":
            said = f"{way.service} took {way.what}: {verdict.reason}"
            if receipt.error or way.known.age(receipt.received_at) > way.known.times.answer_seconds:
                return _mended(way.known, said)
            return Ending("", said, verdict.next, other)
        absent = receipt and receipt.status == "REOPENED" and not way.receiver.paused and not way.receiver.consumers
        command = way.run if absent else verdict.next
        return Ending("", f"{way.service} could not handle {way.what}: {verdict.reason}", command, other)
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
        return Ending("", said, way.run, other)
    return Ending("", f"{way.what} is published, and {service} has not come to it yet", "ferryman inbox stats", other)


def _lost(way: _Way) -> Ending | None:
    """Nobody will come to it."""
    entry = way.entry
    copies = None if way.known.kafka is None else way.known.kafka.get(way.identity)
    if entry is None and not copies:
        there = "is not among what the outbox retains"
        if way.sender and not way.sender.whole:
            there = "was not looked for through all that the outbox retains: there was no time"
        return _mended(way.known, f"{way.what} {there}, and {way.service} has no receipt of it")
    if copies is not None and not copies:
        return _once_more(way, f"{way.what} was published, and its topic does not have it any more")
    if copies and all(each.read for each in copies):
        said = f"{way.what} is in its topic, {way.service}'s group is past it, and there is no receipt: it was skipped"
        return _once_more(way, said)
    return None


def _once_more(way: _Way, why: str) -> Ending:
    """Published again from where it stands, if it stands in a journal."""
    if way.entry is None or way.entry.position is None:
        return _mended(way.known, why)
    command = f"ferryman outbox replay --id {way.entry.position} --yes --reason 'trace {way.known.id}'"
    return Ending("", why, command, way.at)
