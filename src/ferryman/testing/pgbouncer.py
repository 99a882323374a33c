"""PgBouncer as a part, in transaction mode: many clients share the few sessions it has with a PostgreSQL server."""

import os
import pwd
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg import conninfo

from ferryman.testing import debian, places
from ferryman.testing.part import Local
from ferryman.testing.postgres import answers
from ferryman.testing.process import Process

PACKAGE = "pgbouncer"

# Where system programs are, which the PATH of a user may lack.
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")


@dataclass(frozen=True, slots=True)
class Program:
    """The binary, and its environment where ours will not do."""

    path: Path
    environment: Mapping[str, str] | None = None


class LocalPgBouncer(Local):
    """A pooler of our own before every database of one server; whoever owns `server_url` logs in as they do there.

    Not more than `pool_size` transactions run at once in each database: further clients wait for their turn.
    """

    def __init__(
        self, server_url: str, program: Program, *, pool_size: int = 2, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__("pgbouncer")
        self._server = conninfo.conninfo_to_dict(server_url)
        self._user = str(self._server.get("user", "postgres"))
        self.port = places.free_port()
        self.url = self._url(str(self._server.get("dbname", "postgres")))
        self._write(pool_size, settings or {})
        self.process = Process(
            f"PgBouncer of {program.path}",
            [str(program.path), str(self.folder / "pgbouncer.ini")],
            self.folder / "server.log",
            ready=lambda: answers(self._url("pgbouncer")),  # its console: it is up also when the server is not
            env=program.environment,
        )

    def stop(self) -> None:
        """An immediate shutdown: the one signal that has not waited for clients in any version."""
        self.process.stop(signal.SIGQUIT, seconds=2)  # where it inherited to ignore it, it is killed

    def _url(self, database: str) -> str:
        return f"postgresql://{self._user}:{self._server.get('password', '')}@127.0.0.1:{self.port}/{database}"

    def _write(self, pool_size: int, settings: Mapping[str, str]) -> None:
        users = self.folder / "users.txt"
        own = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(users),
            "admin_users": self._user,
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
        }
        if os.geteuid() == 0:  # it refuses to run as root, and changes its user itself
            own["user"] = "nobody"
        host, port = self._server.get("host", "127.0.0.1"), self._server.get("port", 5432)
        lines = ["[databases]", f"* = host={host} port={port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in (own | dict(settings)).items()]
        (self.folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]))
        users.touch(mode=0o600)
        users.write_text(f'"{self._user}" "{self._server.get("password", "")}"\n')
        if "user" in own:
            nobody = pwd.getpwnam(own["user"])
            for path in (self.folder, users):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)


def program() -> Program:
    """This machine's PgBouncer, else that of Debian's package."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    if found := shutil.which("pgbouncer", path=path):
        return Program(Path(found))
    folder = debian.unpacked(PACKAGE)
    return Program(folder / "usr/sbin/pgbouncer", debian.environment(folder))
