"""The declaration of a saga: its states, and pure rules for the results and the timeouts that move it.

Everything else follows from it: the ways and the guards of its table, its drawing, its consumers, and its commands with
their ids, attempts and waits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, get_type_hints
from uuid import UUID

import psycopg
from pydantic import SecretStr

from ferryman.consumer.api import Consumer, Unknown
from ferryman.consumer.model import Received
from ferryman.message import Message
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import psycopg_below
from ferryman.saga.answers import KEEP, Answer, Go, Key, RowT, Unsaid
from ferryman.saga.asking import ENGINES_FIELDS, VISIT, answers_earlier_visit, command
from ferryman.saga.columns import without_none
from ferryman.saga.machine import Columns, KeyType, Machine, State
from ferryman.saga.results import ResultSource, ResultSources
from ferryman.saga.rule import TIMEOUT, Rule, RuleT, misfit, ways

if TYPE_CHECKING:
    from ferryman.saga.engine import SagaEngine, Started

Late: TypeAlias = Callable[[Any, Received], Sequence[Message]]
Complete: TypeAlias = Callable[[Any, Sequence[Any]], Sequence[Any]]
Note: TypeAlias = Callable[[Any, Sequence[Received]], object]
MakeT = TypeVar("MakeT", bound=Callable[[Received], Any])
LateT = TypeVar("LateT", bound=Late)
CompleteT = TypeVar("CompleteT", bound=Complete)
NoteT = TypeVar("NoteT", bound=Note)

TIMED_OUT = "TIMED_OUT"
"""The reason of a saga that went `then`."""

_KEY_TYPES: Mapping[Any, KeyType] = {UUID: "uuid", int: "bigint"}


class Saga(Generic[RowT]):
    """A saga: its states, the results that move it, and the table of its rows.

    `row` is a NamedTuple of columns of the table, the key first, with `state`, `attempt` and `reason`. `of` returns the
    key of the saga that a message belongs to. `results` names, by type or by a pattern of types (`bank.*`), the topic
    from which they are believed: each topic should have one writer. `commands` is the topic of the commands.
    """

    def __init__(
        self,
        name: str,
        row: type[RowT],
        *,
        table: str,
        states: Mapping[str, State],
        of: Callable[[Received], Key],
        results: Mapping[str, str | ResultSource],
        commands: str | None = None,
        columns: Columns | None = None,
        state_type: str = "text",
        archive: str | None = None,
        event: Callable[[Received], str] | None = None,
        fits: Callable[[RowT, Received], bool] | None = None,
        participants: Mapping[str, str] | None = None,
        outboxes: Mapping[str, SecretStr] | None = None,
        unknown: Unknown = "reject",
        due_by_state: bool = False,
        instead_of_move: str | None = None,
    ) -> None:
        """`event` tells what a result says, where its type does not. A result that does not fit the saga is FORGED.

        `participants` names, by topic of commands, the consumer group that must read them for time to count. `outboxes`
        has, by topic of results, the URL of the database whose outbox must have published them. `archive` names the
        function of the schema that archives rows: `archive_` and the name, if nothing is said. `due_by_state`: what is
        due is found by an index on the state and the time. `instead_of_move` forbids `ferryman saga move`, and says
        what a person does instead: where a rule writes rows that a move by hand would not.
        """
        self.name, self.table, self.states, self.of, self.fits = name, table, dict(states), of, fits
        self.row: Any = row
        self.results = ResultSources.named(name, results)
        self.participants, self.outboxes = dict(participants or {}), dict(outboxes or {})
        self.instead_of_move = instead_of_move
        self.late: Late = _nothing
        self.completed: tuple[str, ...] = ()
        self.fill: Complete | None = None
        self.noted: Note | None = None
        self.commands, self._event, self._unknown = commands, event, unknown
        names = {"columns": columns or Columns(), "state_type": state_type, "archive": archive or f"archive_{name}"}
        self._table: dict[str, Any] = {**names, "due_by_state": due_by_state}
        self._rules: dict[tuple[str, str], Rule] = {}
        self._due: dict[str, Rule] = {}
        self._starts: dict[str, Callable[[Received], RowT]] = {}
        self._check()

    # --- what its author says

    def on(
        self,
        state: str | Sequence[str],
        event: str | Sequence[str],
        *,
        to: str | Sequence[str],
        reason: str | Unsaid | None = KEEP,
    ) -> Callable[[RuleT], RuleT]:
        """Say where a result of this type leads from this state.

        As a decorator: a function of the row and the result decides, and returns a step, several, or None if the result
        fits nothing.
        """
        if ended := [each for each in _texts(state) if each in self.states and self.states[each].is_end]:
            raise self._wrong(
                f"{ended[0]} is an End, and has a rule for {event}", "nothing leads out of an End: correct it"
            )
        rules = []
        for place in ((each, said) for each in _texts(state) for said in _texts(event)):
            if place in self._rules:
                raise self._wrong(f"there are two rules for {place[1]} in {place[0]}", "keep one")
            if self._event is None and not self.results.source(place[1]):
                raise self._wrong(f"{place[1]} comes from no topic", f"name it in results: {{'{place[1]}': 'topic'}}")
            self._rules[place] = self._rule(*place, to, reason)
            rules.append(self._rules[place])
        return self._registering(rules, ("row", "result"))

    def due(self, state: str, *, to: str | Sequence[str]) -> Callable[[RuleT], RuleT]:
        """Register the function that decides, from the row, what becomes of a saga that is due in this state."""
        if state in self._due:
            raise self._wrong(f"there are two rules for a timeout in {state}", "keep one")
        rule = self._rule(state, TIMEOUT, to, KEEP)
        if self.states[state].is_end:
            raise self._wrong(f"{state} is an End, and has a rule for timeouts", "nothing is due in an End: correct it")
        if self.states[state].then or self.states[state].tries:
            raise self._wrong(f"{state} has a rule for timeouts, and `then` or `tries`", "keep one of them")
        self._due[state] = rule
        return self._registering([rule], ("row",))

    def starts(self, event: str) -> Callable[[MakeT], MakeT]:
        """Register the function that makes the row of a new saga from a message of this type, which `results` has."""
        if event in self._starts or not self.results.source(event):
            raise self._wrong(f"{event} cannot start it", "name its topic in results, and give it one function")

        def register(make: MakeT) -> MakeT:
            self._takes(make, "message")
            self._starts[event] = make
            return make

        return register

    def on_late(self, function: LateT) -> LateT:
        """Register the function that returns messages that undo what a result reports which came too late."""
        self._takes(function, "row", "result")
        self.late = function
        return function

    def note(self, function: NoteT) -> NoteT:
        """Register the function that records a batch of results in tables of the service, before `complete` reads them.

        So the rule of the first result of a saga knows them all: it decides, and the others change nothing.
        """
        self._takes(function, "db", "results")
        self.noted = function
        return function

    def complete(self, *fields: str) -> Callable[[CompleteT], CompleteT]:
        """Register the function that fills in these fields of rows, which stand in other tables: once for a batch."""
        if unknown := [each for each in fields if each not in self.row._field_defaults or each in ENGINES_FIELDS]:
            raise self._wrong(f"{', '.join(unknown)} cannot be completed", "name fields of the row that have a default")
        if self.completed or set(self.row._fields[len(self.row._fields) - len(fields) :]) != set(fields):
            what = f"{', '.join(fields)} cannot be completed: these are not the last fields of the row"
            raise self._wrong(what, "put them behind the columns, and register one function for all of them")

        def register(function: CompleteT) -> CompleteT:
            self._takes(function, "db", "rows")
            self.completed, self.fill = fields, function
            return function

        return register

    # --- what follows from it

    @cached_property
    def machine(self) -> Machine:
        """The machine of its table: the ways that the rules, the timeouts and `to` name, in the order of the states."""
        events = ways(self.states, self._decided())
        if both := [each for state, each in self._rules if self._event is None and each in self._starts]:
            raise self._wrong(f"{both[0]} starts it, and a rule waits for it", "use two types of messages")
        leads = {name: tuple(to for to in self.states if (name, to) in events) for name in self.states}
        for name, each in self.states.items():
            if bool(leads[name]) is each.is_end:
                what = "an End, and something leads out of it" if each.is_end else "no End, and nothing leads out of it"
                raise self._wrong(f"{name} is {what}", "correct its rules, or declare it as the other")
        states = {name: State(each.text, leads[name]) for name, each in self.states.items()}
        key, kinds = self.row._fields[0], self.types_of_fields
        own = {name: kinds[name][0] for name in self.fields[1:] if name not in ENGINES_FIELDS}
        machine = Machine(self.name, self.table, key, states, self.key_type, events=events, own=own, **self._table)
        again = [each for each in self.states if each in machine.recurring and self.states[each].ask is not None]
        if again and kinds.get(VISIT) != (int, False):
            what = f"{again[0]} asks, and may be entered again: a late answer would count for the next time"
            raise self._wrong(what, f"give the row a field that the engine counts in: {VISIT}: int = 0")
        return machine

    @cached_property
    def engine(self) -> "SagaEngine[RowT]":
        """The engine that applies results and timeouts to its rows."""
        from ferryman.saga.engine import SagaEngine

        return SagaEngine(self)

    @property
    def key_type(self) -> KeyType:
        return _KEY_TYPES[self.types_of_fields[self.row._fields[0]][0]]

    @cached_property
    def _key_class(self) -> type[Any]:
        kind: type[Any] = self.types_of_fields[self.row._fields[0]][0]
        return kind

    @cached_property
    def settable(self) -> frozenset[str]:
        """The columns that a step may set."""
        return frozenset(self.fields[1:]) - {"state"} - ({VISIT} if self.revisited else set())

    @cached_property
    def revisited(self) -> frozenset[str]:
        """The states that a saga may enter again, and that ask for something each time."""
        return frozenset(each for each in self.machine.recurring if self.states[each].ask is not None)

    @property
    def types_of_fields(self) -> dict[str, tuple[Any, bool]]:
        """The type of each field of the row, without None; and whether it may be None."""
        return {name: without_none(each) for name, each in get_type_hints(self.row).items()}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of its row that are columns of its table."""
        return tuple(each for each in self.row._fields if each not in self.completed)

    @property
    def types(self) -> list[str]:
        """The types of messages that its consumers handle."""
        named = [event for _, event in self._rules] if self._event is None else self.results.types
        return [*dict.fromkeys([*self._starts, *named])]

    @property
    def listeners(self) -> list[ResultSource]:
        """The groups, each with its topic, that must have read everything for the time of its sagas to count."""
        return [*self.results.distinct, *(ResultSource(group, topic) for topic, group in self.participants.items())]

    @property
    def command_topics(self) -> list[str]:
        """The topics in which no command may wait to be published for the time of its sagas to count."""
        return [*dict.fromkeys([*([self.commands] if self.commands else []), *self.participants])]

    def consumers(self) -> list[Consumer]:
        """Return a consumer for each topic of results. Each takes every type: one from a wrong topic is FORGED."""
        return [self.consumer(each.consumer, [each.topic]) for each in self.results.distinct]

    def consumer(self, name: str, topics: Sequence[str]) -> Consumer:
        """Return a consumer of these topics. It reports nothing, so nothing is reported again for duplicates."""
        made = Consumer(name, topics, connection=psycopg.Connection, unknown=self._unknown, rereport=False)
        made.handles_batch(*self.types)(self.engine.apply)
        made.after_commit(self.engine.tell)
        return made

    def start(self, db: Any, row: RowT) -> "Started[RowT]":
        """Write the row of a new saga and its first command, once; say how it stands if it was there.

        `db` is the writer's own: a connection of psycopg, or a session or connection of SQLAlchemy on psycopg.
        """
        return self.engine.start(psycopg_below(db, "a saga cannot be started"), [row])[0]

    # --- its decisions

    def ways_by_hand(self, state: str) -> tuple[str, ...]:
        """Return where a person may move a saga that is in this state."""
        return () if self.instead_of_move else self.machine.states[state].to

    def key_of(self, message: Received) -> Key:
        """Return the key of the saga that a message belongs to, or raise if it is of another type than the table's."""
        return self.checked_key(self.of(message), "`of`")

    def checked_key(self, key: Any, giver: str) -> Key:
        """Return the key if it has the type of the row's key. Another would be found in no row."""
        if not isinstance(key, self._key_class):
            wanted = self._key_class.__name__
            raise TypeError(
                f"the saga {self.name}: {giver} gave the key {key!r:.100}: give {wanted}(...), not its text"
            )
        return cast("Key", key)

    def starting(self, message: Received) -> Callable[[Received], RowT] | None:
        """Return the function that makes a row from this message, if it starts a saga and came from its topic."""
        make = self._starts.get(message.type)
        return make if make and self.results.believes(message) else None

    def on_result(self, saga: RowT, result: Received) -> Answer:
        """Return what becomes of a saga at this result; None: it fits nothing."""
        event = result.type if self._event is None else self._event(result)
        state: str = saga.state  # type: ignore[attr-defined]
        rule = self._rules.get((state, event))
        if rule is None or (state in self.revisited and answers_earlier_visit(self, saga, result)):
            return None
        return rule.decide(saga, result)

    def decides_when_due(self, state: str) -> bool:
        """Return True if a function decides what a timeout in this state leads to."""
        return state in self._due

    def on_due(self, saga: RowT) -> Answer:
        """Return what becomes of a saga that is due: it asks again, goes `then`, or waits for a person."""
        row: Any = saga
        name: str = row.state
        if rule := self._due.get(name):
            return rule.decide(saga)
        state = self.states[name]
        if state.ask is not None and row.attempt < state.most_tries:
            return Go(name, again=True)
        return Go(state.then, reason=TIMED_OUT) if state.then else Go(name, due=None)

    def command(self, saga: RowT) -> Message:
        """Return the command of a saga's state. Its id follows from the saga, the state and the attempt."""
        return command(self, saga)

    # --- inside

    def _registering(self, rules: Sequence[Rule], given: Sequence[str]) -> Callable[[RuleT], RuleT]:
        """Return a decorator that makes a function of these arguments decide for these rules."""

        def register(function: RuleT) -> RuleT:
            self._takes(function, *given)
            for each in rules:
                each.answer = function
            return function

        return register

    def _takes(self, function: Callable[..., Any], *given: str) -> None:
        if wrong := misfit(function, given):
            raise self._wrong(wrong, f"declare it as `def name({', '.join(given)})`")

    def _rule(self, state: str, event: str, to: str | Sequence[str], reason: str | Unsaid | None) -> Rule:
        if unknown := [each for each in (state, *_texts(to)) if each not in self.states]:
            what = f"the rule for {event} in {state} names {unknown[0]}, which is not one of its states"
            raise self._wrong(what, f"the states are {', '.join(self.states)}")
        return Rule(event, _texts(to), reason)

    def _decided(self) -> Iterator[tuple[str, Rule]]:
        """Yield every rule with its state, or raise if one does not say where it leads."""
        for state, rule in [*((state, rule) for (state, _), rule in self._rules.items()), *self._due.items()]:
            if rule.answer is None and len(rule.to) != 1:
                what = f"the rule for {rule.event} in {state} may lead to {', '.join(rule.to)}, and does not say when"
                raise self._wrong(what, "decorate a function that decides")
            yield state, rule

    def _check(self) -> None:
        fields: Sequence[str] = getattr(self.row, "_fields", ())
        if lacking := [each for each in ENGINES_FIELDS if each not in fields]:
            what = f"{getattr(self.row, '__name__', self.row)} is not a row of a saga: it has no field {lacking[0]}"
            remedy = "give a NamedTuple with `state`, `attempt` and `reason`; columns=Columns(...) renames columns"
            raise self._wrong(what, remedy)
        if self.types_of_fields[fields[0]][0] not in _KEY_TYPES or fields[0] in ENGINES_FIELDS:
            raise self._wrong(f"its key, {fields[0]}, is neither a UUID nor an int", "put the key first in the row")
        self._check_columns()
        for state, each in self.states.items():
            if not isinstance(each, State):
                raise self._wrong(f"{state} is {each!r:.100}", "give a State(...) or an End(...)")
            if isinstance(each.ask, str) and self.commands is None:
                raise self._wrong(f"{state} asks for {each.ask}, and there is no topic for it", "name it: commands='…'")
            if callable(each.ask):
                self._takes(each.ask, "row")
            if unknown := [to for to in (each.then, *each.to) if to is not None and to not in self.states]:
                raise self._wrong(f"{state} leads to {unknown[0]}, which is not one of its states", "correct it")

    def _check_columns(self) -> None:
        ours = asdict(self._table["columns"])
        columns = [*(ours.get(each, each) for each in self.row._fields), ours["due_at"], ours["changed_at"]]
        if twice := [each for each in columns if columns.count(each) > 1]:
            what = f"two of its columns are called {twice[0]}"
            raise self._wrong(what, "rename the field, or see columns=Columns(...)")
        message: Sequence[str] = ("message",)
        for function, given in ((self.of, message), (self._event, message), (self.fits, ("row", "result"))):
            if function is not None:
                self._takes(function, *given)

    def _wrong(self, what: str, remedy: str) -> Misconfigured:
        return Misconfigured(f"the saga {self.name}: {what}", remedy=remedy)


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _nothing(_saga: Any, _result: Received) -> Sequence[Message]:
    """Undo nothing."""
    return ()
