"""What becomes of a saga, as values: rules answer with them, and the engine writes them down."""

from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from ferryman.message import Message

Why: TypeAlias = Literal["LATE", "UNKNOWN", "FORGED"]


Key: TypeAlias = UUID | int
"""Of a saga: what its table's key column holds."""


class Move(NamedTuple):
    """It goes to this state, or stays; these messages leave in the same transaction; after so long it is looked at."""

    state: str
    messages: tuple[Message, ...] = ()
    due_seconds: float | None = None
    attempt: int = 1
    reason: str | None = None


class Stray(NamedTuple):
    """A result that changes nothing: its saga is over or elsewhere, is unknown, or never asked for this.

    It is kept and counted; the messages undo what must not stay.
    """

    why: Why
    messages: tuple[Message, ...] = ()


RowT = TypeVar("RowT", bound=tuple[Any, ...])
"""A saga as the rules see it: a NamedTuple whose fields are columns of its table, the key first; `state`, `attempt` and
`reason` among them, whatever their columns are called.
"""
