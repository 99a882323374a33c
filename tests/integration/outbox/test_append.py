"""Appending, sync and async: in the writer's transaction or not at all, and a bad message fails the writer."""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ferryman import Message, Misconfigured, append, append_async, append_many, append_many_async

Database = psycopg.Connection[tuple[Any, ...]]
Refused = psycopg.errors.InvalidParameterValue
INSERT = "INSERT INTO ferryman.outbox (topic, key, type, payload, headers) VALUES "


def order(number: int = 1, **more: Any) -> Message:
    return Message("order.placed", {"number": number}, key="k", topic="orders", **more)


def entries(db: Database) -> list[tuple[Any, ...]]:
    return db.execute("SELECT id, topic, key, type, status FROM ferryman.outbox_entries ORDER BY position").fetchall()


def by_psycopg(url: str, messages: list[Message], commit: bool) -> list[UUID]:
    with psycopg.connect(url) as connection:
        ids = [append(connection, message) for message in messages] + append_many(connection, messages)
        if not commit:
            connection.rollback()
    return ids


def by_connection(url: str, messages: list[Message], commit: bool) -> list[UUID]:
    engine = sa.create_engine(url.replace("postgresql", "postgresql+psycopg", 1))
    with engine.connect() as connection:
        ids = [append(connection, message) for message in messages] + append_many(connection, messages)
        if commit:
            connection.commit()
    engine.dispose()
    return ids


def by_session(url: str, messages: list[Message], commit: bool) -> list[UUID]:
    engine = sa.create_engine(url.replace("postgresql", "postgresql+psycopg", 1))
    with Session(engine) as session:
        ids = [append(session, message) for message in messages] + append_many(session, messages)
        if commit:
            session.commit()
    engine.dispose()
    return ids


def by_async_psycopg(url: str, messages: list[Message], commit: bool) -> list[UUID]:
    async def run() -> list[UUID]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            ids = [await append_async(connection, message) for message in messages]
            ids += await append_many_async(connection, messages)
            if not commit:
                await connection.rollback()
        return ids

    return asyncio.run(run())


def by_async_connection(url: str, messages: list[Message], commit: bool) -> list[UUID]:
    async def run() -> list[UUID]:
        engine = create_async_engine(url.replace("postgresql", "postgresql+psycopg", 1))
        async with engine.connect() as connection:
            ids = [await append_async(connection, message) for message in messages]
            ids += await append_many_async(connection, messages)
            if commit:
                await connection.commit()
        await engine.dispose()
        return ids

    return asyncio.run(run())


def by_async_session(url: str, messages: list[Message], commit: bool) -> list[UUID]:
    async def run() -> list[UUID]:
        engine = create_async_engine(url.replace("postgresql", "postgresql+psycopg", 1))
        async with AsyncSession(engine) as session:
            ids = [await append_async(session, message) for message in messages]
            ids += await append_many_async(session, messages)
            if commit:
                await session.commit()
        await engine.dispose()
        return ids

    return asyncio.run(run())


WAYS: list[Callable[[str, list[Message], bool], list[UUID]]] = [
    by_psycopg, by_connection, by_session, by_async_psycopg, by_async_connection, by_async_session,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_append_commits_and_rolls_back_with_the_writer(
    way: Callable[[str, list[Message], bool], list[UUID]], ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1 and N2 begin here: in the writer's transaction, and nowhere else."""
    way(ferryman_database_url, [order()], False)
    assert entries(ferryman_db) == []
    ids = way(ferryman_database_url, [order(1), order(2)], True)
    assert [row[0] for row in entries(ferryman_db)] == ids
    assert {row[1:] for row in entries(ferryman_db)} == {("orders", "k", "order.placed", "PENDING")}


def test_entry_is_stored_as_it_was_given(ferryman_database_url: str, ferryman_db: Database) -> None:
    given = uuid4()
    with psycopg.connect(ferryman_database_url) as connection:
        assert append(connection, order(headers={"traceparent": "00-ab"}, id=given)) == given
    columns = "id, payload, headers, content_type, lane, segment"
    row = ferryman_db.execute(f"SELECT {columns} FROM ferryman.outbox").fetchone()
    assert row == (given, b'{"number":1}', {"traceparent": "00-ab"}, "application/json", 2, 0)


def test_lane_of_a_key_never_changes(ferryman_db: Database) -> None:
    """Lanes are stored in databases: another hash would break the order of keys."""
    keys = ["a", "b", "c", "k", "w1", "", "ü"]
    lanes = ferryman_db.execute("SELECT ferryman.outbox_lane(k) FROM unnest(%s::text[]) k", (keys,)).fetchall()
    assert [lane for (lane,) in lanes] == [hashlib.sha256(key.encode()).digest()[0] & 7 for key in keys]
    assert [lane for (lane,) in lanes] == [2, 6, 6, 2, 0, 3, 0]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"topic": "two words"}, "Kafka refuses its topic"),
    ({"topic": ".."}, "Kafka refuses its topic"),
    ({"topic": "t" * 250}, "Kafka refuses its topic"),
    ({"key": "k" * 2001}, "its key has 2001 bytes, and 2000 is the most"),
    ({"type": ""}, "its type must have 1 to 255 characters"),
    ({"content_type": "a/" + "b" * 254}, "its content type has more than 255 characters"),
    ({"data": bytes(1_000_001)}, "its payload has 1000001 bytes, and 1000000 is the most"),
    ({"headers": {"ce_id": "mine"}}, "the relay sets this header itself: ce_id"),
    ({"headers": {"a": "x" * 31_000}}, "its headers have more than 30000 bytes"),
]


