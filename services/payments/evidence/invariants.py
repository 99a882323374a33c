"""The invariants of payments, decided from values: what is counted of a payment, and what is wrong with it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ferryman.evidence.audit import AuditBooks, Wrong
from ferryman.services.payments.evidence import case
from ferryman.services.payments.evidence.audit_store import HeldBalance
from ferryman.services.payments.evidence.case import LedgerRow
from ferryman.services.payments.evidence.facts import EXPIRED, FOUND, PaymentFacts, before, kinds_of

ARCHIVED = "payments of the ledger that were archived"
GONE: Mapping[str, str] = {
    "receipts.expired": "receipts of the wallet that are past their retention",
    "results.expired": "receipts of the orchestrator that are past their retention",
    "commands.expired": "commands that the journal may have forgotten",
}
"""The evidence that is gone, by what is counted."""

DOUBTS = {"receipts.expired", "results.expired", "results.told", "results.behind"}
"""The counts that another attempt, which was not looked for at first, may still change."""
_RECONCILED = ("failure_with_deduction", "no_command", "no_ledger", "not_ended")
_MENDS: Mapping[str, str] = dict.fromkeys(_RECONCILED, "   and then ferryman reconcile payments --id {}") | {
    "success_without_deduction": "   and settle with the client by hand",
    "success_given_back": "   and settle the difference with the client by hand",
    "mismatch": "   and settle the difference with the holders of both wallets by hand",
    "two_deductions": "   and give one back by hand",
    "given_too_much": "   and settle the excess with the wallet's holder by hand",
    "no_receipt": "   and find who booked it: an operation needs a command, unless the wallet's inbox was restored",
    "no_result": "   and find who ended it; the ledger bears it out, unless it is listed for something else too",
}
_ROWS = "in the wallet's database: SELECT * FROM wallet.ledger WHERE"
_OPEN_AGAIN = "in the wallet's database: INSERT INTO wallet.wallets (id, currency, balance) VALUES"


class Horizon(NamedTuple):
    """Receipts that are older than these moments are forgotten: the wallet's, and the orchestrator's. None if none are.

    What happened before `overdue` must have been followed by what follows it. The orchestrator has heard of results so
    long after `heard` that one which was decided before must have come.
    """

    wallet: datetime | None
    orchestrator: datetime | None
    overdue: datetime | None = None
    heard: datetime | None = None


@dataclass(slots=True)
class PaymentSums:
    """The sums of one currency, in its smallest unit."""

    succeeded: int = 0
    deducted: int = 0
    failed_net: int = 0
    in_flight_net: int = 0
    wallets: int = 0
    opened: int = 0
    by_hand: int = 0
    """The part of `failed_net` that a person gave back."""
    giving_back: int = 0
    """The part of `failed_net` that a cancellation on its way gives back."""
    ledger: int = 0
    """The sum of the ledger, of all time like the next two: what the wallets must hold."""
    taken: int = 0
    given_back: int = 0


class Judged(NamedTuple):
    """The counts of a payment, and the faults."""

    counts: tuple[str, ...]
    wrong: tuple[Wrong, ...] = ()


def judge(known: PaymentFacts, horizon: Horizon) -> Judged:
    """Count a payment. One on its way must only satisfy what is true at every moment, or after so long."""
    status, uuid = known.request.status, known.request.uuid
    receipts, results = _receipts(known, horizon), _results(known, horizon)
    counts = [f"requests.{status}", f"ledger.{_booked_as(known)}", f"commands.{_commanded(known, horizon)}",
              f"receipts.{receipts}", f"results.{results}"]  # fmt: skip
    counts += [f"outcomes.{status}"] if status != case.PENDING else []
    counts += ["compensations.on_their_way"] if giving_back(known, horizon) else []
    wrong = [*_always(known), *(_pending if status == case.PENDING else _terminal)(known, horizon)]
    if receipts == "missing":
        what = ", ".join(sorted(each.kind for each in known.ledger if not _has_receipt(each, known)))
        wrong.append(("no_receipt", f"{what} stands in the ledger, and no command was received for it"))
    if results == "missing":
        wrong.append(("no_result", f"it is {status}, and no result of the wallet was applied to it"))
    trace = f"ferryman trace {uuid}"
    return Judged(
        tuple(counts),
        tuple(Wrong(what, uuid, why, f"{trace}{_MENDS.get(what, '').format(uuid)}") for what, why in wrong),
    )


def _always(known: PaymentFacts) -> Iterator[tuple[str, str]]:
    request = known.request
    deductions = known.deductions
    if len(deductions) > 1:
        yield "two_deductions", f"it was taken {len(deductions)} times"
    elif (deductions and -deductions[0].amount != request.amount) or any(
        each.amount and (each.wallet_id, each.currency) != (request.wallet_id, request.currency)
        for each in known.ledger
    ):
        yield "mismatch", "another wallet, amount or currency was taken or given back than it asks for"
    if known.kept < 0:
        yield "given_too_much", "more was given back than was taken"


def _pending(known: PaymentFacts, horizon: Horizon) -> Iterator[tuple[str, str]]:
    if known.unseen(horizon.overdue) and known.commanded not in (FOUND, EXPIRED):
        yield "no_command", "no command of it exists: not in the outbox, not in the wallet's inbox, not in the ledger"
    stale = kinds_of(each for each in known.handled if before(each.at, horizon.overdue))
    if lost := sorted(stale - {each.kind for each in known.ledger}):
        yield "no_ledger", f"the wallet handled its {', '.join(lost)}, and the ledger has nothing of it"

    if (done := known.outcome) and before(done.decided_at, horizon.overdue) and known.request.moves:
        since = f"{done.decided_at:%Y-%m-%d %H:%M:%S %Z}"
        yield "not_ended", f"it is {known.request.state}, and the ledger has the answer, its {done.kind}, since {since}"


def _terminal(known: PaymentFacts, horizon: Horizon) -> Iterator[tuple[str, str]]:
    if known.request.status == case.SUCCEEDED:
        if not known.kept:
            why = "what was taken was given back" if known.moved else "nothing was taken for it"
            yield "success_without_deduction", f"it SUCCEEDED, and {why}"
        elif known.kept != known.request.amount and known.ledger[1:]:  # else said as a mismatch
            yield "success_given_back", "it SUCCEEDED, and another amount than it asks for stays taken"
    elif not known.ledger:
        if known.answered or before(known.request.changed_at, horizon.overdue):  # else told by HTTP, before the wallet
            yield "no_ledger", "it FAILED, and the ledger has no answer of the wallet to it"
    elif known.kept and not known.settled and not giving_back(known, horizon):
        yield "failure_with_deduction", "it FAILED, and what was taken was not given back"


def giving_back(known: PaymentFacts, horizon: Horizon) -> bool:
    """Return True if what a payment that has FAILED still takes is being given back: its result has to come first, and
    then the cancellation that it causes.
    """
    if known.request.state != case.FAILED or known.settled or known.kept <= 0 or horizon.overdue is None:
        return False
    since = known.back.at if known.back else _last_decided(known)
    return known.command is not None or ((known.back is not None or not known.answered) and since >= horizon.overdue)


def _last_decided(known: PaymentFacts) -> datetime:
    return max(each.decided_at for each in known.ledger)


def _booked_as(known: PaymentFacts) -> str:
    if not known.ledger:
        return "none"
    return "deducted" if known.kept else "given_back" if known.moved else "refused"


def _commanded(known: PaymentFacts, horizon: Horizon) -> str:
    if known.ledger or known.receipts:
        return "received"
    return known.commanded if known.unseen(horizon.overdue) and known.commanded != FOUND else "on_their_way"


def _receipts(known: PaymentFacts, horizon: Horizon) -> str:
    """Say whether each operation came by a command that the inbox knows."""
    missing = [each for each in known.ledger if not _has_receipt(each, known)]
    if not missing:
        return "found" if known.ledger or known.handled else "none"
    return "expired" if all(before(each.decided_at, horizon.wallet) for each in missing) else "missing"


def _has_receipt(operation: LedgerRow, known: PaymentFacts) -> bool:
    """Return True if a command explains the operation: a deduction cancelled in advance has the cancellation's."""
    if operation.kind == "DEDUCT" and operation.reason == "CANCELLED":
        return bool(known.handled)
    return operation.kind in kinds_of(known.handled)


