"""A batch in one transaction: known receipts, handlers, reports, receipts. `BatchTransaction.STEPS` lists the steps."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import inf
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from ferryman import outbox
from ferryman.consumer import failures, metrics, wire
from ferryman.consumer.api import Consumer, Handled, Many
from ferryman.consumer.connections import Deadline, HandlerConnection
from ferryman.consumer.failures import HandlerFailed, NotNow, Overtaken, TookTooLong, Undecided, failure_of
from ferryman.consumer.model import Advance, Done, Item, Outcome, Partition, Poison, Received, Retry
from ferryman.consumer.store import receipts, rejected
from ferryman.consumer.store.receipts import DEFAULT_LIMITS, InboxVerdict, KnownReceipt, Limits
from ferryman.message import Refused, Stored
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient, Unreachable
from ferryman.runtime.life import Before, no_hook

TURN_SECONDS = 5.0
"""The time after which batches are made smaller, so that Kafka is polled and SIGTERM heard in between."""


@dataclass(slots=True)
class BatchTransaction:
    """One batch, to be run once. `items` are in the order in which they are handled: that of each partition."""

    consumer: Consumer
    lent: HandlerConnection
    items: Sequence[Item]
    limits: Limits = DEFAULT_LIMITS
    claimed: frozenset[UUID] = frozenset()
    """at_most_once: the messages whose receipt was written for this very try."""
    reached: Mapping[Partition, Advance] = field(default_factory=dict)
    """The positions behind the batch's records."""
    before: Before = no_hook
    committing: Callable[[], None] = lambda: None
    """Called right before the COMMIT. If it raises, everything is rolled back."""
    trial: bool = False
    """True if everything is to be rolled back: only whether it works is asked."""
    in_step: bool = True
    """False if the positions were not written: the database is not where this process left it."""
    tally: Counter[str] = field(default_factory=Counter)
    """The number of messages by verdict."""
    handled: list[Handled] = field(default_factory=list)
    """The outcomes of the handlers: valid once they are committed."""
    _xid: str = ""
    _known: dict[UUID, KnownReceipt] = field(default_factory=dict)
    _new: list[Received] = field(default_factory=list)
    _poison: list[Poison] = field(default_factory=list)
    _restored: list[Stored] = field(default_factory=list)
    """The reports of duplicates."""
    _reports: list[list[Stored]] = field(default_factory=list)
    """The reports of each handled message."""
    _handlers_called: bool = False
    """True if errors from now on may be the handlers' fault."""
    _ours: bool = False
    """True while the statements after the handlers are the runtime's own."""
    _factories: tuple[Any, Any] = (None, None)

    @property
    def connection(self) -> receipts.Connection:
        return self.lent.connection

    def run(self) -> Counter[str]:
        """Run all steps in one transaction, or raise what prevented it.

        Once handlers were called, errors are attributed to them: also when the outbox refuses a report, a deferred
        constraint the COMMIT, or psycopg a value. A COMMIT whose answer is lost is not: the receipts tell whether it
        happened.
        """
        self._factories = self.connection.row_factory, self.connection.cursor_factory
        try:
            # In autocommit mode, the statements after a handler's own COMMIT by SQL would stay.
            self.connection.autocommit = False
            with self.connection.transaction(force_rollback=self.trial):
                for step in self.STEPS:
                    self.before(step.__name__.strip("_"))
                    self._ours = step in (BatchTransaction._report, BatchTransaction._record)
                    step(self)
                self._ours = False
                self.before("commit")
                self.committing()
            self.lent.check_committed()
        except psycopg.Error as error:
            if not self._handlers_called:
                raise postgres.translate(error) from error
            raise failure_of(error, self.lent, ours=self._ours) from error
        except (UnicodeError, TypeError) as error:
            if not self._handlers_called:
                raise
            raise failure_of(error, self.lent) from error
        finally:
            self._restore_connection()
        return self.tally

    def _restore_connection(self) -> None:
        """Leave the connection as it was, whatever a handler did to it, or closed if that is not possible."""
        self._restore_factories()
        with suppress(psycopg.Error):  # if the connection is broken, its next user is told
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.rollback()
            self.connection.autocommit = True
        if self.connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            self.connection.close()  # a savepoint was never left, and psycopg waits for that
        self.lent.end()

    def _restore_factories(self) -> None:
        """Undo a handler's change of how rows are returned."""
        self.connection.row_factory, self.connection.cursor_factory = self._factories

    def _find(self) -> None:
        ids = list({item.id for item in self.items})
        self._xid, self._known = receipts.find(self.connection, self.consumer.name, ids, self.limits)

    def _sort(self) -> None:
        """Split the batch into new messages, duplicates and id conflicts."""
        for item in self.items:
            known = self._known.get(item.id)
            if known is not None and known.hash != item.hash:
                self._poison.append(wire.conflict_of(item))
                self.tally["conflict"] += 1
            elif known is not None and known.status != receipts.REOPENED and item.id not in self.claimed:
                self.tally["duplicate"] += 1
                if self.consumer.rereport and known.results:
                    self._restored += wire.restored_reports(known.results)
            else:
                # The next of this id is a duplicate.
                self._known[item.id] = KnownReceipt(receipts.HANDLED, item.hash, None)
                if isinstance(item, Poison):
                    self._poison.append(item)
                    self.tally["rejected"] += 1
                else:
                    self._new.append(item)

    def _handle(self) -> None:
        """Call the handlers with runs of messages that have the same handler, in their order."""
        for handler, group in groupby(self._new, key=lambda message: self.consumer.handlers[message.type]):
            messages = list(group)
            for message, outcome in zip(messages, self._outcomes(handler, messages), strict=True):
                self._reports.append(self._prepared(message, outcome))
                self.handled.append((message, outcome))
                self.tally["refused" if isinstance(outcome, Refused) else "done"] += 1

    def _outcomes(self, handler: Many, messages: Sequence[Received]) -> Sequence[Done | Refused]:
        self._handlers_called = True
        try:
            outcomes = list(handler(self.lent.given, messages))
            self.lent.flush()
        except Exception as error:
            raise failure_of(error, self.lent) from error
        finally:
            self._restore_factories()
        if len(outcomes) != len(messages):
            raise HandlerFailed(f"it was given {len(messages)} messages and answered {len(outcomes)}")
        return [final_outcome(outcome) for outcome in outcomes]

    def _prepared(self, message: Received, outcome: Done | Refused) -> list[Stored]:
        """Return the reports of a message as the outbox takes them."""
        try:
            return wire.prepared_reports(self.consumer.name, message, outcome.reports)
        except (Transient, Misconfigured) as error:
            raise Undecided(str(error)) from error
        except Exception as error:
            raise HandlerFailed(f"its report: {error}") from error

    def _check(self) -> None:
        """Check that the handlers left the transaction as they found it: open, and without an error."""
        status = self.connection.info.transaction_status
        if status == TransactionStatus.UNKNOWN:
            raise failures.connection_gone(self.lent)
        if status == TransactionStatus.INERROR:
            raise HandlerFailed(failures.SWALLOWED)
        if status != TransactionStatus.INTRANS:
            raise HandlerFailed(failures.ENDED)

    def _report(self) -> None:
        name = self.consumer.name
        letters = [wire.dead_letter(name, each, rejected.keep(self.connection, name, each)) for each in self._poison]
        out = [*self._restored, *chain(*self._reports), *letters]
        try:
            ids = outbox.append_stored(self.connection, out)
        except (psycopg.Error, FerrymanError):
            raise
        except Exception as error:  # a report that cannot even be sent to the server
            if not self._handlers_called:
                raise
            raise failure_of(error, self.lent) from error
        if any(each.idempotency_key is not None for each in out):
            # Receipts must not have the reports that their idempotency key swallowed: they were never published.
            swallowed = {each.id for each, appended in zip(out, ids, strict=True) if each.id != appended}
            self._reports = [[each for each in made if each.id not in swallowed] for made in self._reports]

    def _record(self) -> None:
        """Write the verdicts and the positions. The order of messages is kept if the database was put back: roll back.

        at_most_once handles nothing again, so there it is only told.
        """
        verdicts = list(self._verdicts())
        recorded = receipts.record(self.connection, self.consumer.name, verdicts, self.reached)
        if recorded.xid != self._xid:
            raise HandlerFailed("it ended the transaction and began another: only the runtime commits")
        if recorded.cursors:
            raise HandlerFailed(f"it left {recorded.cursors} cursors open: close them")
        if missing := {each.id for each in verdicts} - recorded.ids:
            raise Overtaken(f"{len(missing)} messages were handled by another process meanwhile")
        self.in_step = recorded.positions == len(self.reached)
        if not self.in_step and self.consumer.mode == "effectively_once":
            raise Overtaken("the database has other positions than this process wrote")

    def _verdicts(self) -> Iterator[InboxVerdict]:
        """Yield the verdict on each message that had none. A conflict has that of the message with its id."""
        for each in self._poison:
            if each.code != wire.CONFLICT:
                yield InboxVerdict(
                    each.id, receipts.REJECTED, None, each.code, each.hash, each.type, each.record, error=each.error
                )
        for (message, outcome), made in zip(self.handled, self._reports, strict=True):
            verdict, reason = ("REFUSED", outcome.reason) if isinstance(outcome, Refused) else ("DONE", None)
            yield InboxVerdict(
                message.id, receipts.HANDLED, verdict, reason, message.hash, message.type, message.record,
                wire.kept_reports(made),
            )  # fmt: skip

    STEPS: ClassVar = (_find, _sort, _handle, _check, _report, _record)


