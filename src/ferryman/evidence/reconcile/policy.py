"""Why a payment is still pending, and what mends it: decided from what is known, with no database and no clock.

The ledger speaks first: what it has decided, only the result of can be missing. Then what was asked last is followed on
its way: the outbox, the wallet's inbox.
"""

from dataclasses import replace
from datetime import datetime

from ferryman.evidence.messages import ASKED, KINDS
from ferryman.evidence.reconcile.model import (
    EXHAUSTED,
    ORCHESTRATOR,
    WALLET,
    Case,
    Cause,
    Entry,
    Evidence,
    Pending,
    Repair,
    Standing,
)
from ferryman.runtime.times import moment, span

STUCK = "STUCK"
_THERE = "FERRYMAN_DATABASE_URL=$FERRYMAN_PAYMENTS__WALLET_DATABASE_URL "
_FORGED = "FORGED"


def judge(known: Evidence, house: Standing) -> Case:
    """The first of these that is true."""
    if known.request.state == STUCK:
        return _stuck(known)
    if known.outcome is not None:
        return _result_lost(known, house)
    if known.command is not None:
        return _never_published(known, house, known.command)
    return _consumer_failed(known, house) or _not_answered(known, house)


def _not_answered(known: Evidence, house: Standing) -> Case:
    """It was published, and nobody knows of it."""
    request = known.request
    asked = f"asked {_ago(request, request.changed_at)}"
    if request.due_at is None and not known.literal:
        cause = Cause.NEEDS_PERSON
        said = f"attempts used up: {asked}, for the {request.attempt}. time, and never answered{_read(house, request)}"
    elif ASKED[request.state] not in KINDS:
        cause = Cause.WAITS_DOWNSTREAM
        said = f"{asked}; whoever fulfils has not answered{_overdue(request)}"
    elif house.receipts_seconds and (request.now - request.changed_at).total_seconds() > house.receipts_seconds:
        cause = Cause.EVIDENCE_EXPIRED
        said = (
            f"{asked}; receipts are kept for {span(house.receipts_seconds)}, so whether it was received cannot be "
            "told: the ledger says that it took no effect"
        )
    else:
        cause = Cause.NOT_CONSUMED
        said = f"published, {asked}; the wallet has no receipt of it{_read(house, request)}{_overdue(request)}"
    return _asking(known, house, cause, said)


def due(known: Evidence, house: Standing) -> bool:
    """Whether what was asked last has had the time that an answer may take."""
    return (known.request.now - _last(known)).total_seconds() >= house.answer_seconds


def _stuck(known: Evidence) -> Case:
    why = f" ({known.outcome.reason})" if known.outcome and known.outcome.reason else ""
    said = f"the wallet refuses to give the amount back{why}: give it back by hand, then say so"
    command = f"ferryman reconcile payments --settle {known.request.uuid} --yes --reason 'given back by hand: ...'"
    return _case(known.request, Cause.NEEDS_PERSON, said, next=command)


def _never_published(known: Evidence, house: Standing, entry: Entry) -> Case:
    request, said = known.request, f"its {ASKED[known.request.state]} is {_entry(entry)}"
    if entry.status == EXHAUSTED:
        return _asking(known, house, Cause.NEVER_PUBLISHED, f"{said}; it is not tried again")
    if entry.status == "DISCARDED":
        return _asking(known, house, Cause.NEVER_PUBLISHED, f"{said}: a person gave it up")
    if entry.status == "FAILED":
        return _replay(known, house, Cause.NEVER_PUBLISHED, said, ORCHESTRATOR)
    said, command = _waiting(said, entry, house, ORCHESTRATOR)
    return _case(
        request, Cause.NEVER_PUBLISHED, said, next=f"ferryman trace {request.uuid}" if known.literal else command
    )


def _consumer_failed(known: Evidence, house: Standing) -> Case | None:
    records = {each.id: each for each in known.rejected}
    newest = known.receipts[0] if known.receipts else None
    if newest is None or newest.status not in ("REJECTED", "RECEIVED"):
        return None
    if newest.status == "RECEIVED":
        error = f": {newest.error}" if newest.error else ""
        said = f"received {_ago(known.request, newest.received_at)} at most once, and it never took effect{error}"
        return _asking(known, house, Cause.CONSUMER_FAILED, said)
    record = records.get(newest.id)
    code, error = (record.code, record.error) if record else ("REJECTED", newest.error or "no error was recorded")
    given_up = ", and a person discarded it" if record and record.status == "DISCARDED" else ""
    said = f"the wallet rejected it {_ago(known.request, newest.received_at)}: {code}: {error}{given_up}"
    return _asking(known, house, Cause.CONSUMER_FAILED, said)


