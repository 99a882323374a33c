"""A thousand single-row transactions a second: what the relay writes, and what an idle writer does to the others."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ferryman.bench import goals, load, meters, processes
from ferryman.bench.figures import Figure, median, percentile
from ferryman.bench.parts import Bench
from ferryman.bench.traffic import delays_ms, reading, write_steadily
from ferryman.bench.waiting import until

_TAKE_NUMBER = "-- bench.take_number\nSELECT pg_current_xact_id()"


def wal(bench: Bench) -> Iterator[Figure]:
    """The server's WAL with the relay running, less what the same writers make without it, by turns.

    So it counts all that the relay causes: its rows, their index entries, its commits, page images, hint bits.
    """
    seconds = bench.scale.steady_seconds / 3
    alone, beside = list[float](), list[float]()
    with bench.topic() as topic, bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        for _ in range(bench.scale.rounds):
            alone.append(_wal_each(connection, url, topic, seconds))
            with processes.relay(bench, url):
                _await_empty(connection)
                beside.append(_wal_each(connection, url, topic, seconds))
            bench.say(f"WAL a message: {alone[-1]:.0f} bytes without the relay, {beside[-1]:.0f} with it")
    each = [with_relay - without for with_relay, without in zip(beside, alone, strict=True)]
    yield goals.STEADY_WAL.figure(median(each), bytes_each=each, with_relay=beside, writers_alone=alone)


def idle_writer(bench: Bench) -> Iterator[Figure]:
    """Others' p99 while one writer holds a transaction with a number and an entry, and without it, by turns."""
    seconds = bench.scale.steady_seconds / 3
    without, beside = list[float](), list[float]()
    first = 0
    with (
        bench.topic() as topic,
        bench.database() as url,
        processes.relay(bench, url),
        reading(bench, topic) as reader,
    ):
        for held in [None, *[False, True] * bench.scale.rounds]:
            with _idle_writer(url, topic) if held else _nobody():
                written = write_steadily(url, topic, seconds if held is not None else bench.scale.warm_seconds, first)
                reader.await_all(written.committed, 30)
            first += len(written.committed)
            if held is not None:
                (beside if held else without).append(percentile(delays_ms(written.committed, reader.read), 99))
        bench.say(f"p99 without an idle writer: {median(without):.1f} ms, with one: {median(beside):.1f} ms")
    yield goals.IDLE_WRITER.figure(median(beside) / median(without), p99_ms_without=without, p99_ms_with=beside)


def _wal_each(connection: meters.Connection, url: str, topic: str, seconds: float) -> float:
    load.checkpoint(connection)
    before = meters.counters(connection)
    written = write_steadily(url, topic, seconds)
    return meters.counters(connection).since(before).wal_bytes / len(written.committed)


def _await_empty(connection: meters.Connection) -> None:
    """What was written while the relay was away is not of the steady state."""
    until(lambda: meters.pending(connection) == 0, "empty backlog", 60)


@contextmanager
def _idle_writer(url: str, topic: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.execute(_TAKE_NUMBER)
        load.append(connection, topic, 1)
        yield
        connection.rollback()


@contextmanager
def _nobody() -> Iterator[None]:
    yield