@dataclass(slots=True)
class Transactions:
    """Runs one batch after another, each within the deadline, and adapts their size to how long they take."""

    consumer: Consumer
    most: int
    """The most messages in any batch."""
    deadline: Deadline
    limits: Limits = DEFAULT_LIMITS
    before: Before = no_hook
    after_commit: Callable[[Sequence[Handled]], None] = lambda _handled: None
    """It must return at once."""
    clock: Callable[[], float] = time.monotonic
    size: int = field(init=False)
    """The most messages in the next batch."""
    worked: dict[str, float] = field(default_factory=dict, init=False)
    """When a handler last managed a message of each type."""

    def __post_init__(self) -> None:
        self.size = self.most

    def run(
        self,
        lent: HandlerConnection,
        items: Sequence[Item],
        claimed: frozenset[UUID],
        reached: Mapping[Partition, Advance],
    ) -> bool:
        """Run a batch. Return False if its positions were not written, because the database has others."""
        began = self.clock()
        batch = BatchTransaction(
            self.consumer, lent, items, self.limits, claimed, reached, before=self.before, committing=self.deadline.lift
        )
        try:
            self._in_time(batch)
        except TookTooLong:
            self.size = next_size(self.size, self.most, len(items), self.clock() - began)
            raise
        self.after_commit(batch.handled)
        seconds = self.clock() - began
        self.size = next_size(self.size, self.most, len(items), seconds)
        metrics.batch(self.consumer.name, batch.tally, len(items), seconds)
        return batch.in_step

    def works(self, lent: HandlerConnection, item: Received) -> bool:
        """Handle a message and roll it back. Return True if its handler managed it; False if it was not called."""
        batch = BatchTransaction(self.consumer, lent, [item], self.limits, trial=True)
        self._in_time(batch)
        return bool(batch.handled)

    def _in_time(self, batch: BatchTransaction) -> None:
        """Run a batch within the deadline."""
        try:
            with self.deadline.over(batch.connection):
                batch.run()
        except Transient as error:
            if self.deadline.passed and not isinstance(error, Overtaken | Unreachable):  # a part may be in time
                raise TookTooLong(f"it took too long (consumer.deadline_seconds): {error.message}") from error
            raise
        self.worked |= dict.fromkeys({message.type for message, _ in batch.handled}, self.clock())

    def shrink(self, messages: int) -> None:
        """Halve the next batch after one of this many messages lost its session: it may have taken too long."""
        self.size = max(1, messages // 2)


def next_size(size: int, most: int, messages: int, seconds: float) -> int:
    """Return the size of the next batch: half of one that took too long, twice the size after a quick one."""
    if seconds > TURN_SECONDS:
        return max(1, min(size, messages) // 2)
    return min(most, 2 * size) if seconds < TURN_SECONDS / 4 else size


def final_outcome(outcome: Outcome) -> Done | Refused:
    """Check what a handler answered. Raise `NotNow` for a `Retry`."""
    if isinstance(outcome, Done):
        return outcome
    if not isinstance(outcome, Refused | Retry):
        raise HandlerFailed(f"it answered {outcome!r:.80}: it must be Done, Refused or Retry")
    if not isinstance(outcome.reason, str):
        raise HandlerFailed(f"its reason {outcome.reason!r:.80} is not a string")
    if isinstance(outcome, Refused):
        return outcome
    after: object = outcome.after_seconds
    if not isinstance(after, int | float) or not 0 <= after < inf:
        raise HandlerFailed(f"it wants another try after {after!r:.80}: that must be a number of seconds, 0 or more")
    raise NotNow(outcome)
