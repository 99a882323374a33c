"""The states of a payment and its rules: pure decisions on results and timeouts, without a database or a clock.

An operation happens once, whatever its attempts, and only its participant's answer ends it. An operation that is not
answered in time is cancelled, and the cancellation is requested again until it is answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, uuid5

from ferryman import Message, Received
from ferryman.saga.machine import Machine, State
from ferryman.saga.moves import Move, Stray
from ferryman.services.payments.payments_settings import PaymentsSettings

DEDUCT, FULFIL = "deduct", "fulfil"
TIMED_OUT, REFUSED_DOWNSTREAM, NO_WALLET = "TIMED_OUT", "REFUSED_DOWNSTREAM", "NO_WALLET"

MACHINE = Machine(
    "payment",
    "payments.requests",
    "uuid",
    {
        "DEDUCTING": State("The wallet is asked for the amount.", ("SUCCEEDED", "FAILED", "FULFILLING", "CANCELLING")),
        "CANCELLING": State(
            "The wallet did not answer in time: it is asked to give back the amount if it took it, and not to take it "
            "later. Only its answer ends this.",
            ("FAILED", "STUCK"),
        ),
        "FULFILLING": State(
            "The amount is taken; the fulfilment is requested.", ("SUCCEEDED", "REFUNDING", "RECALLING")
        ),
        "RECALLING": State(
            "The fulfilment was not answered in time: it is recalled, unless it was accepted. Only the answer ends "
            "this.",
            ("SUCCEEDED", "REFUNDING"),
        ),
        "REFUNDING": State(
            "The payment will not be fulfilled: the wallet is asked to give the amount back.", ("FAILED", "STUCK")
        ),
        "STUCK": State(
            "The wallet refuses to give the amount back: a person decides, unless the wallet reports after all that "
            "nothing is taken.",
            ("FAILED",),
        ),
        "SUCCEEDED": State("The payment is complete."),
        "FAILED": State("The payment failed, and no amount is taken for it."),
    },
)

COMMANDS = {
    "DEDUCTING": "wallet.deduct", "CANCELLING": "wallet.cancel", "REFUNDING": "wallet.refund",
    "FULFILLING": "fulfilment.request", "RECALLING": "fulfilment.cancel",
}  # fmt: skip
"""The command whose answer moves a payment on, by its state."""


class Payment(NamedTuple):
    """The columns of `payments.requests` that the rules need."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    state: str
    attempt: int
    reason: str | None


