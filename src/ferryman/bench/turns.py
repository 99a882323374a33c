"""The engine's turn without Kafka: claim, read, settle, by the relay's own functions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ferryman.relay.lanes import Tenure
from ferryman.relay.model import LANES, Walk, Window, walks
from ferryman.relay.store import lanes, reading

Connection = psycopg.Connection[tuple[Any, ...]]

BATCH = Tenure().batch_entries

_NOW = """\
-- bench.now
SELECT last_value, pg_current_snapshot()::text FROM ferryman.outbox_position_seq
"""


@contextmanager
def claimed(connection: Connection) -> Iterator[list[Walk]]:
    """All lanes, until the transaction of this block ends."""
    tenure = Tenure()
    with connection.transaction():
        claim = lanes.claim(
            connection, range(LANES), LANES,
            idle_seconds=tenure.idle_seconds, statement_seconds=tenure.statement_seconds,
        )  # fmt: skip
        yield walks(claim.cursors)


def claim_ms(connection: Connection) -> float:
    """How long a claim takes."""
    began = time.perf_counter()
    with claimed(connection):
        return (time.perf_counter() - began) * 1000


def step(connection: Connection, walk: Walk) -> int:
    """One batch, as published; returns how many entries."""
    entries, target = reading.read(connection, walk, BATCH)
    walk.take(entries, target, more=len(entries) == BATCH)
    return len(entries)


def turn(connection: Connection) -> int:
    """Everything there is, settled."""
    with claimed(connection) as found:
        counts = [_all_of(connection, walk) for walk in found]
        lanes.settle(connection, [cursor for walk in found if walk.moved for cursor in walk.new_cursors()])
    return sum(counts)


def skip_all(connection: Connection) -> None:
    """Everything that is visible now counts as published."""
    with claimed(connection) as found:
        row = connection.execute(_NOW).fetchone()
        assert row is not None
        for walk in found:
            walk.skip_to(Window(row[1], row[0]))
        lanes.settle(connection, [cursor for walk in found for cursor in walk.new_cursors()])


def _all_of(connection: Connection, walk: Walk) -> int:
    total = 0
    while count := step(connection, walk):
        total += count
        if count < BATCH:
            break
    return total
