"""Described outboxes as services: each in a thread of its own, beside the journal's relay and over the same cluster."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.described.loop import RowWorker
from ferryman.relay.described.store import Connection, Table, open_table
from ferryman.relay.kafka import Publisher
from ferryman.relay.lanes import Turn
from ferryman.relay.source import Source, translated
from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_outbox import Outbox

log = structlog.get_logger(__name__)

_RECONNECTING = Backoff(base_seconds=0.1, cap_seconds=5)
_CLUSTER_WAIT_SECONDS = 0.1
_PROBE_SECONDS = 2.0


@dataclass(slots=True)
class DescribedOutbox:
    """One `[outbox.NAME]`. Its table is checked whenever its database is connected to."""

    outbox_name: str
    outbox: Outbox
    source: Source
    cluster: Cluster
    producer: Mapping[str, Any]
    settings: Settings
    _backlog_at: float = 0.0
    _was_right: bool = field(default=False)

    @property
    def name(self) -> str:
        return f"outbox {self.outbox_name}"

    def run(self, life: Life) -> None:
        """Until it should stop: then the batch in hand is settled. A table that was never right ends it."""
        worker, failures = self.worker(life.stopping), 0
        try:
            while not life.stopping.is_set():
                try:
                    with self.connect() as connection:
                        table = self.open(connection)
                        failures = 0
                        self._take_turns(life, worker, connection, table)
                except Exception as error:
                    problem = translated(error)
                    if isinstance(problem, Misconfigured) and not self._was_right:
                        raise problem from error
                    failures += 1
                    life.not_ready(str(problem))
                    log.warning("interrupted", outbox=self.outbox_name, error=str(problem))
                    life.wait(_RECONNECTING.delay_seconds(failures))
                life.progress()
        finally:
            worker.publisher.close()

    def worker(self, stopping: threading.Event) -> RowWorker:
        publisher = Publisher(self.producer, self.source.ce_source, lambda _: b"")
        return RowWorker(
            self.outbox_name, self.outbox, self.cluster, publisher, stopping, self.settings.relay.deadline_seconds
        )

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with postgres.connect(self.source.settings, self.name, autocommit=True) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield connection

    def open(self, connection: Connection) -> Table:
        table = open_table(connection, self.outbox_name, self.outbox, self.settings.database)
        self._was_right = True
        return table

    def drain(self, stopping: threading.Event, observe: Callable[[Turn], None]) -> int:
        """Sends what is due now; how much is left to be tried later. Raises when the database or Kafka is away."""
        worker = self.worker(stopping)
        try:
            with self.connect() as connection:
                table = self.open(connection)
                while not stopping.is_set():
                    self.cluster.probe(_PROBE_SECONDS)
                    self._refuse_to_wait(worker)
                    turn = worker.run_once(connection, table)
                    observe(turn)
                    self._refuse_to_wait(worker)
                    if not (turn.published or turn.failed):
                        break
                return sum(each.pending + each.retrying for each in self._measure(connection, table))
        except psycopg.Error as error:
            raise postgres.translate(error) from error
        finally:
            worker.publisher.close()

    def _refuse_to_wait(self, worker: RowWorker) -> None:
        if worker.waits_for_kafka and self.cluster.why_not():
            raise self.cluster.error()

    def _take_turns(self, life: Life, worker: RowWorker, connection: Connection, table: Table) -> None:
        while not life.stopping.is_set():
            life.progress()
            if not self.cluster.probe(_PROBE_SECONDS) and worker.waits_for_kafka:
                life.not_ready(self.cluster.why_not() or "Kafka is away")
                life.wait(_CLUSTER_WAIT_SECONDS)
                continue
            life.ready()
            turn = worker.run_once(connection, table)
            if time.monotonic() >= self._backlog_at:
                self._measure(connection, table)
            if not (turn.published or turn.failed):
                life.wait(self.outbox.poll_seconds)

    def _measure(self, connection: Connection, table: Table) -> Sequence[Any]:
        found = table.backlog(connection)
        metrics.backlog(self.outbox_name, found)
        self._backlog_at = time.monotonic() + self.settings.relay.backlog_seconds
        return found


def described(
    settings: Settings, sources: Sequence[Source], cluster: Cluster, producer: Mapping[str, Any]
) -> list[DescribedOutbox]:
    """Those that are configured, each in its database."""
    by_name = {source.name: source for source in sources}
    return [
        DescribedOutbox(name, outbox, _source(name, outbox, by_name), cluster, producer, settings)
        for name, outbox in settings.outbox.items()
    ]


def _source(name: str, outbox: Outbox, sources: Mapping[str, Source]) -> Source:
    if name in sources:  # the metrics and logs of both are told apart by it
        raise Misconfigured(f"a source of the relay is called {name} too", setting=f"outbox.{name}.source",
                            remedy="give the outbox another name")  # fmt: skip
    wanted = outbox.source or (next(iter(sources)) if len(sources) == 1 else "")
    if wanted not in sources:
        raise Misconfigured(
            f"the outbox {name} is in no source of the relay", setting=f"outbox.{name}.source",
            remedy="name one of: " + ", ".join(sources),
        )  # fmt: skip
    return sources[wanted]
