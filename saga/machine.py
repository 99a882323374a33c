"""State machines as data. Guards, drawings and the model of the tests are derived from them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any, Literal, get_args

from ferryman.runtime.errors import Misconfigured
from ferryman.saga.columns import RESERVED

KeyType = Literal["uuid", "bigint"]

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_STATE = re.compile(r"\w[\w.-]*")
_LONGEST_NAME = 63 - len("_all_stay")
"""PostgreSQL shortens the names of guards that are longer than 63 letters."""


@dataclass(frozen=True, slots=True)
class State:
    """A state: its meaning, what is asked in it, and where it goes if no answer comes.

    A saga that enters the state sends the command `ask`: the type of a message with the saga's own columns, or a
    function that makes the message from the row. If it is not moved `within` so many seconds, the command is sent again
    after waits that double, up to `longest`, until it was sent `tries` times (None: for ever). Then it goes `then`, or
    waits for a person. `to` names ways besides those of the rules: a person's, or a service's own.
    """

    text: str
    to: tuple[str, ...] = ()
    _: KW_ONLY
    ask: Any = None
    within: float | None = None
    tries: int | None = None
    then: str | None = None
    longest: float = 3600.0

    def __post_init__(self) -> None:
        if problem := next(chain(self._wrong_types(), self._problems()), None):
            raise Misconfigured(f"a state has {problem[0]}", remedy=problem[1])

    @property
    def is_end(self) -> bool:
        return False

    @property
    def most_tries(self) -> float:
        return inf if self.tries is None and self.ask is not None else self.tries or 1

    def wait_seconds(self, attempt: int) -> float | None:
        """Return how long an answer to this attempt is waited for; None: without an end."""
        if self.within is None or attempt == 1:
            return self.within
        return min(max(self.longest, self.within), self.within * 2.0 ** min(attempt - 1, 30))

    def _wrong_types(self) -> Iterator[tuple[str, str]]:
        if isinstance(self.to, str):
            yield f"to={self.to!r}", f"give a tuple: to=({self.to!r},)"
        for name in ("within", "tries", "longest"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, int | float):
                yield f"{name}={given!r}", "give a number"

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.within is not None and not (0 if self.ask is None else 0.001) <= self.within < inf:
            yield f"within={self.within!r}", "give a number of seconds above 0, or nothing: it waits without an end"
        if self.tries is not None and (self.tries < 1 or self.ask is None):
            yield f"tries={self.tries!r}", "name the command to send again (`ask`), and at least one try"
        if (self.then or self.tries) and self.within is None:
            yield "`then` or `tries`, and no `within`", "say after how many seconds"
        if self.then and self.ask is not None and self.tries is None:
            yield f"then={self.then!r}, and asks for ever", "say how often it asks: tries=3"
        if not (self.ask is None or isinstance(self.ask, str) or callable(self.ask)):
            yield f"ask={self.ask!r}", "name the type of a message, or a function that makes it from the row"


class End(State):
    """A state that ends the saga. Nothing changes the row any more."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @property
    def is_end(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns that the engine writes; a table may have words of its own for them."""

    state: str = "state"
    attempt: str = "attempt"
    reason: str = "reason"
    due_at: str = "due_at"
    changed_at: str = "changed_at"


@dataclass(frozen=True)
class Machine:
    """The states of the rows of one table. Every row begins in the first state.

    The table has the engine's columns beside its key and its own. A saga that is not over has a time at which it is due
    to be looked at; `infinity` means that it waits for a person.
    """

    name: str
    table: str
    key: str
    states: Mapping[str, State] = field(hash=False)
    key_type: KeyType = "uuid"
    state_type: str = "text"
    """The type of the state's column: text, or an enum with its schema."""
    columns: Columns = Columns()
    archive: str = "archive"
    """The function that archives rows, in the table's schema: two machines in one schema need two names."""
    events: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict, hash=False)
    """The events that lead from one state to another, for the drawing."""
    own: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The types of the columns that are the service's own, by their names."""
    due_by_state: bool = False
    """True if sagas that are due are looked for state by state, by an index on both."""

    def __post_init__(self) -> None:
        named = ((problem, "use lower-case letters, digits and _") for problem in self._wrong_names())
        stated = ((problem, "correct its states") for problem in chain(self._odd_states(), self._problems()))
        if found := next(chain(named, stated), None):
            raise Misconfigured(f"the machine {self.name}: {found[0]}", remedy=found[1])

    @property
    def stray_key(self) -> str:
        """The column of ferryman.saga_stray that keeps its keys."""
        return "saga_id" if self.key_type == "uuid" else "saga_number"

    @property
    def filled(self) -> frozenset[str]:
        """The columns that the start of a saga fills."""
        return frozenset({self.key, *self.own, *astuple(self.columns)})

    @property
    def has_enum(self) -> bool:
        """True if the type of its state's column is the service's own."""
        return self.state_type not in ("text", "varchar")

    @property
    def initial(self) -> str:
        return next(iter(self.states))

    @property
    def terminals(self) -> tuple[str, ...]:
        return tuple(name for name, state in self.states.items() if not state.to)

    @property
    def transitions(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, to) for name, state in self.states.items() for to in state.to)

    @cached_property
    def recurring(self) -> frozenset[str]:
        """The states that a row may enter more than once."""
        return frozenset(
            name for name, state in self.states.items() if name in self._reached(set(state.to), self.transitions)
        )

    def may(self, old: str, new: str) -> bool:
        """Return True if a row may go from one state to the other. A row may stay in a state that is not terminal."""
        return new in self.states[old].to or (new == old and old not in self.terminals)

    @property
    def schema(self) -> str:
        return self.table.partition(".")[0]

    def _wrong_names(self) -> Iterator[str]:
        """Yield the names that are not safe to write into SQL, where the guards have them unquoted."""
        parts = (*self.table.split("."), *self.state_type.split("."))
        columns = (self.key, *astuple(self.columns))
        for each in (self.name, *parts, *columns, self.archive):
            if not _NAME.fullmatch(each):
                yield f"{each!r} is not a lower-case name"
        if self.table.count(".") != 1:
            yield f"its table {self.table} is not named as schema.table, such as public.orders"
        if len(self.name) > _LONGEST_NAME:
            yield f"its name has more than {_LONGEST_NAME} letters"
        if taken := [each for each in columns if each in RESERVED]:
            yield f"its column {taken[0]} is a word of SQL"
        if self.key_type not in get_args(KeyType):
            yield f"its keys are {self.key_type}, which is neither {' nor '.join(get_args(KeyType))}"

    def _odd_states(self) -> Iterator[str]:
        if odd := [each for each in self.states if not _STATE.fullmatch(each)]:
            yield f"{odd[0]!r} is not the name of a state: use letters, digits, and _ . -"
        if self.states and self.initial in self.terminals:
            yield f"it begins with {self.initial}, and nothing leads out of it"

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the states and the transitions."""
        if not self.states:
            yield "it has no states"
            return
        for old, new in self.transitions:
            if new not in self.states:
                yield f"{old} leads to {new}, which is not one of its states"
                return
            if old == new:
                yield f"{old} leads to itself: staying is not a transition"
        forth = self._reached({self.initial}, self.transitions)
        if lost := [each for each in self.states if each not in forth]:
            yield f"nothing leads to {', '.join(lost)}"
        back = self._reached(set(self.terminals), tuple((new, old) for old, new in self.transitions))
        if caught := [each for each in self.states if each not in back]:
            yield f"nothing ends what is in {', '.join(caught)}"

    @staticmethod
    def _reached(found: set[str], ways: tuple[tuple[str, str], ...]) -> set[str]:
        while more := {new for old, new in ways if old in found} - found:
            found |= more
        return found


def drawing(machine: Machine) -> str:
    """Return Mermaid's state diagram of a machine and a table of its states, in Markdown."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {machine.initial}"]
    for way in machine.transitions:
        events = ", ".join(machine.events.get(way, ()))
        lines.append(f"    {' --> '.join(way)}{events and ': '}{events}")
    lines += [f"    {each} --> [*]" for each in machine.terminals]
    rows = [
        f"| `{name}` | {state.text} | {', '.join(f'`{each}`' for each in state.to) or 'nothing: it is over'} |"
        for name, state in machine.states.items()
    ]
    return "\n".join([*lines, "```", "", "| state | meaning | leads to |", "|---|---|---|", *rows])
