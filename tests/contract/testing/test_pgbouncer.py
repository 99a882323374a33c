"""PgBouncer as a server of the tests, its program from Debian's package, and our connections through it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from ferryman.console.database import closed_pool
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Settings
from ferryman.testing import places
from ferryman.testing.parts import NotHere, started
from ferryman.testing.postgres import answers
from ferryman.testing.process import PartFailed
from support import debian, pgbouncer
from support.pgbouncer import LocalPgBouncer, Program, program


@pytest.fixture(scope="module")
def found() -> Program:
    try:
        return program()
    except NotHere as why:
        pytest.skip(str(why))


@pytest.fixture
def pooler(ferryman_postgres: str, found: Program) -> Iterator[LocalPgBouncer]:
    pooler = started(LocalPgBouncer(ferryman_postgres, found))
    yield pooler
    pooler.close()


def connected(url: str, *, autocommit: bool = False) -> psycopg.Connection[tuple[Any, ...]]:
    return postgres.connect(Settings(database_url=url), "test", autocommit=autocommit)


def test_clients_share_a_few_server_connections(pooler: LocalPgBouncer) -> None:
    backends = set()
    clients = [psycopg.connect(pooler.url, autocommit=True) for _ in range(5)]
    for client in clients:
        backends.add(client.execute("SELECT pg_backend_pid()").fetchone())
        client.execute("SELECT 1")
    for client in clients:
        client.close()
    assert len(backends) <= 2


def test_it_answers_again_after_restart_and_kill(pooler: LocalPgBouncer) -> None:
    pooler.restart()
    assert answers(pooler.url)
    pooler.kill()
    assert not answers(pooler.url)
    pooler.start()
    assert answers(pooler.url)


def test_it_accepts_only_the_password_of_the_server(pooler: LocalPgBouncer) -> None:
    assert not answers(pooler.url.replace("@", "wrong@"))


def test_it_never_runs_as_root(pooler: LocalPgBouncer) -> None:
    assert psutil.Process(pooler.pid).username() != "root"


def test_our_connection_pool_prepares_no_statements(pooler: LocalPgBouncer) -> None:
    with closed_pool(Settings(database_url=pooler.url), "test") as connections, connections.connection() as db:
        assert db.prepare_threshold is None


def test_our_connections_prepare_no_statement_behind_a_pooler(ferryman_postgres: str, found: Program) -> None:
    """A prepared statement would stay in the server connection, for a client that does not know it."""
    prepared = "SELECT count(*) FROM pg_prepared_statements"
    with (
        closing(started(LocalPgBouncer(ferryman_postgres, found, pool_size=1))) as pooler,
        connected(pooler.url, autocommit=True) as ours,
        psycopg.connect(pooler.url, autocommit=True) as other,
    ):
        for db, left in ((ours, 0), (other, 1)):
            for n in range(10):
                db.execute("SELECT %s::int", (n,))
            assert ours.execute(prepared).fetchone() == (left,)


def test_our_connection_parameters_and_application_name_are_accepted(pooler: LocalPgBouncer) -> None:
    with connected(pooler.url) as db:
        assert db.execute("SELECT current_setting('application_name')").fetchone() == ("ferryman test",)


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (lambda url: f"{url}?options=-cstatement_timeout%3D5", "take the parameter out of the URL"),
        (lambda url: url.replace("@", "wrong@"), "correct the user or the password"),
        (lambda url: f"{url}_of_nobody", "create it, or correct the name"),
    ],
)
def test_each_refusal_of_the_pooler_has_its_remedy(
    pooler: LocalPgBouncer, wrong: Callable[[str], str], remedy: str
) -> None:
    with pytest.raises(Misconfigured, match=remedy):
        connected(wrong(pooler.url))


def test_close_removes_the_folder_and_the_listener(pooler: LocalPgBouncer) -> None:
    pooler.close()
    assert not pooler.folder.exists()
    assert not answers(pooler.url)


def test_failed_start_says_why_and_leaves_nothing(ferryman_postgres: str, found: Program) -> None:
    pooler = LocalPgBouncer(ferryman_postgres, found, settings={"pool_mode": "wishful"})
    with pytest.raises(PartFailed, match="wishful"):
        started(pooler)
    assert not pooler.folder.exists()


def test_missing_apt_is_reported_with_the_package_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgbouncer, "_SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHere, match="package pgbouncer needs apt-get and dpkg-deb"):
        program()


def test_failed_download_leaves_nothing_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the machine's package lists nor new ones know the package."""
    for tool, says in (("apt-get", "echo 'E: Unable to locate package' >&2; exit 100"), ("dpkg-deb", "")):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(NotHere, match="package no-such: E: Unable to locate package"):
        debian.unpacked("no-such")
    assert not [left for left in places.cache().rglob("*") if left.is_file() and left.suffix != ".lock"]
