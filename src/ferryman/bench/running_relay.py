"""A running relay: how soon it delivers and what it writes under a steady load, and what it costs without any."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from itertools import count, islice
from statistics import median_low

import psycopg

from ferryman.bench import goals, journal, meters, programs
from ferryman.bench.goals import Figure, percentile, percentiles
from ferryman.bench.journal import Arrivals, Traffic
from ferryman.bench.meters import Connection
from ferryman.bench.programs import Program
from ferryman.bench.servers import Bench, ratio

_MOST_TRIES = 4
_NEIGHBOURS = 2
_IDLE_BEFORE_WAKING_SECONDS = 2.0

_TAKE_NUMBER = "-- bench.take_number\nSELECT pg_current_xact_id()"


@contextmanager
def _relayed(bench: Bench) -> Iterator[tuple[Traffic, Arrivals]]:
    """Give traffic with a relay and a reader."""
    with (
        bench.topic() as topic,
        bench.database() as url,
        programs.service(bench, "relay", url),
        closing(Arrivals(bench, topic)) as arrivals,
    ):
        yield Traffic(url, topic), arrivals


def latency(bench: Bench) -> Iterator[Figure]:
    """Measure from when COMMIT had returned to its writer: only then the writer knows that it is committed."""
    with _relayed(bench) as (traffic, arrivals):
        traffic.delays_ms(arrivals, bench.scale.warm_seconds)
        measure = partial(traffic.delays_ms, arrivals, bench.scale.steady_seconds)
        [delays], [others] = bench.quietest(measure, 1)
        with ExitStack() as neighbours:
            for _ in range(_NEIGHBOURS):
                neighbours.enter_context(programs.own_program(bench, "neighbour", None))
            [crowded], [others_too] = bench.quietest(measure, 1)
    raw = {"messages": len(delays), "percentiles_ms": percentiles(delays), "cores_of_others": others}
    yield goals.LATENCY_P50.figure(percentile(delays, 50), **raw)
    yield goals.LATENCY_P99.figure(percentile(delays, 99), **raw)
    raw = {"messages": len(crowded), "percentiles_ms": percentiles(crowded), "cores_of_others": others_too}
    yield goals.LATENCY_P99_CROWDED.figure(percentile(crowded, 99), **raw)


def idle_writer(bench: Bench) -> Iterator[Figure]:
    """Measure others' p99 while a writer idles in its transaction with an entry, and without it, in turns."""

    def p99(*, held: bool) -> float:
        with _idle_writer(traffic) if held else nullcontext():
            return percentile(traffic.delays_ms(arrivals, bench.scale.steady_seconds / 3), 99)

    with _relayed(bench) as (traffic, arrivals):
        traffic.delays_ms(arrivals, bench.scale.warm_seconds)
        p99s, others = bench.compared(without=lambda: p99(held=False), beside=lambda: p99(held=True))
    without, beside = p99s.values()
    yield goals.IDLE_WRITER.figure(
        ratio(beside, without), p99_ms_without=without, p99_ms_with=beside, cores_of_others=others
    )


@contextmanager
def _idle_writer(traffic: Traffic) -> Iterator[None]:
    with psycopg.connect(traffic.database_url) as connection:
        connection.execute(_TAKE_NUMBER)
        journal.append(connection, traffic.topic, 1)
        yield
        connection.rollback()


def wal(bench: Bench) -> Iterator[Figure]:
    """Measure the server's WAL with the relay running, less what the same writers make without it, in turns.

    This counts everything that the relay causes: its rows, their index entries, commits, page images, hint bits.
    """
    alone, beside = list[float](), list[float]()
    with bench.journal() as (topic, url, connection):
        measure = partial(_wal_each, connection, Traffic(url, topic), bench.scale.steady_seconds / 3)
        for _ in range(bench.scale.rounds):
            alone.append(measure(relayed=False))
            with programs.service(bench, "relay", url):
                meters.await_empty_backlog(connection)
                beside.append(measure(relayed=True))
    each = [with_relay - without for with_relay, without in zip(beside, alone, strict=True)]
    yield goals.STEADY_WAL.figure(median_low(each), bytes_each=each, with_relay=beside, writers_alone=alone)


