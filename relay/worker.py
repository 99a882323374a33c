"""A worker's life: connect, take turns, wait when nothing comes, and begin anew after whatever goes wrong."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.kafka import Publisher
from ferryman.relay.lanes import LaneWorker, Tenure, Turn
from ferryman.relay.source import Source, translated
from ferryman.relay.store import lanes, reading
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_relay import Relay

log = structlog.get_logger(__name__)

_RECONNECTING = Backoff(base_seconds=0.1, cap_seconds=5)
_CLUSTER_WAIT_SECONDS = 0.1
_PROBE_SECONDS = 2.0
# After something came, more may come soon: so long a quiet worker looks again at short intervals.
_ALERT_SECONDS = 0.25


@dataclass(slots=True)
class Worker:
    """One thread's work. `finished` is asked after each quiet turn, and ends it.

    Where its source is `alone` and was never right, it fails: else it would stop the other sources.
    """

    number: int
    source: Source
    cluster: Cluster
    tenure: Tenure
    settings: Relay
    producer: Mapping[str, Any]
    stopping: threading.Event
    observe: Callable[[Turn], None] = lambda _turn: None
    finished: Callable[[lanes.Connection], bool] = lambda _connection: False
    give_up: bool = False
    alone: bool = True
    progress_at: float = 0.0

    def run(self) -> None:
        """Until it should stop."""
        failures = 0
        while not self.stopping.is_set():
            try:
                with self.source.connect() as connection:
                    failures = 0
                    if self._take_turns(connection):
                        return
            except psycopg.errors.UniqueViolation:
                log.warning("claim lost to another worker", source=self.source.name)
            except Exception as error:
                problem = translated(error)
                if self.give_up or (self.alone and isinstance(problem, Misconfigured) and not self.source.was_reached):
                    raise problem from error
                self.source.away(problem)
                failures += 1
                self.stopping.wait(_RECONNECTING.delay_seconds(failures))
            self.progress_at = time.monotonic()

    def _take_turns(self, connection: lanes.Connection) -> bool:
        """Whether it is finished; else it was told to stop."""
        publisher = Publisher(self.producer, self.source.ce_source, lambda at: reading.payload(connection, at))
        turns = LaneWorker(
            connection, publisher, self.cluster, self.tenure, stopping=self.stopping, source=self.source.name
        )
        busy_at = time.monotonic()
        publisher.warm_up()
        try:
            while not self.stopping.is_set():
                self.progress_at = now = time.monotonic()
                if not self._cluster_answers():
                    self.source.served()  # as far as anything asks it
                    self.stopping.wait(_CLUSTER_WAIT_SECONDS)
                    continue
                turn = turns.run_once()
                self._observed(turn, publisher)
                if not turn.quiet:
                    busy_at = now
                    self.stopping.wait(turn.rest_seconds)
                elif self.finished(connection):
                    return True
                elif self.give_up or now - busy_at < _ALERT_SECONDS:
                    self.stopping.wait(max(turn.rest_seconds, self.settings.pause_seconds))
                else:
                    self.source.await_news(connection, self.settings.idle_seconds, self.stopping)
        finally:
            publisher.close()
            metrics.LANES_HELD.labels(self.source.name, self.number).set(0)
        return False

    def _observed(self, turn: Turn, publisher: Publisher) -> None:
        self.source.served()
        self.observe(turn)
        metrics.LANES_HELD.labels(self.source.name, self.number).set(len(turn.lanes))
        if publisher.rebuilds:
            metrics.REBUILDS.labels(self.source.name).inc(publisher.rebuilds)
            publisher.rebuilds = 0

    def _cluster_answers(self) -> bool:
        if self.cluster.probe(_PROBE_SECONDS):
            return True
        if self.give_up:
            raise self.cluster.error()
        return False


def tenure_of(settings: Relay) -> Tenure:
    """The settings as the turns take them."""
    from ferryman.relay.policy import Retries

    retry = settings.retry
    backoff = Backoff(retry.base_seconds, max(retry.base_seconds, retry.cap_seconds), retry.offset, retry.jitter)
    return Tenure(
        batch_entries=settings.batch_entries,
        seconds=settings.tenure_seconds,
        pause_seconds=settings.pause_seconds,
        deadline_seconds=settings.deadline_seconds,
        retries=Retries(retry.limit, backoff),
        unordered=frozenset(settings.unordered_topics),
        max_outage_seconds=settings.max_outage_seconds,
    )
