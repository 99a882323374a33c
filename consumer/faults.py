"""Whose doing a failure is: the handler's, a person's who has to act, or nobody's, so that it is tried again."""

import re

import psycopg

from ferryman.consumer.face import Face
from ferryman.consumer.model import Retry
from ferryman.consumer.store import receipts
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured, Transient, Unreachable

SWALLOWED = "it swallowed a database error: nothing of the transaction can be kept"
ENDED = "it ended the transaction: only the runtime commits"
# Of an error that holds another's words: "Original exception was: ..."
_QUOTED = re.compile(r"\n(?:DETAIL|HINT|CONTEXT|LINE \d+): |\[(?:SQL|parameters): ")
_ABORTED, _DEMOTED = "25P02", "25006"


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


class Undecided(Exception):
    """Nobody can tell yet what a record says, or how to write a report: the registry that has its schema is away."""


class TookTooLong(Transient):
    """Its deadline passed in a statement, which was cancelled: of many, perhaps not of each."""


class Overtaken(Transient):
    """Somebody else handled one of them meanwhile: next time it is known."""


class SessionLost(Unreachable):
    """The connection of a batch is gone, and its handler had been asked: perhaps that was the batch's own doing."""


def fault(error: Exception, connection: receipts.Connection, face: Face) -> Exception:
    """Transient where trying again may help, Misconfigured where nothing will be right before a person acts; else the
    handler's own. `Unreachable`, for which everything waits, is only the connection that the batch is on: what else a
    handler cannot reach is tried again for as long as any other passing failure.
    """
    if connection.closed:
        return gone(connection, f": {words(error)}")
    if isinstance(error, Transient):
        return _passing(error)
    inner = error if isinstance(error, psycopg.Error) else face.database_error(error)
    # Without a state it never reached the server: the library refuses by itself, to commit for one.
    if inner is None or (inner.sqlstate is None and not isinstance(inner, psycopg.OperationalError)):
        return HandlerFailed(words(error))
    return _said_by_a_server(inner, error)


def _said_by_a_server(inner: psycopg.Error, error: Exception) -> Exception:
    if inner.sqlstate == _ABORTED:
        return HandlerFailed(SWALLOWED)
    if inner.diag.constraint_name == receipts.ONLY_THE_RUNTIME_COMMITS:
        return HandlerFailed(ENDED)
    problem = postgres.translate(inner)
    if isinstance(problem, Transient):
        return problem if inner.sqlstate == _DEMOTED else _passing(problem)
    return problem if isinstance(problem, Misconfigured) else HandlerFailed(words(error))


def gone(connection: receipts.Connection, said: str = "") -> Exception:
    """Whether somebody took the connection away, or the handler threw it away."""
    if connection.broken:
        return SessionLost(f"the connection to PostgreSQL was lost while a handler ran{said}")
    return HandlerFailed("it closed the connection: that is the runtime's")


def words(error: BaseException) -> str:
    """What stands in logs and receipts: without statements, parameters and the rows that databases quote (N14)."""
    inner = getattr(error, "orig", None)  # SQLAlchemy's errors hold the driver's, and quote the statement
    error = inner if isinstance(inner, BaseException) else error
    if not isinstance(error, psycopg.Error):
        return f"{type(error).__name__}: {_QUOTED.split(str(error), 1)[0].rstrip()}"
    return f"{type(error).__name__}: {postgres.said(error)}" + (f" ({error.sqlstate})" if error.sqlstate else "")


def _passing(error: Transient) -> Transient:
    return Transient(str(error)) if isinstance(error, Unreachable) else error
