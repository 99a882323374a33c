"""The `Courier` that an adopter writes: how rows become what is sent, and what is told of their ends."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Delivered, Rejected
from ferryman.message import Message, Refused
from ferryman.outbox import append_many
from ferryman.relay.described.hooks import Hooks
from ferryman.relay.described.rows import Claimed, RowEnd, Settling
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

Prepare: TypeAlias = Callable[[Any, Sequence[Claimed]], Sequence[Any]]
Settled: TypeAlias = Callable[[Any, Sequence["Ended"]], Sequence[Message] | None]
Held: TypeAlias = Callable[[Any], Collection[str]]
PrepareT = TypeVar("PrepareT", bound=Prepare)
SettledT = TypeVar("SettledT", bound=Settled)
HeldT = TypeVar("HeldT", bound=Held)


@dataclass(frozen=True, slots=True)
class Ended:
    """A row that has ended: it was delivered, or it is given up, for the reason that `code` and `error` say."""

    row: Claimed
    delivered: bool
    code: str | None
    error: str | None
    reference: str | None


class Courier:
    """A process that delivers the rows of a described table by a channel. `ferryman run module:object` runs it.

    `outbox` is the name of an `[outbox.NAME]` in ferryman.toml, or the same description as a mapping.
    """

    def __init__(self, name: str, *, outbox: str | Mapping[str, Any]) -> None:
        self.name = name
        self.outbox = outbox
        self._prepare: Prepare | None = None
        self._settled: Settled | None = None
        self._held: Held | None = None

    def prepare(self, function: PrepareT) -> PrepareT:
        """Register the function that makes what is sent of claimed rows: a `Post`, or a `Refused`, for each in order.

        It may read the database, in a short transaction. A row for which it raises is tried again later.
        """
        self._prepare = self._only("prepare", self._prepare, function)
        return function

    def settled(self, function: SettledT) -> SettledT:
        """Register the function that is called once with each row that ended, in the transaction that settles it.

        The messages that it returns are appended to the outbox in the same transaction.
        """
        self._settled = self._only("settled", self._settled, function)
        return function

    def held(self, function: HeldT) -> HeldT:
        """Register the function that returns, once a second, the destinations that are not to be tried."""
        self._held = self._only("held", self._held, function)
        return function

    def _only(self, what: str, before: Any, function: Any) -> Any:
        if before is not None:
            raise Misconfigured(f"the courier {self.name} has two functions for {what}", remedy="keep one")
        if not callable(function):
            raise Misconfigured(f"the courier {self.name} was given {function!r}, which is not a function")
        return function

    def hooks(self, usual: Hooks, outbox: Outbox) -> Hooks:
        """Return the functions as the service calls them; `usual` has those for what is not registered."""
        prepare, settled = self._prepare or usual.prepare, self._settled

        def prepared(db: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
            return [_sendable(row, each, outbox) for row, each in zip(rows, prepare(db, rows), strict=True)]

        def told(db: Connection, settlings: Sequence[Settling]) -> None:
            ends = [each for each in settlings if each.end in (RowEnd.DONE, RowEnd.GIVEN_UP)]
            messages = [
                message for each in ends if isinstance(each.outcome, Rejected) for message in each.outcome.reports
            ]
            ended = [_ended(each) for each in ends]
            if settled and ended:
                messages += settled(db, ended) or []
            if messages:
                append_many(db, messages)

        return Hooks(prepared, usual.reads if self._prepare is None else True, told, self._held)


def _sendable(row: Claimed, made: Any, outbox: Outbox) -> Any:
    """Return what is sent: a post has the row's id and the outbox's secrets, unless it names others."""
    if isinstance(made, Refused):
        return Rejected(made.reason, Code.REFUSED, reports=tuple(made.reports))
    if not isinstance(made, Post):
        return made
    secrets, bearer = made.secrets, made.bearer
    if not secrets and bearer is None:
        secrets, bearer = authority_of(outbox)
    return replace(made, id=made.id or row.id, secrets=secrets, bearer=bearer)


def authority_of(outbox: Outbox) -> tuple[tuple[str, ...], str | None]:
    """Return the secrets that sign the requests of an outbox, and its bearer token."""
    secrets = tuple(secret.get_secret_value() for secret in outbox.secrets)
    return secrets, outbox.bearer.get_secret_value() if outbox.bearer else None


def _ended(settling: Settling) -> Ended:
    outcome, delivered = settling.outcome, settling.end is RowEnd.DONE
    reference = outcome.reference if isinstance(outcome, Delivered) else None
    code = None if outcome is None or isinstance(outcome, Delivered) else outcome.code
    return Ended(settling.row, delivered, code, settling.error, reference)
