"""`ferryman reconcile`: why something is still pending, by what evidence, and what mends it.

A case file says which subjects are pending and judges each. What explains a message that waits is the same for all of
them: its outbox, its relay, its reader. Everything but `Party.ask` and `replay_entries` is decided from values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from ferryman.evidence.kafka import Lag
from ferryman.evidence.messages import OutboxEntry, reader, relaying
from ferryman.evidence.sides import RUN_RELAY, Connection, DatabaseAddress, Side
from ferryman.relay.admin import replay
from ferryman.relay.admin.entries import FAILED, EntrySelection
from ferryman.runtime.desk import Act
from ferryman.runtime.desk import audit as write_down
from ferryman.runtime.metrics import Named
from ferryman.runtime.times import moment, span

CHUNK = 500
"""Subjects that are mended in one transaction."""

CASES = Named("ferryman_reconcile_", ["cause"], ()).counter(
    "cases_total", "Payments that were found pending beyond their age, by why."
)


class Repair(StrEnum):
    """The repairs of --yes. Each is safe: an operation happens once, and asking again is answered with its outcome."""

    REPUBLISH = "republish"
    REREPORT = "rereport"
    REPLAY = "replay"
    GIVE_BACK = "give_back"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Case:
    """A subject, why it is still pending, by what evidence, what --yes would do, and what a person runs."""

    uuid: UUID
    state: str
    attempt: int
    age_seconds: float
    cause: str
    evidence: str
    repair: Repair
    next: str
    where: str
    """The database whose entry is replayed."""
    position: int | None = None
    """The entry that is replayed."""
    person: bool = False
    """True if nothing goes on until a person has done something."""


@dataclass(frozen=True, slots=True)
class Party:
    """One database when it was asked, and the consumer that runs on it."""

    consumer: str
    relays: int = 0
    """Relays that are connected."""
    pauses: Sequence[str] = ()
    """Topics that are paused; the empty name is all of them."""
    processes: int = 1
    """Processes of the consumer that are connected."""
    paused: str | None = None
    """The person who paused the consumer, since when and why."""
    lag: Lag | None = None
    """The lag of the consumer, if Kafka was asked."""
    address: DatabaseAddress | None = None

    @classmethod
    def ask(cls, side: Side, consumer: str, lag: Lag | None) -> "Party":
        return cls(consumer, *side.ask(relaying), *side.ask(reader, consumer), lag, side.address)

    @property
    def behind(self) -> bool:
        """True if the consumer has not read what it should have. If Kafka does not say, one that is away has not."""
        if self.lag is not None and self.lag.overdue is not None:
            return self.lag.overdue > 0
        return not self.processes

    @property
    def read(self) -> str:
        """The lag of the consumer in words, in parentheses."""
        return f" ({self.lag.said})" if self.lag else ""

    def at(self, command: str) -> str:
        """Return the command so that it runs on this database."""
        return self.address.of(command) if self.address else command


@dataclass(frozen=True, slots=True)
class SystemState:
    """The state of relays and consumers when they were asked: it explains what waits."""

    answer_seconds: float
    receipts_seconds: float
    parties: Mapping[str, Party]
    """By the name of the database."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Names the case of one subject. A case file extends it by what it knows of its subjects."""

    subject: Any
    """The pending row: with `uuid`, `state`, `attempt`, `age_seconds`, and the time as `now`."""
    last: datetime
    """When it was last asked for or decided."""
    house: SystemState
    name: str
    """The name of what is reconciled, as the command has it."""
    home: str
    """The database of the subject."""

    def case(
        self, cause: str, said: str, command: str, repair: Repair = Repair.NONE, *, person: bool = False,
        where: str = "", position: int | None = None,
    ) -> Case:  # fmt: skip
        each = self.subject
        return Case(
            each.uuid, each.state, each.attempt, each.age_seconds, cause, said, repair, command, where or self.home,
            position, person,
        )  # fmt: skip

    def ask_again(
        self, cause: str, said: str, by: str | None, repair: Repair = Repair.REPUBLISH, *, run: str = "",
        person: bool = False,
    ) -> Case:  # fmt: skip
        """Ask again, once what was asked last has had its time and its reader is there to answer. `by` names the
        database of the reader, unless it is not ours.
        """
        if not self.due:
            left = self.house.answer_seconds - self.seconds_since(self.last)
            return self.case(cause, f"{said}; its answer has {span(left)} left", self.trace)
        if by and (held := self.held_up(by, cause, said, run)):
            return held
        command = f"ferryman reconcile {self.name} --id {self.subject.uuid} --yes --reason 'asked again'"
        return self.case(cause, said, command, repair, person=person)

    def held_up(self, where: str, cause: str, said: str, run: str = "") -> Case | None:
        """Leave a reader alone that is paused, away or far behind: what stands in Kafka is not lost."""
        party = self.house.parties[where]
        name, lag = party.consumer, party.lag
        if party.paused:
            command = party.at(f"ferryman resume {name} --consumer")
            return self.case(cause, f"{said}; {name} is paused by {party.paused}", command, person=True)
        lagging = f"{said}; {lag.said}" if lag and lag.said not in said else said
        if lag and lag.resets:
            return self.case(cause, lagging, lag.resets, person=True)
        if not party.behind:
            return None
        if not party.processes:
            command = party.at(run or f"ferryman run {name}")
            return self.case(cause, f"{said}; no process of {name} is connected", command, person=True)
        return self.case(cause, f"{lagging}: it comes to it", party.at("ferryman inbox stats"))

    def unsent(self, cause: str, said: str, entry: OutboxEntry, where: str) -> Case:
        """Replay an entry that failed. Any other is published by the relay of that database, unless it is kept from it:
        then a person is needed, once an answer should have come.
        """
        party = self.house.parties[where]
        show = party.at(f"ferryman outbox show {entry.position}") if entry.position else self.trace
        if entry.status == "FAILED":
            return self._replayed(cause, said, entry, where, show)
        if party.pauses:
            names = ", ".join(each or "all of it" for each in party.pauses)
            command = party.at(f"ferryman resume {party.pauses[0] or 'outbox'}")
            return self.case(cause, f"{said}; paused there: {names}", command, person=self.due)
        if not party.relays:
            said = f"{said}; no relay is connected to that database"
            return self.case(cause, said, party.at(RUN_RELAY), person=self.due)
        return self.case(cause, f"{said}; the relay publishes it", show)

    def _replayed(self, cause: str, said: str, entry: OutboxEntry, where: str, show: str) -> Case:
        """Replay it; one that failed again after a replay has its time too."""
        since = self.seconds_since(entry.changed_at) if entry.changed_at else self.house.answer_seconds
        if entry.replay is not None and since < self.house.answer_seconds:
            return self.case(cause, f"{said}; it was replayed, and failed again {span(since)} ago", show)
        command = f"ferryman outbox replay --id {entry.position} --yes --reason 'its cause is mended'"
        command = self.house.parties[where].at(command)
        return self.case(cause, said, command, Repair.REPLAY, where=where, position=entry.position)

    @property
    def due(self) -> bool:
        """True if what was asked last has had the time that an answer may take."""
        return self.seconds_since(self.last) >= self.house.answer_seconds

    @property
    def trace(self) -> str:
        return f"ferryman trace {self.subject.uuid}"

    def seconds_since(self, at: datetime) -> float:
        now: datetime = self.subject.now
        return (now - at).total_seconds()

    def ago(self, at: datetime) -> str:
        return f"{span(self.seconds_since(at))} ago ({moment(at)})"


