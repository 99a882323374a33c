"""One batch in one transaction: what is known of it, handling, results, verdicts. Its steps stand in `STEPS`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from ferryman import outbox
from ferryman.consumer import deadletters, faults, reports
from ferryman.consumer.api import Consumer, Handled, Many
from ferryman.consumer.face import Face
from ferryman.consumer.faults import HandlerFailed, NotNow, Overtaken, Undecided
from ferryman.consumer.model import Done, Outcome, Poison, Received, Refused, Retry
from ferryman.consumer.store import receipts, rejected
from ferryman.consumer.store.receipts import DEFAULT_LIMITS, HANDLED, REJECTED, REOPENED, Known, Limits, Verdict
from ferryman.message import Stored
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient

CONFLICT = "CONFLICT"

Item: TypeAlias = Received | Poison


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
    _reports: list[list[Stored]] = field(default_factory=list)
    """Of each message that was handled: the last verdicts are theirs."""
    _were_asked: bool = False
    """Whether any handler was: what goes wrong from then on may be its doing."""
    _factories: tuple[Any, Any] = (None, None)

    def run(self) -> Tally:
        """All of it, or nothing; raises what kept it from being.

        What is refused once handlers were asked is their doing, also where the outbox refuses a report, a deferred
        constraint the COMMIT, or psycopg to write a value. A COMMIT whose answer is lost is not among that: whether it
        was, the receipts tell.
        """
        self._factories = self.connection.row_factory, self.connection.cursor_factory
        try:
            # A handler that ends the transaction by SQL would go on in autocommit mode: its next statements would stay.
            self.connection.autocommit = False
            with self.connection.transaction():
                for step in self.STEPS:
                    self.before(step.__name__.strip("_"))
                    step(self)
                self.before("commit")
        except psycopg.Error as error:
            raise (self._fault(error) if self._were_asked else postgres.translate(error)) from error
        except (UnicodeError, TypeError) as error:
            if not self._were_asked:
                raise
            raise self._fault(error) from error
        finally:
            self._tidy()
        return self.tally

    def _tidy(self) -> None:
        """The connection is as it was, whatever a handler made of it; or closed, where it cannot be."""
        self._take_back()
        with suppress(psycopg.Error):  # of a connection that is broken, whoever uses it next hears
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.rollback()
            self.connection.autocommit = True
        if self.connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            self.connection.close()  # a savepoint was never left, and psycopg waits for that
        self.face.end()

    def _take_back(self) -> None:
        """How rows come is the runtime's own, on the connection that handlers are lent."""
        self.connection.row_factory, self.connection.cursor_factory = self._factories

    def _fault(self, error: Exception) -> Exception:
        return faults.fault(error, self.connection, self.face)

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
        self._were_asked = True
        try:
            outcomes = list(handler(self.face.given, messages))
            self.face.flush()
        except Exception as error:
            raise self._fault(error) from error
        finally:
            self._take_back()
        if len(outcomes) != len(messages):
            raise HandlerFailed(f"it was given {len(messages)} messages and answered {len(outcomes)}")
        return [_final(outcome) for outcome in outcomes]

    def _settle(self, message: Received, outcome: Done | Refused) -> None:
        refused = isinstance(outcome, Refused)
        made = self._made(message, outcome)
        self.tally.refused += refused
        self.tally.done += not refused
        self._out += made
        self.handled.append((message, outcome))
        self._reports.append(made)
        self._verdicts.append(
            Verdict(
                message.id, HANDLED, "REFUSED" if refused else "DONE",
                outcome.reason if isinstance(outcome, Refused) else None,
                message.hash, message.type, message.record, reports.kept(made),
            )
        )  # fmt: skip

    def _made(self, message: Received, outcome: Done | Refused) -> list[Stored]:
        """Its reports as the outbox takes them."""
        try:
            return reports.prepared(self.consumer.name, message, outcome.reports)
        except Misconfigured:
            raise
        except Transient as error:
            raise Undecided(str(error)) from error
        except Exception as error:
            raise HandlerFailed(f"its report: {error}") from error

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
            raise faults.gone(self.connection)
        if status == TransactionStatus.INERROR:
            raise HandlerFailed(faults.SWALLOWED)
        if status != TransactionStatus.INTRANS:
            raise HandlerFailed(faults.ENDED)

    def _report(self) -> None:
        for poison in self._poison:
            most_bytes = rejected.keep(self.connection, self.consumer.name, poison)
            self._out.append(deadletters.letter(self.consumer.name, poison, most_bytes))
        try:
            ids = outbox.append_stored(self.connection, self._out)
        except (psycopg.Error, FerrymanError):
            raise
        except Exception as error:  # a report that cannot even be sent
            if not self._were_asked:
                raise
            raise self._fault(error) from error
        if any(each.idempotency_key is not None for each in self._out):
            self._forget_known(ids)

    def _forget_known(self, ids: Sequence[UUID]) -> None:
        """A report that its idempotency key swallowed was never published under its id, and is not reported again."""
        swallowed = {each.id for each, appended in zip(self._out, ids, strict=True) if each.id != appended}
        first = len(self._verdicts) - len(self._reports)
        for number, made in enumerate(self._reports, first):
            left = [each for each in made if each.id not in swallowed]
            if len(left) < len(made):
                self._verdicts[number] = self._verdicts[number]._replace(results=reports.kept(left))

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
    if isinstance(outcome, Done):
        return outcome
    if not isinstance(outcome, Refused | Retry):
        raise HandlerFailed(f"it answered {outcome!r:.80}: it must be Done, Refused or Retry")
    if not isinstance(outcome.reason, str):
        raise HandlerFailed(f"its reason {outcome.reason!r:.80} is no text")
    if isinstance(outcome, Refused):
        return outcome
    after: object = outcome.after_seconds
    if not isinstance(after, int | float) or not 0 <= after < inf:
        raise HandlerFailed(f"it wants another try after {after!r:.80}: that must be a number of seconds, 0 or more")
    raise NotNow(outcome)


def _conflict(item: Item) -> Poison:
    if isinstance(item, Poison):
        return item._replace(code=CONFLICT)
    words = "another message with the same id came before, and had another payload"
    return Poison(item.record, item.id, item.type, item.hash, CONFLICT, words)