def test_topic_names_are_checked_as_kafka_checks_them(ferryman_db: Database) -> None:
    letters = [chr(code) for code in range(1, 0x250)]
    fault = (
        "SELECT ferryman.outbox_fault('a' || letter, 'k', 't', 1, '{}', NULL, 9) IS NULL FROM unnest(%s::text[]) letter"
    )
    allowed = [letter for letter, (well,) in zip(letters, ferryman_db.execute(fault, (letters,)), strict=True) if well]
    assert allowed == re.findall(r"[a-zA-Z0-9._-]", "".join(letters))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("changed", "said"), BAD)
def test_message_that_kafka_would_refuse_fails_its_writer(
    ferryman_database_url: str, changed: dict[str, Any], said: str, many: bool
) -> None:
    good: dict[str, Any] = {"type": "order.placed", "data": b"x", "key": "k", "topic": "orders"}
    bad = Message(**(good | changed))
    with (
        psycopg.connect(ferryman_database_url) as connection,
        pytest.raises(Refused, match=said),
    ):
        append_many(connection, [order(), bad]) if many else append(connection, bad)


def test_lane_that_nobody_reads_counts_as_none(ferryman_db: Database) -> None:
    """N1: a writer that names one by hand gets the lane of the key."""
    insert = "INSERT INTO ferryman.outbox (topic, key, type, payload, lane) VALUES ('orders', 'k', 't', '', %s)"
    for lane in (-1, 8, None):
        ferryman_db.execute(insert, (lane,))
    lanes = ferryman_db.execute("SELECT DISTINCT lane = ferryman.outbox_lane(key) FROM ferryman.outbox").fetchall()
    assert lanes == [(True,)]


def test_entries_from_insert_or_copy_are_checked_and_get_their_lane(ferryman_db: Database) -> None:
    ferryman_db.execute("INSERT INTO ferryman.outbox (topic, key, type, payload) VALUES ('orders', 'k', 't', '')")
    with ferryman_db.cursor().copy("COPY ferryman.outbox (topic, key, type, payload) FROM STDIN") as copy:
        copy.write_row(("orders", "k", "t", b"x"))
    assert ferryman_db.execute("SELECT DISTINCT lane FROM ferryman.outbox").fetchall() == [(2,)]
    with pytest.raises(Refused, match="Kafka refuses its topic"):
        ferryman_db.execute(INSERT + "('two words', 'k', 't', '', '{}')")
    with pytest.raises(Refused, match="it has no topic"):
        ferryman_db.execute(INSERT + "(NULL, 'k', 't', '', '{}')")
    with pytest.raises(Refused, match="its headers are not an object"):
        ferryman_db.execute(INSERT + "('orders', 'k', 't', '', '[]')")
    with pytest.raises(Refused, match="this header is not text: a"):
        ferryman_db.execute(INSERT + """('orders', 'k', 't', '', '{"a": 1}')""")


def test_json_from_sql_arrives_as_it_was_written(ferryman_db: Database) -> None:
    """A literal for bytea loses its backslashes: `C:\\temp` would become `C:` and a tabulator."""
    written = r'{"path": "C:\\temp", "name": "\u00e9", "quote": "\""}'
    row = ferryman_db.execute(
        f"SELECT ferryman.outbox_append_json('orders', 'k', 'order.placed', '{written}', idempotency_key => 'once')"
    ).fetchone()
    [(identity, payload, content_type)] = ferryman_db.execute(
        "SELECT id, payload, content_type FROM ferryman.outbox"
    ).fetchall()
    assert row == (identity,)
    assert json.loads(payload) == json.loads(written) == {"path": r"C:\temp", "name": "\u00e9", "quote": '"'}
    assert content_type == "application/json"


def test_outside_a_transaction_nothing_is_appended(ferryman_db: Database) -> None:
    """On an autocommit connection the message would be committed alone, without the change it announces."""
    with pytest.raises(Misconfigured, match="the message would be committed alone"):
        append(ferryman_db, order())
    with ferryman_db.transaction():
        append(ferryman_db, order())
    assert len(entries(ferryman_db)) == 1


def test_row_factory_of_the_connection_does_not_matter(ferryman_database_url: str) -> None:
    with psycopg.connect(ferryman_database_url, row_factory=dict_row) as connection:
        assert isinstance(append(connection, order()), UUID)
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


class Base(sa.orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"
    id: sa.orm.Mapped[int] = sa.orm.mapped_column(primary_key=True)


def test_session_is_flushed_before_the_message_is_appended(
    ferryman_database_url: str,
) -> None:
    engine = sa.create_engine(ferryman_database_url.replace("postgresql", "postgresql+psycopg", 1))
    Base.metadata.create_all(engine)
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *event: statements.append(event[2]))
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
        append(session, order())
    engine.dispose()
    assert [bool(re.search("INSERT INTO shop_orders", each)) for each in statements][:2] == [True, False]