def _results(known: PaymentFacts, horizon: Horizon) -> str:
    request = known.request
    if known.answered or request.status == case.PENDING or known.settled:
        return "applied" if known.answered else "on_their_way" if request.status == case.PENDING else "by_hand"
    if not request.fulfil and {each.kind for each in known.ledger} <= {"DEDUCT"}:
        # The wallet may have said so beside its results, which is believed where the deduction is all (`Rules.told`).
        if request.literal or not any(each.results for each in known.handled):
            return "told"
        if not before(_last_decided(known), horizon.heard):
            return "behind"  # told by HTTP, and the result that the wallet reported comes after
    return "expired" if _results_gone(known, horizon) else "missing"


def _results_gone(known: PaymentFacts, horizon: Horizon) -> bool:
    """Return True if its last result may be forgotten. It ended the payment, so that tells when it came; but a payment
    that was fulfilled ended later, and then only the ledger tells: not before it was decided, by the wallet's clock.
    """
    if known.request.fulfil and known.request.state == case.SUCCEEDED and known.ledger:
        return before(_last_decided(known), horizon.wallet)
    return before(known.request.changed_at, horizon.orchestrator)


def add(sums: dict[str, PaymentSums], known: PaymentFacts, horizon: Horizon) -> None:
    """Add what was asked for to its currency, and what was moved to that of the ledger."""
    status = known.request.status
    if status == case.SUCCEEDED:
        sums_of(sums, known.request.currency).succeeded += known.request.amount
    names = [{case.SUCCEEDED: "deducted", case.FAILED: "failed_net"}.get(status, "in_flight_net")]
    if status == case.FAILED and (known.settled or giving_back(known, horizon)):
        names.append("by_hand" if known.settled else "giving_back")
    for each in known.ledger:
        mine = sums_of(sums, each.currency or known.request.currency)
        for name in names:
            setattr(mine, name, getattr(mine, name) - each.amount)


