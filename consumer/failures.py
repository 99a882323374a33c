"""Failures of handling: whose fault each is, and whether its records are retried in parts, held back, or rejected.

The failure of a batch cannot be attributed to a message. Each partition is retried by itself, then its halves, down to
the one message that fails alone. Only failures of that message are counted, and only its partition waits. A failure
that other messages share is not the message's: it waits for as long as that is so.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import TypeAlias

import psycopg
import structlog

from ferryman.consumer import metrics
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.model import Partition, Record, Retry
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.store import receipts
from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Misconfigured, Transient, Unreachable
from ferryman.runtime.settings import ConsumerSettings
from ferryman.runtime.user_code import words_of
from ferryman.schemas import headers

log = structlog.get_logger(__name__)

BUG, TIMED_OUT = "BUG", "TIMED_OUT"
SWALLOWED = "it swallowed a database error: nothing of the transaction can be kept"
ENDED = "it ended the transaction: only the runtime commits"
_ABORTED, _DEMOTED = "25P02", "25006"
_OURS = f"{Path(__file__).parent}/"
_MOST_CALLS = 20
_BACKOFF = Backoff(base_seconds=0.2, cap_seconds=10)
_KNOWN_SECONDS = 60.0
"""For this long after a rejection, messages that fail of the same cause are tried without waits in between."""


class HandlerFailed(Exception):
    """The handler's own fault: the batch is taken apart until it is known which message causes it."""


class NotThere(HandlerFailed):
    """The handler lacks a table, column, function or privilege, for this message's data or for every message."""


class NotNow(Exception):
    """The handler answered `Retry`."""

    def __init__(self, retry: Retry) -> None:
        super().__init__(retry.reason)
        self.retry = retry


class Undecided(Exception):
    """A record cannot be read, or a report written, while the registry that has its schema is away or refuses us."""


class TookTooLong(Transient):
    """The deadline passed in a statement, which was cancelled. A smaller batch may be in time."""


class Overtaken(Transient):
    """Another process handled one of the messages meanwhile, or the database was put back: look again, and retry."""


class SessionLost(Unreachable):
    """The batch's connection was lost after a handler was called, so the batch itself may be the cause."""


Failure: TypeAlias = NotNow | Undecided | Transient | HandlerFailed


def failure_of(error: Exception, lent: HandlerConnection, *, ours: bool = False) -> Exception:
    """Translate an error that was raised once handlers were called; `ours` if in a statement of the runtime's.

    Transient may pass. Misconfigured is about the runtime's own tables: a person is needed before anything can work.
    Anything else is the handler's fault. `Unreachable`, for which everything waits, is only the loss of the batch's own
    connection: other servers that a handler cannot reach are retried like any transient failure.
    """
    if lent.connection.closed:
        return connection_gone(lent, f": {words_of(error)}")
    if isinstance(error, Transient):
        return _without_waiting(error)
    if isinstance(error, Misconfigured):
        return NotThere(words_of(error))
    inner = error if isinstance(error, psycopg.Error) else lent.database_error(error)
    # Without a state it never reached the server: psycopg refuses some calls by itself, such as to commit.
    if inner is None or (inner.sqlstate is None and not isinstance(inner, psycopg.OperationalError)):
        return HandlerFailed(words_of(error))
    return _failure_of_server(inner, error, ours)


def _failure_of_server(inner: psycopg.Error, error: Exception, ours: bool) -> Exception:
    if inner.sqlstate == _ABORTED:
        return HandlerFailed(SWALLOWED)
    if inner.diag.constraint_name == receipts.ONLY_THE_RUNTIME_COMMITS:
        return HandlerFailed(ENDED)
    problem = postgres.translate(inner)
    if isinstance(problem, Transient):
        return problem if inner.sqlstate == _DEMOTED else _without_waiting(problem)
    if isinstance(problem, Misconfigured):
        return problem if ours else NotThere(words_of(error))
    return HandlerFailed(words_of(error))


def connection_gone(lent: HandlerConnection, said: str = "") -> Exception:
    """Tell a connection that was lost from one that the handler closed."""
    if lent.connection.broken:
        return SessionLost(f"the connection to PostgreSQL was lost while a handler ran{said}")
    return HandlerFailed("it closed the connection: that is the runtime's")


def calls_of(error: Exception) -> list[str]:
    """Return the last calls of a handler that led to its failure: file, line and function, without values (N14)."""
    # An exception that is raised again and again has an ever longer traceback.
    calls = deque(walk_tb((error.__cause__ or error).__traceback__), _MOST_CALLS)
    codes = [(frame.f_code, line) for frame, line in calls]
    return [
        f"{code.co_filename}:{line} {code.co_name}" for code, line in codes if not code.co_filename.startswith(_OURS)
    ]


def cause_of(error: Exception) -> str | None:
    """Return what other messages may fail of too, such as an SQLSTATE. None if it is only about the message."""
    if not isinstance(error, NotThere | Transient):
        return None
    origin = error if error.__cause__ is None or isinstance(error, TookTooLong) else error.__cause__
    origin = getattr(origin, "orig", None) or origin
    return getattr(origin, "sqlstate", None) or type(origin).__name__


def _kind_of(record: Record, error: Exception) -> tuple[bytes | None, str | None]:
    return record.header(headers.TYPE), cause_of(error)


