"""The answers of a saga's rules, as values that the engine writes down."""

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from ferryman.message import Message, only_messages

StrayReason: TypeAlias = Literal["LATE", "UNKNOWN", "FORGED"]

Key: TypeAlias = UUID | int
"""The key of a saga: a value of its table's key column."""

RowT = TypeVar("RowT", bound=tuple[Any, ...])
"""A saga as the rules see it: a NamedTuple whose fields are columns of its table, the key first.

It has the fields `state`, `attempt` and `reason`, whatever these columns are called in the table.
"""


class Unsaid(Enum):
    """A value that a rule did not give."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Unsaid.KEEP


class Row(NamedTuple):
    """A row that is inserted into a table of the service, in the transaction of the step."""

    table: str
    values: Mapping[str, Any]


class Go:
    """A step: the saga goes to this state, or stays in it, and these messages leave in the same transaction.

    What is not said stays as it is. `set` has new values of other columns, `rows` are inserted beside it. A saga that
    enters a state asks for what the state says; `again=True` asks once more, in the state that it is in. After `due`
    seconds the saga is looked at again, or by a person alone if that is None; otherwise as its state says.
    """

    __slots__ = ("again", "due", "messages", "reason", "rows", "set", "state")

    def __init__(
        self,
        state: str,
        *messages: Message,
        set: Mapping[str, Any] | None = None,
        rows: Sequence[Row] = (),
        reason: str | Unsaid | None = KEEP,
        due: float | Unsaid | None = KEEP,
        again: bool = False,
    ) -> None:
        _check(due, rows)
        self.state = state
        self.messages = only_messages(messages)
        self.set = set or {}
        self.rows = rows
        self.reason = reason
        self.due = due
        self.again = again

    def because(self, reason: str | Unsaid | None) -> "Go":
        """Return this step with a reason, unless it has one."""
        if self.reason is not KEEP:
            return self
        return Go(
            self.state, *self.messages, set=self.set, rows=self.rows, reason=reason, due=self.due, again=self.again
        )

    def __repr__(self) -> str:
        named = {name: getattr(self, name) for name in ("set", "rows", "reason", "due", "again")}
        said = [f"{name}={value!r}" for name, value in named.items() if value not in (KEEP, {}, (), False)]
        return f"Go({', '.join([repr(self.state), *map(repr, self.messages), *said])})"


def _check(due: Any, rows: Sequence[Any]) -> None:
    """Refuse what could only fail later, in the transaction of a whole batch."""
    if due is not KEEP and due is not None and not (isinstance(due, (int, float)) and 0 <= due < inf):
        raise ValueError(f"due={due!r} is not a time: give a number of seconds, or None if a person goes on")
    if rows and not all(isinstance(each, Row) and each.values for each in rows):
        raise TypeError("rows are not a list of Row(table, {column: value})")


Answer: TypeAlias = Go | Sequence[Go] | None
"""A step, several that are taken in their order, or None for a result that fits nothing: it is kept as a stray."""