def sums_of(sums: dict[str, PaymentSums], currency: str) -> PaymentSums:
    return sums.setdefault(currency, PaymentSums())


def add_wallet(sums: dict[str, PaymentSums], wallet: HeldBalance) -> None:
    if wallet.currency is None:
        return  # nothing was ever moved: the ledger has refusals of a wallet that never was
    mine = sums_of(sums, wallet.currency)
    mine.wallets += wallet.balance or 0
    mine.opened += wallet.opened
    mine.ledger += wallet.booked or 0
    mine.taken += wallet.taken
    mine.given_back += wallet.given_back


def unsound(wallet: HeldBalance) -> Iterator[Wrong]:
    """Find what is wrong with a wallet: in its own database, of all time."""
    uuid, holds, booked = wallet.id, wallet.balance, wallet.booked
    rows = f"{_ROWS} wallet_id = '{uuid}'"
    if holds is None and (booked or wallet.currency):
        said = f"there is no such wallet, and its ledger sums to {booked}"
        again = f"{_OPEN_AGAIN} ('{uuid}', '{wallet.currency}', {booked})"
        yield Wrong("wallet_gone", uuid, said, f"find who deleted it; then {again}")
    if holds is not None and (holds != booked or holds < 0):
        said = f"the wallet holds {holds}, and its ledger sums to {booked}"
        said += ": it holds less than nothing" if holds < 0 else ""
        last = f"{rows} AND reason IS NULL ORDER BY decided_at DESC"
        yield Wrong(
            "unbalanced", uuid, said, f"{last}   each balance is the one before it and the amount: find the gap"
        )
    if wallet.minted:
        said = f"it was opened with {wallet.opened}, and the ledger opens it once more with {wallet.minted}"
        yield Wrong(
            "minted", uuid, said, f"{rows} AND kind = 'OPEN'   and find who booked it, and take it back by hand"
        )
    if wallet.future:
        said = f"the ledger has an operation of it that is dated in the future, for the request {wallet.future}"
        late = f"{rows} AND decided_at > now()   and find who booked it"
        yield Wrong("from_future", uuid, said, f"ferryman trace {wallet.future}; {late}, or whose clock was wrong")


def given_too_much(archived: UUID) -> Wrong:
    rows = f"{_ROWS} request_id = '{archived}'"
    said = "it was archived, and more was given back than was taken"
    return Wrong("given_too_much", archived, said, f"{rows}{_MENDS['given_too_much']}")


def unequal(currency: str, sums: PaymentSums) -> Iterator[Wrong]:
    """Find what must be the same of all together, whatever was found of each: that is what makes these differ."""
    following = "settle what is named above, then run ferryman audit again"
    if sums.succeeded != sums.deducted:
        said = f"what SUCCEEDED asks for {sums.succeeded} {currency}, and {sums.deducted} were taken for it"
        yield Wrong("unequal_sums", None, said, following)
    if kept := sums.failed_net - sums.by_hand - sums.giving_back:
        yield Wrong("unequal_sums", None, f"{kept} {currency} stay taken for what FAILED", following)
    must = sums.opened - sums.taken + sums.given_back
    if not sums.wallets == sums.ledger == must:
        said = f"the wallets hold {sums.wallets} {currency}, the ledger sums to {sums.ledger}, and opened, less taken, "
        yield Wrong("unequal_sums", None, f"{said}with what was given back is {must}", following)


def standstill(books: AuditBooks, before: datetime) -> Iterator[Wrong]:
    """Find a system in which nothing ever moved: no command of any payment reached the wallet in this time."""
    counts = books.counts
    many = counts[f"requests.{case.PENDING}"]
    none_ended = not counts[f"requests.{case.SUCCEEDED}"] + counts[f"requests.{case.FAILED}"]
    if none_ended and many == counts["commands.on_their_way"] and books.oldest is not None and books.oldest <= before:
        since = f"{books.oldest:%Y-%m-%d %H:%M:%S %Z}"
        said = f"{many:,} payments were requested, the first at {since}, and no command has reached the wallet"
        yield Wrong("standstill", None, said, "ferryman doctor; then ferryman reconcile payments")
