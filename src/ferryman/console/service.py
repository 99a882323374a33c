"""`ferryman run api`: the routes of the systems whose tables are in its database, over HTTP."""

import errno
import socket
import threading
from typing import NoReturn

import structlog
from fastapi import APIRouter, FastAPI
from starlette.types import Receive, Scope, Send

from ferryman.console.app import build, places_of
from ferryman.console.database import ApiDatabase
from ferryman.console.gate import keyring
from ferryman.console.server import Server
from ferryman.migrations import chains
from ferryman.routes import Door
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Api, Settings
from ferryman.runtime.sources import BadSettings
from ferryman.runtime.system import System, load
from ferryman.services import systems

log = structlog.get_logger(__name__)


class ApiService:
    """A service that also listens while the database is away: its answers say so then."""

    name = "api"

    def __init__(self, settings: Settings) -> None:
        self.url: str | None = None
        self._settings = settings
        self._database = ApiDatabase(settings, self.name, self._mount)
        self._server: Server | None = None
        self._error: BaseException | None = None
        self._routers = routers(Door(self._database.transaction), settings)
        self._keyring = keyring(settings.api)
        self._mounted = list(self._routers)
        self.app = self._built()

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

    def _mount(self, connection: Connection) -> str:
        """Serve the systems whose tables are in this database, and return their names. Refuse one that has none.

        A system whose level this login may not read is not served: it belongs to another process.
        """
        owners = [system.owner for system in self._routers]
        others = chains.unreadable(connection, owners)
        levels = chains.level(connection, [owner for owner in owners if owner not in others])
        found = [system for system in self._routers if levels.get(system.owner)]
        if not found:
            there = f" but those of {', '.join(others)}, on which this login has no rights" if others else ""
            raise Misconfigured(
                f"the database has no tables of a service with routes{there}", setting="database_url",
                remedy=f"run `ferryman migrate --for {','.join(owners)}`, with those of them that you use"
                + (", or grant the login the role of its process" if others else ""),
            )  # fmt: skip
        chains.check(connection, (chains.ENGINE, *(system.owner for system in found)))
        if found != self._mounted:
            self._mounted = found
            self.app = self._built()
        names = [system.name for system in found]
        absent = [each.name for each in self._routers if each not in found and each.owner not in others]
        log.info("mounted", service=self.name, systems=names, without_tables=absent, without_rights=others)
        return ", ".join(names)

    def _built(self) -> FastAPI:
        mounted = [self._routers[system] for system in self._mounted]
        return build(self._keyring, self._settings.api.max_body_bytes, mounted)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def _listen(self, life: Life) -> None:
        with _listening(self._settings.api) as listener:
            self._server = Server(
                self._answer, life, connections=self._settings.api.max_connections,
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


def routers(door: Door, settings: Settings) -> dict[System, APIRouter]:
    """Build the routes of every system. Refuse tokens with a scope that none of them requires."""
    made = {system: load(system.routes)(door, settings) for system in systems() if system.routes}
    known = dict.fromkeys(scope for place in places_of(made.values()) for scope in place.scopes.values())
    remedy = f"the scopes are: {', '.join(known)}"
    problems = [
        Misconfigured(f"{scope} is not a scope", setting=f"api.tokens.{name}.scopes", remedy=remedy)
        for name, token in settings.api.tokens.items()
        for scope in token.scopes
        if scope not in known
    ]
    if problems:
        raise BadSettings(problems)
    return made


def check_scopes(settings: Settings) -> None:
    """Refuse tokens with a scope that no route requires, without a database."""

    def describing() -> NoReturn:
        raise AssertionError("these routes are described, not called")

    routers(Door(describing), settings)
