"""`ferryman run api`: the services' routes over HTTP."""

import threading
from collections.abc import Callable
from typing import Any

import structlog
from fastapi import APIRouter

from ferryman.console.app import build
from ferryman.console.database import Database
from ferryman.console.door import Door
from ferryman.console.server import Server, address, listening
from ferryman.console.tokens import keyring
from ferryman.migrations.chains import ENGINE
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.services.payments import api as payments

log = structlog.get_logger(__name__)

OWNERS = (ENGINE, "payments")


class ApiService:
    """Listens also while the database is away: what it answers then says so."""

    name = "api"

    def __init__(self, settings: Settings, *routers: Callable[[Door, Settings], APIRouter]) -> None:
        self.url: str | None = None
        self._settings = settings
        self._database = Database(settings, self.name, OWNERS)
        door = Door(self._database.transaction)
        made = [router(door, settings) for router in routers]
        self._app = build(keyring(settings.api), settings.api.max_body_bytes, made)

    def run(self, life: Life) -> None:
        self._database.look()
        watching = _Watching(self._database, life)
        try:
            with listening(self._settings.api) as listener:
                server = Server(
                    self._app, life, self._settings.service.drain_seconds, lambda: watching.error is not None
                )
                watching.start(lambda: server.started)
                self.url = address(listener)
                log.info("listening", service=self.name, url=self.url)
                server.run([listener])
        finally:
            watching.end(life)
            self._database.close()
        if watching.error is not None:
            raise watching.error


class _Watching:
    """The look at the database, beside the loop that answers; what it cannot live with ends both."""

    def __init__(self, database: Database, life: Life) -> None:
        self.error: BaseException | None = None
        self._database = database
        self._life = life
        self._thread: threading.Thread | None = None

    def start(self, listening: Callable[[], bool]) -> None:
        self._thread = threading.Thread(target=self._watch, args=(listening,), name="api-watch", daemon=True)
        self._thread.start()

    def end(self, life: Life) -> None:
        if self._thread is not None and (life.stopping.is_set() or self.error is not None):
            self._thread.join(1)

    def _watch(self, listening: Callable[[], bool]) -> None:
        try:
            self._database.watch(self._life, listening)
        except BaseException as error:  # it is raised again, by the service
            self.error = error


def api(settings: Any) -> ApiService:
    """With the routes of every service that has some."""
    return ApiService(settings, payments.router)
