"""`ferryman run api`: the routes of the systems, over HTTP."""

import errno
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from fastapi import APIRouter

from ferryman.console.app import Door, build
from ferryman.console.database import ApiDatabase
from ferryman.console.gate import keyring
from ferryman.console.server import Server
from ferryman.migrations.chains import ENGINE
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Api, Settings
from ferryman.runtime.system import load
from ferryman.services import systems

log = structlog.get_logger(__name__)


class ApiService:
    """A service that also listens while the database is away: its answers say so then."""

    name = "api"

    def __init__(
        self, settings: Settings, routers: Sequence[Callable[[Door, Settings], APIRouter]], owners: Sequence[str]
    ) -> None:
        self.url: str | None = None
        self.owners = owners
        self._settings = settings
        self._database = ApiDatabase(settings, self.name, owners)
        self._server: Server | None = None
        self._error: BaseException | None = None
        door = Door(self._database.transaction)
        made = [router(door, settings) for router in routers]
        self.app = build(keyring(settings.api), settings.api.max_body_bytes, made)

    def run(self, life: Life) -> None:
        """Watch the database in a thread beside the server; what the watch cannot live with ends both."""
        watch = threading.Thread(target=self._watch, args=(life,), name="api-watch", daemon=True)
        watch.start()
        try:
            self._database.looked.wait()
            if self._error is None:
                self._listen(life)
        finally:
            if life.stopping.is_set() or self._error is not None:
                watch.join(1)
            self._database.close()
        if self._error is not None:
            raise self._error

    def _listen(self, life: Life) -> None:
        with _listening(self._settings.api) as listener:
            self._server = Server(
                self.app, life, connections=self._settings.api.max_connections,
                threads=2 * self._settings.database.pool_max, drain_seconds=self._settings.service.drain_seconds,
                ended=lambda: self._error is not None,
            )  # fmt: skip
            self.url = _address(listener)
            log.info("listening", service=self.name, url=self.url)
            self._server.run([listener])

    def _watch(self, life: Life) -> None:
        try:
            self._database.watch(life, lambda: self._server.trouble if self._server else "it does not listen yet")
        except BaseException as error:  # it is raised again, by `run`
            self._error = error


def _listening(api: Api) -> socket.socket:
    """Listen on the address of the settings; raise an error that names the wrong setting if that fails."""
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    try:
        return socket.create_server((api.host, api.port), family=family, backlog=2048)
    except OSError as error:
        raise Misconfigured(
            f"the API cannot listen on {api.host}:{api.port}: {error.strerror}",
            setting="api.port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "api.host",
            remedy="name a free port, or an address of this machine",
        ) from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def api(settings: Any) -> ApiService:
    """Return the service with the routes of every system that has some."""
    routed = [system for system in systems() if system.routes]
    routers = [load(str(system.routes)) for system in routed]
    return ApiService(settings, routers, (ENGINE, *(system.owner for system in routed)))
