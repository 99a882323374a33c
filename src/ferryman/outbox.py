"""Appending, in the writer's own transaction: calls the SQL functions, names no table, and never commits.

Two names for two colours, because an un-awaited `append` of an async connection would pass every type checker and
lose money. Where the aggregate of a key is locked before the message is appended, messages of that key are published
in the order of their commits; so a session is flushed first.
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

# Each parameter of the SQL functions with its type, so that no driver has to guess, and its name in the plural.
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
    """Appends in the transaction of the connection or session; returns the entry's id."""
    entry: UUID = _execute(where, *statement(message))
    return entry


def append_many(where: "Sync", messages: Iterable[Message], /) -> list[UUID]:
    """Appends many in one statement, in their order; returns their ids in that order."""
    batch = [stored(message) for message in messages]
    if len(batch) == 1:  # in a fourth of the time
        return [_execute(where, _ONE, batch[0]._asdict())]
    entries: list[UUID] = _execute(where, *_statement_for_many(batch)) if batch else []
    return entries


async def append_async(where: "Async", message: Message, /) -> UUID:
    """`append` for async connections and sessions."""
    entry: UUID = await _execute_async(where, *statement(message))
    return entry


async def append_many_async(where: "Async", messages: Iterable[Message], /) -> list[UUID]:
    """`append_many` for async connections and sessions."""
    batch = [stored(message) for message in messages]
    if len(batch) == 1:
        return [await _execute_async(where, _ONE, batch[0]._asdict())]
    entries: list[UUID] = await _execute_async(where, *_statement_for_many(batch)) if batch else []
    return entries


def append_stored(connection: "psycopg.Connection[Any]", batch: Sequence[Stored]) -> list[UUID]:
    """Messages that were encoded before, on a psycopg connection whose transaction is open."""
    if len(batch) == 1:
        return [_execute(connection, _ONE, batch[0]._asdict())]
    entries: list[UUID] = _execute(connection, *_statement_for_many(batch)) if batch else []
    return entries


def statement(message: Message) -> tuple[str, Mapping[str, Any]]:
    """The one statement behind every form, with placeholders as SQLAlchemy's `text` has them (`:name`)."""
    return _ONE, stored(message)._asdict()


def _statement_for_many(batch: Sequence[Stored]) -> tuple[str, Mapping[str, Any]]:
    """A column that no message fills is not sent: the function takes NULL for it."""
    columns = zip(Stored._fields, map(list, zip(*batch, strict=True)), strict=True)
    return _MANY, {name: None if column.count(None) == len(column) else column for name, column in columns}


def _execute(where: Any, query: str, parameters: Mapping[str, Any]) -> Any:
    if _is_psycopg(where):
        _refuse_autocommit(where)
        return _plain(where.cursor()).execute(_for_psycopg(query), _columns(query, parameters)).fetchone()[0]
    if hasattr(where, "flush"):
        where.flush()
    return where.execute(_text(query), parameters).scalar_one()


async def _execute_async(where: Any, query: str, parameters: Mapping[str, Any]) -> Any:
    if _is_psycopg(where):
        _refuse_autocommit(where)
        cursor = await _plain(where.cursor()).execute(_for_psycopg(query), _columns(query, parameters))
        return (await cursor.fetchone())[0]
    if hasattr(where, "flush"):
        await where.flush()
    return (await where.execute(_text(query), parameters)).scalar_one()


def _is_psycopg(where: Any) -> bool:
    import psycopg

    return isinstance(where, psycopg.Connection | psycopg.AsyncConnection)


def _plain(cursor: Any) -> Any:
    """Whatever row factory the connection has, the ids are ours to read."""
    from psycopg.rows import tuple_row

    cursor.row_factory = tuple_row
    return cursor


def _columns(query: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """In the form that is sent quickest."""
    if query is not _MANY:
        return parameters
    from ferryman.runtime.columns import Payloads, Texts, Uuids

    kinds = {"payload": Payloads, "id": Uuids}
    return {name: column and kinds.get(name, Texts)(column) for name, column in parameters.items()}


def _refuse_autocommit(connection: Any) -> None:
    """Outside a transaction the message would be on its way before, or without, the change it tells of."""
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise Misconfigured(
            "the connection is in autocommit mode and no transaction is open: the message would be committed alone",
            remedy="append inside `with connection.transaction():`, beside the change it tells of",
        )


@cache
def _for_psycopg(query: str) -> str:
    """Binary parameters: an array of a thousand payloads would take longer to escape than to store."""
    return re.sub(r":(\w+) AS", r"%(\1)b AS", query)


@cache
def _text(query: str) -> Any:
    from sqlalchemy import text

    return text(query)
