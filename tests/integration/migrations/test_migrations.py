"""Migrations go forward only, are safe with many replicas, and explain a mismatch of database and code."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from ferryman.migrations import chains
from ferryman.migrations.chains import as_sql, upgrade
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.testing import stack
from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries

NAME = "ferryman_empty_{}"


@pytest.fixture
def empty_url(ferryman_postgres: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Create a database without any migration."""
    name = NAME.format(abs(hash(request.node.nodeid)))
    yield stack.new_database(ferryman_postgres, name)
    stack.drop_database(ferryman_postgres, name)


def migrate(url: str) -> list[dict[str, str | None]]:
    return upgrade(lambda: psycopg.connect(url), chains.owners())


def level(url: str) -> str | None:
    with psycopg.connect(url) as connection:
        return chains.level(connection, [chains.ENGINE])[chains.ENGINE]


def test_an_empty_database_is_brought_to_the_head_and_a_second_run_changes_nothing(empty_url: str) -> None:
    assert migrate(empty_url)[0] == {"chain": "engine", "from": None, "to": chains.head("engine")}
    assert migrate(empty_url)[0] == {"chain": "engine", "from": chains.head("engine"), "to": chains.head("engine")}


def test_replicas_that_start_at_once_do_not_disturb_one_another(empty_url: str) -> None:
    start, errors = threading.Barrier(4), list[Exception]()

    def replica() -> None:
        start.wait()
        try:
            migrate(empty_url)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=replica) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert level(empty_url) == chains.head("engine")


def test_two_databases_of_one_cluster_can_be_migrated_at_once(ferryman_postgres: str) -> None:
    """Roles belong to the whole cluster, and both migrations create them."""
    urls = [stack.new_database(ferryman_postgres, f"ferryman_pair_{n}") for n in range(2)]
    try:
        start, errors = threading.Barrier(2), list[Exception]()

        def one(url: str) -> None:
            start.wait()
            try:
                migrate(url)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(url,)) for url in urls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
    finally:
        for n in range(2):
            stack.drop_database(ferryman_postgres, f"ferryman_pair_{n}")


def test_a_database_that_was_never_migrated_is_refused_with_the_command_to_run(empty_url: str) -> None:
    with psycopg.connect(empty_url) as connection, pytest.raises(Misconfigured, match="run `ferryman migrate`"):
        chains.check(connection)


@pytest.mark.parametrize(
    ("revision", "said"), [("engine_0000", "older than the code"), ("engine_9999", "newer than the code")]
)
def test_a_database_of_another_age_is_refused_in_words(
    ferryman_db: psycopg.Connection[tuple[object, ...]], revision: str, said: str
) -> None:
    ferryman_db.execute("UPDATE ferryman.version_engine SET version_num = %s", (revision,))
    with pytest.raises(Misconfigured, match=said):
        chains.check(ferryman_db)


def test_migrating_a_newer_database_is_refused_and_changes_nothing(
    ferryman_db: psycopg.Connection[tuple[object, ...]], ferryman_database_url: str
) -> None:
    ferryman_db.execute("UPDATE ferryman.version_engine SET version_num = 'engine_9999'")
    with pytest.raises(Misconfigured, match="upgrade this process"):
        migrate(ferryman_database_url)
    assert level(ferryman_database_url) == "engine_9999"


def test_the_printed_sql_makes_the_same_schema(empty_url: str, ferryman_database_url: str) -> None:
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(as_sql(chains.owners()))
    assert level(empty_url) == chains.head("engine")
    assert shape(empty_url) == shape(ferryman_database_url)


def shape(url: str) -> list[tuple[object, ...]]:
    """Return the tables, columns and grants of the engine's schema."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT c.relname, c.relkind, c.relacl::text, a.attname, format_type(a.atttypid, a.atttypmod), attnotnull "
            "FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
            "WHERE c.relnamespace = 'ferryman'::regnamespace ORDER BY 1, 4"
        ).fetchall()


@pytest.mark.parametrize("role", ["ferryman_writer", "ferryman_relay", "ferryman_consumer", "ferryman_monitor"])
def test_each_role_may_check_the_level_and_cannot_log_in(
    ferryman_db: psycopg.Connection[tuple[object, ...]], role: str
) -> None:
    row = ferryman_db.execute("SELECT rolcanlogin, rolsuper FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
    assert row == (False, False)
    ferryman_db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    chains.check(ferryman_db)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ferryman_db.execute("UPDATE ferryman.version_engine SET version_num = 'x'")


_OF_SERVICES = (
    "wallet",
    "payments",
    "payments_api",
    "payments_reports",
    "runner",
    "runner_writer",
    "memos",
    "memos_worker",
    "saga_orchestrator",
    "webhook_worker",
    "dead_letter_operator",
    "subscription_manager",
    "event_writer",
    "notifier",
    "reviews",
    "review_writer",
)


def test_without_the_right_to_create_roles_the_error_says_what_to_do() -> None:
    """Migrate as a user without CREATEROLE, on a cluster where no database was ever migrated."""
    server = started(LocalPostgres(binaries(), FAST))
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE owner LOGIN PASSWORD 'x'")
            connection.execute("CREATE DATABASE app OWNER owner")
        url = f"postgresql://owner:x@127.0.0.1:{server.port}/app"
        with pytest.raises(FerrymanError, match="CREATE ROLE ferryman_writer NOLOGIN"):
            migrate(url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            for role in ("writer", "relay", "consumer", "monitor", "courier", *_OF_SERVICES):
                connection.execute(f"CREATE ROLE ferryman_{role} NOLOGIN")
        migrate(url)
        assert level(url) == chains.head("engine")
    finally:
        server.close()


def test_a_lock_that_an_application_holds_fails_the_migration_soon_and_whole(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that waited for the lock would make every writer queue behind it."""
    monkeypatch.setattr(chains, "_PREPARE", chains._PREPARE.replace("'5s'", "'200ms'"))
    with psycopg.connect(empty_url) as holder:
        holder.execute("CREATE SCHEMA ferryman")
        with pytest.raises(FerrymanError, match="55P03"):
            upgrade(lambda: psycopg.connect(empty_url), chains.owners())
        holder.rollback()
    assert level(empty_url) is None


def test_an_unknown_chain_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Misconfigured, match="the chains are: engine"):
        chains.parse("engine,nonsense")


def test_the_engine_is_always_among_the_chains_and_comes_first() -> None:
    assert chains.parse("")[0] == "engine"
    assert chains.parse("all") == chains.owners()


@pytest.mark.parametrize("owner", chains.owners())
def test_revisions_are_numbered_without_a_gap_as_their_files_are(owner: str) -> None:
    files = chains.revisions(owner)
    assert list(files) == [f"{owner}_{number:04}" for number in range(1, len(files) + 1)]
    assert all(file.name.startswith(f"{revision[-4:]}_") for revision, file in files.items())
    assert set(files.values()) == set((chains.HOME / owner).glob("[0-9]*.sql"))  # no two have the same number


def test_checking_the_level_loads_no_sqlalchemy() -> None:
    code = "import sys, ferryman.migrations.chains; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
