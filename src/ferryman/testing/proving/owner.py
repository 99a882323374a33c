"""A process that owns all partitions, and its successors: the real loop, as the service runs it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import psycopg

from ferryman.consumer.api import Consumer
from ferryman.consumer.buffers import Buffers
from ferryman.consumer.deadline import Deadline
from ferryman.consumer.face import Face, face_of
from ferryman.consumer.faults import HandlerFailed
from ferryman.consumer.model import Poison, Received
from ferryman.consumer.policy import Policy
from ferryman.consumer.store import starts
from ferryman.consumer.store.receipts import Connection
from ferryman.consumer.worker import Worker
from ferryman.runtime.errors import Transient
from ferryman.testing.proving.faults import Crash, Points, Seen
from ferryman.testing.proving.topic import Clock, MemoryFeed, Topics

HANG_SECONDS = 15.0
_FOR_EVER = 1e6
_MOST_TURNS = 300
_MOST_CONNECTIONS = 20
_MOST_BYTES = 1 << 30

_END_ALL = """\
-- prove.end_all
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
"""


class Stuck(Exception):
    """It does not come to an end."""


class Watch(Deadline):
    """Without a thread or a process's end. A handler may wait for a lock of its own transaction: all of them end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.passed = self.hung = False

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        self.passed = False
        timer = threading.Timer(HANG_SECONDS, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        self.passed = self.hung = True
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(_END_ALL)


class _Worker(Worker):
    """Keeps what its handlers did wrong, also where it was healed by trying again."""

    faulty: list[tuple[frozenset[UUID], str]]

    def _transact(
        self,
        connection: Connection,
        face: Face,
        items: Sequence[Received | Poison | None],
        claimed: frozenset[UUID] = frozenset(),
    ) -> None:
        try:
            super()._transact(connection, face, items, claimed)
        except HandlerFailed as error:
            self.faulty.append((frozenset(item.id for item in items if item is not None), error.why))
            raise


class Owner:
    """Runs the consumer over all that stands in its topics, through whatever happens at its points."""

    def __init__(self, consumer: Consumer, url: str, topics: Topics, batch: int, points: Points) -> None:
        self.faulty: list[tuple[frozenset[UUID], str]] = []
        self._consumer = consumer
        self._url = url
        self._topics = topics
        self._policy = Policy(batch=batch, tries=1, poll_seconds=_FOR_EVER)
        self._points = points
        self._watch = Watch(url)

    def run(self, *, again: bool) -> None:
        """One process after another, until one comes to the end; then perhaps all of it once more."""
        self._to_the_end()
        if again:
            self._topics.rewind()
            self._points.tell("all of it once more, from offset 0")
            self._to_the_end()

    def _to_the_end(self) -> None:
        while True:
            try:
                self._live()
                return
            except Crash:
                self._points.restarted()

    def _live(self) -> None:
        clock = Clock()
        feed = MemoryFeed(self._topics, clock)
        worker = _Worker(
            self._consumer, feed, self._policy, Buffers(_MOST_BYTES), self._watch, before=self._points.before,
            clock=clock.now,
        )  # fmt: skip
        worker.faulty = self.faulty
        worker.buffers.own(self._topics.records)
        owned = False
        for _ in range(_MOST_CONNECTIONS):
            try:
                with self._connected() as connection:
                    if not owned:
                        self._own(worker, connection)
                        owned = True
                    self._turn(worker, feed, connection)
                    return
            except (Transient, psycopg.OperationalError) as error:
                self._points.tell(f"the same worker, on a new connection: {' '.join(str(error).split())[:120]}")
                if self._watch.hung:
                    raise Stuck(f"the handler did not come back within {HANG_SECONDS:.0f} s") from error
        raise Stuck(f"{_MOST_CONNECTIONS} connections were lost, and no end")

    @contextmanager
    def _connected(self) -> Iterator[Seen]:
        connection = Seen.open(self._url, self._points)
        try:
            yield connection
        finally:
            connection.close()

    def _own(self, worker: Worker, connection: Connection) -> None:
        """As the service does: what its last owner did not let go of is begun with care."""
        for place, marked in starts.own(connection, self._consumer.name, self._topics.records).items():
            worker.buffers.suspect(place, marked, self._policy.batch)

    def _turn(self, worker: Worker, feed: MemoryFeed, connection: Seen) -> None:
        face = face_of(self._consumer.connection, connection)
        most = _MOST_TURNS * (1 + sum(map(len, self._topics.records.values())))
        for _ in range(most):
            if feed.at_the_end and not worker.buffers.bytes:
                feed.commit(worker.buffers.positions)
                self._points.end()
                starts.release(connection, self._consumer.name, self._topics.records)
                return
            worker.turn(connection, face)
        raise Stuck(f"no end after {most} turns of the loop")
