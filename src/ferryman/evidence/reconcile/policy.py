"""Why a payment is still pending, and what mends it: decided from what is known, with no database and no clock.

The ledger speaks first: what it has decided, only the result of can be missing. Then what was asked last is followed on
its way: the outbox, the wallet's inbox.
"""

from ferryman.evidence.messages import EXHAUSTED, KINDS
from ferryman.evidence.reconcile import ended
from ferryman.evidence.reconcile.cases import (
    FAILED,
    STUCK,
    ago,
    asked,
    asking,
    case,
    held_up,
    in_outbox,
    read,
    replayed,
    waiting,
)
from ferryman.evidence.reconcile.model import (
    ORCHESTRATOR,
    WALLET,
    Case,
    Cause,
    Entry,
    Evidence,
    Repair,
    Standing,
)
from ferryman.runtime.times import span

_FORGED = "FORGED"


def judge(known: Evidence, house: Standing) -> Case:
    """The first of these that is true."""
    if known.request.state == STUCK:
        return ended.stuck(known)
    if known.request.state == FAILED:
        return ended.not_given_back(known, _followed(known, house) if known.asked_back else _not_asked(known, house))
    if known.outcome is not None:
        return _result_lost(known, house)
    return _followed(known, house)


def _followed(known: Evidence, house: Standing) -> Case:
    """What was asked last, on its way."""
    if known.command is not None:
        return _never_published(known, house, known.command)
    return _consumer_failed(known, house) or _not_answered(known, house)


def _not_asked(known: Evidence, house: Standing) -> Case:
    """No result ever told the orchestrator that it was taken."""
    return asking(known, house, Cause.NOT_GIVEN_BACK, "none was asked for")


def _not_answered(known: Evidence, house: Standing) -> Case:
    """It was published, and nobody knows of it."""
    request = known.request
    said = f"asked {ago(request, request.changed_at)}"
    if request.due_at is None and not known.by_letter and request.state != FAILED:
        said = f"attempts used up: {said}, for the {request.attempt}. time, and never answered{read(house, 'wallet')}"
        return asking(known, house, Cause.NEEDS_PERSON, said, person=True)
    if asked(request.state) not in KINDS:
        said = f"{said}; whoever fulfils has not answered{_overdue(known)}"
        return asking(known, house, Cause.WAITS_DOWNSTREAM, said)
    if house.receipts_seconds and (request.now - request.changed_at).total_seconds() > house.receipts_seconds:
        said = (
            f"{said}; receipts are kept for {span(house.receipts_seconds)}, so whether it was received cannot be "
            "told: the ledger says that it took no effect"
        )
        return asking(known, house, Cause.EVIDENCE_EXPIRED, said)
    said = f"published, {said}; the wallet has no receipt of it{read(house, 'wallet')}{_overdue(known)}"
    return asking(known, house, Cause.NOT_CONSUMED, said)


def _never_published(known: Evidence, house: Standing, entry: Entry) -> Case:
    said = f"its {asked(known.request.state)} is {in_outbox(entry)}"
    if entry.status == EXHAUSTED:
        return asking(known, house, Cause.NEVER_PUBLISHED, f"{said}; it is not tried again")
    if entry.status == "DISCARDED":
        return asking(known, house, Cause.NEVER_PUBLISHED, f"{said}: a person gave it up")
    if entry.status == "FAILED":
        return replayed(known, house, Cause.NEVER_PUBLISHED, said, ORCHESTRATOR)
    return waiting(known, house, Cause.NEVER_PUBLISHED, said, ORCHESTRATOR)


def _consumer_failed(known: Evidence, house: Standing) -> Case | None:
    """Of the last attempt: one before it may have failed while this one is on its way."""
    newest = known.receipts[0] if known.receipts and not known.asked_since else None
    if newest is None or newest.status not in ("REJECTED", "RECEIVED"):
        return None
    if newest.status == "RECEIVED":
        error = f": {newest.error}" if newest.error else ""
        said = f"received {ago(known.request, newest.received_at)} at most once, and it never took effect{error}"
        return asking(known, house, Cause.CONSUMER_FAILED, said)
    record = next((each for each in known.rejected if each.id == newest.id), None)
    code, error = (record.code, record.error) if record else ("REJECTED", newest.error or "no error was recorded")
    given_up = ", and a person discarded it" if record and record.status == "DISCARDED" else ""
    said = f"the wallet rejected it {ago(known.request, newest.received_at)}: {code}: {error}{given_up}"
    return asking(known, house, Cause.CONSUMER_FAILED, said)


def _result_lost(known: Evidence, house: Standing) -> Case:
    request, outcome = known.request, known.outcome
    assert outcome is not None
    decided = f"refused ({outcome.reason})" if outcome.reason else "done"
    said = f"the ledger has it: {outcome.kind} {decided}, {ago(request, outcome.decided_at)}"
    if _FORGED in (*known.strays, *(each.reason for each in known.applied)):
        said += "; the orchestrator took its result for FORGED: the ledger has another wallet, amount or currency"
        return case(request, Cause.NEEDS_PERSON, said, next=f"ferryman trace {request.uuid}", person=True)
    entry = known.result
    if entry is not None and entry.status == "FAILED":
        return replayed(known, house, Cause.RESULT_LOST, f"{said}; its result is {in_outbox(entry)}", WALLET)
    if entry is not None and entry.status != "DISCARDED":
        return waiting(known, house, Cause.RESULT_LOST, f"{said}; its result is {in_outbox(entry)}", WALLET)
    why = _why_lost(known)
    if why is None:
        said += f"; its result was published, and never came{read(house, 'payments')}"
        if held := held_up(known, house, "payments", Cause.RESULT_LOST, said):
            return held
    return asking(known, house, Cause.RESULT_LOST, said + (why or ""), Repair.REREPORT)


def _why_lost(known: Evidence) -> str | None:
    """None where it may still be on its way."""
    if known.result is not None:
        return "; its result was discarded at the wallet's outbox"
    if known.unread:
        record = known.unread[0]
        return f"; the orchestrator rejected its result ({record.id}): {record.code}: {record.error}"
    if known.applied:
        return f"; its result came and was applied to nothing ({known.applied[0].reason or known.applied[0].status})"
    if known.by_letter:
        return "; the wallet told it by HTTP, once, and it was not heard"
    return "; `ferryman run wallet` tells it, and the literal wallet tells nobody of that" if known.literal else None


def _overdue(known: Evidence) -> str:
    """The machine looks at what is due by itself; in the literal mode nothing is."""
    request = known.request
    if known.by_letter:
        return ""
    late = (request.now - request.due_at).total_seconds() if request.due_at else 0
    return f"; it was due {span(late)} ago: does `ferryman run payments` run?" if late > 60 else ""