def _result_lost(known: Evidence, house: Standing) -> Case:
    request, outcome = known.request, known.outcome
    assert outcome is not None
    decided = f"refused ({outcome.reason})" if outcome.reason else "done"
    said = f"the ledger has it: {outcome.kind} {decided}, {_ago(request, outcome.decided_at)}"
    if _FORGED in (*known.strays, *(each.reason for each in known.applied)):
        said += "; the orchestrator took its result for FORGED: the ledger has another wallet, amount or currency"
        command = f"ferryman trace {request.uuid}"
        return _case(request, Cause.NEEDS_PERSON, said, next=command)
    entry = known.result
    if entry is not None and entry.status == "FAILED":
        return _replay(known, house, Cause.RESULT_LOST, f"{said}; its result is {_entry(entry)}", WALLET)
    if entry is not None and entry.status != "DISCARDED":
        said, command = _waiting(f"{said}; its result is {_entry(entry)}", entry, house, WALLET)
        return _case(request, Cause.RESULT_LOST, said, next=command)
    if entry is not None:
        said += "; its result was discarded at the wallet's outbox"
    elif known.unread:
        record = known.unread[0]
        said += f"; the orchestrator rejected its result ({record.id}): {record.code}: {record.error}"
    elif known.applied:
        why = known.applied[0].reason or known.applied[0].status
        said += f"; its result came and was applied to nothing ({why})"
    elif known.literal:
        said += "; the wallet told it by HTTP, once, and it was not heard"
    else:
        said += "; its result was published, and never came"
    return _asking(known, house, Cause.RESULT_LOST, said, Repair.REREPORT)


def _asking(
    known: Evidence, house: Standing, cause: Cause, said: str, repair: Repair = Repair.REPUBLISH
) -> Case:  # fmt: skip
    """Mended by asking again, once what was asked last has had its time."""
    request = known.request
    if due(known, house):
        command = f"ferryman reconcile payments --id {request.uuid} --yes --reason 'asked again'"
        return _case(request, cause, said, repair, next=command)
    left = house.answer_seconds - (request.now - _last(known)).total_seconds()
    return _case(request, cause, f"{said}; its answer has {span(left)} left", next=f"ferryman trace {request.uuid}")


def _replay(known: Evidence, house: Standing, cause: Cause, said: str, where: str) -> Case:
    """What failed again after it was replayed has its time too."""
    entry = known.command if where == ORCHESTRATOR else known.result
    assert entry is not None
    since = (known.request.now - entry.changed_at).total_seconds() if entry.changed_at else house.answer_seconds
    if entry.replay is not None and since < house.answer_seconds:
        said = f"{said}; it was replayed, and failed again {span(since)} ago"
        return _case(known.request, cause, said, next=_at(where) + f"ferryman outbox show {entry.position}")
    command = f"{_at(where)}ferryman outbox replay --id {entry.position} --yes --reason 'its cause is mended'"
    made = _case(known.request, cause, said, Repair.REPLAY, next=command)
    return replace(made, where=where, position=entry.position)


def _waiting(said: str, entry: Entry, house: Standing, where: str) -> tuple[str, str]:
    """What the relay of that database publishes by itself, unless it is kept from it."""
    paused = house.pauses.get(where, ())
    if paused:
        names = ", ".join(each or "all of it" for each in paused)
        return f"{said}; paused there: {names}", f"{_at(where)}ferryman resume {paused[0] or 'outbox'}"
    if not house.relays.get(where, 0):
        return f"{said}; no relay is connected to that database", f"{_at(where)}ferryman run relay"
    return f"{said}; the relay publishes it", f"{_at(where)}ferryman outbox show {entry.position}"


def _entry(entry: Entry) -> str:
    tried = f" after {entry.attempts} attempts" if entry.attempts else ""
    return f"{entry.status} in the outbox{tried}" + (f": {entry.error}" if entry.error else "")


def _read(house: Standing, request: Pending) -> str:
    lag = house.lags.get(ASKED[request.state])
    return f" ({lag})" if lag else ""


def _overdue(request: Pending) -> str:
    """The machine looks at what is due by itself."""
    late = (request.now - request.due_at).total_seconds() if request.due_at else 0
    return f"; it was due {span(late)} ago: does `ferryman run payments` run?" if late > 60 else ""


def _case(request: Pending, cause: Cause, said: str, repair: Repair = Repair.NONE, *, next: str) -> Case:
    return Case(request.uuid, request.state, request.attempt, request.age_seconds, cause, said, repair, next)


def _at(where: str) -> str:
    return _THERE if where == WALLET else ""


def _last(known: Evidence) -> datetime:
    return max([known.request.changed_at, *([known.outcome.decided_at] if known.outcome else [])])


def _ago(request: Pending, at: datetime) -> str:
    return f"{span((request.now - at).total_seconds())} ago ({moment(at)})"
