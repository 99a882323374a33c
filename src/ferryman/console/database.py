"""The database behind the API: a pool for the requests, and one connection that knows whether it is there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from ferryman.migrations import chains
from ferryman.runtime import postgres
from ferryman.runtime.errors import Transient, Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings

log = structlog.get_logger(__name__)

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

LOOK_SECONDS = 1.0


class Database:
    """While it is away, requests are told so at once, and wait for nothing."""

    def __init__(self, settings: Settings, process: str, owners: Sequence[str]) -> None:
        self._settings = settings
        self._process = process
        self._owners = owners
        self._pool = postgres.closed_pool(settings, process)
        self._watcher: Connection | None = None
        self.why_away: str | None = "nobody has asked it yet"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commits at its end; our errors, with our timeouts."""
        if self.why_away is not None:
            raise Unreachable(self.why_away)
        try:
            with self._pool.connection() as connection, postgres.transaction(connection, self._settings.database):
                yield connection
        except PoolTimeout as error:
            raise postgres.translate(error) from error

    def look(self) -> None:
        """Whether it is there, and at our level: raises where it can never do as it is."""
        try:
            if self._watcher is None:
                self._meet()
            else:
                postgres.answers(self._watcher)
            self.why_away = None
        except (Transient, psycopg.Error) as error:
            self._part()
            ours = error if isinstance(error, Transient) else postgres.translate(error)
            if not isinstance(ours, Transient):
                raise ours from error
            if self.why_away is None:
                log.warning("the database is away", service=self._process, error=str(ours)[:500])
            self.why_away = str(ours)

    def watch(self, life: Life, listening: Callable[[], bool]) -> None:
        """Looks now and then, and says how it is."""
        while not life.stopping.is_set():
            self.look()
            if self.why_away is not None:
                life.not_ready(self.why_away)
            elif listening():
                life.ready()
            life.wait(LOOK_SECONDS if listening() else 0.02)

    def close(self) -> None:
        self._part()
        if not self._pool.closed:
            self._pool.close()

    def _meet(self) -> None:
        """The pool's connections are from before it was away: those that do not answer are put away."""
        self._watcher = postgres.connect(self._settings, f"{self._process}-watch", autocommit=True)
        chains.check(self._watcher, self._owners)
        if self._pool.closed:
            self._pool.open()
        else:
            self._pool.check()

    def _part(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._watcher = None
