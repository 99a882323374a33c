"""The API's database: a pool for requests, and one connection that finds out whether the database is there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import structlog
from psycopg import IsolationLevel
from psycopg_pool import ConnectionPool, PoolTimeout

from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.supervised import supervise

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
TROUBLE_SECONDS = 0.05


class ApiDatabase:
    """The database of the API. While it is away, requests are refused at once and wait for nothing.

    `found` is called with each connection that finds it: it returns what is served from this database, in words for
    /readyz, or raises an error if the database does not fit.
    """

    def __init__(self, settings: Settings, process: str, found: Callable[[Connection], str]) -> None:
        self._settings = settings
        self._process = process
        self._found = found
        self._serves = ""
        self._pool = closed_pool(settings, process)
        self.why_away: str | None = "it has not been asked yet"
        self.looked = threading.Event()
        """Set once the database was reached, or was found to be away or unfit."""

    @contextmanager
    def transaction(self, *, serializable: bool = False) -> Iterator[Connection]:
        """Open a transaction with our timeouts, which commits at its end, and translate errors."""
        if self.why_away is not None:
            raise Unreachable(self.why_away)
        try:
            with self._pool.connection() as connection:
                connection.isolation_level = IsolationLevel.SERIALIZABLE if serializable else None
                with postgres.transaction(connection, self._settings.database):
                    yield connection
        except PoolTimeout as error:
            raise pool_error(error) from error

    def watch(self, life: Life, trouble: Callable[[], str | None]) -> None:
        """Look at the database every second until the service stops, and report it or other trouble."""

        def interrupted(error: FerrymanError, _seconds: float) -> None:
            if self.why_away is None or not self.looked.is_set():
                log.warning("the database is away", service=self._process, error=str(error)[:500])
            self.why_away = str(error)
            life.not_ready(self.why_away)
            self.looked.set()
            life.wait(LOOK_SECONDS)

        try:
            supervise(life.stopping, self._connected, partial(self._look, life, trouble), interrupted)
        finally:
            self.looked.set()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with postgres.connect(self._settings, f"{self._process}-watch", autocommit=True) as connection:
            self._serves = self._found(connection)
            if self._pool.closed:
                self._pool.open()
            else:
                self._pool.check()  # drops connections from before an outage
            yield connection

    def _look(
        self, life: Life, trouble: Callable[[], str | None], connection: Connection, succeeded: Callable[[], None]
    ) -> None:
        while not life.stopping.is_set():
            postgres.answers(connection)
            succeeded()
            self.why_away = None
            self.looked.set()
            if why := trouble():
                life.not_ready(why)
            else:
                life.ready(self._serves)
            life.wait(TROUBLE_SECONDS if why else LOOK_SECONDS)

    def close(self) -> None:
        self._pool.close()


def closed_pool(settings: Settings, process: str) -> ConnectionPool[Connection]:
    """Return a pool that is not open yet, for a process that starts before the server answers."""
    return ConnectionPool(
        kwargs=postgres.parameters(postgres.required_url(settings), settings.database, process),
        min_size=1,
        max_size=settings.database.pool_max,
        timeout=settings.database.connect_timeout_seconds,
        name=process,
        configure=postgres.suit_pooler,
        open=False,
    )


def pool_error(error: PoolTimeout) -> Unreachable:
    return Unreachable(
        f"no connection to PostgreSQL within the time: {' '.join(str(error).split())}",
        setting="database.pool_max",
        remedy="start PostgreSQL, or raise the pool if all its connections are busy",
    )