def message_id(payment: UUID, kind: str, attempt: int = 1) -> UUID:
    """Derive a message's id from its content: the payment leads to its messages, and no message is sent twice."""
    return uuid5(payment, f"{kind}/{attempt}")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules with the settings of one deployment."""

    settings: PaymentsSettings = field(default_factory=PaymentsSettings)
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
    """The move for each awaited answer, by state. A refused deduction stays refused: nothing will be taken later."""

    @property
    def literal(self) -> bool:
        """True in the literal mode: docs/literal-mode.md."""
        return self.settings.mode == "literal"

    def requested(self, payment: Payment, reference: str | None = None) -> tuple[Message, ...]:
        """Return the messages that are sent when a payment is recorded; the first asks the wallet for the amount."""
        words = reference if self.settings.reference_in_event else None
        told = self._told(payment, "payment.requested", requested_at=self.now(), reference=words)
        return (_command("wallet.deduct", payment, 1), *told)

    def on_result(self, payment: Payment, result: Received) -> Move | Stray:
        """Decide on a result of the wallet or of the fulfilment."""
        if _forged(payment, result):
            return Stray("FORGED")
        event = _event(result)
        answer = self._ANSWERS.get((payment.state, event))
        if answer is not None:
            return answer(self, payment, result)
        if event == "DEDUCT" and payment.state == "FAILED" and payment.reason not in (TIMED_OUT, REFUSED_DOWNSTREAM):
            return Stray("LATE", (_command("wallet.cancel", payment, 1),))  # taken in vain: given back
        return Stray("LATE")

    def on_due(self, payment: Payment) -> Move:
        """Decide on a payment whose answer did not come in time."""
        match payment.state:
            case "DEDUCTING":
                return self._ask(payment, "CANCELLING", 1, TIMED_OUT)
            case "FULFILLING":
                return self._ask(payment, "RECALLING", 1, TIMED_OUT)
            case _:
                return self._ask(payment, payment.state, payment.attempt + 1, payment.reason)

    def told(self, payment: Payment, status: str, reason: str | None) -> Move | None:
        """Decide on a report by HTTP: it is believed only if the deduction is the only step."""
        if payment.state != "DEDUCTING" or payment.fulfil:
            return None
        return self._done(payment) if status == "SUCCEEDED" else self._failed(payment, reason)

    def again(self, payment: Payment, *, literal: bool = False) -> Move | None:
        """Request the unanswered operation again: a person may always do that, since each operation happens once.

        A payment of the literal mode gets no timeout, also after a change of the mode: its wallet does not report
        cancellations.
        """
        match payment.state:
            case "DEDUCTING" | "FULFILLING":
                due = None if literal else self.settings.answer_seconds
                message = _command(COMMANDS[payment.state], payment, payment.attempt + 1)
                return Move(payment.state, (message,), due, payment.attempt + 1, payment.reason)
            case "CANCELLING" | "RECALLING" | "REFUNDING":
                return self._ask(payment, payment.state, payment.attempt + 1, payment.reason, person=True)
            case _:
                return None

    def given_back(self, payment: Payment, attempt: int) -> Message:
        """Return the command that asks for the amount of a FAILED payment that was taken all the same."""
        return _command("wallet.cancel", payment, attempt)

    def settled(self, payment: Payment) -> Move | None:
        """End a STUCK payment whose amount a person has given back by hand."""
        return self._failed(payment, payment.reason or TIMED_OUT) if payment.state == "STUCK" else None

    def _fulfil(self, payment: Payment) -> Move:
        return Move("FULFILLING", (_command("fulfilment.request", payment, 1),), self.settings.answer_seconds)

    def _done(self, payment: Payment) -> Move:
        told = self._told(payment, "payment.succeeded", succeeded_at=self.now())
        return Move("SUCCEEDED", told, None, payment.attempt)

    def _failed(self, payment: Payment, reason: str | None) -> Move:
        told = self._told(payment, "payment.failed", reason=reason, failed_at=self.now())
        return Move("FAILED", told, None, payment.attempt, reason)

    def _not_cancelled(self, payment: Payment, refused: Received) -> Move:
        """End a payment whose wallet does not exist: nothing was taken, and the refusal rules it out for later."""
        if refused.data["reason"] == NO_WALLET:
            return self._failed(payment, payment.reason)
        return self._stuck(payment)

    def _stuck(self, payment: Payment) -> Move:
        return Move("STUCK", (), None, payment.attempt, payment.reason)

    def _ask(self, payment: Payment, state: str, attempt: int, reason: str | None, *, person: bool = False) -> Move:
        """Request the operation of this state, up to `most_attempts` times unless a person asks for it."""
        given = self.settings
        if attempt > given.most_attempts and not person:
            return Move(state, (), None, payment.attempt, reason)
        wait = min(given.longest_seconds, given.again_seconds * 2 ** min(attempt - 1, 30))
        return Move(state, (_command(COMMANDS[state], payment, attempt),), wait, attempt, reason)

    def _told(self, payment: Payment, kind: str, **more: Any) -> tuple[Message, ...]:
        if not self.settings.events or self.literal:
            return ()
        said = {"request_id": payment.uuid, "wallet_id": payment.wallet_id, "amount": payment.amount,
                "currency": payment.currency, **more}  # fmt: skip
        return (Message(kind, said, key=payment.uuid, id=message_id(payment.uuid, kind)),)


def _command(kind: str, payment: Payment, attempt: int) -> Message:
    """Return a command of this type. The wallet's have the wallet as their key, and cancellations name no amount."""
    step, key = (DEDUCT, payment.wallet_id) if kind.startswith("wallet.") else (FULFIL, payment.uuid)
    said: dict[str, Any] = {"request_id": payment.uuid, "step": step, "attempt": attempt}
    if kind != "fulfilment.cancel":
        said["wallet_id"] = payment.wallet_id
    if not kind.endswith(".cancel"):
        said |= {"amount": payment.amount, "currency": payment.currency}
    return Message(kind, said, key=key, id=message_id(payment.uuid, kind, attempt))


def _event(result: Received) -> str:
    """Return the operation that a result reports, with `NO` before it if the operation was refused."""
    if result.type.startswith("fulfilment."):
        return "FULFIL" if result.type == "fulfilment.accepted" else "NO FULFIL"
    kind: str = result.data["kind"]
    return kind if result.type == "wallet.succeeded" else f"NO {kind}"


def _reason(result: Received) -> str:
    """Return the reason for `payment.failed`: a deduction that was cancelled was not answered in time."""
    given: str = result.data["reason"]
    return TIMED_OUT if given == "CANCELLED" else given


def _forged(payment: Payment, result: Received) -> bool:
    """Return True if this payment can never have requested the operation that the result reports."""
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
    """Return True if the amount fits: a deduction takes all of it; less, or nothing, may be given back."""
    amount: int = moved["amount"]
    whole = amount == payment.amount if moved["kind"] == "DEDUCT" else amount <= payment.amount
    return whole and moved["currency"] == payment.currency
