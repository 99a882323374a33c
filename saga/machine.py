"""A machine is data: its states and the ways between them. Guards, drawing and the tests' model are made from it."""

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
    """What it means to be in it, and where one can go from there; nowhere from a terminal one."""

    text: str
    to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns are called that the engine writes: a table may have words of its own for them."""

    state: str = "state"
    attempt: str = "attempt"
    reason: str = "reason"
    due_at: str = "due_at"
    changed_at: str = "changed_at"


@dataclass(frozen=True)
class Machine:
    """The states of one table's rows. The first state is that in which every row begins.

    The table has the engine's columns beside its key and its own. What is not over has a time at which it is looked at;
    `infinity` waits for a person.
    """

    name: str
    table: str
    key: str
    states: Mapping[str, State] = field(hash=False)
    key_type: KeyType = "uuid"
    columns: Columns = Columns()
    archive: str = "archive"
    """The function by which rows leave, in the table's schema: two machines of one schema need two."""

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
        """Whether a row may go from one to the other; staying is no transition, and not for terminal ones either."""
        return new in self.states[old].to or (new == old and old not in self.terminals)

    @property
    def schema(self) -> str:
        return self.table.partition(".")[0]

    def _wrong_names(self) -> Iterator[str]:
        """They stand in its guards as they are."""
        for each in (self.name, *self.table.split("."), self.key, *astuple(self.columns), self.archive):
            if not _NAME.fullmatch(each):
                yield f"{each!r} is no name in lower case"
        if self.key_type not in get_args(KeyType):
            yield f"its keys are {self.key_type}, which is neither {' nor '.join(get_args(KeyType))}"

    def _problems(self) -> Iterator[str]:
        if not self.states:
            yield "it has no states"
            return
        for old, new in self.transitions:
            if new not in self.states:
                yield f"{old} leads to {new}, which is none of its states"
                return
            if old == new:
                yield f"{old} leads to itself: to stay is no transition"
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
