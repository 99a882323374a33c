"""Start a PgBouncer in transaction mode: many clients share its few connections to a PostgreSQL server."""

import os
import pwd
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg import conninfo

from ferryman.testing import places
from ferryman.testing.parts import Local
from ferryman.testing.postgres import answers
from support import debian

PACKAGE = "pgbouncer"

# Folders of system programs; the PATH of a user may lack them.
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")


@dataclass(frozen=True, slots=True)
class Program:
    """The PgBouncer binary, and its environment if it cannot use ours."""

    path: Path
    environment: Mapping[str, str] | None = None


class LocalPgBouncer(Local):
    """A PgBouncer in front of every database of one server. Its only user is the one of `server_url`.

    At most `pool_size` transactions run at once in each database; further clients wait.
    """

    def __init__(
        self, server_url: str, program: Program, *, pool_size: int = 2, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = places.scratch("pgbouncer")
        self._server = conninfo.conninfo_to_dict(server_url)
        self._login = str(self._server.get("user", "postgres"))
        self.port = places.free_port()
        self.url = self._url(str(self._server.get("dbname", "postgres")))
        self._write(pool_size, settings or {})
        super().__init__(
            f"PgBouncer of {program.path}",
            [str(program.path), str(self.folder / "pgbouncer.ini")],
            self.folder / "server.log",
            ready=lambda: answers(self._url("pgbouncer")),  # its console answers even while the server is down
            env=program.environment,
        )

    def stop(self, sign: signal.Signals | None = None, seconds: float = 2) -> None:
        """Shut down immediately: SIGQUIT is the one signal that waits for clients in no version."""
        super().stop(sign or signal.SIGQUIT, seconds)  # if it inherited an ignored SIGQUIT, it is killed

    def _url(self, database: str) -> str:
        return f"postgresql://{self._login}:{self._server.get('password', '')}@127.0.0.1:{self.port}/{database}"

    def _write(self, pool_size: int, settings: Mapping[str, str]) -> None:
        users = self.folder / "users.txt"
        own = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(users),
            "admin_users": self._login,
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
        }
        if os.geteuid() == 0:  # it refuses to run as root, and changes its user by itself
            own["user"] = "nobody"
        host, port = self._server.get("host", "127.0.0.1"), self._server.get("port", 5432)
        lines = ["[databases]", f"* = host={host} port={port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in (own | dict(settings)).items()]
        (self.folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]))
        users.touch(mode=0o600)
        users.write_text(f'"{self._login}" "{self._server.get("password", "")}"\n')
        if "user" in own:
            nobody = pwd.getpwnam(own["user"])
            for path in (self.folder, users):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)


def program() -> Program:
    """Return this machine's PgBouncer, or the one of Debian's package."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    if found := shutil.which("pgbouncer", path=path):
        return Program(Path(found))
    folder = debian.unpacked(PACKAGE)
    return Program(folder / "usr/sbin/pgbouncer", debian.environment(folder))
