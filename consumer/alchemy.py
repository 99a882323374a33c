"""SQLAlchemy for handlers, on the runtime's own connection and transaction."""

from contextlib import suppress
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from ferryman.consumer.store.receipts import Connection
from ferryman.runtime import postgres


class Alchemy:
    """One engine that knows no other connection than this one, and may not end its transaction.

    psycopg refuses `commit` and `rollback` inside the runtime's transaction; SQLAlchemy's own are names for them.
    """

    def __init__(self, kind: type[Any], connection: Connection) -> None:
        self._database = connection
        self._engine = sa.create_engine(
            "postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None,
            hide_parameters=True,
        )  # fmt: skip
        self._engine.dialect.do_rollback = self._roll_back  # type: ignore[method-assign]
        self._wants_session = issubclass(kind, Session)
        self._connection: sa.Connection | None = None
        self._session: Session | None = None
        try:
            self._engine.connect().close()  # asks the server what it is: before any transaction of ours
        except sa.exc.DBAPIError as error:
            raise postgres.translate(self.database_error(error) or error) from error

    @property
    def given(self) -> Any:
        """Made for each transaction: what a session knows of rows is old in the next."""
        if self._connection is None:
            self._connection = self._engine.connect()
            if self._wants_session:
                self._session = Session(self._connection, join_transaction_mode="control_fully")
        return self._session or self._connection

    def flush(self) -> None:
        if self._session is not None:
            self._session.flush()

    def end(self) -> None:
        """After the runtime's own end of the transaction: its rollback here ends nothing any more."""
        for each in (self._session, self._connection):
            if each is not None:
                with suppress(sa.exc.SQLAlchemyError, psycopg.Error):  # of a connection that is broken
                    each.close()
        self._session = self._connection = None

    def database_error(self, error: Exception) -> psycopg.Error | None:
        inner = getattr(error, "orig", None)
        return inner if isinstance(inner, psycopg.Error) else None

    def _roll_back(self, dbapi_connection: Any) -> None:
        """A session rolls back when its flush fails: the runtime does it, and hears of that failure, not of this.

        A handler that goes on as if nothing were is found by the state of the transaction.
        """
        if self._database.info.transaction_status not in (TransactionStatus.INERROR, TransactionStatus.UNKNOWN):
            self._database.rollback()
