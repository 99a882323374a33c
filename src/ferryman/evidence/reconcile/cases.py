"""How a case is put: what is asked again and what is left alone, by what evidence, and what a person runs. Pure."""

from dataclasses import replace
from datetime import datetime

from ferryman.evidence.addressing import RUN_RELAY
from ferryman.evidence.messages import ASKED, KINDS
from ferryman.evidence.reconcile.model import (
    ORCHESTRATOR,
    WALLET,
    Case,
    Cause,
    Entry,
    Evidence,
    Lag,
    Pending,
    Reader,
    Repair,
    Standing,
)
from ferryman.runtime.times import moment, span

FAILED, STUCK = "FAILED", "STUCK"


def case(
    request: Pending, cause: Cause, said: str, repair: Repair = Repair.NONE, *, next: str, person: bool = False
) -> Case:  # fmt: skip
    return Case(
        request.uuid, request.state, request.attempt, request.age_seconds, cause, said, repair, next, person=person
    )  # fmt: skip


def asking(
    known: Evidence, house: Standing, cause: Cause, said: str, repair: Repair = Repair.REPUBLISH, *,
    person: bool = False,
) -> Case:  # fmt: skip
    """Mended by asking again, once what was asked last has had its time and whoever is asked is there to answer."""
    request = known.request
    if not due(known, house):
        left = house.answer_seconds - (request.now - _last(known)).total_seconds()
        said = f"{said}; its answer has {span(left)} left"
        return case(request, cause, said, next=f"ferryman trace {request.uuid}")
    if asked(request.state) in KINDS and (held := held_up(known, house, "wallet", cause, said)):
        return held
    command = f"ferryman reconcile payments --id {request.uuid} --yes --reason 'asked again'"
    return case(request, cause, said, repair, next=command, person=person)


def asked(state: str) -> str:
    """What is asked for in it: of what has FAILED, what it took."""
    return "wallet.cancel" if state == FAILED else ASKED[state]


def due(known: Evidence, house: Standing) -> bool:
    """Whether what was asked last has had the time that an answer may take."""
    return (known.request.now - _last(known)).total_seconds() >= house.answer_seconds


def held_up(known: Evidence, house: Standing, name: str, cause: Cause, said: str) -> Case | None:
    """Who is kept from reading, or far behind, is not sent more of the same: what stands in Kafka is not lost."""
    reader = house.readers.get(name)
    if reader is None:
        return None
    where = WALLET if name == "wallet" else ORCHESTRATOR
    if reader.paused:
        said = f"{said}; {name} is paused by {reader.paused}"
        resumes = _at(house, where, f"ferryman resume {name} --consumer")
        return case(known.request, cause, said, next=resumes, person=True)
    if reader.lag is not None and reader.lag.resets:
        return case(known.request, cause, _with(said, reader.lag), next=reader.lag.resets, person=True)
    if not _behind(reader):
        return None
    if not reader.processes:
        runs = _at(house, where, f"ferryman run {'wallet-literal' if known.by_letter else name}")
        return case(known.request, cause, f"{said}; no process of {name} is connected", next=runs, person=True)
    assert reader.lag is not None
    said = f"{_with(said, reader.lag)}: it comes to it"
    return case(known.request, cause, said, next=_at(house, where, "ferryman inbox stats"))


def replayed(known: Evidence, house: Standing, cause: Cause, said: str, where: str) -> Case:
    """What failed again after it was replayed has its time too."""
    entry = _entry(known, where)
    since = (known.request.now - entry.changed_at).total_seconds() if entry.changed_at else house.answer_seconds
    if entry.replay is not None and since < house.answer_seconds:
        said = f"{said}; it was replayed, and failed again {span(since)} ago"
        shows = _at(house, where, f"ferryman outbox show {entry.position}")
        return case(known.request, cause, said, next=shows)
    command = f"ferryman outbox replay --id {entry.position} --yes --reason 'its cause is mended'"
    made = case(known.request, cause, said, Repair.REPLAY, next=_at(house, where, command))
    return replace(made, where=where, position=entry.position)


def waiting(known: Evidence, house: Standing, cause: Cause, said: str, where: str) -> Case:
    """What the relay of that database publishes by itself, unless it is kept from it: then a person is needed, once an
    answer should have come.
    """
    paused, overdue = house.pauses.get(where, ()), due(known, house)
    if paused:
        names = ", ".join(each or "all of it" for each in paused)
        command = _at(house, where, f"ferryman resume {paused[0] or 'outbox'}")
        return case(known.request, cause, f"{said}; paused there: {names}", next=command, person=overdue)
    if not house.relays.get(where, 0):
        said = f"{said}; no relay is connected to that database"
        return case(known.request, cause, said, next=_at(house, where, RUN_RELAY), person=overdue)
    entry = _entry(known, where)
    said = f"{said}; the relay publishes it"
    if not entry.position:  # a row of the literal mode's outbox, which has none
        return case(known.request, cause, said, next=f"ferryman trace {known.request.uuid}")
    return case(known.request, cause, said, next=_at(house, where, f"ferryman outbox show {entry.position}"))


def in_outbox(entry: Entry) -> str:
    tried = f" after {entry.attempts} attempts" if entry.attempts else ""
    return f"{entry.status} in the outbox{tried}" + (f": {entry.error}" if entry.error else "")


def read(house: Standing, name: str) -> str:
    """What Kafka says of who is to read it."""
    reader = house.readers.get(name)
    return f" ({reader.lag.said})" if reader and reader.lag else ""


def ago(request: Pending, at: datetime) -> str:
    return f"{span((request.now - at).total_seconds())} ago ({moment(at)})"


def _entry(known: Evidence, where: str) -> Entry:
    found = known.command if where == ORCHESTRATOR else known.result
    assert found is not None
    return found


def _with(said: str, lag: Lag) -> str:
    return said if lag.said in said else f"{said}; {lag.said}"


def _behind(reader: Reader) -> bool:
    """Where Kafka does not say, who is not there has not read it."""
    if reader.lag is not None and reader.lag.overdue is not None:
        return reader.lag.overdue > 0
    return not reader.processes


def _at(house: Standing, where: str, command: str) -> str:
    return house.wallets.of(command) if where == WALLET else command


def _last(known: Evidence) -> datetime:
    return max([known.request.changed_at, *([known.outcome.decided_at] if known.outcome else [])])
