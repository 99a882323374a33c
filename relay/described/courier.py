"""The `Courier` that an adopter writes: how rows become what is sent, and what is told of their ends."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Delivered, Rejected, Retry
from ferryman.message import Message, Refused
from ferryman.outbox import append_many
from ferryman.relay.described.hooks import Hooks, always, listed
from ferryman.relay.described.rows import Claimed, RowEnd, Settling
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.user_functions import WrongAnswer, check_function, check_name, named

Prepare: TypeAlias = Callable[[Any, Sequence[Claimed]], Sequence[Any]]
Settled: TypeAlias = Callable[[Any, Sequence["Ended"]], Sequence[Message] | None]
Held: TypeAlias = Callable[[Any], Collection[str]]
PrepareT = TypeVar("PrepareT", bound=Prepare)
SettledT = TypeVar("SettledT", bound=Settled)
HeldT = TypeVar("HeldT", bound=Held)

# The attempts of this transaction are among them.
_FIRST_REFUSALS = """\
-- outbox.first_refusals
SELECT a.row_id, a.error FROM ferryman.outbox_attempt a
WHERE a.outbox = %(outbox)s AND a.row_id = ANY (%(ids)s) AND a.outcome = 'rejected' AND a.code = %(code)s
GROUP BY 1, 2 HAVING count(*) = 1
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A row that has ended: it was delivered, or it is given up, for the reason that `code` and `error` say.

    `seconds` is the duration of its last send. `after_seconds` is the wait that its destination asked for. `permanent`
    is True if it was refused for good: then no attempt can have arrived, and another one would fail alike.
    """

    row: Claimed
    delivered: bool
    code: str | None
    error: str | None
    reference: str | None
    http_status: int | None = None
    after_seconds: float | None = None
    seconds: float = 0.0
    permanent: bool = False


class Courier:
    """A process that delivers the rows of a described table by a channel. `ferryman run module:object` runs it.

    `outbox` is the name of an `[outbox.NAME]` in ferryman.toml, or the same description as a mapping.
    """

    def __init__(self, name: str, *, outbox: str | Mapping[str, Any]) -> None:
        check_name("courier", name)
        self.name = name
        self.outbox = outbox
        self._prepare: Prepare | None = None
        self._settled: Settled | None = None
        self._held: Held | None = None

    @property
    def prepares(self) -> bool:
        """True if a function of its own makes what is sent."""
        return self._prepare is not None

    def prepare(self, function: PrepareT) -> PrepareT:
        """Register the function that makes what is sent of claimed rows: a `Post`, or a `Refused`, for each in order.

        It may read the database, in a short transaction. A row for which it raises is tried again later.
        """
        self._prepare = self._only("prepare", self._prepare, function)
        return function

    def settled(self, function: SettledT) -> SettledT:
        """Register the function that is called once with each row that ended, in the transaction that settles it.

        The messages that it returns are appended to the outbox in the same transaction. So the login must be allowed to
        append, which is checked at the start; annotate the function with `-> None` if it returns none.
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
        check_function(f"{what} of the courier {self.name}", function)
        return function

    def hooks(self, usual: Hooks, outbox_name: str, outbox: Outbox) -> Hooks:
        """Return the functions as the service calls them; `usual` has those for what is not registered."""
        prepare, settled = self._prepare or usual.prepare, self._settled

        what = "a Post or a Refused" if outbox.channel == "http" else "an item or a Refused"

        def prepared(db: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
            made = listed("prepare", prepare, prepare(db, rows), rows, what)
            for each in made:
                if each is None or (
                    outbox.channel == "http" and not isinstance(each, Post | Refused | Retry | Rejected)
                ):
                    raise WrongAnswer(f"prepare returned {named(each)} for a row: return {what}", prepare)
            return [_sendable(row, each, outbox) for row, each in zip(rows, made, strict=True)]

        def told(db: Connection, settlings: Sequence[Settling]) -> None:
            ends = [each for each in settlings if each.end in (RowEnd.DONE, RowEnd.GIVEN_UP)]
            reported = _first_refused(db, outbox_name, settlings) if _never_ends(outbox) else ends
            messages = [message for each in reported for message in _reports(each)]
            ended = [_ended(each) for each in ends]
            if settled and ended:
                messages += _messages(settled, settled(db, ended))
            if messages:
                append_many(db, messages)

        appends = settled is not None and not _returns_nothing(settled)
        return Hooks(prepared, usual.reads if self._prepare is None else always, told, self._held, appends)


def _never_ends(outbox: Outbox) -> bool:
    """Return True if no row that fails, or is refused, is ever given up."""
    return outbox.words.dead is None and not (outbox.retry.limit or outbox.retry.once)


def _reports(settling: Settling) -> Sequence[Message]:
    return settling.outcome.reports if isinstance(settling.outcome, Rejected) else ()


def _first_refused(db: Connection, outbox_name: str, settlings: Sequence[Settling]) -> list[Settling]:
    """Return the rows with reports that are refused for a reason for the first time: each is tried again for ever."""
    refused = [each for each in settlings if _reports(each)]
    if not refused:
        return []
    values = {"outbox": outbox_name, "ids": [each.row.id for each in refused], "code": Code.REFUSED}
    first = set(db.execute(_FIRST_REFUSALS, values).fetchall())
    return [each for each in refused if (each.row.id, each.error) in first]


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


def _messages(function: Settled, told: Any) -> list[Message]:
    """Return the messages that `settled` returned."""
    if told is None:
        return []
    if isinstance(told, Message | str | bytes | Mapping) or not isinstance(told, Iterable):
        raise WrongAnswer(f"settled returned {named(told)}: return a list of Message, or None", function)
    found = list(told)
    for each in found:
        if not isinstance(each, Message):
            raise WrongAnswer(f"settled returned {named(each)} in its list: return a list of Message", function)
    return found


def _returns_nothing(function: Settled) -> bool:
    """Return True if the function is annotated so that it returns no messages."""
    return getattr(function, "__annotations__", {}).get("return", function) in (None, "None")


def _ended(settling: Settling) -> Ended:
    outcome, delivered = settling.outcome, settling.end is RowEnd.DONE
    reference = outcome.reference if isinstance(outcome, Delivered) else None
    code = None if outcome is None or isinstance(outcome, Delivered) else outcome.code
    status, after = (getattr(outcome, name, None) for name in ("http_status", "after_seconds"))
    permanent = isinstance(outcome, Rejected) and not settling.is_held
    return Ended(settling.row, delivered, code, settling.error, reference, status, after, settling.seconds, permanent)
