"""A COMMIT that waits for a standby is left to wait, and one whose wait was cut short counts as unknown."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest

from ferryman import Consumer, Done, Unreachable
from ferryman.consumer.at_most_once import loop_of
from ferryman.consumer.connections import Deadline, HandlerConnection
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Partition, Position, Record
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.store.receipts import Limits
from ferryman.consumer.transaction import Transactions
from ferryman.runtime.settings import ConsumerSettings
from ferryman.testing import stack
from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries
from support.published import poll_until

Database = psycopg.Connection[tuple[Any, ...]]

SECONDS = 0.3
"""The statement timeout, and the deadline of a batch."""
WAITING = """
SELECT pid FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND clock_timestamp() - query_start > make_interval(secs => %s)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Give a database of a server whose standby is away. Only sessions that ask for it wait for that standby."""
    server = started(
        LocalPostgres(binaries(), {**FAST, "synchronous_standby_names": "away", "synchronous_commit": "local"})
    )
    try:
        database = stack.new_database(server.url, "synchronous")
        stack.migrate(database)
        yield database
    finally:
        server.close()


class Fed:
    """A feed that gives one record once, and notes the offsets that are committed."""

    def __init__(self) -> None:
        headers: list[tuple[str, bytes | None]] = [("ce_id", str(uuid4()).encode()), ("ce_type", b"t")]
        self.coming = [Record("topic", 0, 0, b"k", b"", headers, 0)]
        self.committed: dict[Partition, int] = {}

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        came, self.coming = self.coming, []
        return came

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None:
        self.committed |= positions

    def hold(self, partitions: Any) -> None: ...

    def seek(self, offsets: Any) -> None: ...


def looping(feed: Fed, mode: Any) -> ConsumerLoop:
    consumer, settings = Consumer("c", ["topic"], mode=mode), ConsumerSettings(poll_seconds=0.01)
    consumer.handles("t")(lambda _db, _message: Done())
    partitions = Partitions("c", 1 << 20, 9)
    partitions.assigned({("topic", 0): Position(0)})
    made = Transactions(consumer, 9, Deadline(SECONDS), Limits(statement=f"{SECONDS}s"))
    return loop_of(consumer)(consumer, feed, settings, partitions, made)


def turned(loop: ConsumerLoop, connection: Database, raised: list[Exception]) -> None:
    try:
        loop.turn(HandlerConnection(connection))
    except Exception as error:
        raised.append(error)


def synchronous(url: str) -> Database:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("SET synchronous_commit = on")
    connection.execute("SET statement_timeout = 0")
    return connection


@pytest.mark.parametrize("mode", ["effectively_once", "at_most_once"])
def test_no_offset_passes_a_commit_that_no_standby_has(url: str, mode: str) -> None:
    """N9: neither the deadline nor the statement timeout cuts the wait short. If a person does, it is unknown."""
    feed, raised = Fed(), list[Exception]()
    loop = looping(feed, mode)
    with psycopg.connect(url, autocommit=True) as look:
        look.execute("TRUNCATE ferryman.inbox, ferryman.inbox_start")
        with psycopg.connect(url, autocommit=True) as first:  # the partition is owned; that needs no standby
            loop.partitions.mark(first, feed.seek)
        connection = synchronous(url)
        turn = threading.Thread(target=turned, args=(loop, connection, raised))
        turn.start()
        [(waiting,)] = poll_until(
            lambda: look.execute(WAITING, (4 * SECONDS,)).fetchall(), "COMMIT that waits long", 15
        )
        look.execute("SELECT pg_cancel_backend(%s)", (waiting,))
        turn.join(15)
        assert [type(each) for each in raised] == [Unreachable]
        assert connection.closed
        assert feed.committed == {}
        loop.partitions.look_again()  # as on every new connection
        with psycopg.connect(url, autocommit=True) as second:  # the receipts decide
            loop.turn(HandlerConnection(second))
        assert feed.committed == {("topic", 0): 1}
        outcome = "DONE" if mode == "effectively_once" else None
        assert look.execute("SELECT outcome FROM ferryman.inbox").fetchall() == [(outcome,)]


class Cancelled:
    """A connection that notes whether it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel_safe(self, timeout: float) -> None:
        self.cancelled.set()


def test_a_deadline_that_has_passed_keeps_a_batch_from_its_commit() -> None:
    """N9: its cancel may still be on the way."""
    deadline, connection = Deadline(0.01), Cancelled()
    with deadline.over(cast(Any, connection)):
        assert connection.cancelled.wait(10)
        with pytest.raises(Exception, match="in front of the COMMIT"):
            deadline.lift()


def test_a_deadline_that_is_lifted_cancels_nothing() -> None:
    deadline, connection = Deadline(0.2), Cancelled()
    with deadline.over(cast(Any, connection)):
        deadline.lift()
        assert not connection.cancelled.wait(0.6)
    assert not deadline.passed
