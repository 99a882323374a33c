"""The answers of a saga's rules, as values that the engine writes down."""

from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from ferryman.message import Message

StrayReason: TypeAlias = Literal["LATE", "UNKNOWN", "FORGED"]

Key: TypeAlias = UUID | int
"""The key of a saga: a value of its table's key column."""


class Move(NamedTuple):
    """A step: the saga goes to this state or stays in it, and these messages leave in the same transaction.

    After `due_seconds` the saga is looked at again; without them, only if its state is not terminal, by a person.
    """

    state: str
    messages: tuple[Message, ...] = ()
    due_seconds: float | None = None
    attempt: int = 1
    reason: str | None = None


class Stray(NamedTuple):
    """A result that changes nothing: its saga is elsewhere by now, is unknown, or never asked for it.

    It is kept and counted. The messages undo what must not remain.
    """

    why: StrayReason
    messages: tuple[Message, ...] = ()


RowT = TypeVar("RowT", bound=tuple[Any, ...])
"""A saga as the rules see it: a NamedTuple whose fields are columns of its table, the key first.

It has the fields `state`, `attempt` and `reason`, whatever these columns are called in the table.
"""
