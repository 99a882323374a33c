"""What is counted of a payment, and what is wrong with it: pure, from what is known."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from uuid import UUID

from ferryman.evidence.audit.model import (
    EXPIRED,
    FOUND,
    Facts,
    Held,
    Horizon,
    Judged,
    Operation,
    Plain,
    Sums,
    Wrong,
)
from ferryman.evidence.messages import KINDS

SUCCEEDED, FAILED, PENDING = "SUCCEEDED", "FAILED", "PENDING"
COMMANDS: Mapping[str, str] = {operation: command for command, operation in KINDS.items()}
"""By what each kind of operation is asked for."""

RECEIPTS_GONE = "receipts of the wallet that are past their retention"
RESULTS_GONE = "receipts of the orchestrator that are past their retention"
COMMANDS_GONE = "commands that the journal may have forgotten"
ARCHIVED = "payments of the ledger that were archived"
GONE: Mapping[str, str] = {
    "receipts.expired": RECEIPTS_GONE, "results.expired": RESULTS_GONE, "commands.expired": COMMANDS_GONE,
}  # fmt: skip
"""Of what is counted, what nobody can tell any more."""


def status_of(state: str) -> str:
    return state if state in (SUCCEEDED, FAILED) else PENDING


def judge(known: Facts, horizon: Horizon) -> Judged:
    """A payment on its way is counted, and asked no more than what must be true at every moment, or after so long."""
    status = status_of(known.request.state)
    counts = [f"requests.{status}", f"ledger.{booked_as(known.operations)}"]
    wrong = list(_always(known))
    if status == PENDING:
        wrong += _pending(known, horizon)
    else:
        counts.append(f"outcomes.{status}")
        wrong += _terminal(known, status, horizon)
    receipts, results = _receipts(known, horizon), _results(known, status, horizon)
    counts += [f"commands.{_commands(known, horizon)}", f"receipts.{receipts}", f"results.{results}"]
    if giving_back(known, horizon):
        counts.append("compensations.on_their_way")
    if receipts == "missing":
        what = ", ".join(sorted(each.kind for each in known.operations if not _has_receipt(each, known)))
        wrong.append(_wrong(known, "no_receipt", f"{what} stands in the ledger, and no command was received for it"))
    if results == "missing":
        wrong.append(_wrong(known, "no_result", f"it is {status}, and no result of the wallet was applied to it"))
    return Judged(tuple(counts), tuple(wrong))


def plain_at_once(known: Facts, judged: Judged) -> bool:
    """Whether a second look could tell nothing else."""
    if judged.wrong:
        return False
    doubts = _DOUBTS - {"results.told"} if known.literal else _DOUBTS
    return doubts.isdisjoint(judged.counts)


def misses(known: Facts, horizon: Horizon) -> bool:
    """Whether it lacks a message that may be of an attempt which was not looked for."""
    return not _MISSING.isdisjoint(each.what for each in judge(known, horizon).wrong)


def unseen(known: Facts, horizon: Horizon) -> bool:
    """Whether it was asked for so long ago that a command must be somewhere, and the wallet knows none."""
    return (
        status_of(known.request.state) == PENDING and not (known.operations or known.seen or known.literal)
        and _before(known.request.created_at, horizon.overdue)
    )  # fmt: skip


def giving_back(known: Facts, horizon: Horizon) -> bool:
    """Whether what a payment that has FAILED still takes is being given back: its result has to come first, and then
    the cancellation that it causes.
    """
    if known.request.state != FAILED or known.settled or net(known.operations) >= 0 or horizon.overdue is None:
        return False
    since = known.back_at or max(each.decided_at for each in known.operations)
    return known.back_waits or ((known.back_at is not None or not known.applied) and since >= horizon.overdue)


def add(sum_of: Callable[[str], Sums], known: Facts, horizon: Horizon) -> None:
    """What was asked for to its currency, what was moved to that of the ledger."""
    status = status_of(known.request.state)
    if status == SUCCEEDED:
        sum_of(known.request.currency).succeeded += known.request.amount
    for each in known.operations:
        sums = sum_of(each.currency or known.request.currency)
        for name in _moved(known, status, horizon):
            setattr(sums, name, getattr(sums, name) - each.amount)


def _moved(known: Facts, status: str, horizon: Horizon) -> Iterator[str]:
    """To which sums what was taken for it belongs."""
    if status != FAILED:
        yield "deducted" if status == SUCCEEDED else "in_flight_net"
        return
    yield "failed_net"
    if known.settled:
        yield "by_hand"
    elif giving_back(known, horizon):
        yield "giving_back"


def unequal(currency: str, sums: Sums) -> Iterator[Wrong]:
    """What must be the same of all payments together, whatever was found of each."""
    if sums.succeeded != sums.deducted:
        said = f"what SUCCEEDED asks for {sums.succeeded} {currency}, and {sums.deducted} were taken for it"
        yield Wrong("unequal_sums", None, said, "ferryman trace of each payment that is listed")
    if sums.failed_net != sums.by_hand + sums.giving_back:
        kept = sums.failed_net - sums.by_hand - sums.giving_back
        said = f"{kept} {currency} stay taken for what FAILED"
        yield Wrong("unequal_sums", None, said, "ferryman reconcile payments")


def add_plain(counts: Counter[str], sums: Sums, plain: Plain) -> None:
    """What `judge` and `add` would say of each of them."""
    ledger = "deducted" if plain.status == SUCCEEDED else "refused"
    for name in (f"requests.{plain.status}", f"ledger.{ledger}", f"outcomes.{plain.status}", "commands.received",
                 "receipts.found", "results.applied"):  # fmt: skip
        counts[name] += plain.many
    if plain.status == SUCCEEDED:
        sums.succeeded += plain.amount
        sums.deducted += plain.taken


def net(operations: tuple[Operation, ...]) -> int:
    """What the wallet gained by them."""
    return sum(each.amount for each in operations)


def booked_as(operations: tuple[Operation, ...]) -> str:
    """What the ledger has of a payment, in a word."""
    if not operations:
        return "none"
    if net(operations):
        return "deducted"
    return "given_back" if any(each.amount for each in operations) else "refused"


def orphan(uuid: UUID) -> Wrong:
    return Wrong(
        "no_request", uuid, "the ledger has operations of a payment that was never recorded",
        f"ferryman trace {uuid}   and give back what was taken for it",
    )  # fmt: skip


def lopsided(uuid: UUID, kinds: str) -> Wrong:
    return Wrong("lopsided", uuid, f"the two sides of {kinds} do not sum to zero", f"ferryman trace {uuid}")


def unbalanced(wallet: Held) -> Wrong:
    said = f"the wallet holds {wallet.balance}, and its ledger sums to {wallet.booked}"
    return Wrong(
        "unbalanced", wallet.id, said + (": it holds less than nothing" if wallet.balance < 0 else ""),
        "in the wallet's database: TABLE wallet.unbalanced",
    )  # fmt: skip


def _always(known: Facts) -> Iterator[Wrong]:
    """True at every moment, also of what is on its way."""
    request = known.request
    deductions = [each for each in known.operations if each.kind == "DEDUCT" and each.reason is None]
    if len(deductions) > 1:
        yield _wrong(known, "two_deductions", f"it was taken {len(deductions)} times")
    elif deductions and (deductions[0].wallet_id, -deductions[0].amount, deductions[0].currency) != (
        request.wallet_id, request.amount, request.currency,
    ):  # fmt: skip
        yield _wrong(known, "mismatch", "another wallet, amount or currency was taken than it asks for")
    if net(known.operations) > 0:
        yield _wrong(known, "given_too_much", "more was given back than was taken")


def _pending(known: Facts, horizon: Horizon) -> Iterator[Wrong]:
    """True of what is on its way, once it has had its time."""
    if unseen(known, horizon) and known.commanded not in (FOUND, EXPIRED):
        why = "no command of it exists: not in the outbox, not in the wallet's inbox, not in the ledger"
        yield _wrong(known, "no_command", why)
    if lost := sorted(known.stale - {each.kind for each in known.operations}):
        yield _wrong(known, "no_ledger", f"the wallet handled its {', '.join(lost)}, and the ledger has nothing of it")


def _terminal(known: Facts, status: str, horizon: Horizon) -> Iterator[Wrong]:
    taken = -net(known.operations)
    if status == SUCCEEDED and not taken:
        given = any(each.amount for each in known.operations)
        why = "what was taken was given back" if given else "nothing was taken for it"
        yield _wrong(known, "success_without_deduction", f"it SUCCEEDED, and {why}")
    elif status == SUCCEEDED and taken != known.request.amount and not known.operations[1:]:
        return  # said as a mismatch
    elif status == SUCCEEDED and taken != known.request.amount:
        yield _wrong(known, "success_given_back", "it SUCCEEDED, and another amount than it asks for stays taken")
    elif status == FAILED and not known.operations:
        yield _wrong(known, "no_ledger", "it FAILED, and the ledger has no answer of the wallet to it")
    elif status == FAILED and taken and not known.settled and not giving_back(known, horizon):
        yield _wrong(known, "failure_with_deduction", "it FAILED, and what was taken was not given back")


def _commands(known: Facts, horizon: Horizon) -> str:
    if known.operations or known.seen or known.received:
        return "received"
    return known.commanded if unseen(known, horizon) and known.commanded != FOUND else "on_their_way"


def _receipts(known: Facts, horizon: Horizon) -> str:
    """Whether each operation came by a command that the inbox knows."""
    if not known.operations:
        return "found" if known.received else "none"
    missing = [each for each in known.operations if not _has_receipt(each, known)]
    if not missing:
        return "found"
    return "expired" if all(_gone(each.decided_at, horizon.wallet) for each in missing) else "missing"


def _has_receipt(operation: Operation, known: Facts) -> bool:
    """A deduction that was cancelled before it came stands there by what cancelled it."""
    if operation.kind == "DEDUCT" and operation.reason == "CANCELLED":
        return bool(known.received)
    return operation.kind in known.received


def _results(known: Facts, status: str, horizon: Horizon) -> str:
    if known.applied:
        return "applied"
    if status == PENDING:
        return "on_their_way"
    if known.settled:
        return "by_hand"
    if _may_be_told(known):
        if known.literal or not known.reported:
            return "told"
        if not _before(max(each.decided_at for each in known.operations), horizon.heard):
            return "behind"  # told by HTTP, and the result that the wallet reported comes after
    return "expired" if _results_gone(known, horizon) else "missing"


def _results_gone(known: Facts, horizon: Horizon) -> bool:
    """By its last result it was over, and that by the orchestrator's clock; but where it was fulfilled after that, only
    the ledger tells when the result can have come: not before it was decided, by the wallet's.
    """
    if known.request.fulfil and known.request.state == SUCCEEDED and known.operations:
        return _gone(max(each.decided_at for each in known.operations), horizon.wallet)
    return _gone(known.request.changed_at, horizon.orchestrator)


def _may_be_told(known: Facts) -> bool:
    """The wallet may have said so beside its results, which is believed where the deduction is all (`Rules.told`)."""
    return not known.request.fulfil and {each.kind for each in known.operations} == {"DEDUCT"}


def _before(at: datetime, moment: datetime | None) -> bool:
    return moment is not None and at < moment


def _gone(at: datetime, horizon: datetime | None) -> bool:
    return horizon is not None and at < horizon


def _wrong(known: Facts, what: str, why: str) -> Wrong:
    uuid = known.request.uuid
    return Wrong(what, uuid, why, f"ferryman trace {uuid}{_MENDS.get(what, '').format(uuid)}")


_DOUBTS = {"receipts.expired", "results.expired", "results.told", "results.behind"}
"""What another attempt, which was not looked for at first, may still tell."""

_MISSING = {"no_receipt", "no_result", "no_command"}
_MENDS: Mapping[str, str] = {
    "failure_with_deduction": "   and then ferryman reconcile payments --id {}",
    "no_command": "   and then ferryman reconcile payments --id {}",
    "no_ledger": "   and then ferryman reconcile payments --id {}",
    "success_without_deduction": "   and settle with the client by hand",
    "two_deductions": "   and give one back by hand",
}
