"""One batch in one transaction: what is known of it, handling, results, verdicts. Its steps stand in `STEPS`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, TypeAlias
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from ferryman import outbox
from ferryman.consumer import deadletters, reports
from ferryman.consumer.api import Consumer, Handled, Many
from ferryman.consumer.face import Face
from ferryman.consumer.model import Done, Outcome, Poison, Received, Refused, Retry
from ferryman.consumer.store import receipts, rejected
from ferryman.consumer.store.receipts import (
    DEFAULT_LIMITS,
    HANDLED,
    RECEIVED,
    REJECTED,
    REOPENED,
    Known,
    Limits,
    Verdict,
)
from ferryman.message import Stored
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured, Permanent, Transient, Unreachable

CONFLICT = "CONFLICT"
SWALLOWED = "it swallowed a database error: nothing of the transaction can be kept"
ENDED = "it ended the transaction: only the runtime commits"
_ABORTED = "25P02"

Item: TypeAlias = Received | Poison


class HandlerFailed(Exception):
    """The handler's own doing: the batch is taken apart until it is known of which message."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotNow(Exception):
    """The handler asks for another try later."""

    def __init__(self, retry: Retry) -> None:
        super().__init__(retry.reason)
        self.retry = retry


class Overtaken(Transient):
    """Somebody else handled one of them meanwhile: next time it is known."""


@dataclass(slots=True)
class Tally:
    """How many messages had which end."""

    done: int = 0
    refused: int = 0
    duplicate: int = 0
    conflict: int = 0
    rejected: int = 0


