"""The case file of any saga, which follows from its declaration: how it stands, and what it asked for and was told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ferryman.evidence import moment
from ferryman.evidence.journey import BY_HAND, ONE_BATCH_SECONDS, Detail, Event, Journey, Moment, StoryTeller, Witness
from ferryman.evidence.messages import InboxReceipt, StrayResult, has_table, reader
from ferryman.evidence.sides import Side, Sides, database_of
from ferryman.evidence.trace import AskKafka, Hint, Subject, follow, passed
from ferryman.evidence.way import OVERDUE_SECONDS, Ending, Traced, due, stop
from ferryman.message import Message
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.times import iso
from ferryman.runtime.uuids import derived
from ferryman.saga.admin import SagaStory, as_json, key_of, look, moves_by_hand
from ferryman.saga.answers import Key
from ferryman.saga.declaration import Saga

_ATTEMPTS, _VISITS = 32, 50
"""More attempts and visits of a state than most sagas make."""


class RowsBeside(NamedTuple):
    """The rows of other tables that belong to a saga."""

    events: Sequence[Event] = ()
    messages: Sequence[UUID] = ()
    """Messages about it that no command of it asked for."""
    awaited: UUID | None = None
    """The one that it waits for now."""
    stops: Ending | None = None
    """The reason why it does not go on, if they know it."""


class SentCommand(NamedTuple):
    """A command that a saga may have sent."""

    type: str
    attempt: int


@dataclass(frozen=True, slots=True)
class KnownSaga:
    """Everything that is known of one saga."""

    saga: Saga[Any]
    called: str
    """The name that commands have for it: `module:object`."""
    key: Key
    side: Side
    """The database of its table."""
    story: SagaStory
    asked: Mapping[UUID, SentCommand]
    """The commands that it may have sent."""
    answers: Sequence[UUID]
    """The ids that the first report of a participant has whose database may not be here."""
    journey: Journey
    processes: int
    """Processes that handle its timeouts."""
    beside: RowsBeside
    moves: Sequence[Mapping[str, Any]] = ()
    """The acts of persons on it."""

    @property
    def row(self) -> Any:
        return self.story.row

    @property
    def consumers(self) -> set[str]:
        """The consumers that apply its results."""
        return {each.consumer for each in self.saga.results.distinct}

    def strays(self) -> list[StrayResult]:
        return [StrayResult(each["message_id"], each["why"], each["type"], each["came_at"])
                for each in reversed(self.story.strays)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SagaTracer:
    """Tells of the sagas of one declaration."""

    saga: Saga[Any]
    called: str
    beside: Callable[[Sides, Side, Key], RowsBeside] = lambda _sides, _side, _key: RowsBeside()

    @property
    def machine(self) -> str:
        return self.saga.name

    def tell(self, sides: Sides, identity: Key | Subject, ask: AskKafka) -> Traced | None:
        if isinstance(identity, Subject):
            return self.tell(sides, identity.key, ask) if identity.kind == self.machine else None
        known = self._gather(sides, identity) if self._may_be(identity) else None
        if known is None:
            return None
        copies = ask(known.journey)
        known = (self._gather(sides, identity) if passed(copies) else None) or known
        return _told(replace(known, journey=replace(known.journey, kafka=copies)), sides)

    def subject_of(self, sides: Sides, identity: UUID, hint: Hint) -> Key | None:
        """Return the saga of a command or of a result, if the saga's key is the message's."""
        with suppress(FerrymanError):
            key = key_of(self.saga, hint.key)
            known = self._gather(sides, key)
            return key if known and (identity in known.asked or identity in known.journey.ids()) else None
        return None

    def _may_be(self, identity: Any) -> bool:
        return isinstance(identity, int if self.saga.key_type == "bigint" else UUID)

    def _gather(self, sides: Sides, key: Key) -> KnownSaga | None:
        """Ask the databases for a saga, then for what became of its commands."""
        having = [found for side in sides.each if (found := self._look(sides, side, key))]
        if not having:
            missing = f"the table {self.saga.table} of {self.called}: no database here has it"
            sides.missing.extend({missing} - set(sides.missing))
            return None
        side, story = next((each for each in having if each[1].row), having[0])
        asked = dict(self._asked(story, key))
        strays = [each["message_id"] for each in story.strays]
        moments = [each["came_at"] for each in story.strays]
        moments += [story.row["changed_at"]] if story.row else []
        beside = self.beside(sides, side, key) if story.row else RowsBeside()
        moments += [each.at for each in beside.events if each.at]
        reads = {(side, each.consumer): {each.topic} for each in self.saga.results.distinct}
        first, groups = next(iter(asked), UUID(int=0)), set(self.saga.participants.values())
        answers = [*beside.messages, *(derived(each, f"{group}/0") for each in asked for group in groups)]
        journey = follow(sides, first, others=[*asked, *strays, *answers], moments=moments, reads=reads)
        if not (story.row or story.strays or set(asked) & set(journey.ids())):
            return None
        processes, _ = side.ask(reader, f"{self.saga.name}-timeouts")
        moves = side.ask(moves_by_hand, self.saga, key)
        return KnownSaga(
            self.saga, self.called, key, side, story, asked, answers, journey, processes, beside, moves
        )  # fmt: skip

    def _look(self, sides: Sides, side: Side, key: Key) -> tuple[Side, SagaStory] | None:
        try:
            return (side, side.ask(look, self.saga, key)) if side.ask(has_table, self.saga.table) else None
        except FerrymanError as error:
            sides.missing.append(f"{self.saga.table} in {database_of(side.name)}: {error}")
            return None

    def _asked(self, story: SagaStory, key: Key) -> Iterator[tuple[UUID, SentCommand]]:
        """Yield every command that the saga may have sent, the first one first. Of one that is gone: first attempts."""
        row = self.saga.row(**{name: story.row.get(name) for name in self.saga.fields} | {self.saga.fields[0]: key})
        for name, state in self.saga.states.items():
            known = row.attempt if story.row and row.state == name else 1
            attempts = max(known, state.tries or _ATTEMPTS) if story.row else 1
            visits = (
                range(max(0, (row.visit or 0) - _VISITS), (row.visit or 0) + 1)
                if name in self.saga.revisited
                else (None,)
            )
            for visit in visits if state.ask is not None else ():
                more = {} if visit is None else {"visit": visit}
                for attempt in range(1, attempts + 1):
                    if command := self._command(row._replace(state=name, attempt=attempt, **more)):
                        yield command.id or UUID(int=0), SentCommand(command.type, attempt)

    def _command(self, row: Any) -> Message | None:
        with suppress(Exception):  # a function of the user's, with a row that is in another state by now
            return self.saga.command(row)
        return None


# --- how it stands


def _told(known: KnownSaga, sides: Sides) -> Traced:
    saga, row = known.saga, known.row
    headline = [f"{saga.name} {known.key}"]
    if row:
        headline.append(_text(known) + (f" Attempt {row['attempt']}." if row["attempt"] > 1 else ""))
    over = bool(row) and row["state"] in saga.machine.terminals
    return Traced(
        known.key, saga.name, as_json(row) or None, headline, _events(known), _ending(known), sides.missing, over
    )


def _text(known: KnownSaga) -> str:
    state = known.saga.states.get(known.row["state"])
    return state.text if state else f"{known.row['state']} is not a state of {known.called}."


def _ending(known: KnownSaga) -> Ending:
    row, saga, at = known.row, known.saga, known.side.name
    if not row:
        return Ending("NOT KNOWN", f"messages of it are known, but {saga.table} does not have it: it may be archived")
    reason = f" ({row['reason']})" if row["reason"] else ""
    if row["state"] not in saga.states:
        return Ending(row["state"], f"{_text(known)}{reason}", f"ferryman saga sql {known.called}", at)
    if row["state"] in saga.machine.terminals:
        return Ending(row["state"], f"it is over: {_text(known)}{reason}")
    found, (said, following) = known.beside.stops or _asked_for(known), _due(known)
    why = " ".join(part for part in (f"{_text(known)}{reason}", f"{found.why}." if found else "", said) if part)
    if found and found.next:
        return replace(found, now=row["state"], why=why)
    return Ending(row["state"], why, following, at if following else "")


def _asked_for(known: KnownSaga) -> Ending | None:
    """Say how far the command of its state is, or its answer; None if nothing is asked for, or nothing known."""
    journey, runs = known.journey, dict.fromkeys(known.consumers, f"ferryman run {known.called}")
    if awaited := known.beside.awaited:
        return stop(journey, awaited, known.key, set(), runs)
    row = known.saga.row(**{name: known.row[name] for name in known.saga.fields})
    if known.saga.states[row.state].ask is None:
        return None
    command = known.saga.command(row)
    identity = command.id or UUID(int=0)
    if stopped := stop(journey, identity, known.key, set(), runs):
        return stopped
    receipts = [(by, found) for by in journey.readers(identity) if (found := by.receipt(identity))]
    if not receipts:
        there = journey.entry(identity) is not None
        return (
            Ending("", f"{command.type} is published, and no consumer of these databases reads it") if there else None
        )
    answers = {each.message_id: each for each in known.strays()}
    for by, receipt in receipts:
        for each in receipt.results:
            if stray := answers.get(each):
                return Ending("", f"{by.consumer} answered {command.type} with {stray.type}: {stray.why}")
    silent = [by.consumer for by, receipt in receipts if not receipt.results]
    return Ending("", f"{silent[0]} handled {command.type}, and reported nothing") if silent else None


def _due(known: KnownSaga) -> tuple[str, str | None]:
    """Say what happens by itself, and when; and what a person runs if nothing does."""
    at, heard_at = known.story.due_at, known.story.heard_at
    if at is None or iso(at) == "infinity":
        return _never_due(known)
    said, following = due(known.journey, at, _happens(known), known.called, known.processes)
    if following is None and known.journey.age(at) > OVERDUE_SECONDS and heard_at is not None and heard_at < at:
        said += f", but its time stands still since {moment(heard_at)}: somebody does not listen"
    return said, following


def _never_due(known: KnownSaga) -> tuple[str, str | None]:
    """Say who moves it on, if no timeout does."""
    name, move = known.row["state"], f"ferryman saga move {known.called} --id {known.key}"
    state, ways = known.saga.states[name], known.saga.ways_by_hand(name)
    if state.ask is not None and state.within is None:
        return "It waits for an answer without an end", None
    if instead := known.saga.instead_of_move:
        return f"It waits for a person: {instead}", None
    if state.ask is not None:
        return "It waits for a person", move
    show = f"ferryman saga show {known.called} {known.key}"
    return "It waits for a person", f"{move} --to {ways[0]}" if len(ways) == 1 else show


def _happens(known: KnownSaga) -> str:
    """Say what its timeout does."""
    state, attempt = known.saga.states[known.row["state"]], known.row["attempt"]
    if known.saga.decides_when_due(known.row["state"]):
        return "its rule for timeouts decides"
    if state.ask is not None and attempt < state.most_tries:
        return f"it asks again (attempt {attempt + 1})"
    return f"it goes to {state.then}" if state.then else "it waits for a person"


# --- what happened, in order of time


class _SagaTeller(StoryTeller):
    """Tells a saga's messages, and what its own consumers did with their answers."""

    def __init__(self, known: KnownSaga) -> None:
        super().__init__(known.journey)
        self.known = known

    def began(self, reader: Witness, receipt: InboxReceipt) -> datetime:
        """Return when it moved: a command that it sent at this was appended in the same transaction, before."""
        began = super().began(reader, receipt)
        if reader.consumer not in self.known.consumers:
            return began
        answer, entries = self.journey.entry(receipt.id), map(self.journey.entry, self.known.asked)
        moved = [each.created_at for each in entries if each]
        moved += [self.known.row["changed_at"]] if self.known.row else []
        mine = (at for at in moved if 0 <= (began - at).total_seconds() < ONE_BATCH_SECONDS)
        return max((at for at in mine if answer is None or at > answer.created_at), default=began)

    def handled(self, reader: Witness, receipt: InboxReceipt, detail: Detail, after: Moment) -> Moment:
        if reader.consumer not in self.known.consumers or receipt.status != "HANDLED":
            return super().handled(reader, receipt, detail, after)
        return self.applied(reader, receipt, detail, after)

    def moved(self, act: Mapping[str, Any]) -> None:
        """Tell the act of a person, before the command that was appended with it."""
        state, at = self.known.saga.states.get(act["state"]), act["at"]
        asked = [each.created_at for each in map(self.journey.entry, self.known.asked) if each and state and state.ask]
        mine = (each for each in asked if 0 <= (at - each).total_seconds() < ONE_BATCH_SECONDS)
        at = max(mine, default=at)
        what = "asked again" if act["again"] else f"moved to {act['state']}"
        said = {"by": act["who"], "reason": act["reason"]}
        self.add(Event(at, self.known.side.name, f"{what}{BY_HAND}", said), None)


def _events(known: KnownSaga) -> Sequence[Event]:
    telling, told = _SagaTeller(known), known.journey.ids()
    for act in known.moves:
        telling.moved(act)
    for event in known.beside.events:
        telling.add(event, None)
    for identity in told:
        if command := known.asked.get(identity):
            telling.message(identity, command._asdict(), None)
    reported = {each for by in known.journey.witnesses for receipt in by.receipts for each in receipt.results}
    answers = dict.fromkeys([*known.answers, *(each.message_id for each in known.strays())])
    for identity in [each for each in answers if each in told and each not in reported]:
        telling.message(identity, {}, None)
    telling.unkept(known.strays(), known.side.name, None)
    if row := known.row:
        telling.stands(row["changed_at"], known.side.name, row["state"], row["reason"])
    return telling.events
