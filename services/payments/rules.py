"""The states of a payment and its rules: pure decisions on results and timeouts, without a database or a clock.

An operation happens once, whatever its attempts, and only its participant's answer ends it. An operation that is not
answered in time is cancelled, and the cancellation is requested again until it is answered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from ferryman import End, Go, Message, Received, ResultSource, Saga, State
from ferryman.services.payments.payments_settings import PaymentsSettings

DEDUCT, FULFIL = "deduct", "fulfil"
TIMED_OUT, REFUSED_DOWNSTREAM, NO_WALLET = "TIMED_OUT", "REFUSED_DOWNSTREAM", "NO_WALLET"

COMMANDS = {
    "DEDUCTING": "wallet.deduct", "CANCELLING": "wallet.cancel", "REFUNDING": "wallet.refund",
    "FULFILLING": "fulfilment.request", "RECALLING": "fulfilment.cancel",
}  # fmt: skip
"""The command whose answer moves a payment on, by its state."""


WALLET = ResultSource("payments", "wallet.results")
_FULFILMENTS = ResultSource("payments-fulfilments", "fulfilments.results")
RESULTS = {
    "wallet.succeeded": WALLET,
    "wallet.failed": WALLET,
    "fulfilment.accepted": _FULFILMENTS,
    "fulfilment.refused": _FULFILMENTS,
}
"""The source of each type of result: who writes fulfilments must have no say on the wallet's money."""


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


