"""The `Consumer` that an adopter writes: its topics, and a handler for each type of message."""

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ferryman.consumer.model import BY_ID, BY_SOURCE_AND_ID, Done, Outcome, Received
from ferryman.message import Refused
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.user_functions import check_name

One: TypeAlias = Callable[[Any, Received], Outcome]
Many: TypeAlias = Callable[[Any, Sequence[Received]], Sequence[Outcome]]
Handled: TypeAlias = tuple[Received, Done | Refused]
"""A message and its committed outcome."""
AfterCommit: TypeAlias = Callable[[Sequence[Handled]], object]
OneT = TypeVar("OneT", bound=One)
ManyT = TypeVar("ManyT", bound=Many)
AfterT = TypeVar("AfterT", bound=AfterCommit)

Mode = Literal["effectively_once", "at_most_once"]
Unknown = Literal["ignore", "reject"]


class Consumer:
    """A consumer that handles each message of some topics once. `ferryman run module:object` runs it.

    `id_from` names the headers that make an id. With `("ce_source", "ce_id")`, messages of two sources that use
    the same id are two messages: choose it for topics that other systems than Ferryman write.

    `connection` is the type that its handlers get: `psycopg.Connection`, `sqlalchemy.Connection` or
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
        id_from: Sequence[str] = BY_ID,
    ) -> None:
        check_name("consumer", name)
        if isinstance(topics, str) or not topics:
            raise Misconfigured(f"the consumer {name} has no topics", remedy="name them: topics=['orders']")
        for setting, given, known in (("mode", mode, get_args(Mode)), ("unknown", unknown, get_args(Unknown))):
            if given not in known:
                raise Misconfigured(
                    f"the consumer {name} has {setting}={given!r}", remedy=f"one of {', '.join(map(repr, known))}"
                )
        if tuple(id_from) not in (BY_ID, BY_SOURCE_AND_ID):
            raise Misconfigured(
                f"the consumer {name} has id_from={id_from!r}", remedy=f"one of {BY_ID!r}, {BY_SOURCE_AND_ID!r}"
            )
        self.name = name
        self.topics = tuple(topics)
        self.connection = connection
        self.mode: Mode = mode
        self.unknown = unknown
        self.rereport = rereport
        self.id_from = tuple(id_from)
        self.handlers: dict[str, Many] = {}
        self.callbacks: list[AfterCommit] = []

    def handles(self, *types: str) -> Callable[[OneT], OneT]:
        """Register a function that handles one message of these types at a time."""
        self._check_types(types, "handles")

        def registered(function: OneT) -> OneT:
            self._register(types, function, lambda db, messages: [function(db, message) for message in messages])
            return function

        return registered

    def handles_batch(self, *types: str) -> Callable[[ManyT], ManyT]:
        """Register a function that handles many messages of these types at once, and answers each in their order."""
        self._check_types(types, "handles_batch")

        def registered(function: ManyT) -> ManyT:
            self._register(types, function, function)
            return function

        return registered

    def after_commit(self, function: AfterT) -> AfterT:
        """Register a function that is called with what each batch did, after the commit: best effort, at most once.

        It gets the messages that took effect or were refused, with their outcomes; duplicates and rejected messages
        are left out. It runs in a thread of its own: nothing waits for it, and nothing is undone when it fails. Calls
        that are still pending when the process ends are dropped. Report a message if it must arrive.
        """
        self._check_function(function, "write it with `def`: it has a thread of its own")
        self.callbacks.append(function)
        return function

    def _register(self, types: Sequence[str], function: One | Many, handler: Many) -> None:
        self._check_function(
            function, "write it with `def`: a batch is handled in one transaction, on one connection, in one thread"
        )
        for each in types:
            if each in self.handlers:
                raise Misconfigured(f"the consumer {self.name} handles {each} twice", remedy="keep one handler")
            self.handlers[each] = handler

    def _check_types(self, types: Sequence[object], decorator: str) -> None:
        """Refuse anything but names of types.

        `@consumer.handles` without parentheses would register nothing, and offsets would move past its messages.
        """
        if not types or not all(isinstance(each, str) and each for each in types):
            given = ", ".join(getattr(each, "__name__", repr(each)) for each in types) or "nothing"
            raise Misconfigured(
                f"{decorator}() of the consumer {self.name} needs the types of messages, and got {given}",
                remedy=f"name the types: @consumer.{decorator}('order.placed')",
            )

    def _check_function(self, function: object, remedy: str) -> None:
        name = getattr(function, "__name__", repr(function))
        if not callable(function):
            raise Misconfigured(f"the consumer {self.name} was given {name}, which is not a function", remedy=remedy)
        if iscoroutinefunction(function):
            raise Misconfigured(
                f"the consumer {self.name} was given {name}, which is async: it would never be awaited", remedy=remedy
            )

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, {list(self.topics)})"
