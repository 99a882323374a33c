"""SQLAlchemy for handlers, on the runtime's own connection and transaction."""

from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from ferryman.consumer.store.receipts import Connection


class Alchemy:
    """One engine that knows no other connection than this one, and may not end its transaction.

    psycopg refuses `commit` and `rollback` inside the runtime's transaction; SQLAlchemy's own are names for them.
    """

    def __init__(self, kind: type[Any], connection: Connection) -> None:
        engine = sa.create_engine(
            "postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
        )
        self._connection = engine.connect()  # asks the server what it is: before any transaction of ours
        self._connection.rollback()
        self._session = (
            Session(self._connection, join_transaction_mode="control_fully") if issubclass(kind, Session) else None
        )
        self.given: Any = self._session or self._connection

    def flush(self) -> None:
        if self._session is not None:
            self._session.flush()

    def database_error(self, error: Exception) -> psycopg.Error | None:
        inner = getattr(error, "orig", None)
        return inner if isinstance(inner, psycopg.Error) else None