@dataclass(slots=True)
class BatchTransaction:
    """Used once. What `items` holds is in the order in which it is handled: that of each partition."""

    consumer: Consumer
    connection: receipts.Connection
    face: Face
    items: Sequence[Item]
    limits: Limits = DEFAULT_LIMITS
    claimed: frozenset[UUID] = frozenset()
    """at_most_once: those whose receipt was written for this very try."""
    before: Callable[[str], None] = lambda _step: None
    tally: Tally = field(default_factory=Tally)
    handled: list[Handled] = field(default_factory=list)
    """What its handlers answered: true once it is committed."""
    _xid: str = ""
    _known: dict[UUID, Known] = field(default_factory=dict)
    _new: list[Received] = field(default_factory=list)
    _poison: list[Poison] = field(default_factory=list)
    _verdicts: list[Verdict] = field(default_factory=list)
    _out: list[Stored] = field(default_factory=list)

    def run(self) -> Tally:
        """All of it, or nothing; raises what kept it from being."""
        try:
            # A handler that ends the transaction by SQL would go on in autocommit mode: its next statements would stay.
            self.connection.autocommit = False
            with self.connection.transaction():
                for step in self.STEPS:
                    self.before(step.__name__.strip("_"))
                    step(self)
                self.before("commit")
        except psycopg.Error as error:
            raise postgres.translate(error) from error
        finally:
            self._tidy()
        return self.tally

    def _tidy(self) -> None:
        """The connection is as it was, whatever a handler made of it."""
        with suppress(psycopg.Error):  # of a connection that is broken, whoever uses it next hears
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.rollback()
            self.connection.autocommit = True
        self.face.end()

    def _find(self) -> None:
        ids = list({item.id for item in self.items})
        self._xid, self._known = receipts.find(self.connection, self.consumer.name, ids, self.limits)

    def _sort(self) -> None:
        """What is new, what is a duplicate, and what only says that it is one."""
        for item in self.items:
            known = self._known.get(item.id)
            if known is not None and known.hash != item.hash:
                self._poison.append(_conflict(item))
                self.tally.conflict += 1
            elif known is not None and known.status != REOPENED and item.id not in self.claimed:
                self.tally.duplicate += 1
                if self.consumer.rereport and known.results:
                    self._out += reports.again(known.results)
            else:
                self._known[item.id] = Known(HANDLED, item.hash, None)  # the next of this id is its duplicate
                if isinstance(item, Poison):
                    self._reject(item)
                else:
                    self._new.append(item)

    def _handle(self) -> None:
        """Runs of messages with the same handler, in their order."""
        for handler, group in groupby(self._new, key=lambda message: self.consumer.handlers[message.type]):
            messages = list(group)
            for message, outcome in zip(messages, self._asked(handler, messages), strict=True):
                self._settle(message, outcome)

    def _asked(self, handler: Many, messages: Sequence[Received]) -> Sequence[Done | Refused]:
        try:
            outcomes = list(handler(self.face.given, messages))
            self.face.flush()
        except Exception as error:
            raise self._fault(error) from error
        if len(outcomes) != len(messages):
            raise HandlerFailed(f"it was given {len(messages)} messages and answered {len(outcomes)}")
        return [_final(outcome) for outcome in outcomes]

    def _fault(self, error: Exception) -> Exception:
        """Transient where trying again may help, Misconfigured where nothing will be right before a person acts; else
        the handler's own.
        """
        if isinstance(error, Transient):
            return error
        if self.connection.closed:
            return self._gone()
        inner = error if isinstance(error, psycopg.Error) else self.face.database_error(error)
        # Without a state it never reached the server: the library refuses by itself, to commit for one.
        if inner is None or (inner.sqlstate is None and not isinstance(inner, psycopg.OperationalError)):
            return HandlerFailed(_words(error))
        if inner.sqlstate == _ABORTED:
            return HandlerFailed(SWALLOWED)
        if inner.diag.constraint_name == receipts.ONLY_THE_RUNTIME_COMMITS:
            return HandlerFailed(ENDED)
        problem = postgres.translate(inner)
        return problem if isinstance(problem, Transient | Misconfigured) else HandlerFailed(_words(error))

    def _gone(self) -> Exception:
        """Whether somebody took the connection away, or the handler threw it away."""
        if self.connection.broken:
            return Unreachable("the connection to PostgreSQL was lost while a handler ran")
        return HandlerFailed("it closed the connection: that is the runtime's")

    def _settle(self, message: Received, outcome: Done | Refused) -> None:
        try:
            made = reports.prepared(self.consumer.name, message, outcome.reports)
        except Permanent as error:
            raise HandlerFailed(f"its report: {error}") from error
        refused = isinstance(outcome, Refused)
        self.tally.refused += refused
        self.tally.done += not refused
        self._out += made
        self.handled.append((message, outcome))
        self._verdicts.append(
            Verdict(
                message.id, HANDLED, "REFUSED" if refused else "DONE",
                outcome.reason if isinstance(outcome, Refused) else None,
                message.hash, message.type, message.record, reports.kept(made),
            )
        )  # fmt: skip

    def _reject(self, poison: Poison) -> None:
        self._poison.append(poison)
        self.tally.rejected += 1
        self._verdicts.append(
            Verdict(poison.id, REJECTED, None, poison.code, poison.hash, poison.type, poison.record, error=poison.error)
        )

    def _check(self) -> None:
        """The handlers left the transaction as they found it: open, and without an error."""
        status = self.connection.info.transaction_status
        if status == TransactionStatus.UNKNOWN:
            raise self._gone()
        if status == TransactionStatus.INERROR:
            raise HandlerFailed(SWALLOWED)
        if status != TransactionStatus.INTRANS:
            raise HandlerFailed(ENDED)

    def _report(self) -> None:
        for poison in self._poison:
            rejected.keep(self.connection, self.consumer.name, poison)
            self._out.append(deadletters.letter(self.consumer.name, poison))
        outbox.append_stored(self.connection, self._out)

    def _record(self) -> None:
        recorded = receipts.record(self.connection, self.consumer.name, self._verdicts)
        if recorded.xid != self._xid:
            raise HandlerFailed("it ended the transaction and began another: only the runtime commits")
        if recorded.cursors:
            raise HandlerFailed(f"it left {recorded.cursors} cursors open: close them")
        if missing := {each.id for each in self._verdicts} - recorded.ids:
            raise Overtaken(f"{len(missing)} messages were handled by another process meanwhile")

    STEPS: ClassVar[tuple[Callable[["BatchTransaction"], None], ...]] = (
        _find,
        _sort,
        _handle,
        _check,
        _report,
        _record,
    )


def _final(outcome: Outcome) -> Done | Refused:
    if isinstance(outcome, Retry):
        raise NotNow(outcome)
    if not isinstance(outcome, Done | Refused):
        raise HandlerFailed(f"it answered {outcome!r:.80}: it must be Done, Refused or Retry")
    return outcome


def _conflict(item: Item) -> Poison:
    if isinstance(item, Poison):
        return item._replace(code=CONFLICT)
    words = "another message with the same id came before, and had another payload"
    return Poison(item.record, item.id, item.type, item.hash, CONFLICT, words)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def received_only(items: Iterable[Item]) -> list[Verdict]:
    """at_most_once: that they came, before anything is done about them."""
    first = {item.id: item for item in reversed(list(items))}  # of a message that is there twice
    return [Verdict(item.id, RECEIVED, None, None, item.hash, item.type, item.record) for item in first.values()]
