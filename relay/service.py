"""The relay as a service: workers for each source, in threads of one process, over one Kafka cluster."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ferryman.relay.cluster import Cluster
from ferryman.relay.described.service import DescribedOutbox, described
from ferryman.relay.kafka import DEFAULTS, INSISTED
from ferryman.relay.keeper import Keeper
from ferryman.relay.lanes import Turn
from ferryman.relay.model import LANES
from ferryman.relay.ring import RingKeeper, Space
from ferryman.relay.source import Source, sources
from ferryman.relay.store import backlog, lanes
from ferryman.relay.topics import Topics
from ferryman.relay.worker import Worker, tenure_of
from ferryman.runtime.kafka import client_config
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings

_SUPERVISION_SECONDS = 0.25


class Relay:
    """The journal's relay."""

    name = "relay"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.sources = sources(settings)
        self.cluster = Cluster(Topics(settings.kafka, settings.relay.compacted_topics))
        self._producer = client_config(settings.kafka, "relay")
        for name, value in {**INSISTED, **DEFAULTS}.items():
            self._producer.setdefault(name, value)

    def run(self, life: Life) -> None:
        """Until it should stop: then each worker settles the batch in flight, and no lane stays locked."""
        workers = [self.worker(source, n, life.stopping) for source in self.sources for n in self._numbers]
        crew = _Crew(workers, life.stopping)
        keepers = [self.keeper(source, life.stopping) for source in self.sources]
        crew.start()
        looking_after = [threading.Thread(target=keeper.run, daemon=True) for keeper in keepers]
        for thread in looking_after:
            thread.start()
        while not life.wait(_SUPERVISION_SECONDS) and crew.error is None:
            if crew.seconds_since_progress < self._settings.health.stall_seconds / 2:
                life.progress()
            why_not = self._why_not()
            life.ready() if why_not is None else life.not_ready(why_not)
        crew.join()
        for thread in looking_after:
            thread.join()
        if crew.error is not None:
            raise crew.error

    def keeper(self, source: Source, stopping: threading.Event) -> Keeper:
        ring = self._settings.relay.ring
        space = Space(ring.rotate_seconds, ring.rotate_bytes, ring.retention_seconds, ring.key_retention_seconds)
        return Keeper(source, RingKeeper(space), self._settings.relay.backlog_seconds, stopping)

    def worker(self, source: Source, number: int, stopping: threading.Event) -> Worker:
        tenure = tenure_of(self._settings.relay)
        worker = Worker(number, source, self.cluster, tenure, self._settings.relay, self._producer, stopping)
        worker.alone = len(self.sources) == 1
        return worker

    @property
    def described(self) -> list[DescribedOutbox]:
        return described(self._settings, self.sources, self.cluster, self._producer)

    @property
    def _numbers(self) -> range:
        return range(self._settings.relay.workers)

    def _why_not(self) -> str | None:
        broken = [f"{source.name}: {source.problem}" for source in self.sources if source.problem]
        away = self.cluster.why_not()
        return "; ".join([*broken, *([away] if away else [])]) or None


def services(settings: Settings) -> tuple[Relay | DescribedOutbox, ...]:
    """What `ferryman run relay` runs: the journal's relay, and beside it one for each described outbox."""
    relay = Relay(settings)
    return relay, *relay.described


@dataclass(slots=True)
class _Crew:
    """Workers in their threads. One that fails for good stops the others."""

    workers: Sequence[Worker]
    stopping: threading.Event
    error: BaseException | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for worker in self.workers:
            worker.progress_at = time.monotonic()
            name = f"{worker.source.name}-{worker.number}"
            self._threads.append(threading.Thread(target=self._run, args=(worker,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Whether all have ended, within this time."""
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def seconds_since_progress(self) -> float:
        """Of the worker that is furthest behind."""
        return time.monotonic() - min(worker.progress_at for worker in self.workers)

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:
            self.error = self.error or error
            self.stopping.set()


@dataclass(slots=True)
class Drained:
    """What a drain did. `waiting` is what it left: to be tried later, or behind such a one."""

    published: int = 0
    failed: int = 0
    waiting: int = 0
    seconds: float = 0.0

    def add(self, turn: Turn) -> None:
        self.published += turn.published
        self.failed += turn.failed


@dataclass(slots=True)
class _Watch:
    """Of one source that is drained: what was done, and which lanes were found quiet since."""

    drained: Drained
    quiet: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, turn: Turn) -> None:
        with self.lock:
            self.drained.add(turn)
            self.quiet = self.quiet | turn.lanes if turn.quiet else set()

    def finished(self, connection: lanes.Connection) -> bool:
        return (len(self.quiet) == LANES or not self.quiet) and not lanes.peek(connection)


def drain(settings: Settings, stopping: threading.Event, progress: Callable[[int], None] = lambda _: None) -> Drained:
    """Publishes what is to be published now, then returns. Raises when a database or the cluster is away."""
    relay, began, total = Relay(settings), time.monotonic(), Drained()
    for outbox in relay.described:
        total.waiting += outbox.drain(stopping, total.add)
    workers = []
    for source in relay.sources:
        watch = _Watch(total)
        for number in range(settings.relay.workers):
            worker = relay.worker(source, number, stopping)
            worker.observe, worker.finished, worker.give_up = watch.observe, watch.finished, True
            workers.append(worker)
    crew = _Crew(workers, stopping)
    crew.start()
    while not crew.join(_SUPERVISION_SECONDS):
        progress(total.published)
    if crew.error is not None:
        raise crew.error
    for source in relay.sources:
        with source.connect() as connection:
            relay.keeper(source, stopping).run_once(connection)
            total.waiting += backlog.waiting(connection)
    total.seconds = time.monotonic() - began
    return total