@pytest.fixture
def as_role(ferryman_database_url: str) -> Iterator[Callable[[str], Database]]:
    """Connect to the database with the rights of one of our roles."""
    opened: list[Database] = []

    def connect(role: str) -> Database:
        connection = psycopg.connect(ferryman_database_url)
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        connection.commit()
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


def test_writer_may_append_and_no_more(as_role: Callable[[str], Database]) -> None:
    writer = as_role("ferryman_writer")
    append(writer, order(idempotency_key="a"))
    append_many(writer, [order(), order()])
    with writer.cursor().copy("COPY ferryman.outbox (topic, key, type, payload) FROM STDIN") as copy:
        copy.write_row(("orders", "k", "t", b"x"))
    writer.commit()
    for forbidden in (
        "SELECT payload FROM ferryman.outbox",
        "UPDATE ferryman.outbox SET topic = 'x'",
        "DELETE FROM ferryman.outbox",
        "INSERT INTO ferryman.outbox (xid, topic, key, type, payload) VALUES ('3', 'o', 'k', 't', '')",
        "INSERT INTO ferryman.outbox (lane, topic, key, type, payload) VALUES (1, 'o', 'k', 't', '')",
        "INSERT INTO ferryman.outbox (segment, topic, key, type, payload) VALUES (1, 'o', 'k', 't', '')",
        "INSERT INTO ferryman.outbox (created_at, topic, key, type, payload) VALUES ('infinity', 'o', 'k', 't', '')",
        "INSERT INTO ferryman.outbox_cursor VALUES (0, 1, 0, NULL, 0, '{}')",
        "UPDATE ferryman.outbox_state SET segment = 3",
        "DELETE FROM ferryman.outbox_key",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            writer.execute(forbidden)
        writer.rollback()


def test_role_that_may_not_append_cannot_do_it_by_the_functions(as_role: Callable[[str], Database]) -> None:
    """They run with the rights of their owner, so that no writer needs the rights to bypass a check."""
    for role in ("ferryman_relay", "ferryman_monitor"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            append(as_role(role), order())


def test_functions_of_a_writers_own_schema_are_not_called(
    as_role: Callable[[str], Database], ferryman_db: Database
) -> None:
    """Neither a function with its owner's rights nor a check of an entry must call functions of its caller's choice."""
    ferryman_db.execute("CREATE SCHEMA mine; GRANT USAGE ON SCHEMA mine TO ferryman_writer")
    for function in (
        "octet_length(bytea) RETURNS integer", "sha256(bytea) RETURNS bytea", "jsonb_typeof(jsonb) RETURNS text",
        "convert_to(text, text) RETURNS bytea",
    ):  # fmt: skip
        body = "$$ BEGIN RAISE 'called as %', current_user; END $$"
        ferryman_db.execute(f"CREATE FUNCTION mine.{function} LANGUAGE plpgsql AS {body}".encode())
    writer = as_role("ferryman_writer")
    writer.execute("SET search_path = mine, pg_catalog")
    append(writer, order(idempotency_key="a"))
    append_many(writer, [order(), order()])
    insert = (
        "INSERT INTO ferryman.outbox (topic, key, type, payload, headers) VALUES ('o', 'k', 't', '', '{\"a\": \"b\"}')"
    )
    writer.execute(insert)
    writer.execute("SELECT ferryman.outbox_append_json('o', 'k', 't', '{}')")


@pytest.mark.parametrize("created_at", ["infinity", "-infinity", "10000-01-01", "1969-12-31"])
def test_entry_from_an_impossible_time_fails_its_writer(ferryman_db: Database, created_at: str) -> None:
    """N10: the relay could make no record of it, or its segment would be kept until then."""
    with pytest.raises(Refused, match="its created_at is before 1970, or over a day ahead"):
        ferryman_db.execute(
            "INSERT INTO ferryman.outbox (topic, key, type, payload, created_at) VALUES ('orders', 'k', 't', '', %s)",
            (created_at,),
        )


def test_monitor_reads_the_views_with_no_relay_running(
    as_role: Callable[[str], Database], ferryman_db: Database
) -> None:
    with ferryman_db.transaction():
        append_many(ferryman_db, [order(), order(), Message("t", b"", key="x", topic="others")])
    monitor = as_role("ferryman_monitor")
    backlog = monitor.execute(
        "SELECT topic, pending, oldest_age_seconds >= 0, retrying, parked, failed FROM ferryman.backlog ORDER BY topic"
    ).fetchall()
    assert backlog == [("orders", 2, True, 0, 0, 0), ("others", 1, True, 0, 0, 0)]
    assert monitor.execute("SELECT count(*) FROM ferryman.outbox_entries WHERE status = 'PENDING'").fetchone() == (3,)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        monitor.execute("INSERT INTO ferryman.outbox (topic, key, type, payload) VALUES ('o', 'k', 't', '')")
