"""What a handler is given of the connection: psycopg's own, or SQLAlchemy on top of the same one."""

from typing import Any, Protocol

import psycopg

from ferryman.consumer.store.receipts import Connection
from ferryman.runtime.errors import Misconfigured


class Face(Protocol):
    """The connection as the handlers want it, on the runtime's own transaction."""

    @property
    def given(self) -> Any:
        """The same through one transaction."""

    def flush(self) -> None:
        """Writes what the handlers left to be written."""

    def end(self) -> None:
        """The transaction is over, whatever became of it: nothing of it may be known in the next."""

    def database_error(self, error: Exception) -> psycopg.Error | None:
        """The database's own error inside one of a library's."""


class Plain:
    """psycopg's connection itself."""

    def __init__(self, connection: Connection) -> None:
        self.given = connection

    def flush(self) -> None:
        """There is nothing between it and the server."""

    def end(self) -> None:
        """It keeps nothing."""

    def database_error(self, error: Exception) -> psycopg.Error | None:
        return None


def face_of(kind: type[Any] | None, connection: Connection) -> Face:
    """For what the consumer asked for; made before the transaction begins."""
    if kind is None or issubclass(kind, psycopg.Connection):
        return Plain(connection)
    if kind.__module__.startswith("sqlalchemy") and "async" not in kind.__name__.lower():
        from ferryman.consumer.alchemy import Alchemy

        return Alchemy(kind, connection)
    raise Misconfigured(
        f"a consumer cannot be given a {kind.__module__}.{kind.__name__}",
        remedy="psycopg.Connection, sqlalchemy.Connection or sqlalchemy.orm.Session",
    )
