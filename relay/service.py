"""The relay as a service: workers for each source, in threads of one process, over one Kafka cluster; and `drain`.

A worker connects, takes turns, waits when nothing comes, and reconnects after an interruption.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.described.kafka_way import KafkaWay
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.kafka import Publisher
from ferryman.relay.lanes import LaneWorker, Turn
from ferryman.relay.model import LANES
from ferryman.relay.ring import Housekeeper, RingKeeper
from ferryman.relay.source import SourceDatabase, source_of, sources
from ferryman.relay.store import backlog, claims
from ferryman.relay.store.backlog import Backlog
from ferryman.relay.store.kafka_cluster import check_cluster
from ferryman.relay.topics import TopicDirectory
from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient
from ferryman.runtime.kafka import client_config
from ferryman.runtime.life import Before, Life, no_hook
from ferryman.runtime.logs import frames
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.supervised import supervise

log = structlog.get_logger(__name__)

_SUPERVISION_SECONDS = 0.25
_CLUSTER_WAIT_SECONDS = 0.1
_PROBE_SECONDS = 2.0
# More may come soon after something came: for this long a quiet worker looks again at short intervals.
_ALERT_SECONDS = 0.25


class ClaimLost(Transient):
    """An error for a worker that lost its lock: another one settled its lanes."""


@dataclass(slots=True)
class RelayWorker:
    """The work of one thread.

    With `drained` it ends when that has nothing left, and it waits for nobody. A wrong setting that was never right
    ends the worker only where its source is `alone`: elsewhere it would stop the others.
    """

    number: int
    source: SourceDatabase
    cluster: Cluster
    producer: Mapping[str, Any]
    stopping: threading.Event
    alone: bool
    before: Before
    drained: "_DrainWatch | None" = None
    progress_at: float = field(default_factory=time.monotonic)
    _knows_cluster: bool = False
    """True if the Kafka cluster was compared with the one that the connected database knows."""
    _was_interrupted: bool = False
    """True if a turn failed since a lane could be settled last."""

    def run(self) -> None:
        """Take turns until told to stop, or finished."""
        supervise(self.stopping, self.source.connect, self._take_turns, self._interrupted, patient=True)

    def _interrupted(self, problem: FerrymanError, seconds: float) -> None:
        if isinstance(problem, ClaimLost):
            log.warning("claim lost to another worker", source=self.source.name)
            self.stopping.wait(seconds)
            return
        never_right = isinstance(problem, Misconfigured) and not self.source.was_reached
        if self.drained or (self.alone and never_right):
            raise problem
        self._was_interrupted = True
        self.source.away(problem)
        self.stopping.wait(seconds)
        self.progress_at = time.monotonic()

    def _take_turns(self, connection: Connection, succeeded: Callable[[], None]) -> None:
        settings = self.source.settings.relay
        publisher = Publisher(self.producer, self.source.ce_source, lambda at: claims.payload(connection, at))
        turns = LaneWorker(connection, publisher, self.cluster, settings, self.stopping, self.source.name, self.before)
        busy_at = time.monotonic()
        publisher.open()
        self._knows_cluster = False
        try:
            while not self.stopping.is_set():
                self.progress_at = now = time.monotonic()
                if not self._may_publish(connection):
                    continue
                try:
                    turn = turns.run_once()
                except psycopg.errors.UniqueViolation as error:
                    raise ClaimLost("another worker settled these lanes") from error
                self.before("report")
                self._report(turn, publisher)
                if turn.published or turn.failed:  # a quiet turn settles nothing, and proves nothing
                    succeeded()
                if not turn.quiet:
                    busy_at = now
                    self.stopping.wait(turn.rest_seconds)
                elif self.drained and self.drained.finished(connection):
                    return
                elif self.drained or now - busy_at < _ALERT_SECONDS:
                    self.stopping.wait(max(turn.rest_seconds, settings.pause_seconds))
                else:
                    self.source.await_news(connection, settings.idle_seconds, self.stopping)
        finally:
            publisher.close()
            metrics.LANES_HELD.labels(self.source.name, self.number).set(0)

    def _may_publish(self, connection: Connection) -> bool:
        """Return True if Kafka is there, and is the cluster that it was before; else wait a moment.

        After an interruption it must also be possible to settle what would be published.
        """
        if self.cluster.probe(_PROBE_SECONDS):
            if self._knows_cluster:
                self._rehearse(connection)
                return True
            try:
                here = self.cluster.topics.cluster_id(_PROBE_SECONDS)
            except FerrymanError as error:
                self.cluster.lost(str(error))
            else:
                check_cluster(connection, here)
                self._knows_cluster = True
                self._rehearse(connection)
                return True
        if self.drained:
            raise self.cluster.error()
        self.source.served()  # as far as anything asks it
        self.stopping.wait(_CLUSTER_WAIT_SECONDS)
        return False

    def _rehearse(self, connection: Connection) -> None:
        """Settle a lane and take it back, if the last connection was interrupted; raise what the database refuses."""
        if self._was_interrupted:
            claims.rehearse(connection)
            self._was_interrupted = False

    def _report(self, turn: Turn, publisher: Publisher) -> None:
        self.source.served()
        if self.drained:
            self.drained.observe(turn)
        metrics.LANES_HELD.labels(self.source.name, self.number).set(len(turn.lanes))
        if rebuilds := publisher.take_rebuilds():
            metrics.REBUILDS.labels(self.source.name).inc(rebuilds)


class JournalRelay:
    """The service that publishes the journal of each source."""

    name = "relay"

    def __init__(self, settings: Settings, before: Before = no_hook) -> None:
        self._settings = settings
        self._before = before
        self.sources = sources(settings)
        self.cluster = Cluster(TopicDirectory(settings.kafka, settings.relay.compacted_topics))
        self._producer = client_config(settings.kafka, "relay")

    def run(self, life: Life) -> None:
        """Publish until told to stop: then each worker settles its batch in flight, and no lane stays locked."""
        workers = [
            self.worker(source, number, life.stopping)
            for source in self.sources
            for number in range(self._settings.relay.workers)
        ]
        crew = _Crew([*workers, *(self.housekeeper(source, life.stopping) for source in self.sources)], life.stopping)
        crew.start()
        while not life.wait(_SUPERVISION_SECONDS):
            silent = time.monotonic() - min(worker.progress_at for worker in workers)
            if silent < self._settings.health.stall_seconds / 2:
                life.progress()
            broken = [f"{source.name}: {source.problem}" for source in self.sources if source.problem]
            why_not = "; ".join(filter(None, [*broken, self.cluster.why_not()]))
            life.not_ready(why_not) if why_not else life.ready()
        crew.join()

    def worker(
        self, source: SourceDatabase, number: int, stopping: threading.Event, drained: "_DrainWatch | None" = None
    ) -> RelayWorker:
        """Return a worker that was not started."""
        alone = len(self.sources) == 1
        return RelayWorker(number, source, self.cluster, self._producer, stopping, alone, self._before, drained)

    def housekeeper(self, source: SourceDatabase, stopping: threading.Event) -> Housekeeper:
        return Housekeeper(source, RingKeeper(source.settings.relay.ring, before=self._before), stopping)

    @property
    def described(self) -> list[DescribedOutbox]:
        """The services of the described outboxes, each in its database."""
        outboxes = {name: each for name, each in self._settings.outbox.items() if each.channel == "kafka"}
        where = {name: source_of(name, outbox, self.sources) for name, outbox in outboxes.items()}
        taken = {source.name for source in self.sources}
        labels = {name: outbox.table if name in taken else name for name, outbox in outboxes.items()}
        return [
            DescribedOutbox(name, outbox, where[name], self._way(outbox, where[name], labels[name]), self._before,
                            labels[name])
            for name, outbox in outboxes.items()
        ]  # fmt: skip

    def _way(self, outbox: Outbox, source: SourceDatabase, label: str) -> KafkaWay:
        publisher, relay = Publisher(self._producer, source.ce_source, lambda _: b""), source.settings.relay
        return KafkaWay(outbox, self.cluster, publisher, relay.deadline_seconds, relay.topics_of(source.name), label)


def services(settings: Settings) -> tuple[JournalRelay | DescribedOutbox, ...]:
    """Return what `ferryman run relay` runs: the journal's relay, and beside it a service for each described outbox."""
    relay = JournalRelay(settings)
    return relay, *relay.described