def _wal_each(connection: Connection, traffic: Traffic, seconds: float, *, relayed: bool) -> float:
    journal.checkpoint(connection)
    before, _ = meters.counters(connection)
    committed = traffic.write(seconds)
    if relayed:
        meters.await_empty_backlog(connection)
    return (meters.counters(connection)[0] - before) / len(committed)


def idle_costs(bench: Bench) -> Iterator[Figure]:
    """Measure CPU time, WAL, transaction numbers and statements of a relay that had work before and has none now."""
    with bench.journal() as (topic, url, connection), programs.service(bench, "relay", url) as relay:
        Traffic(url, topic).write(0.2)
        meters.await_empty_backlog(connection, 30)
        figures: list[Figure] = []
        for _ in range(_MOST_TRIES):
            _await_quiet(bench, connection)
            maintained = meters.maintenance(connection)
            figures = list(_watch(bench, connection, relay))
            if meters.maintenance(connection) == maintained:
                break
            bench.say("autovacuum ran meanwhile: once more")
    yield from figures


def _watch(bench: Bench, connection: Connection, relay: Program) -> Iterator[Figure]:
    if bench.counts_statements:
        meters.reset_statements(connection)
    before, cpu, began = meters.counters(connection), relay.cpu_seconds(), time.monotonic()
    time.sleep(bench.scale.idle_seconds)
    seconds, cpu = time.monotonic() - began, relay.cpu_seconds() - cpu
    wal, xids = (now - then for now, then in zip(meters.counters(connection), before, strict=True))
    counted = meters.by_statement(connection) if bench.counts_statements else {}
    # The server logs its running transactions now and then. If statements are counted, only their WAL is the figure.
    caused = sum(each["wal_bytes"] for each in counted.values()) if bench.counts_statements else wal
    yield goals.IDLE_CPU.figure(100 * cpu / seconds, cpu_seconds=cpu, seconds=seconds)
    yield goals.IDLE_WAL.figure(caused, seconds=seconds, whole_server=wal)
    yield goals.IDLE_XIDS.figure(xids, seconds=seconds)
    if bench.counts_statements:
        calls = sum(each["calls"] for each in counted.values())
        yield goals.IDLE_STATEMENTS.figure(
            calls / seconds, counter="pg_stat_statements", seconds=seconds, by_statement=counted
        )
    else:
        yield goals.IDLE_STATEMENTS.unmeasured("this server has no pg_stat_statements")


def _await_quiet(bench: Bench, connection: Connection) -> None:
    """Wait until nobody has written WAL for a while: the server still logs what happened before."""
    since, last = time.monotonic(), meters.counters(connection)
    deadline = since + 4 * bench.scale.quiet_seconds + 10
    while time.monotonic() - since < bench.scale.quiet_seconds and time.monotonic() < deadline:
        time.sleep(0.2)
        if (now := meters.counters(connection)) != last:
            since, last = time.monotonic(), now


def wake(bench: Bench) -> Iterator[Figure]:
    """Measure the delay of the first entry after some idleness, again and again."""

    def delays_ms(numbers: Iterable[int]) -> list[float]:
        delays = []
        for number in numbers:
            time.sleep(_IDLE_BEFORE_WAKING_SECONDS)
            committed = traffic.write_one(connection, number)
            arrivals.await_all([number])
            delays.append((arrivals.at[number] - committed) * 1000)
        return delays

    with _relayed(bench) as (traffic, arrivals), psycopg.connect(traffic.database_url) as connection:
        numbers = count()
        delays_ms(islice(numbers, 1))  # the very first entry finds no producer yet
        [delays], [others] = bench.quietest(lambda: delays_ms(islice(numbers, bench.scale.trials)), 1)
    yield goals.WAKE.figure(
        max(delays), trials=len(delays), median_ms=median_low(delays), all_ms=delays, cores_of_others=others
    )
