"""What `ferryman run` runs of a consumer: a member of its group, a connection, and a new one when that breaks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
import structlog

from ferryman.consumer import deadline, metrics, window
from ferryman.consumer.api import Consumer
from ferryman.consumer.buffers import Buffers
from ferryman.consumer.deadline import Deadline
from ferryman.consumer.division import Division
from ferryman.consumer.face import face_of
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Partition
from ferryman.consumer.policy import Policy
from ferryman.consumer.retries import retry_topic
from ferryman.consumer.store import keeping, starts
from ferryman.consumer.store.receipts import Connection, Limits
from ferryman.consumer.telling import Telling
from ferryman.consumer.worker import Worker
from ferryman.migrations import chains
from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Misconfigured, Permanent, Transient, Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings

log = structlog.get_logger(__name__)

_RECONNECTING = Backoff(base_seconds=0.1, cap_seconds=5)
_LOOK_SECONDS = 1.0
_KEEP_SECONDS = 60.0
_AGAIN_SECONDS = 5.0


@dataclass(slots=True)
class ConsumerService:
    """One process's part of a consumer's group."""

    consumer: Consumer
    settings: Settings
    before: Callable[[str], None] = lambda _step: None
    owners: Sequence[str] = (chains.ENGINE,)
    """Whose tables must be there."""
    _connection: Connection | None = None
    _division: Division | None = None
    _to_own: set[Partition] = field(default_factory=set)
    _untold: bool = False
    """Whether the cluster did not tell how long its topics keep what."""
    _look_at: float = 0.0
    _lag_at: float = 0.0
    _keep_at: float = 0.0
    _forget_at: float = 0.0

    @property
    def name(self) -> str:
        return self.consumer.name

    def run(self, life: Life) -> None:
        """Until it should stop: then the batch in hand is finished, and every partition is let go of."""
        refuse(self.consumer)
        deadline.refuse(self.settings)
        worker, telling = self.worker(), Telling(self.consumer.name, self.consumer.told)
        worker.tell = telling.tell
        worker.feed.open()
        failures, problem = 0, None
        try:
            while not life.stopping.is_set():
                try:
                    if problem is not None:
                        self._wait(life, worker, _RECONNECTING.delay_seconds(failures), problem)
                        problem = None
                    with postgres.translated(), self._connect() as connection:
                        failures = 0
                        self._serve(life, worker, connection)
                except Transient as error:
                    failures, problem = failures + 1, error
                    worker.buffers.forgive()
                    if worker.feed.broken:
                        self._begin_anew(worker)
        finally:
            if self._division is not None:
                self._division.close()
            worker.feed.close()
            telling.close()

    def _begin_anew(self, worker: Worker) -> None:
        """As a new member: what was taken from Kafka and has no verdict comes again."""
        worker.feed.open()
        worker.buffers.by_place.clear()
        self._to_own.clear()

    def worker(self) -> Worker:
        """The loop, on a feed whose callbacks are ours."""
        given = self.settings.consumer
        policy = Policy(
            batch=given.batch_messages,
            poll_seconds=given.poll_seconds,
            tries=given.tries,
            kills=given.kills,
            retry_seconds=given.retry_seconds,
            limits=Limits(
                f"{round(self.settings.database.statement_timeout_seconds * 1000)}ms",
                f"{round(self.settings.database.lock_timeout_seconds * 1000)}ms",
                f"{round(self.settings.database.idle_in_transaction_timeout_seconds * 1000)}ms",
            ),
        )
        topics = [*self.consumer.topics, *(retry_topic(each, self.name) for each in self.consumer.topics)]
        feed = Feed(self.name, topics, self.settings.kafka, given.start, given.instance_id)
        self._division = Division(self.name, topics, self.settings.kafka) if given.instance_id else None
        buffers = Buffers(given.buffer_bytes)
        feed.assigned, feed.revoked, feed.lost = (
            self._assigned(buffers),
            self._revoked(feed, buffers),
            self._lost(buffers),
        )
        feed.read_before = self._read_before
        worker = Worker(self.consumer, feed, policy, buffers, Deadline(given.deadline_seconds), before=self.before)
        worker.own = lambda connection: self._own(worker, connection)
        return worker

    def _connect(self) -> Connection:
        connection = postgres.connect(self.settings, self.name, autocommit=True)
        try:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            chains.check(connection, self.owners)
        except BaseException:
            connection.close()
            raise
        return connection

    def _serve(self, life: Life, worker: Worker, connection: Connection) -> None:
        """Ends with the partitions let go of, also where a person has to act first: what was begun killed nobody."""
        self._connection = connection
        try:
            with postgres.translated():
                face = face_of(self.consumer.connection, connection)
                while not life.stopping.is_set():
                    self._look(worker, connection)
                    worker.turn(connection, face)
                    self._say(life, worker)
            worker.feed.close()  # while there is a connection to say so
        except (Misconfigured, Permanent):
            worker.feed.close()
            raise
        finally:
            self._connection = None

    def _wait(self, life: Life, worker: Worker, seconds: float, error: Exception) -> None:
        """Something is away: Kafka is asked all the same, so that the partitions stay ours."""
        life.not_ready(str(error))
        log.warning("interrupted", consumer=self.name, error=str(error)[:500], again_in_seconds=round(seconds, 1))
        until = time.monotonic() + seconds
        while not life.stopping.is_set() and (left := until - time.monotonic()) > 0:
            worker.feed.pause(worker.buffers.fed())
            worker.buffers.add(worker.feed.take(worker.policy.batch, min(left, 0.1)))
            self._measure(worker)
            life.progress()

    def _assigned(self, buffers: Buffers) -> Callable[[set[Partition]], None]:
        def assigned(partitions: set[Partition]) -> None:
            metrics.REBALANCES.labels(self.name).inc()
            buffers.own(partitions)
            self._to_own |= partitions
            if self._division is not None:
                self._division.look_soon()

        return assigned

    def _revoked(self, feed: Feed, buffers: Buffers) -> Callable[[set[Partition]], None]:
        def revoked(partitions: set[Partition]) -> None:
            metrics.REBALANCES.labels(self.name).inc()
            feed.commit(buffers.drop(partitions), wait=True)
            owned = partitions - self._to_own
            self._to_own -= partitions
            if self._connection is not None and not self._connection.closed and owned:
                try:
                    starts.release(self._connection, self.name, owned)
                except psycopg.Error as error:  # its next owner then marks its batches
                    log.warning("not released", consumer=self.name, error=str(postgres.translate(error)))

        return revoked

    def _lost(self, buffers: Buffers) -> Callable[[set[Partition]], None]:
        def lost(partitions: set[Partition]) -> None:
            metrics.REBALANCES.labels(self.name).inc()
            log.warning("partitions lost", consumer=self.name, partitions=sorted(partitions))
            buffers.drop(partitions)
            self._to_own -= partitions

        return lost

    def _read_before(self, partitions: set[Partition]) -> set[Partition]:
        if self._connection is None or self._connection.closed:
            raise Unreachable("what this group has read before stands in PostgreSQL, which is away")
        with postgres.translated():
            return starts.read_before(self._connection, self.name, partitions)

    def _own(self, worker: Worker, connection: Connection) -> None:
        """Says that new partitions are ours; one that its last owner did not let go of is begun with care."""
        if not self._to_own:
            return
        suspects = starts.own(connection, self.name, self._to_own)
        for place, marked in suspects.items():
            worker.buffers.suspect(place, marked, worker.policy.batch)
        if suspects:
            log.warning("an owner died", consumer=self.name, partitions=sorted(suspects))
        self._to_own.clear()

    def _look(self, worker: Worker, connection: Connection) -> None:
        now = time.monotonic()
        if now >= self._keep_at:
            self._keep_at = now + _KEEP_SECONDS
            # Asking a cluster that is away would hold everything up; one that did not tell is asked again soon.
            if worker.feed.problem is None and not self._window_fits():
                self._keep_at = now + _AGAIN_SECONDS
            metrics.REJECTED.labels(self.name).set(keeping.rejected(connection, self.name))
        if now >= self._forget_at:
            kept = self.settings.consumer.receipts_retention_seconds
            forgotten = keeping.forget(connection, self.name, kept)
            keeping.forget_settled(connection, self.name, kept)
            self._forget_at = now + (_KEEP_SECONDS if forgotten < keeping.MOST else _LOOK_SECONDS)
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            worker.feed.probe()
            worker.paused = keeping.paused(connection, self.name)
            keeping.forget_plans(connection)

    def _window_fits(self) -> bool:
        """Whether it could be checked; where it cannot be, that is said once."""
        told = window.check(self.settings, self.consumer)
        if told == self._untold:
            self._untold = not told
            if not told:
                log.warning("the dedupe window is not checked", consumer=self.name, topics=self.consumer.topics,
                            remedy="let it describe its topics' configurations")  # fmt: skip
        return told

    def _measure(self, worker: Worker) -> None:
        metrics.LAST_POLL.labels(self.name).set_to_current_time()
        metrics.PARTITIONS.labels(self.name).set(len(worker.buffers.by_place))
        metrics.LAG_SECONDS.labels(self.name).set(worker.buffers.oldest_age_seconds(time.time()))
        if time.monotonic() >= self._lag_at:
            self._lag_at = time.monotonic() + _LOOK_SECONDS
            metrics.LAG.labels(self.name).set(sum(worker.feed.lag(worker.buffers.positions).values()))

    def _say(self, life: Life, worker: Worker) -> None:
        life.progress()
        self._measure(worker)
        if worker.feed.problem:
            life.not_ready(worker.feed.problem)
        elif worker.paused:
            life.not_ready("paused: `ferryman resume` goes on")
        else:
            life.ready()


def refuse(consumer: Consumer) -> None:
    """A consumer without handlers would skip everything."""
    if not consumer.handlers:
        raise Permanent(f"the consumer {consumer.name} has no handlers", remedy="@consumer.handles(type)")
