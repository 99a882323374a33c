"""Where a payment is now, why, and the command to run next. Pure: what is known is passed, the time too."""

from uuid import UUID

from ferryman.evidence.messages import ASKED, DEDUCT, FULFILMENTS, KINDS, messages_of, result_of
from ferryman.evidence.trace.model import ORCHESTRATOR, WALLET, Ending, Known, Operation, Payment, Side
from ferryman.evidence.trace.way import Way, again, mended, sent, stopped
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


def _stuck(known: Known) -> Ending:
    refused = next((each for each in known.ledger if each.kind != "DEDUCT" and each.reason), None)
    why = f"the wallet refuses to give the amount back, and a person decides{f' ({refused.reason})' if refused else ''}"
    nothing = any(each.kind == "DEDUCT" for each in known.ledger) and _kept(known) <= 0
    return mended(known, f"{why}; the ledger says that nothing stays taken" if nothing else why, "STUCK")


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
        return mended(known, said, "FAILED")
    said = f"{said}: {cancelled.why}"
    return Ending("FAILED", said, cancelled.next, cancelled.at) if cancelled.next else mended(known, said, "FAILED")


def _cancelled(known: Known) -> Ending | None:
    """Where the last of its cancellations stands that anybody knows."""
    sides = [each for each in (known.orchestrator, known.wallet) if each is not None]
    ids: set[UUID] = set()
    for side in sides:
        ids |= {each.id for each in side.entries} | {each.id for each in side.receipts}
    said = messages_of(known.id, types=["wallet.cancel"])
    last = max((each for each in ids & said.keys() if said[each].type == "wallet.cancel"), default=None,
               key=lambda each: said[each].attempt)  # fmt: skip
    return _chain(known, last, "wallet.cancel") if last is not None else None


def _on_its_way(known: Known, payment: Payment) -> Ending:
    """Where the message stands whose answer would move it on."""
    kind = ASKED.get(payment.state)
    assert kind is not None
    now = f"PENDING ({payment.state})"
    own = known.literal is not None and (kind, payment.attempt) == (DEDUCT, 1)
    command = payment.id if own else message_id(payment.id, kind, payment.attempt)
    found = _chain(known, command, kind)
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


def _chain(known: Known, command: UUID, kind: str) -> Ending | None:
    """The first that is not done on the way of a command and of its result; None where nothing is known of it.

    Of what is asked of whoever fulfils, a participant that is not ours, only our part is known.
    """
    there = Way(known, command, known.orchestrator, known.wallet, ORCHESTRATOR, "wallet")
    if kind in FULFILMENTS:
        return sent(there) or Ending("", "it is published, and there is no answer yet: theirs is not our database")
    if known.wallet is None:
        return sent(there) or Ending("", "it is published; what the wallet made of it is not known")
    if there.forgotten and known.wallet.receipt(command) is None and _decided(known, kind):
        return _answered(known, known.wallet, command)
    return stopped(there) or _answered(known, known.wallet, command)


def _decided(known: Known, kind: str) -> bool:
    """Whether the ledger has what the command asks for: it is kept for ever."""
    return any(each.kind == KINDS[kind] for each in known.ledger)


def _answered(known: Known, wallet: Side, command: UUID) -> Ending | None:
    """Where the wallet's answer stands, which is a message but in the literal mode."""
    receipt = wallet.receipt(command)
    if known.literal is not None and not (receipt and receipt.results):
        return mended(known, "the wallet has decided, and told so by HTTP, once: it was not heard")
    result = receipt.results[0] if receipt and receipt.results else result_of(command)
    back = Way(known, result, wallet, known.orchestrator, WALLET, "payments")
    if (stop := stopped(back)) is not None:
        return Ending("", f"the wallet has answered; {stop.why}", stop.next, stop.at)
    if known.orchestrator and (applied := known.orchestrator.receipt(result)) and applied.outcome == "REFUSED":
        return mended(known, f"the wallet's answer was applied to nothing ({applied.reason})")
    return None
