"""What is counted of a payment, and what is wrong with it: pure, from what is known."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from uuid import UUID

from ferryman.evidence.audit.model import Facts, Horizon, Judged, Operation, Plain, Sums, Wrong
from ferryman.evidence.messages import KINDS

SUCCEEDED, FAILED, PENDING = "SUCCEEDED", "FAILED", "PENDING"
COMMANDS = {operation: command for command, operation in KINDS.items()}
"""By what each kind of operation is asked for."""

RECEIPTS_GONE = "receipts of the wallet that are past their retention"
RESULTS_GONE = "receipts of the orchestrator that are past their retention"
ARCHIVED = "payments of the ledger that ended before the last archive()"


def status_of(state: str) -> str:
    return state if state in (SUCCEEDED, FAILED) else PENDING


def judge(known: Facts, horizon: Horizon) -> Judged:
    """A payment on its way is counted, and asked no more than what must be true at every moment."""
    status = status_of(known.request.state)
    counts = [f"requests.{status}", f"ledger.{booked_as(known.operations)}"]
    wrong = list(_always(known))
    if status != PENDING:
        counts.append(f"outcomes.{status}")
        wrong += _terminal(known, status)
    receipts = _receipts(known, horizon)
    results = _results(known, status, horizon)
    counts += [
        f"commands.{'received' if known.operations or known.received else 'on_their_way'}",
        f"receipts.{receipts}", f"results.{results}",
    ]  # fmt: skip
    if receipts == "missing":
        what = ", ".join(sorted(each.kind for each in known.operations if not _has_receipt(each, known)))
        wrong.append(_wrong(known, "no_receipt", f"{what} stands in the ledger, and no command was received for it"))
    if results == "missing":
        wrong.append(_wrong(known, "no_result", f"it is {status}, and no result of the wallet was applied to it"))
    return Judged(tuple(counts), tuple(wrong))


def add(sums: Sums, known: Facts) -> None:
    """To those of its currency."""
    taken = -net(known.operations)
    match status_of(known.request.state):
        case "SUCCEEDED":
            sums.succeeded += known.request.amount
            sums.deducted += taken
        case "FAILED":
            sums.failed_net += taken
        case _:
            sums.in_flight_net += taken


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


def unbalanced(uuid: UUID, balance: int, booked: int) -> Wrong:
    said = f"the wallet holds {balance}, and its ledger sums to {booked}"
    return Wrong(
        "unbalanced", uuid, said + (": it holds less than nothing" if balance < 0 else ""),
        "psql $FERRYMAN_PAYMENTS__WALLET_DATABASE_URL -c 'TABLE wallet.unbalanced'",
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


def _terminal(known: Facts, status: str) -> Iterator[Wrong]:
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
    elif status == FAILED and taken and not known.settled:
        yield _wrong(known, "failure_with_deduction", "it FAILED, and what was taken was not given back")


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
    if not known.request.fulfil and all(each.kind == "DEDUCT" for each in known.operations):
        return "told"  # the wallet may have said so beside its results, which is believed there (`Rules.told`)
    return "expired" if _gone(known.request.changed_at, horizon.orchestrator) else "missing"


def _gone(at: datetime, horizon: datetime | None) -> bool:
    return horizon is not None and at < horizon


def _wrong(known: Facts, what: str, why: str) -> Wrong:
    return Wrong(what, known.request.uuid, why, f"ferryman trace {known.request.uuid}{_MENDS.get(what, '')}")


_MENDS: Mapping[str, str] = {
    "failure_with_deduction": "   and give it back: a wallet.cancel of this payment does",
    "success_without_deduction": "   and settle with the client by hand",
    "two_deductions": "   and give one back by hand",
}