def _without_waiting(error: Transient) -> Transient:
    return Transient(str(error)) if isinstance(error, Unreachable) else error


@dataclass(slots=True)
class Failures:
    """Decides what becomes of records whose handling failed."""

    consumer: str
    settings: ConsumerSettings
    partitions: Partitions
    _known: dict[tuple[bytes | None, str | None], float] = field(default_factory=dict)
    """Until when messages of a type that fail of a cause are tried without waits: one was rejected for its data."""

    def failed(
        self, records: Sequence[Record], error: Failure, now: float, seconds: float = 0.0
    ) -> tuple[str, str] | None:
        """Arrange the next try. Return the code and error to reject the record with if it has had tries enough.

        `seconds` is how long the failed try took.
        """
        if len(records) == 1:
            return self._failed_alone(records[0], error, now, seconds)
        parts: dict[Partition, list[Record]] = {}
        for each in records:
            parts.setdefault(each.place, []).append(each)
        for place, part in parts.items():
            buffer = self.partitions.by_place[place]
            buffer.cause = cause_of(error)
            # A transient error may be gone: retry the part whole before bisecting it. After a timeout, bisect at once.
            whole = isinstance(error, Transient) and not isinstance(error, TookTooLong) and not buffer.ends
            buffer.take_apart(part, halve=len(parts) == 1 and not whole)
            if isinstance(error, Transient):
                buffer.held_until = now + _BACKOFF.delay_seconds(1)
        if isinstance(error, Transient):
            self._log(records, error, 1, _BACKOFF.delay_seconds(1))
        return None

    def _failed_alone(self, record: Record, error: Failure, now: float, seconds: float) -> tuple[str, str] | None:
        """Count bugs by their number, and transient failures by time. `Undecided` waits for as long as it takes.

        Of lost sessions, count only the time of the message's own tries and their waits, not the time in which the
        server is away. The message may end its sessions, or somebody else may: whoever ends all sessions now and then
        would have to hit this one in each of some dozen tries.
        """
        buffer = self.partitions.by_place[record.place]
        buffer.take_apart([record], halve=False)
        buffer.cause = cause_of(error)
        lost = isinstance(error, SessionLost)
        failing_seconds = 0.0
        if not lost and not isinstance(error, Undecided):
            buffer.failing_since = now if buffer.failing_since is None else buffer.failing_since
        if lost:
            buffer.lost_seconds += seconds
            failing_seconds = buffer.lost_seconds
        elif isinstance(error, HandlerFailed):
            buffer.bugs += 1
            if buffer.bugs >= self.settings.tries:
                return BUG, str(error)
        elif buffer.failing_since is not None:
            failing_seconds = now - buffer.failing_since
        if failing_seconds > self.settings.retry_seconds:
            return TIMED_OUT, str(error)
        self.hold(buffer, record, error, now)
        if lost:
            buffer.lost_seconds += buffer.held_until - now
        return None

    def wait(self, record: Record, error: Failure, now: float, *, shared: bool | None) -> bool:
        """Hold a message that had tries enough, and count from the beginning, while others fail of the same cause.

        While nothing tells whether they do (None), it has `retry_seconds`. Return False if it is to be rejected.
        """
        buffer = self.partitions.by_place[record.place]
        since = now if buffer.failing_since is None else buffer.failing_since
        if shared is None and now - since <= self.settings.retry_seconds:
            self.hold(buffer, record, error, now)
            return True
        if not shared and buffer.problem is None:
            if shared is False and isinstance(error, NotThere):
                self._known[_kind_of(record, error)] = now + _KNOWN_SECONDS
            return False
        buffer.bugs, buffer.failing_since = 0, None
        if shared:
            self._known.pop(_kind_of(record, error), None)
        buffer.problem = f"every message that waits fails alike: {error}" if shared else None
        self.hold(buffer, record, error, now)
        return True

    def knows(self, record: Record, error: Failure, now: float) -> bool:
        """Return True if such an error was a message's own fault lately."""
        return self._known.get(_kind_of(record, error), 0.0) > now

    def hold(self, buffer: PartitionBuffer, record: Record, error: Failure, now: float) -> None:
        """Hold the partition for a while, longer each time. A `Retry` may ask for more, within `retry_seconds`.

        In a flood of messages that fail of their data alike, only the first ones of each partition wait: each is still
        compared before it is rejected.
        """
        buffer.problem = str(error) if isinstance(error, Undecided) else buffer.problem
        buffer.attempts += 1
        wait = _BACKOFF.delay_seconds(buffer.attempts)
        if self.knows(record, error, now):
            wait = 0.0
        if isinstance(error, NotNow):
            since = now if buffer.failing_since is None else buffer.failing_since
            left = since + self.settings.retry_seconds - now
            wait = max(wait, min(error.retry.after_seconds, left))
        buffer.held_until = now + wait
        self._log([record], error, buffer.attempts, wait)

    def _log(self, records: Sequence[Record], error: Failure, attempt: int, wait: float) -> None:
        metrics.RETRIES.labels(self.consumer).inc(len(records))
        log.warning("handling failed", consumer=self.consumer, messages=len(records), first=str(records[0]),
                    attempt=attempt, again_in_seconds=round(wait, 1), error=str(error)[:500],
                    where=calls_of(error))  # fmt: skip