def in_outbox(entry: OutboxEntry) -> str:
    tried = f" after {entry.attempts} attempts" if entry.attempts else ""
    return f"{entry.status} in the outbox{tried}" + (f": {entry.error}" if entry.error else "")


# --- going through all of it, and mending


class CaseReconciler(Protocol):
    """The part of a case file that reconciles."""

    def cases(self, *, older_seconds: float, ids: Sequence[UUID] = ()) -> Iterator[list[Case]]:
        """Yield all that has been pending for so long, or what is named of it: judged, a page at a time."""

    def repair(self, how: Repair, cases: Sequence[Case], act: Act) -> int:
        """Mend these cases in one transaction. Return how many still stood as they were judged."""

    def settle(self, uuid: UUID, act: Act, *, yes: bool) -> bool:
        """Write down that a person settled this by hand. Return True if it was done."""

    def side(self, where: str) -> Side:
        """Return a database by the name that cases have."""


@dataclass(slots=True)
class Repaired:
    """The number of mended subjects, by repair; `moved` went on by themselves meanwhile."""

    by_repair: dict[str, int] = field(default_factory=dict)
    moved: int = 0

    def add(self, repair: Repair, done: int, asked: int) -> None:
        self.by_repair[repair] = self.by_repair.get(repair, 0) + done
        self.moved += asked - done


def repair_all(reconciler: CaseReconciler, cases: Sequence[Case], act: Act, done: Repaired) -> None:
    """Mend each case as it was judged, and only if it still stands as it stood then."""
    for how in (Repair.REPUBLISH, Repair.REREPORT, Repair.GIVE_BACK):
        meant = [each for each in cases if each.repair is how]
        for first in range(0, len(meant), CHUNK):
            chunk = meant[first : first + CHUNK]
            done.add(how, reconciler.repair(how, chunk, act), len(chunk))
    failed = [each for each in cases if each.repair is Repair.REPLAY]
    for where in {each.where for each in failed}:
        meant = [each for each in failed if each.where == where]
        done.add(Repair.REPLAY, replay_entries(reconciler.side(where), meant, act), len(meant))


def replay_entries(side: Side, cases: Sequence[Case], act: Act) -> int:
    """Have the relay publish them once more. A replay that is stopped goes on as any other."""
    positions = tuple(sorted({each.position for each in cases if each.position is not None}))
    with side.acting() as db:
        write_repair(db, Repair.REPLAY, [each.uuid for each in cases], act, len(positions))
    meant = EntrySelection(positions=positions, statuses=(FAILED,))
    started = replay.start(side, meant, act, rate=None, expected=len(positions))
    replay.run(side, started, lambda _: None)
    return started.entries


def write_repair(db: Connection, how: Repair, subjects: Sequence[UUID], act: Act, entries: int) -> None:
    """Write a repair down, in the transaction that does it."""
    said = {"repair": str(how), "payments": [str(each) for each in subjects]}
    write_down(db, "reconcile", act, said=said, entries=entries)
