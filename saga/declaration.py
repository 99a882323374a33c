"""The declaration of a saga: its states, and pure rules for the results and the timeouts that move it.

Everything else follows from it: the ways and the guards of its table, its drawing, its consumers, and its commands with
their ids, attempts and waits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4, uuid5

import psycopg
from pydantic import SecretStr

from ferryman.consumer.api import Consumer, Unknown
from ferryman.consumer.model import Received
from ferryman.message import Message
from ferryman.runtime.errors import Misconfigured
from ferryman.saga.answers import KEEP, Answer, Go, Key, RowT, Unsaid
from ferryman.saga.columns import command_data
from ferryman.saga.machine import Columns, KeyType, Machine, State
from ferryman.saga.results import ResultSource, ResultSources
from ferryman.saga.rule import Rule, RuleT, registering

if TYPE_CHECKING:
    from ferryman.saga.engine import SagaEngine, Started

Late: TypeAlias = Callable[[Any, Received], Sequence[Message]]
Complete: TypeAlias = Callable[[Any, Sequence[Any]], Sequence[Any]]
MakeT = TypeVar("MakeT", bound=Callable[[Received], Any])
LateT = TypeVar("LateT", bound=Late)
CompleteT = TypeVar("CompleteT", bound=Complete)

TIMED_OUT, TIMEOUT = "TIMED_OUT", "timeout"
"""The reason of a saga that went `then`, and the event that drawings show for it."""

_KEY_TYPES: Mapping[Any, KeyType] = {UUID: "uuid", int: "bigint"}
_ENGINES_FIELDS = ("state", "attempt", "reason")
_COMMANDS = UUID("6f3f6a0e-6a3f-5b0b-9d43-2f5a2f0e9c11")
"""The namespace of the ids of commands."""


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
    ) -> None:
        """`event` tells what a result says, where its type does not. A result that does not fit the saga is FORGED.

        `participants` names, by topic of commands, the consumer group that must read them for time to count. `outboxes`
        has, by topic of results, the URL of the database whose outbox must have published them. `archive` names the
        function of the schema that archives rows: `archive_` and the name, if nothing is said. `due_by_state`: what is
        due is found by an index on the state and the time.
        """
        self.name, self.table, self.states, self.of, self.fits = name, table, dict(states), of, fits
        self.row: Any = row
        self.results = ResultSources.named(name, results)
        self.participants, self.outboxes = dict(participants or {}), dict(outboxes or {})
        self.late: Late = _nothing
        self.completed: tuple[str, ...] = ()
        self.fill: Complete | None = None
        self._commands, self._event, self._unknown = commands, event, unknown
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
        return registering(rules)

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
        return registering([rule])

    def starts(self, event: str) -> Callable[[MakeT], MakeT]:
        """Register the function that makes the row of a new saga from a message of this type, which `results` has."""
        if event in self._starts or not self.results.source(event):
            raise self._wrong(f"{event} cannot start it", "name its topic in results, and give it one function")

        def register(make: MakeT) -> MakeT:
            self._starts[event] = make
            return make

        return register

    def on_late(self, function: LateT) -> LateT:
        """Register the function that returns messages that undo what a result reports which came too late."""
        self.late = function
        return function

    def complete(self, *fields: str) -> Callable[[CompleteT], CompleteT]:
        """Register the function that fills in these fields of rows, which stand in other tables: once for a batch."""
        if unknown := [each for each in fields if each not in self.row._field_defaults or each in _ENGINES_FIELDS]:
            raise self._wrong(f"{', '.join(unknown)} cannot be completed", "name fields of the row that have a default")
        if self.completed or set(self.row._fields[len(self.row._fields) - len(fields) :]) != set(fields):
            what = f"{', '.join(fields)} cannot be completed: these are not the last fields of the row"
            raise self._wrong(what, "put them behind the columns, and register one function for all of them")

        def register(function: CompleteT) -> CompleteT:
            self.completed, self.fill = fields, function
            return function

        return register

    # --- what follows from it

    @cached_property
    def machine(self) -> Machine:
        """The machine of its table: the ways that the rules, the timeouts and `to` name, in the order of the states."""
        events = self._events()
        if both := [each for state, each in self._rules if self._event is None and each in self._starts]:
            raise self._wrong(f"{both[0]} starts it, and a rule waits for it", "use two types of messages")
        ways = {name: tuple(to for to in self.states if (name, to) in events) for name in self.states}
        for name, each in self.states.items():
            if bool(ways[name]) is each.is_end:
                what = "an End, and something leads out of it" if each.is_end else "no End, and nothing leads out of it"
                raise self._wrong(f"{name} is {what}", "correct its rules, or declare it as the other")
        states = {name: State(each.text, ways[name]) for name, each in self.states.items()}
        key, kinds = self.row._fields[0], self.types_of_fields
        own = {name: kinds[name][0] for name in self.fields[1:] if name not in _ENGINES_FIELDS}
        return Machine(self.name, self.table, key, states, self.key_type, events=events, own=own, **self._table)

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
        return frozenset(self.fields[1:]) - {"state"}

    @property
    def types_of_fields(self) -> dict[str, tuple[Any, bool]]:
        """The type of each field of the row, without None; and whether it may be None."""
        return {name: _without_none(each) for name, each in get_type_hints(self.row).items()}

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
        return [*dict.fromkeys([*([self._commands] if self._commands else []), *self.participants])]

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
        return self.engine.start(_psycopg(db), [row])[0]

    # --- its decisions

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
        rule = self._rules.get((saga.state, event))  # type: ignore[attr-defined]
        return None if rule is None else rule.decide(saga, result)

    def on_due(self, saga: RowT) -> Answer:
        """Return what becomes of a saga that is due: it asks again, goes `then`, or waits for a person."""
        name, attempt = _state(saga), int(saga.attempt)  # type: ignore[attr-defined]
        if rule := self._due.get(name):
            return rule.decide(saga)
        state = self.states[name]
        if state.ask is not None and attempt < state.most_tries:
            return Go(name, again=True)
        return Go(state.then, reason=TIMED_OUT) if state.then else Go(name, due=None)

    def command(self, saga: RowT) -> Message:
        """Return the command of a saga's state. Its id follows from the saga, the state and the attempt.

        A state that a saga may enter again counts its attempts anew each time, so its commands have ids of their own.
        """
        given: dict[str, Any] = saga._asdict()  # type: ignore[attr-defined]
        ask = self.states[_state(saga)].ask
        if callable(ask):
            message: Message = ask(saga)
            if not isinstance(message, Message):
                raise TypeError(f"`ask` of {self.name} in {_state(saga)} returned {message!r:.100}: return a Message")
        else:
            data = {name: given[name] for name in self.fields if name not in _ENGINES_FIELDS}
            message = Message(ask, command_data(ask, data), key=str(saga[0]))
        if message.id is not None and (message.topic is not None or self._commands is None):
            return message
        follows = uuid5(_COMMANDS, f"{self.name}/{saga[0]}/{_state(saga)}/{given['attempt']}")
        own = uuid4() if _state(saga) in self.machine.recurring else follows
        return replace(message, id=message.id or own, topic=message.topic or self._commands)

    # --- inside

    def _rule(self, state: str, event: str, to: str | Sequence[str], reason: str | Unsaid | None) -> Rule:
        if unknown := [each for each in (state, *_texts(to)) if each not in self.states]:
            what = f"the rule for {event} in {state} names {unknown[0]}, which is not one of its states"
            raise self._wrong(what, f"the states are {', '.join(self.states)}")
        return Rule(event, _texts(to), reason)

    def _events(self) -> dict[tuple[str, str], list[str]]:
        """Return every way from a state to another, with the events that lead there."""
        events: dict[tuple[str, str], list[str]] = {}
        for state, rule in self._decided():
            for to in rule.to:
                if to != state:
                    events.setdefault((state, to), []).append(rule.event)
        for state, each in self.states.items():
            if each.then:
                events.setdefault((state, each.then), []).append(TIMEOUT)
            for to in each.to:
                events.setdefault((state, to), [])
        return events

    def _decided(self) -> Iterator[tuple[str, Rule]]:
        """Yield every rule with its state, or raise if one does not say where it leads."""
        for state, rule in [*((state, rule) for (state, _), rule in self._rules.items()), *self._due.items()]:
            if rule.answer is None and len(rule.to) != 1:
                what = f"the rule for {rule.event} in {state} may lead to {', '.join(rule.to)}, and does not say when"
                raise self._wrong(what, "decorate a function that decides")
            yield state, rule

    def _check(self) -> None:
        fields: Sequence[str] = getattr(self.row, "_fields", ())
        if not set(_ENGINES_FIELDS) <= set(fields):
            what = f"{getattr(self.row, '__name__', self.row)} is not a row of a saga"
            raise self._wrong(what, "give a NamedTuple with `state`, `attempt` and `reason`")
        if self.types_of_fields[fields[0]][0] not in _KEY_TYPES or fields[0] in _ENGINES_FIELDS:
            raise self._wrong(f"its key, {fields[0]}, is neither a UUID nor an int", "put the key first in the row")
        self._check_columns()
        for state, each in self.states.items():
            if not isinstance(each, State):
                raise self._wrong(f"{state} is {each!r:.100}", "give a State(...) or an End(...)")
            if isinstance(each.ask, str) and self._commands is None:
                raise self._wrong(f"{state} asks for {each.ask}, and there is no topic for it", "name it: commands='…'")
            if unknown := [to for to in (each.then, *each.to) if to is not None and to not in self.states]:
                raise self._wrong(f"{state} leads to {unknown[0]}, which is not one of its states", "correct it")

    def _check_columns(self) -> None:
        ours = asdict(self._table["columns"])
        columns = [*(ours.get(each, each) for each in self.row._fields), ours["due_at"], ours["changed_at"]]
        if twice := [each for each in columns if columns.count(each) > 1]:
            raise self._wrong(
                f"two of its columns are called {twice[0]}", "rename the field, or see columns=Columns(...)"
            )
        if not callable(self.of):
            raise self._wrong(f"of={self.of!r} is not a function", "give a function of a message that returns the key")

    def _wrong(self, what: str, remedy: str) -> Misconfigured:
        return Misconfigured(f"the saga {self.name}: {what}", remedy=remedy)


def _psycopg(db: Any) -> Any:
    """Return the connection of psycopg below a session or a connection of SQLAlchemy."""
    below = db
    if hasattr(db, "flush"):
        db.flush()
        below = db.connection()
    if not isinstance(below, psycopg.Connection):
        below = getattr(getattr(below, "connection", None), "dbapi_connection", None)
    if not isinstance(below, psycopg.Connection):
        what = f"a saga cannot be started in a {type(db).__name__}"
        remedy = "give a connection of psycopg, or a session or connection of SQLAlchemy on psycopg; none of asyncio"
        raise Misconfigured(what, remedy=remedy)
    return below


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was in it. Of list[str] it is list."""
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        kinds = [each for each in get_args(annotation) if each is not type(None)]
        if len(kinds) == 1:
            return get_origin(kinds[0]) or kinds[0], True
    return get_origin(annotation) or annotation, False


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _nothing(_saga: Any, _result: Received) -> Sequence[Message]:
    """Undo nothing."""
    return ()


def _state(saga: Any) -> str:
    state: str = saga.state
    return state
