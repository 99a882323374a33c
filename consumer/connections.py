"""The connection that handlers are lent (psycopg or SQLAlchemy on top of it), and the deadline over its statements."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import structlog
from psycopg.pq import TransactionStatus

from ferryman.consumer.store.receipts import Connection
from ferryman.runtime import postgres
from ferryman.runtime.errors import Exit, Misconfigured, Transient, Unreachable
from ferryman.runtime.settings import Settings

if TYPE_CHECKING:  # consumers that do without SQLAlchemy need not have it, nor wait for its import
    import sqlalchemy as sa
    import sqlalchemy.orm

log = structlog.get_logger(__name__)

_MOST_GRACE_SECONDS = 5.0


class HandlerConnection:
    """The connection that handlers are lent, in the form that they want: here psycopg's own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._unreplicated = False
        connection.add_notice_handler(self._hear)

    @property
    def given(self) -> Any:
        """The object that handlers get: the same one throughout a transaction."""
        return self.connection

    def flush(self) -> None:
        """Write what the handlers left to be written."""

    def end(self) -> None:
        """Forget everything about the transaction, however it ended."""

    def database_error(self, error: Exception) -> psycopg.Error | None:
        """Return the database's own error inside an error of a library."""
        return None

    def check_committed(self) -> None:
        """End the session and raise `Unreachable` if a failover may lose what was committed last."""
        if self._unreplicated:
            self.connection.close()
            raise Unreachable("PostgreSQL committed, and no standby may have it: somebody cancelled the wait for one")

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        """Hear the warning that comes with such a COMMIT. Its words are in the server's language."""
        self._unreplicated |= notice.source_function == "SyncRepWaitForLSN"


class AlchemyConnection(HandlerConnection):
    """A SQLAlchemy engine that has only the runtime's connection, and cannot end its transaction.

    psycopg refuses `commit` and `rollback` inside the runtime's transaction, and SQLAlchemy calls psycopg's.
    """

    def __init__(self, kind: type[Any], connection: Connection) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.orm import Session
        from sqlalchemy.pool import StaticPool

        super().__init__(connection)
        self._engine = create_engine(
            "postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None,
            hide_parameters=True,
        )  # fmt: skip
        self._engine.dialect.do_rollback = self._roll_back  # type: ignore[method-assign]
        self._session_type = Session if issubclass(kind, Session) else None
        self._alchemy: sa.Connection | None = None
        self._session: sa.orm.Session | None = None
        try:
            self._engine.connect().close()  # asks the server for its version: before any transaction of ours
        except DBAPIError as error:
            raise postgres.translate(self.database_error(error) or error) from error

    @property
    def given(self) -> Any:
        """A connection or session made for this transaction: the rows that a session remembers are old in the next."""
        if self._alchemy is None:
            self._alchemy = self._engine.connect()
            if self._session_type is not None:
                self._session = self._session_type(self._alchemy, join_transaction_mode="control_fully")
        return self._session or self._alchemy

    def flush(self) -> None:
        if self._session is not None:
            self._session.flush()

    def end(self) -> None:
        """Close both. The runtime has ended the transaction already, so their rollback ends nothing."""
        from sqlalchemy.exc import SQLAlchemyError

        for each in (self._session, self._alchemy):
            if each is not None:
                with suppress(SQLAlchemyError, psycopg.Error):  # the connection may be broken
                    each.close()
        self._session = self._alchemy = None

    def database_error(self, error: Exception) -> psycopg.Error | None:
        inner = getattr(error, "orig", None)
        return inner if isinstance(inner, psycopg.Error) else None

    def _roll_back(self, dbapi_connection: Any) -> None:
        """Ignore the rollback of a session whose flush failed: the runtime rolls back, and reports the first error.

        A handler that carries on after such an error is found by the state of the transaction.
        """
        if self.connection.info.transaction_status not in (TransactionStatus.INERROR, TransactionStatus.UNKNOWN):
            self.connection.rollback()


def handler_connection(kind: type[Any] | None, connection: Connection) -> HandlerConnection:
    """Return the connection as the type that a consumer asked for. Call it before a transaction begins."""
    if kind is None or issubclass(kind, psycopg.Connection):
        return HandlerConnection(connection)
    if kind.__module__.startswith("sqlalchemy") and "async" not in kind.__name__.lower():
        return AlchemyConnection(kind, connection)
    raise Misconfigured(
        f"a consumer cannot be given a {kind.__module__}.{kind.__name__}",
        remedy="psycopg.Connection, sqlalchemy.Connection or sqlalchemy.orm.Session",
    )


def check_deadline(settings: Settings) -> None:
    """Refuse a deadline behind the session's own: each batch that takes so long would lose its session."""
    deadline, idle = settings.consumer.deadline_seconds, settings.database.idle_in_transaction_timeout_seconds
    if deadline >= idle:
        raise Misconfigured(
            f"a handler may take {deadline:g} s, and PostgreSQL ends its session after {idle:g} s without a statement "
            "(database.idle_in_transaction_timeout_seconds)",
            setting="consumer.deadline_seconds", remedy="lower it, or raise the other",
        )  # fmt: skip


class Deadline:
    """A watchdog in a thread of its own. If it ends the process, the successors find the message that hangs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grace = min(seconds, _MOST_GRACE_SECONDS)
        self.passed = False
        self._until: float | None = None
        self._connection: Connection | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def lift(self) -> None:
        """End the time before a COMMIT, which is not cancelled once sent. Raise `Transient` if it is over already."""
        with self._changed:
            if self.passed:
                raise Transient("the deadline passed in front of the COMMIT")
            self._until = self._connection = None
            self._changed.notify()

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """Give the body until the deadline."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)
            self._thread.start()
        with self._changed:
            self.passed = False
            self._until, self._connection = time.monotonic() + self._seconds, connection
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._until = self._connection = None
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._until is None or (left := self._until - time.monotonic()) > 0:
                    self._changed.wait(None if self._until is None else left)
                until, connection, self.passed = self._until, self._connection, True
            log.error("deadline passed", seconds=self._seconds)
            self._cancel(connection)
            with self._changed:
                if self._changed.wait_for(lambda: self._until != until, self._grace):  # noqa: B023 - used at once
                    continue
            log.critical("handler hangs", seconds=self._seconds + self._grace)
            os._exit(int(Exit.FAILURE))

    @staticmethod
    def _cancel(connection: Connection | None) -> None:
        try:
            if connection is not None:
                connection.cancel_safe(timeout=_MOST_GRACE_SECONDS)
        except psycopg.Error as error:
            log.warning("not cancelled", error=str(error))
