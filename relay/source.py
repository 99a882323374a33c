"""One database whose outbox is published: how to reach it, how it is, and who looks after it while nothing comes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import structlog

from ferryman.migrations import chains
from ferryman.relay import metrics
from ferryman.relay.rebase import identify
from ferryman.relay.store import lanes
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_relay import Relay

log = structlog.get_logger(__name__)

_FULL_LOOK_SECONDS = 2.0
_NOT_YET = "not connected yet"


@dataclass(slots=True)
class Source:
    """Shared by the workers of one database."""

    name: str
    ce_source: str
    settings: Settings
    problem: str | None = _NOT_YET
    was_reached: bool = False
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _scouting: threading.Lock = field(default_factory=threading.Lock)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def connect(self) -> Iterator[lanes.Connection]:
        """A connection of its own for a worker: transactions are opened one by one."""
        with postgres.connect(self.settings, "relay", autocommit=True) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            chains.check(connection)
            if warning := identify(connection).warning:
                log.warning("timeline changed", source=self.name, warning=warning)
            yield connection

    def away(self, error: FerrymanError) -> None:
        """Says once that its database does not serve, and why."""
        with self._telling:
            before, self.problem = self.problem, str(error)
        if before in (None, _NOT_YET):
            log.warning("source away", source=self.name, error=str(error))
        metrics.CONNECTED.labels(self.name).set(0)

    def served(self) -> None:
        with self._telling:
            before, self.problem, self.was_reached = self.problem, None, True
        if before is not None:
            log.info("source connected", source=self.name)
            metrics.CONNECTED.labels(self.name).set(1)

    def await_news(self, connection: lanes.Connection, every_seconds: float, stopping: threading.Event) -> None:
        """Returns when there is something to publish, or after two seconds: then all lanes are looked at.

        One worker asks the database, with one cheap statement; the others wait for what it finds.
        """
        until = time.monotonic() + _FULL_LOOK_SECONDS
        if not self._scouting.acquire(blocking=False):
            with self._news:
                self._news.wait(_FULL_LOOK_SECONDS)
            return
        try:
            while not stopping.wait(every_seconds) and time.monotonic() < until:
                if lanes.peek(connection):
                    break
        finally:
            self._scouting.release()
            with self._news:
                self._news.notify_all()


def sources(settings: Settings) -> list[Source]:
    """Those that `[relay.sources]` names, or the one of `database_url`."""
    relay: Relay = settings.relay
    if not relay.sources:
        return [_source("default", relay.ce_source, settings)]
    return [
        _source(
            name, each.ce_source or relay.ce_source, settings.model_copy(update={"database_url": each.database_url})
        )
        for name, each in relay.sources.items()
    ]


def _source(name: str, ce_source: str | None, settings: Settings) -> Source:
    url = postgres.required_url(settings)
    database = postgres.parameters(url, settings.database, "relay").get("dbname") or name
    return Source(name, ce_source or f"/{database}", settings)


def translated(error: Exception) -> FerrymanError:
    """What went wrong with a source, as one of our errors."""
    if isinstance(error, FerrymanError):
        return error
    if isinstance(error, psycopg.Error):
        return postgres.translate(error)
    return FerrymanError(f"unexpected {type(error).__name__}: {error}", remedy="report it: this is a bug")
