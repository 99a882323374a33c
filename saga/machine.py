"""State machines as data. Guards, drawings and the model of the tests are derived from them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import chain
from typing import Literal, get_args

from ferryman.runtime.errors import Misconfigured

KeyType = Literal["uuid", "bigint"]

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class State:
    """A state: its meaning, and the states that it leads to; a terminal one leads nowhere."""

    text: str
    to: tuple[str, ...] = ()


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

    def __post_init__(self) -> None:
        if problem := next(chain(self._wrong_names(), self._problems()), None):
            raise Misconfigured(f"the machine {self.name}: {problem}", remedy="correct its states")

    @property
    def initial(self) -> str:
        return next(iter(self.states))

    @property
    def terminals(self) -> tuple[str, ...]:
        return tuple(name for name, state in self.states.items() if not state.to)

    @property
    def transitions(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, to) for name, state in self.states.items() for to in state.to)

    def may(self, old: str, new: str) -> bool:
        """Return True if a row may go from one state to the other. A row may stay in a state that is not terminal."""
        return new in self.states[old].to or (new == old and old not in self.terminals)

    @property
    def schema(self) -> str:
        return self.table.partition(".")[0]

    def _wrong_names(self) -> Iterator[str]:
        """Yield the names that are not safe to write into SQL, where the guards have them unquoted."""
        parts = (*self.table.split("."), *self.state_type.split("."))
        for each in (self.name, *parts, self.key, *astuple(self.columns), self.archive):
            if not _NAME.fullmatch(each):
                yield f"{each!r} is not a lower-case name"
        if self.key_type not in get_args(KeyType):
            yield f"its keys are {self.key_type}, which is neither {' nor '.join(get_args(KeyType))}"

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
    lines += [f"    {old} --> {new}" for old, new in machine.transitions]
    lines += [f"    {each} --> [*]" for each in machine.terminals]
    rows = [
        f"| `{name}` | {state.text} | {', '.join(f'`{each}`' for each in state.to) or 'nothing: it is over'} |"
        for name, state in machine.states.items()
    ]
    return "\n".join([*lines, "```", "", "| state | meaning | leads to |", "|---|---|---|", *rows])
