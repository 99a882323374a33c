"""A process that owns all partitions, and its successors: the real loop, as the service runs it."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from ferryman.consumer.api import Consumer
from ferryman.consumer.at_most_once import loop_of
from ferryman.consumer.connections import Deadline, HandlerConnection, handler_connection
from ferryman.consumer.failures import HandlerFailed
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Advance, Item, Partition, Position
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.store import owners
from ferryman.consumer.store.receipts import Connection
from ferryman.consumer.transaction import Transactions
from ferryman.runtime.errors import Transient
from ferryman.runtime.settings import ConsumerSettings
from ferryman.testing.proving.fault_points import Crash, Points, WatchedConnection
from ferryman.testing.proving.memory_kafka import ImpatientClock, MemoryFeed, MemoryTopics
from ferryman.testing.proving.proof import Faulty

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
    """The consumer does not come to an end."""


class HangWatch(Deadline):
    """A deadline that ends no process. A handler may wait for a lock of its own transaction: it ends all sessions."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.passed = self.hung = False

    def lift(self) -> None:
        """Watch the COMMIT too."""

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


@dataclass(slots=True)
class WatchedTransactions(Transactions):
    """Transactions that note every failure of a handler, even one that a retry heals."""

    faulty: Faulty = field(default_factory=list)

    def run(
        self,
        lent: HandlerConnection,
        items: Sequence[Item],
        claimed: frozenset[UUID],
        reached: Mapping[Partition, Advance],
    ) -> bool:
        try:
            return Transactions.run(self, lent, items, claimed, reached)
        except HandlerFailed as error:
            self.faulty.append((frozenset(item.id for item in items), str(error)))
            raise


class ProveOwner:
    """Runs the consumer over everything in its topics, through the fault at one of its points."""

    def __init__(self, consumer: Consumer, url: str, topics: MemoryTopics, batch: int, points: Points) -> None:
        self.faulty: Faulty = []
        self._consumer = consumer
        self._url = url
        self._topics = topics
        self._settings = ConsumerSettings.model_construct(batch_messages=batch, tries=1, poll_seconds=_FOR_EVER)
        self._points = points
        self._watch = HangWatch(url)

    def run(self, *, again: bool) -> None:
        """Run one process after another until one comes to the end; if `again`, replay everything once more."""
        self._run_to_the_end()
        if again:
            self._topics.rewind()
            self._points.tell("all of it once more, from offset 0")
            self._run_to_the_end()

    def _run_to_the_end(self) -> None:
        while True:
            try:
                self._run_process()
                return
            except Crash:
                self._points.restarted()

    def _run_process(self) -> None:
        clock, before = ImpatientClock(), self._points.before
        feed = MemoryFeed(self._topics, clock)
        batch = self._settings.batch_messages
        partitions = Partitions(self._consumer.name, _MOST_BYTES, batch)
        transactions = WatchedTransactions(
            self._consumer, batch, self._watch, before=before, clock=clock.now, faulty=self.faulty
        )
        loop = loop_of(self._consumer)(
            self._consumer, feed, self._settings, partitions, transactions, before=before, clock=clock.now
        )
        committed = self._topics.committed
        partitions.assigned({place: Position(committed.get(place, 0)) for place in self._topics.records})
        for _ in range(_MOST_CONNECTIONS):
            try:
                with closing(WatchedConnection.open(self._url, self._points)) as connection:
                    self._take_turns(loop, feed, connection)
                    return
            except (Transient, psycopg.OperationalError) as error:
                self._points.tell(f"the same worker, on a new connection: {' '.join(str(error).split())[:120]}")
                if self._watch.hung:
                    raise Stuck(f"the handler did not come back within {HANG_SECONDS:.0f} s") from error
        raise Stuck(f"{_MOST_CONNECTIONS} connections were lost, and no end")

    def _take_turns(self, loop: ConsumerLoop, feed: MemoryFeed, connection: WatchedConnection) -> None:
        loop.partitions.mark(connection, feed.seek)
        lent = handler_connection(self._consumer.connection, connection)
        most = _MOST_TURNS * (1 + sum(map(len, self._topics.records.values())))
        for _ in range(most):
            if feed.at_the_end and not loop.partitions.bytes:
                feed.commit(loop.partitions.positions)
                self._points.end()
                owners.release(connection, self._consumer.name, self._topics.records)
                return
            loop.turn(lent)
        raise Stuck(f"no end after {most} turns of the loop")
