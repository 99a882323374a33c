"""The rules of the wallet: commands are decided in memory, in their order, without a database or a clock.

An operation is identified by its payment, its step and its kind, and happens once. A refund and a cancellation belong
to the deduction of the same step: if they come before it, they prevent it; together they give back what it took, and no
more.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

Kind = Literal["DEDUCT", "REFUND", "CANCEL"]
Reason = Literal["INSUFFICIENT_FUNDS", "NO_WALLET", "WRONG_CURRENCY", "CANCELLED", "INVALID_AMOUNT"]
Step: TypeAlias = tuple[UUID, str]


class Command(NamedTuple):
    """A command to the wallet; a cancellation has no amount."""

    kind: Kind
    request_id: UUID
    step: str
    wallet_id: UUID
    amount: int
    currency: str | None


class Operation(NamedTuple):
    """A decision: the amount that was moved and the balance after it, or the reason of a refusal."""

    request_id: UUID
    step: str
    kind: Kind
    wallet_id: UUID
    reason: Reason | None
    amount: int | None
    currency: str | None
    balance: int | None
    decided_at: datetime


@dataclass(slots=True)
class Wallet:
    """A wallet, with its balance after the commands that were decided so far."""

    currency: str
    balance: int


@dataclass(slots=True)
class Books:
    """The locked wallets, earlier decisions on the same steps, and new decisions."""

    wallets: dict[UUID, Wallet]
    decided: dict[Step, dict[Kind, Operation]]
    now: datetime
    new: list[Operation] = field(default_factory=list)

    def decide(self, command: Command) -> Operation:
        """Return the decision on a command: an earlier one, or a new one."""
        step = self.decided.setdefault((command.request_id, command.step), {})
        if found := step.get(command.kind):
            return found
        return self._deduct(command) if command.kind == "DEDUCT" else self._give_back(command, step)

    def _deduct(self, command: Command) -> Operation:
        wallet = self.wallets.get(command.wallet_id)
        if reason := _fault(command, wallet):
            return self._refused(command, reason)
        assert wallet is not None
        if wallet.balance < command.amount:
            return self._refused(command, "INSUFFICIENT_FUNDS")
        return self._moved(command, wallet, -command.amount)

    def _give_back(self, command: Command, step: dict[Kind, Operation]) -> Operation:
        taken = step.get("DEDUCT")
        if taken is None:
            taken = self._refused(command._replace(kind="DEDUCT"), "CANCELLED")  # the deduction will find this
        wallet = self.wallets.get(command.wallet_id)
        reason = _fault(command, wallet)
        if reason is None and taken.wallet_id != command.wallet_id:
            reason = "NO_WALLET"  # the step took nothing from this wallet
        if reason:
            return self._refused(command, reason)
        assert wallet is not None
        back = sum(each.amount or 0 for each in step.values() if each.kind in ("REFUND", "CANCEL"))
        left = (taken.amount or 0) - back
        if command.kind == "CANCEL":
            return self._moved(command, wallet, left)
        if taken.amount is not None and command.amount > taken.amount:
            return self._refused(command, "INVALID_AMOUNT")
        return self._moved(command, wallet, min(command.amount, left))

    def _moved(self, command: Command, wallet: Wallet, change: int) -> Operation:
        wallet.balance += change
        return self._written(command, None, abs(change), wallet.currency, wallet.balance)

    def _refused(self, command: Command, reason: Reason) -> Operation:
        return self._written(command, reason, None, None, None)

    def _written(
        self, command: Command, reason: Reason | None, amount: int | None, currency: str | None, balance: int | None
    ) -> Operation:
        kind, request_id, step, wallet_id, _, _ = command
        made = Operation(request_id, step, kind, wallet_id, reason, amount, currency, balance, self.now)
        self.decided[request_id, step][kind] = made
        self.new.append(made)
        return made


def _fault(command: Command, wallet: Wallet | None) -> Reason | None:
    """Return what is wrong with a command, whatever happened before."""
    if command.kind != "CANCEL" and command.amount <= 0:
        return "INVALID_AMOUNT"
    if wallet is None:
        return "NO_WALLET"
    if command.kind != "CANCEL" and command.currency != wallet.currency:
        return "WRONG_CURRENCY"
    return None
