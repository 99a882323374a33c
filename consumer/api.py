"""What an adopter writes: a consumer, its topics, and a handler for each type."""

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ferryman.consumer.model import Done, Outcome, Received, Refused
from ferryman.runtime.errors import Misconfigured

One: TypeAlias = Callable[[Any, Received], Outcome]
Many: TypeAlias = Callable[[Any, Sequence[Received]], Sequence[Outcome]]
Handled: TypeAlias = tuple[Received, Done | Refused]
"""A message whose verdict is committed."""
AfterCommit: TypeAlias = Callable[[Sequence[Handled]], object]
OneT = TypeVar("OneT", bound=One)
ManyT = TypeVar("ManyT", bound=Many)
AfterT = TypeVar("AfterT", bound=AfterCommit)

Mode = Literal["effectively_once", "at_most_once"]
Unknown = Literal["ignore", "reject"]

_LONGEST_NAME = 100


class Consumer:
    """Handles the messages of some topics, each once. `ferryman run module:object` runs it.

    `connection` is what its handlers are given: `psycopg.Connection`, `sqlalchemy.Connection` or
    `sqlalchemy.orm.Session`, with a transaction open that only the runtime ends.
    """

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        *,
        connection: type[Any] | None = None,
        mode: Mode = "effectively_once",
        unknown: Unknown = "ignore",
        rereport: bool = True,
    ) -> None:
        if not name or len(name) > _LONGEST_NAME or not name.isascii() or not _plain(name):
            raise Misconfigured(
                f"{name!r} is no name for a consumer",
                remedy=f"use ASCII letters, digits, dots, underscores and hyphens, {_LONGEST_NAME} at most",
            )
        if isinstance(topics, str) or not topics:
            raise Misconfigured(f"the consumer {name} has no topics", remedy="name them: topics=['orders']")
        for setting, given, known in (("mode", mode, get_args(Mode)), ("unknown", unknown, get_args(Unknown))):
            if given not in known:
                raise Misconfigured(
                    f"the consumer {name} has {setting}={given!r}", remedy=f"one of {', '.join(map(repr, known))}"
                )
        self.name = name
        self.topics = tuple(topics)
        self.connection = connection
        self.mode: Mode = mode
        self.unknown = unknown
        self.rereport = rereport
        self.handlers: dict[str, Many] = {}
        self.told: list[AfterCommit] = []

    def handles(self, *types: str) -> Callable[[OneT], OneT]:
        """The function handles one message of these types at a time."""
        self._refuse_types(types, "handles")

        def registered(function: OneT) -> OneT:
            self._register(types, function, lambda db, messages: [function(db, message) for message in messages])
            return function

        return registered

    def handles_batch(self, *types: str) -> Callable[[ManyT], ManyT]:
        """The function handles many messages of these types at once, and answers each, in their order."""
        self._refuse_types(types, "handles_batch")

        def registered(function: ManyT) -> ManyT:
            self._register(types, function, function)
            return function

        return registered

    def after_commit(self, function: AfterT) -> AfterT:
        """The function is told what each batch did, once that is committed: best effort, and at most once.

        It is given messages that took effect or were refused now, with their outcomes; duplicates and what was rejected
        are not among them. It runs in a thread of its own: nothing waits for it, nothing is undone when it fails, and
        what a process did not tell before it ended is never told. What must arrive is a message: report it.
        """
        self._refuse_function(function, "write it with `def`: it has a thread of its own")
        self.told.append(function)
        return function

    def _register(self, types: Sequence[str], function: One | Many, handler: Many) -> None:
        self._refuse_function(
            function, "write it with `def`: a batch is handled in one transaction, on one connection, in one thread"
        )
        for each in types:
            if each in self.handlers:
                raise Misconfigured(f"the consumer {self.name} handles {each} twice", remedy="keep one handler")
            self.handlers[each] = handler

    def _refuse_types(self, types: Sequence[object], how: str) -> None:
        """Also `@consumer.handles` without parentheses: its messages would be passed over as if nobody wanted them."""
        if not types or not all(isinstance(each, str) and each for each in types):
            given = ", ".join(getattr(each, "__name__", repr(each)) for each in types) or "nothing"
            raise Misconfigured(
                f"the consumer {self.name} is to handle {given}, which is no type of messages",
                remedy=f"name the types: @consumer.{how}('order.placed')",
            )

    def _refuse_function(self, function: object, remedy: str) -> None:
        name = getattr(function, "__name__", repr(function))
        if not callable(function):
            raise Misconfigured(f"the consumer {self.name} is given {name}, which is no function", remedy=remedy)
        if iscoroutinefunction(function):
            raise Misconfigured(
                f"the consumer {self.name} is given {name}, which is async: nobody would wait for it", remedy=remedy
            )

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, {list(self.topics)})"


def _plain(name: str) -> bool:
    """As Kafka takes it for a group, and in the names of topics."""
    return all(each.isalnum() or each in "._-" for each in name)
