"""Appends messages in the writer's own transaction: calls the SQL functions, names no table, and never commits.

There are two names for two colours, because an un-awaited `append` on an async connection would pass every type checker
and lose the message. Messages with the same key are published in commit order, provided each transaction locks the row
behind the key before it appends; so an SQLAlchemy session is flushed first.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from ferryman.message import Message, Stored, stored
from ferryman.runtime.errors import Misconfigured

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    Sync: TypeAlias = psycopg.Connection[Any] | sa.Connection | Session
    Async: TypeAlias = psycopg.AsyncConnection[Any] | AsyncConnection | AsyncSession

# The parameters of the SQL functions: name, type (so that no driver has to guess), and name in the plural.
_PARAMETERS = (
    ("topic", "text", "topics"),
    ("key", "text", "keys"),
    ("type", "text", "types"),
    ("payload", "bytea", "payloads"),
    ("headers", "jsonb", "headers"),
    ("id", "uuid", "ids"),
    ("idempotency_key", "text", "idempotency_keys"),
    ("content_type", "text", "content_types"),
)
_ONE = "-- outbox.append\nSELECT ferryman.outbox_append({})".format(
    ", ".join(f"{name} => CAST(:{name} AS {kind})" for name, kind, _ in _PARAMETERS)
)
_MANY = "-- outbox.append_many\nSELECT ferryman.outbox_append_many({})".format(
    ", ".join(f"{plural} => CAST(:{name} AS {kind}[])" for name, kind, plural in _PARAMETERS)
)


def append(where: "Sync", message: Message, /) -> UUID:
    """Append in the transaction of the connection or session. Return the entry's id."""
    entry: UUID = _execute(where, *statement(message))
    return entry


def append_many(where: "Sync", messages: Iterable[Message], /) -> list[UUID]:
    """Append many messages in one statement, in their order. Return their ids in that order."""
    return _execute_many(where, [stored(message) for message in messages])


async def append_async(where: "Async", message: Message, /) -> UUID:
    """Append like `append`, on an async connection or session."""
    entry: UUID = await _execute_async(where, *statement(message))
    return entry


async def append_many_async(where: "Async", messages: Iterable[Message], /) -> list[UUID]:
    """Append like `append_many`, on an async connection or session."""
    batch = [stored(message) for message in messages]
    found: Any = await _execute_async(where, *_statement_for(batch)) if batch else []
    entries: list[UUID] = [found] if len(batch) == 1 else found
    return entries


def append_stored(connection: "psycopg.Connection[Any]", batch: Sequence[Stored]) -> list[UUID]:
    """Append messages that were encoded before, on a psycopg connection whose transaction is open."""
    return _execute_many(connection, batch)


def statement(message: Message) -> tuple[str, Mapping[str, Any]]:
    """Return the statement behind every form, with the placeholders of SQLAlchemy's `text` (`:name`)."""
    return _ONE, stored(message)._asdict()


def _statement_for(batch: Sequence[Stored]) -> tuple[str, Mapping[str, Any]]:
    """Return the statement for a batch; one message alone takes a fourth of the time in a statement of its own.

    A column that no message fills is not sent: the function takes NULL for it.
    """
    if len(batch) == 1:
        return _ONE, batch[0]._asdict()
    columns = zip(Stored._fields, map(list, zip(*batch, strict=True)), strict=True)
    return _MANY, {name: None if column.count(None) == len(column) else column for name, column in columns}


def _execute_many(where: Any, batch: Sequence[Stored]) -> list[UUID]:
    found: Any = _execute(where, *_statement_for(batch)) if batch else []
    entries: list[UUID] = [found] if len(batch) == 1 else found
    return entries


def _execute(where: Any, query: str, parameters: Mapping[str, Any]) -> Any:
    if _is_psycopg(where):
        return _cursor(where).execute(_for_psycopg(query), _columns(query, parameters)).fetchone()[0]
    if hasattr(where, "flush"):
        where.flush()
    return where.execute(_text(query), parameters).scalar_one()


async def _execute_async(where: Any, query: str, parameters: Mapping[str, Any]) -> Any:
    if _is_psycopg(where):
        cursor = await _cursor(where).execute(_for_psycopg(query), _columns(query, parameters))
        return (await cursor.fetchone())[0]
    if hasattr(where, "flush"):
        await where.flush()
    return (await where.execute(_text(query), parameters)).scalar_one()


def _is_psycopg(where: Any) -> bool:
    import psycopg

    return isinstance(where, psycopg.Connection | psycopg.AsyncConnection)


def _cursor(connection: Any) -> Any:
    """Return a cursor of tuples."""
    from psycopg.rows import tuple_row

    refuse_autocommit(connection)
    return connection.cursor(row_factory=tuple_row)


def refuse_autocommit(connection: Any) -> None:
    """Refuse autocommit: a message would be committed without the change it announces, or the change without it."""
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise Misconfigured(
            "the connection is in autocommit mode and no transaction is open: the message would be committed alone",
            remedy="append inside `with connection.transaction():`, together with the change it announces",
        )


def _columns(query: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arrays in the form that is sent quickest."""
    if query is not _MANY:
        return parameters
    from ferryman.runtime.columns import Payloads, Texts, Uuids

    kinds = {"payload": Payloads, "id": Uuids}
    return {name: column and kinds.get(name, Texts)(column) for name, column in parameters.items()}


@cache
def _for_psycopg(query: str) -> str:
    """Use binary parameters: an array of a thousand payloads would take longer to escape than to store."""
    return re.sub(r":(\w+) AS", r"%(\1)b AS", query)


@cache
def _text(query: str) -> Any:
    from sqlalchemy import text

    return text(query)
