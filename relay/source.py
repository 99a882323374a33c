"""One database whose outbox is published: its connections, its condition, and the wait for new entries."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import structlog

from ferryman.migrations import chains
from ferryman.relay import metrics
from ferryman.relay.store import claims
from ferryman.relay.store.rebase import identify
from ferryman.runtime import postgres, roles
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.settings_relay import Relay, source_setting

log = structlog.get_logger(__name__)

_FULL_LOOK_SECONDS = 2.0
_NOT_YET = "not connected yet"


@dataclass(slots=True)
class SourceDatabase:
    """One database, shared by its workers."""

    name: str
    ce_source: str
    settings: Settings
    setting: str = postgres.URL
    """The setting that names its database."""
    problem: str | None = _NOT_YET
    was_reached: bool = False
    _changing: threading.Lock = field(default_factory=threading.Lock)
    _scouting: threading.Lock = field(default_factory=threading.Lock)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Connect for one worker, which opens its transactions one by one."""
        role = roles.needed(roles.RUN_RELAY)
        with (
            postgres.naming(self.setting),
            postgres.connect(self.settings, "relay", autocommit=True, writes=True, role=role) as connection,
        ):
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            chains.check(connection)
            if warning := identify(connection).warning:
                log.warning("timeline changed", source=self.name, warning=warning)
            yield connection

    def away(self, error: FerrymanError) -> None:
        """Log once that the database does not serve, and why."""
        with self._changing:
            before, self.problem = self.problem, str(error)
        if before in (None, _NOT_YET):
            log.warning("source away", source=self.name, error=str(error))
        metrics.CONNECTED.labels(self.name).set(0)

    def served(self) -> None:
        """Log once that the database serves."""
        with self._changing:
            before, self.problem, self.was_reached = self.problem, None, True
        if before is not None:
            log.info("source connected", source=self.name)
            metrics.CONNECTED.labels(self.name).set(1)

    def await_news(self, connection: Connection, every_seconds: float, stopping: threading.Event) -> None:
        """Wait until there is something to publish, at most two seconds: then all lanes are looked at.

        One worker asks the database, with one cheap statement; the others wait for its answer.
        """
        until = time.monotonic() + _FULL_LOOK_SECONDS
        if not self._scouting.acquire(blocking=False):
            with self._news:
                self._news.wait(_FULL_LOOK_SECONDS)
            return
        try:
            while not stopping.wait(every_seconds) and time.monotonic() < until:
                if claims.peek(connection):
                    break
        finally:
            self._scouting.release()
            with self._news:
                self._news.notify_all()


def sources(settings: Settings) -> list[SourceDatabase]:
    """Return the databases that `[relay.sources]` names, or the one of `database_url`."""
    relay: Relay = settings.relay
    if not relay.sources:
        return [_source("default", relay.ce_source, settings)]
    return [
        _source(
            name,
            each.ce_source or relay.ce_source,
            settings.model_copy(update={"database_url": each.database_url}),
            source_setting(name),
        )
        for name, each in relay.sources.items()
    ]


def _source(name: str, ce_source: str | None, settings: Settings, setting: str = postgres.URL) -> SourceDatabase:
    with postgres.naming(setting):
        url = postgres.required_url(settings)
        database = postgres.parameters(url, settings.database, "relay").get("dbname") or name
    return SourceDatabase(name, ce_source or f"/{database}", settings, setting)


def source_of(name: str, outbox: Outbox, sources: Sequence[SourceDatabase]) -> SourceDatabase:
    """Return the database with the outbox's table: by default the only source, or the one with the outbox's name."""
    by_name = {source.name: source for source in sources}
    wanted = outbox.source or (sources[0].name if len(sources) == 1 else name)
    if wanted not in by_name:
        raise Misconfigured(
            f"the outbox {name} does not say which source of the relay has it", setting=f"outbox.{name}.source",
            remedy="name one of: " + ", ".join(by_name),
        )  # fmt: skip
    return by_name[wanted]