@dataclass(slots=True)
class _Crew:
    """Members in threads of their own. One that fails for good stops the others."""

    members: Sequence[RelayWorker | Housekeeper]
    stopping: threading.Event
    _error: BaseException | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number, member in enumerate(self.members):
            name = f"{member.source.name}-{number}"
            thread = threading.Thread(target=self._run, args=(member,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self, seconds: float | None = None) -> bool:
        """Wait for all members, at most so long. Return True if they have ended, or raise the first error of one."""
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        if self._error is not None:
            raise self._error
        return True

    def _run(self, member: RelayWorker | Housekeeper) -> None:
        try:
            member.run()
        except BaseException as error:
            if not isinstance(error, Transient | Misconfigured):  # a bug
                log.error("crashed", source=member.source.name, error=type(error).__name__, where=frames(error))  # noqa: TRY400
            self._error = self._error or error
            self.stopping.set()


@dataclass(slots=True)
class DrainResult:
    """The result of a drain. `waiting` entries are left: to be tried later, or behind such entries.

    `held` rows may have been sent, and wait for a person.
    """

    published: int = 0
    failed: int = 0
    held: int = 0
    waiting: int = 0
    seconds: float = 0.0

    def add(self, turn: Turn) -> None:
        self.published += turn.published
        self.failed += turn.failed

    def leave(self, left: Sequence[Backlog]) -> None:
        """Count the rows of a described outbox that are left."""
        self.held += sum(each.held for each in left)
        self.waiting += sum(each.waiting for each in left)


@dataclass(slots=True)
class _DrainWatch:
    """One drained source: the lanes that were found quiet since something was last published."""

    result: DrainResult
    quiet: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, turn: Turn) -> None:
        with self.lock:
            self.result.add(turn)
            self.quiet = self.quiet | turn.lanes if turn.quiet else set()

    def finished(self, connection: Connection) -> bool:
        return (len(self.quiet) == LANES or not self.quiet) and not claims.peek(connection)


def drain(
    settings: Settings, stopping: threading.Event, progress: Callable[[int], None] = lambda _: None
) -> DrainResult:
    """Publish what can be published now, then return. Raise when a database or the cluster is away."""
    relay, began, total = JournalRelay(settings), time.monotonic(), DrainResult()
    for outbox in relay.described:
        total.leave(outbox.drain(stopping, total.add))
    workers = [
        relay.worker(source, number, stopping, watch)
        for source, watch in [(source, _DrainWatch(total)) for source in relay.sources]
        for number in range(settings.relay.workers)
    ]
    crew = _Crew(workers, stopping)
    crew.start()
    while not crew.join(_SUPERVISION_SECONDS):
        progress(total.published)
    for source in relay.sources:
        with source.connect() as connection:
            relay.housekeeper(source, stopping).run_once(connection)
            total.waiting += backlog.waiting(connection)
    total.seconds = time.monotonic() - began
    return total