@dataclass(frozen=True)
class Rules:
    """The rules with the settings of one deployment."""

    settings: PaymentsSettings = field(default_factory=PaymentsSettings)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def literal(self) -> bool:
        """True in the literal mode: docs/literal-mode.md."""
        return self.settings.mode == "literal"

    @cached_property
    def saga(self) -> Saga[Payment]:
        """The saga of payments: its states, what is asked in them, and where each answer leads."""
        given = self.settings
        once = {"within": given.answer_seconds, "tries": 1}
        again = {"within": given.again_seconds, "longest": given.longest_seconds, "tries": given.most_attempts}
        group, url = given.wallet_group, given.wallet_database_url
        saga = Saga(
            "payment", Payment, table="payments.requests", of=lambda result: result.data["request_id"],
            results=RESULTS, event=_event, fits=_fits, archive="archive",
            participants={"payments.commands": group} if group else None,
            outboxes={WALLET.topic: url} if group and url else None,
            states={
                "DEDUCTING": _asking("DEDUCTING", "The wallet is asked for the amount.", **once, then="CANCELLING"),
                "CANCELLING": _asking("CANCELLING", (
                    "The wallet did not answer in time: it is asked to give back the amount if it took it, and not to "
                    "take it later. Only its answer ends this."), **again),
                "FULFILLING": _asking(
                    "FULFILLING", "The amount is taken; the fulfilment is requested.", **once, then="RECALLING"),
                "RECALLING": _asking("RECALLING", (
                    "The fulfilment was not answered in time: it is recalled, unless it was accepted. Only the answer "
                    "ends this."), **again),
                "REFUNDING": _asking("REFUNDING", (
                    "The payment will not be fulfilled: the wallet is asked to give the amount back."), **again),
                "STUCK": State(
                    "The wallet refuses to give the amount back: a person decides, unless the wallet reports after all "
                    "that nothing is taken."),
                "SUCCEEDED": End("The payment is complete."),
                "FAILED": End("The payment failed, and no amount is taken for it."),
            },
        )  # fmt: skip
        self._answers(saga)
        saga.on_late(self._given_back_late)
        return saga

    def _answers(self, saga: Saga[Payment]) -> None:
        """Say where each answer leads. A refused deduction stays refused: nothing will be taken later."""
        saga.on("DEDUCTING", "DEDUCT", to=("SUCCEEDED", "FULFILLING"))(
            lambda payment, _: Go("FULFILLING") if payment.fulfil else self._done(payment)
        )
        saga.on("DEDUCTING", "NO DEDUCT", to="FAILED")(lambda payment, result: self._failed(payment, _reason(result)))
        saga.on("CANCELLING", ("CANCEL", "NO DEDUCT"), to="FAILED")(self._as_before)
        saga.on("CANCELLING", "NO CANCEL", to=("FAILED", "STUCK"))(self._not_cancelled)
        saga.on(("FULFILLING", "RECALLING"), "FULFIL", to="SUCCEEDED")(lambda payment, _: self._done(payment))
        saga.on("FULFILLING", "NO FULFIL", to="REFUNDING", reason=REFUSED_DOWNSTREAM)
        saga.on("RECALLING", "NO FULFIL", to="REFUNDING")
        saga.on("REFUNDING", "REFUND", to="FAILED")(self._as_before)
        saga.on("REFUNDING", "NO REFUND", to="STUCK")
        saga.on("STUCK", ("CANCEL", "REFUND", "NO DEDUCT"), to="FAILED")(self._as_before)

    def requested(self, payment: Payment, reference: str | None = None) -> tuple[Message, ...]:
        """Return the messages that are sent when a payment is recorded; the first asks the wallet for the amount."""
        words = reference if self.settings.reference_in_event else None
        told = self._told(payment, "payment.requested", requested_at=self.now(), reference=words)
        return (self.saga.command(payment), *told)

    def told(
        self, payment: Payment, status: str, reason: str | None, headers: Mapping[str, str] | None = None
    ) -> Go | None:
        """Decide on a report by HTTP: it is believed only if the deduction is the only step."""
        if payment.state != "DEDUCTING" or payment.fulfil:
            return None
        return self._done(payment, headers) if status == "SUCCEEDED" else self._failed(payment, reason, headers)

    def again(self, payment: Payment, *, literal: bool = False) -> Go | None:
        """Request the unanswered operation again: a person may always do that, since each operation happens once.

        A payment of the literal mode gets no timeout, also after a change of the mode: its wallet does not report
        cancellations.
        """
        match payment.state:
            case "DEDUCTING" | "FULFILLING":
                return Go(payment.state, again=True, due=None if literal else self.settings.answer_seconds)
            case "CANCELLING" | "RECALLING" | "REFUNDING":
                return Go(payment.state, again=True)
            case _:
                return None

    def given_back(self, payment: Payment, attempt: int) -> Message:
        """Return the command that asks for the amount of a FAILED payment that was taken all the same."""
        return _command("wallet.cancel", payment._replace(attempt=attempt))

    def settled(self, payment: Payment) -> Go | None:
        """End a STUCK payment whose amount a person has given back by hand."""
        return self._failed(payment, payment.reason or TIMED_OUT) if payment.state == "STUCK" else None

    def _done(self, payment: Payment, headers: Mapping[str, str] | None = None) -> Go:
        told = self._told(payment, "payment.succeeded", headers, succeeded_at=self.now())
        return Go("SUCCEEDED", *told, reason=None)

    def _failed(self, payment: Payment, reason: str | None, headers: Mapping[str, str] | None = None) -> Go:
        told = self._told(payment, "payment.failed", headers, reason=reason, failed_at=self.now())
        return Go("FAILED", *told, reason=reason)

    def _as_before(self, payment: Payment, _: Received) -> Go:
        """End a payment for the reason that it has."""
        return self._failed(payment, payment.reason)

    def _not_cancelled(self, payment: Payment, refused: Received) -> Go:
        """End a payment whose wallet does not exist: nothing was taken, and the refusal rules it out for later."""
        return self._failed(payment, payment.reason) if refused.data["reason"] == NO_WALLET else Go("STUCK")

    def _given_back_late(self, payment: Payment, result: Received) -> Sequence[Message]:
        """Ask for an amount back that was taken for a payment which has failed."""
        in_vain = payment.state == "FAILED" and payment.reason not in (TIMED_OUT, REFUSED_DOWNSTREAM)
        return [self.given_back(payment, 1)] if in_vain and _event(result) == "DEDUCT" else []

    def _told(
        self, payment: Payment, kind: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> tuple[Message, ...]:
        if not self.settings.events or self.literal:
            return ()
        said = {"request_id": payment.uuid, "wallet_id": payment.wallet_id, "amount": payment.amount,
                "currency": payment.currency, **more}  # fmt: skip
        return (Message(kind, said, key=payment.uuid, id=message_id(payment.uuid, kind), headers=headers or {}),)


def _asking(state: str, text: str, **more: Any) -> State:
    return State(text, ask=partial(_command, COMMANDS[state]), **more)


def _command(kind: str, payment: Payment) -> Message:
    """Return a command of this type, for the payment's attempt.

    The wallet's have the wallet as their key, and cancellations name no amount.
    """
    step, key = (DEDUCT, payment.wallet_id) if kind.startswith("wallet.") else (FULFIL, payment.uuid)
    said: dict[str, Any] = {"request_id": payment.uuid, "step": step, "attempt": payment.attempt}
    if kind != "fulfilment.cancel":
        said["wallet_id"] = payment.wallet_id
    if not kind.endswith(".cancel"):
        said |= {"amount": payment.amount, "currency": payment.currency}
    return Message(kind, said, key=key, id=message_id(payment.uuid, kind, payment.attempt))


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


def _fits(payment: Payment, result: Received) -> bool:
    """Return False if this payment can never have requested the operation that the result reports."""
    data = result.data
    if result.type.startswith("fulfilment."):
        ever = payment.fulfil and payment.state not in ("DEDUCTING", "CANCELLING")
        return ever and data["step"] == FULFIL
    asked = {"DEDUCT"} if payment.state == "DEDUCTING" else {"DEDUCT", "CANCEL"}
    if payment.fulfil and payment.state != "DEDUCTING":
        asked |= {"REFUND"}
    if data["kind"] not in asked or (data["step"], data["wallet_id"]) != (DEDUCT, payment.wallet_id):
        return False
    return result.type != "wallet.succeeded" or _amount_fits(payment, data)


def _amount_fits(payment: Payment, moved: dict[str, Any]) -> bool:
    """Return True if the amount fits: a deduction takes all of it; less, or nothing, may be given back."""
    amount: int = moved["amount"]
    whole = amount == payment.amount if moved["kind"] == "DEDUCT" else amount <= payment.amount
    return whole and moved["currency"] == payment.currency


MACHINE = Rules().saga.machine
