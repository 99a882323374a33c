"""What becomes of a payment when a result comes, or when none does: decided with no database and no clock.

An operation happens once, whatever its attempts, and only its participant's answer ends it: what was asked for and not
answered in time is cancelled, and the cancellation is asked for again until it is answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, uuid5

from ferryman import Message, Received
from ferryman.saga.model import Move, Stray

DEDUCT, FULFIL = "deduct", "fulfil"
TIMED_OUT, REFUSED_DOWNSTREAM, NO_WALLET = "TIMED_OUT", "REFUSED_DOWNSTREAM", "NO_WALLET"


class Payment(NamedTuple):
    """A row of `payments.requests`, as far as the rules look."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    state: str
    attempt: int
    reason: str | None


def payment_of(result: Received) -> UUID:
    found: UUID = result.data["request_id"]
    return found


def message_id(payment: UUID, kind: str, attempt: int = 1) -> UUID:
    """Follows from what the message says: who knows the payment finds its messages, and the same is said once."""
    return uuid5(payment, f"{kind}/{attempt}")


@dataclass(frozen=True, slots=True)
class Rules:
    """With the times of one deployment."""

    answer_seconds: float = 300.0
    """How long a participant may take before what it was asked for is cancelled."""
    again_seconds: float = 10.0
    """After how long a cancellation or a refund is asked for again; it doubles each time."""
    longest_seconds: float = 3600.0
    most_attempts: int = 12
    """Then it waits for a person."""
    events: bool = True
    """Whether everyone is told on `payments.events`; in the literal mode nobody is."""
    literal: bool = False
    """ChancePay to the letter: see `literal`."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    _ANSWERS: ClassVar[Mapping[tuple[str, str], Callable[["Rules", Payment, Received], Move]]] = {
        ("DEDUCTING", "DEDUCT"): lambda self, p, _: self._fulfil(p) if p.fulfil else self._done(p),
        ("DEDUCTING", "NO DEDUCT"): lambda self, p, r: self._failed(p, _reason(r)),
        ("CANCELLING", "CANCEL"): lambda self, p, _: self._failed(p, p.reason),
        ("CANCELLING", "NO DEDUCT"): lambda self, p, _: self._failed(p, p.reason),
        ("CANCELLING", "NO CANCEL"): lambda self, p, r: self._not_cancelled(p, r),
        ("FULFILLING", "FULFIL"): lambda self, p, _: self._done(p),
        ("FULFILLING", "NO FULFIL"): lambda self, p, _: self._ask(p, "REFUNDING", 1, REFUSED_DOWNSTREAM),
        ("RECALLING", "FULFIL"): lambda self, p, _: self._done(p),
        ("RECALLING", "NO FULFIL"): lambda self, p, _: self._ask(p, "REFUNDING", 1, p.reason),
        ("REFUNDING", "REFUND"): lambda self, p, _: self._failed(p, p.reason),
        ("REFUNDING", "NO REFUND"): lambda self, p, _: self._stuck(p),
        ("STUCK", "CANCEL"): lambda self, p, _: self._failed(p, p.reason),
        ("STUCK", "REFUND"): lambda self, p, _: self._failed(p, p.reason),
        ("STUCK", "NO DEDUCT"): lambda self, p, _: self._failed(p, p.reason),
    }
    """What each state waits for, and what comes of it. A deduction that is refused stays refused: nothing is taken, and
    nothing will be.
    """

    def commanded(self, payment: Payment) -> Message:
        """What asks the wallet for the amount."""
        return _command("wallet.deduct", payment, DEDUCT, 1, money=True)

    def requested(self, payment: Payment, reference: str | None = None) -> tuple[Message, ...]:
        """What leaves with a payment that is recorded."""
        told = self._told(payment, "payment.requested", requested_at=self.now(), reference=reference)
        return (self.commanded(payment), *told)

    def on_result(self, payment: Payment, result: Received) -> Move | Stray:
        """Of the wallet, or of whoever fulfils."""
        if _forged(payment, result):
            return Stray("FORGED")
        event = _event(result)
        answer = self._ANSWERS.get((payment.state, event))
        if answer is not None:
            return answer(self, payment, result)
        if event == "DEDUCT" and payment.state == "FAILED" and payment.reason not in (TIMED_OUT, REFUSED_DOWNSTREAM):
            return Stray("LATE", (_command("wallet.cancel", payment, DEDUCT, 1),))  # taken for nothing: given back
        return Stray("LATE")

    def on_due(self, payment: Payment) -> Move:
        """Nothing came in time."""
        match payment.state:
            case "DEDUCTING":
                return self._ask(payment, "CANCELLING", 1, TIMED_OUT)
            case "FULFILLING":
                return self._ask(payment, "RECALLING", 1, TIMED_OUT)
            case _:
                return self._ask(payment, payment.state, payment.attempt + 1, payment.reason)

    def told(self, payment: Payment, status: str, reason: str | None) -> Move | None:
        """By the wallet itself, beside its results: believed only where the deduction is all there is to do."""
        if payment.state != "DEDUCTING" or payment.fulfil:
            return None
        return self._done(payment) if status == "SUCCEEDED" else self._failed(payment, reason)

    def again(self, payment: Payment, *, literal: bool = False) -> Move | None:
        """Asks once more for what is not answered: what a person may always do, since each operation happens once. No
        timeout looks at what was recorded in the literal mode, also afterwards: its wallet tells of no cancellation.
        """
        match payment.state:
            case "DEDUCTING":
                message = _command("wallet.deduct", payment, DEDUCT, payment.attempt + 1, money=True)
                due = None if literal else self.answer_seconds
                return Move(payment.state, (message,), due, payment.attempt + 1, payment.reason)
            case "FULFILLING":
                message = _command("fulfilment.request", payment, FULFIL, payment.attempt + 1, money=True)
                return Move(payment.state, (message,), self.answer_seconds, payment.attempt + 1, payment.reason)
            case "CANCELLING" | "RECALLING" | "REFUNDING":
                return self._ask(payment, payment.state, payment.attempt + 1, payment.reason, person=True)
            case _:
                return None

    def given_back(self, payment: Payment, attempt: int) -> Message:
        """What asks the wallet for the amount of a payment that has FAILED, and was taken all the same."""
        return _command("wallet.cancel", payment, DEDUCT, attempt)

    def settled(self, payment: Payment) -> Move | None:
        """What only a person can say of a payment that is stuck: that the amount was given back by hand."""
        return self._failed(payment, payment.reason or TIMED_OUT) if payment.state == "STUCK" else None

    def _fulfil(self, payment: Payment) -> Move:
        return Move(
            "FULFILLING", (_command("fulfilment.request", payment, FULFIL, 1, money=True),), self.answer_seconds
        )

    def _done(self, payment: Payment) -> Move:
        return Move(
            "SUCCEEDED", self._told(payment, "payment.succeeded", succeeded_at=self.now()), None, payment.attempt
        )

    def _failed(self, payment: Payment, reason: str | None) -> Move:
        told = self._told(payment, "payment.failed", reason=reason, failed_at=self.now())
        return Move("FAILED", told, None, payment.attempt, reason)

    def _not_cancelled(self, payment: Payment, refused: Received) -> Move:
        """Where there is no such wallet, nothing was taken from it, and the refusal keeps it so."""
        if refused.data["reason"] == NO_WALLET:
            return self._failed(payment, payment.reason)
        return self._stuck(payment)

    def _stuck(self, payment: Payment) -> Move:
        return Move("STUCK", (), None, payment.attempt, payment.reason)

    def _ask(self, payment: Payment, state: str, attempt: int, reason: str | None, *, person: bool = False) -> Move:
        """For what undoes it, and again after a while; not for ever, unless a person asks."""
        if attempt > self.most_attempts and not person:
            return Move(state, (), None, payment.attempt, reason)
        if state == "CANCELLING":
            message = _command("wallet.cancel", payment, DEDUCT, attempt)
        elif state == "RECALLING":
            message = _command("fulfilment.cancel", payment, FULFIL, attempt)
        else:
            message = _command("wallet.refund", payment, DEDUCT, attempt, money=True)
        wait = min(self.longest_seconds, self.again_seconds * 2 ** min(attempt - 1, 30))
        return Move(state, (message,), wait, attempt, reason)

    def _told(self, payment: Payment, kind: str, **more: Any) -> tuple[Message, ...]:
        if not self.events or self.literal:
            return ()
        said = {"request_id": payment.uuid, "wallet_id": payment.wallet_id, "amount": payment.amount,
                "currency": payment.currency, **more}  # fmt: skip
        return (Message(kind, said, key=payment.uuid, id=message_id(payment.uuid, kind)),)


def _command(kind: str, payment: Payment, step: str, attempt: int, *, money: bool = False) -> Message:
    said: dict[str, Any] = {"request_id": payment.uuid, "step": step, "attempt": attempt}
    if step == DEDUCT or money:
        said["wallet_id"] = payment.wallet_id
    if money:
        said |= {"amount": payment.amount, "currency": payment.currency}
    key = payment.wallet_id if step == DEDUCT else payment.uuid
    return Message(kind, said, key=key, id=message_id(payment.uuid, kind, attempt))


def _event(result: Received) -> str:
    """What it says: an operation that took effect, or one that did not."""
    if result.type.startswith("fulfilment."):
        return "FULFIL" if result.type == "fulfilment.accepted" else "NO FULFIL"
    kind: str = result.data["kind"]
    return kind if result.type == "wallet.succeeded" else f"NO {kind}"


def _reason(result: Received) -> str:
    """In the words of `payment.failed`: what was cancelled before it came was not answered in time."""
    given: str = result.data["reason"]
    return TIMED_OUT if given == "CANCELLED" else given


def _forged(payment: Payment, result: Received) -> bool:
    """Whether this payment can never have asked for what the result tells of."""
    data = result.data
    if result.type.startswith("fulfilment."):
        never = not payment.fulfil or payment.state in ("DEDUCTING", "CANCELLING")
        return never or data["step"] != FULFIL
    asked = {"DEDUCT"} if payment.state == "DEDUCTING" else {"DEDUCT", "CANCEL"}
    if payment.fulfil and payment.state != "DEDUCTING":
        asked |= {"REFUND"}
    if data["kind"] not in asked or (data["step"], data["wallet_id"]) != (DEDUCT, payment.wallet_id):
        return True
    return result.type == "wallet.succeeded" and not _fits(payment, data)


def _fits(payment: Payment, moved: dict[str, Any]) -> bool:
    """It is taken whole; given back may be less, or nothing."""
    amount: int = moved["amount"]
    whole = amount == payment.amount if moved["kind"] == "DEDUCT" else amount <= payment.amount
    return whole and moved["currency"] == payment.currency
