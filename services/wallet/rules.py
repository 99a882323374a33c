"""What becomes of a command: decided in memory, in the order of the commands, with no database and no clock.

An operation is known by its payment, its step and its kind, and happens once. A refund and a cancellation belong to the
deduction of the same step: one that comes before it stops it, and together they give back what it took, and no more.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

Kind = Literal["DEDUCT", "REFUND", "CANCEL"]
Reason = Literal["INSUFFICIENT_FUNDS", "NO_WALLET", "WRONG_CURRENCY", "CANCELLED", "INVALID_AMOUNT"]
Step: TypeAlias = tuple[UUID, str]


class Command(NamedTuple):
    """What is asked; a cancellation names no amount."""

    kind: Kind
    request_id: UUID
    step: str
    wallet_id: UUID
    amount: int
    currency: str | None


class Operation(NamedTuple):
    """What was decided: what was moved and what the wallet then held, or a reason why not."""

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
    """What it holds, as far as the commands were decided."""

    currency: str
    balance: int


@dataclass(slots=True)
class Books:
    """The wallets, locked; what was decided of these steps before; and what is decided now."""

    wallets: dict[UUID, Wallet]
    decided: dict[Step, dict[Kind, Operation]]
    now: datetime
    new: list[Operation] = field(default_factory=list)

    def decide(self, command: Command) -> Operation:
        """The outcome: the one that it has already, or a new one."""
        step = self.decided.setdefault((command.request_id, command.step), {})
        found = step.get(command.kind)
        if found is not None:
            return found
        if command.kind == "DEDUCT":
            return self._deduct(command)
        return self._give_back(command, step)

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
            taken = self._refused(command._replace(kind="DEDUCT"), "CANCELLED")  # it finds this when it comes
        wallet = self.wallets.get(command.wallet_id)
        reason = _fault(command, wallet)
        if reason is None and taken.wallet_id != command.wallet_id:
            reason = "NO_WALLET"  # the step took nothing from this one
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
    """What is wrong whatever happened before."""
    if command.kind != "CANCEL" and command.amount <= 0:
        return "INVALID_AMOUNT"
    if wallet is None:
        return "NO_WALLET"
    if command.kind != "CANCEL" and command.currency != wallet.currency:
        return "WRONG_CURRENCY"
    return None
