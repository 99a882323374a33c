"""A thousand single-row transactions a second: what the relay writes, and what an idle writer does to the others."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import psycopg

from ferryman.bench import goals, load, meters, processes
from ferryman.bench.figures import Figure, median, percentile
from ferryman.bench.parts import Bench
from ferryman.bench.quiet import quietest
from ferryman.bench.traffic import WAKING_SECONDS, Steady, delays_ms, steady_traffic
from ferryman.bench.waiting import until

_TAKE_NUMBER = "-- bench.take_number\nSELECT pg_current_xact_id()"


def wal(bench: Bench) -> Iterator[Figure]:
    """The server's WAL with the relay running, less what the same writers make without it, by turns.

    So it counts all that the relay causes: its rows, their index entries, its commits, page images, hint bits.
    """
    seconds = bench.scale.steady_seconds / 3
    alone, beside = list[float](), list[float]()
    with bench.topic() as topic, bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        traffic = Steady(url, topic)
        for _ in range(bench.scale.rounds):
            alone.append(_wal_each(connection, traffic, seconds, relayed=False))
            with processes.relay(bench, url):
                _await_empty(connection)
                beside.append(_wal_each(connection, traffic, seconds, relayed=True))
            bench.say(f"WAL a message: {alone[-1]:.0f} bytes without the relay, {beside[-1]:.0f} with it")
    each = [with_relay - without for with_relay, without in zip(beside, alone, strict=True)]
    yield goals.STEADY_WAL.figure(median(each), bytes_each=each, with_relay=beside, writers_alone=alone)


def idle_writer(bench: Bench) -> Iterator[Figure]:
    """Others' p99 while one writer holds a transaction with a number and an entry, and without it, by turns."""
    with steady_traffic(bench) as traffic:
        taken = quietest(bench, partial(_p99_pair, bench, traffic), bench.scale.rounds)
    without, beside = ([each.value[side] for each in taken] for side in (0, 1))
    bench.say(f"p99 without an idle writer: {median(without):.1f} ms, with one: {median(beside):.1f} ms")
    ratios = [with_one / one for one, with_one in zip(without, beside, strict=True)]
    yield goals.IDLE_WRITER.figure(
        median(ratios), p99_ms_without=without, p99_ms_with=beside, cores_of_others=[each.others for each in taken]
    )


def _p99_pair(bench: Bench, traffic: Steady) -> tuple[float, float]:
    """(without, with) an idle writer."""

    def p99(*, held: bool) -> float:
        with _idle_writer(traffic) if held else nullcontext():
            written = traffic.run(WAKING_SECONDS + bench.scale.steady_seconds / 3).after(WAKING_SECONDS)
        return percentile(delays_ms(written.committed, traffic.read), 99)

    return p99(held=False), p99(held=True)


def _wal_each(connection: meters.Connection, traffic: Steady, seconds: float, *, relayed: bool) -> float:
    load.checkpoint(connection)
    before = meters.counters(connection)
    written = traffic.write(seconds)
    if relayed:
        _await_empty(connection)
    return meters.counters(connection).since(before).wal_bytes / len(written.committed)


def _await_empty(connection: meters.Connection) -> None:
    until(lambda: meters.pending(connection) == 0, "empty backlog", 60, every=0.1)


@contextmanager
def _idle_writer(traffic: Steady) -> Iterator[None]:
    with psycopg.connect(traffic.database_url) as connection:
        connection.execute(_TAKE_NUMBER)
        load.append(connection, traffic.topic, 1)
        yield
        connection.rollback()
