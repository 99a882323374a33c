"""Connections to PostgreSQL: named, bounded in time, and every refusal has a remedy."""

import socket
from collections.abc import Callable

import psycopg
import pytest
from psycopg import conninfo
from psycopg_pool import PoolTimeout

from ferryman.console.database import closed_pool, pool_error
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable
from ferryman.runtime.settings import Database, Settings


def settings(url: str, **database: float) -> Settings:
    return Settings.model_validate({"database_url": url, "database": database})


def with_part(url: str, **changed: str | int) -> str:
    return conninfo.make_conninfo(url, **changed)


def nobody_listens(url: str) -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return with_part(url, port=port)


Wrong = Callable[[str], str]


@pytest.mark.parametrize(
    ("wrong", "family", "remedy"),
    [
        (lambda url: with_part(url, password="wr0ng"), Misconfigured, "correct the user or the password"),
        (lambda url: with_part(url, user="nobody_known"), Misconfigured, "correct the user or the password"),
        (lambda url: with_part(url, dbname="no_such"), Misconfigured, "create it, or correct the name"),
        (lambda url: with_part(url, host="no-such-host.invalid"), Misconfigured, "correct the host name"),
        (lambda url: with_part(url, sslmode="require"), Misconfigured, "correct sslmode"),
        (lambda _: "postgresql://u:wr0ng@h:port/d", Misconfigured, "write postgresql://"),
        (lambda _: "mysql://u:wr0ng@h/d", Misconfigured, "write postgresql://"),
        (lambda _: "postgresql://u:wr0ng@[h/d", Misconfigured, "write postgresql://"),
        (nobody_listens, Unreachable, "start PostgreSQL"),
    ],
)
def test_a_connection_that_cannot_be_made_names_the_setting_and_the_remedy(
    ferryman_postgres: str, wrong: Wrong, family: type[FerrymanError], remedy: str
) -> None:
    with pytest.raises(family) as caught:
        postgres.connect(settings(wrong(ferryman_postgres)), "test")
    assert caught.value.setting == "database_url"
    assert remedy in str(caught.value)
    assert "wr0ng" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_url_the_setting_is_named() -> None:
    with pytest.raises(Misconfigured, match="no database is named"):
        postgres.connect(Settings(), "test")


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d"
        with pytest.raises(Unreachable, match="does not answer"):
            postgres.connect(settings(url, connect_timeout_seconds=2), "test")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_urls_other_libraries_write_are_understood(ferryman_postgres: str, scheme: str) -> None:
    url = ferryman_postgres.replace("postgresql", scheme, 1)
    with postgres.connect(settings(url), "test") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_server_knows_the_process_and_the_statement_by_name(ferryman_postgres: str) -> None:
    with (
        postgres.connect(settings(ferryman_postgres), "relay") as ours,
        psycopg.connect(ferryman_postgres) as other,
    ):
        ours.execute("-- relay.claim_lanes\nSELECT 1")
        row = other.execute(
            "SELECT application_name, split_part(query, E'\\n', 1) FROM pg_stat_activity WHERE pid = %s",
            (ours.info.backend_pid,),
        ).fetchone()
    assert row == ("ferryman relay", "-- relay.claim_lanes")


def test_a_transaction_has_our_timeouts_and_leaves_none_behind(ferryman_postgres: str) -> None:
    limits = Database(statement_timeout_seconds=7, lock_timeout_seconds=3, idle_in_transaction_timeout_seconds=9)
    show = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    with postgres.connect(settings(ferryman_postgres), "test", autocommit=True) as connection:
        before = connection.execute(show).fetchone()
        with postgres.transaction(connection, limits) as cursor:
            assert cursor.execute(show).fetchone() == ("7s", "3s")
        assert connection.execute(show).fetchone() == before


def test_a_statement_that_runs_too_long_is_transient(ferryman_postgres: str) -> None:
    with (
        postgres.connect(settings(ferryman_postgres), "test", autocommit=True) as connection,
        pytest.raises(Transient, match="57014"),
        postgres.transaction(connection, Database(statement_timeout_seconds=0.05)) as cursor,
    ):
        cursor.execute("SELECT pg_sleep(5)")


def test_a_lock_that_is_not_had_in_time_is_transient(
    ferryman_db: psycopg.Connection, ferryman_database_url: str
) -> None:
    ferryman_db.execute("CREATE TABLE busy ()")
    with (
        postgres.connect(settings(ferryman_database_url), "holder") as holder,
        postgres.connect(settings(ferryman_database_url), "waiter", autocommit=True) as waiter,
    ):
        holder.execute("LOCK TABLE busy")
        with (
            pytest.raises(Transient, match="55P03"),
            postgres.transaction(waiter, Database(lock_timeout_seconds=0.05)) as cursor,
        ):
            cursor.execute("SELECT FROM busy")


def test_a_constraint_that_is_broken_is_permanent(ferryman_db: psycopg.Connection) -> None:
    ferryman_db.execute("CREATE TABLE once (id int PRIMARY KEY)")
    with pytest.raises(Permanent, match="23505"), postgres.transaction(ferryman_db, Database()) as cursor:
        cursor.execute("INSERT INTO once VALUES (1), (1)")


def test_a_session_that_is_ended_by_the_server_is_unreachable(
    ferryman_db: psycopg.Connection, ferryman_postgres: str
) -> None:
    with psycopg.connect(ferryman_postgres, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (ferryman_db.info.backend_pid,))
    with pytest.raises(Unreachable), postgres.transaction(ferryman_db, Database()) as cursor:
        cursor.execute("SELECT 1")


def test_a_pool_gives_connections_and_says_when_it_has_none_left(ferryman_postgres: str) -> None:
    few = settings(ferryman_postgres, pool_max=1, connect_timeout_seconds=0.3)
    with closed_pool(few, "test") as connections, connections.connection() as only:
        assert only.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(PoolTimeout) as caught, connections.connection():
            pass
        assert pool_error(caught.value).setting == "database.pool_max"
