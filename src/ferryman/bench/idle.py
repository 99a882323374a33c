"""A relay with nothing to do: what it costs, and how soon it wakes."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import psycopg

from ferryman.bench import goals, meters, processes
from ferryman.bench.figures import Figure, median
from ferryman.bench.parts import Bench
from ferryman.bench.processes import Child
from ferryman.bench.quiet import quietest
from ferryman.bench.traffic import Reader, Steady, Written, delays_ms, reading, write_one
from ferryman.bench.waiting import until

_MOST_TRIES = 4
_IDLE_BEFORE_WAKING_SECONDS = 2.0


def costs(bench: Bench) -> Iterator[Figure]:
    """CPU time, WAL, transaction numbers and statements of a relay that had work before and has none now."""
    with (
        bench.topic() as topic,
        bench.database() as url,
        psycopg.connect(url, autocommit=True) as connection,
        processes.relay(bench, url) as relay,
    ):
        Steady(url, topic).write(0.2)
        until(lambda: meters.pending(connection) == 0, "empty backlog", 30)
        figures: list[Figure] = []
        for _ in range(_MOST_TRIES):
            _await_quiet(bench, connection)
            maintained = meters.maintenance(connection)
            figures = list(_watch(bench, connection, relay))
            if meters.maintenance(connection) == maintained:
                break
            bench.say("autovacuum ran meanwhile: once more")
    yield from figures


def wake(bench: Bench) -> Iterator[Figure]:
    """The first entry after a while without any, again and again."""
    with (
        bench.topic() as topic,
        bench.database() as url,
        processes.relay(bench, url),
        reading(bench, topic) as reader,
        psycopg.connect(url) as connection,
    ):
        numbers = count()
        _wake(connection, topic, reader, numbers, 1)  # the first of all finds no producer yet
        [taken] = quietest(bench, partial(_wake, connection, topic, reader, numbers, bench.scale.trials), 1)
    delays = taken.value
    bench.say(f"the first entry after idleness: {median(delays):.0f} ms, at most {max(delays):.0f} ms")
    yield goals.WAKE.figure(
        max(delays), trials=len(delays), median_ms=median(delays), all_ms=delays, cores_of_others=taken.others
    )


def _wake(
    connection: meters.Connection, topic: str, reader: Reader, numbers: Iterator[int], trials: int
) -> list[float]:
    written = Written()
    for number in islice(numbers, trials):
        time.sleep(_IDLE_BEFORE_WAKING_SECONDS)
        write_one(connection, topic, number, written)
        reader.await_all(written.committed)
    return delays_ms(written.committed, reader.read)


def _watch(bench: Bench, connection: meters.Connection, relay: Child) -> Iterator[Figure]:
    seconds = bench.scale.idle_seconds
    if bench.counts_statements:
        meters.forget_statements(connection)
    before, cpu, began = meters.counters(connection), relay.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    took, cpu = time.monotonic() - began, relay.cpu_seconds() - cpu
    spent = meters.counters(connection).since(before)
    # The server itself logs its running transactions now and then: where statements are counted, theirs is the figure.
    calls, wal_bytes = meters.statements(connection) if bench.counts_statements else (0, spent.wal_bytes)
    bench.say(f"idle for {took:.0f} s: {100 * cpu / took:.2f} % of a core, {wal_bytes} bytes of WAL")
    yield goals.IDLE_CPU.figure(100 * cpu / took, cpu_seconds=cpu, seconds=took)
    yield goals.IDLE_WAL.figure(wal_bytes, seconds=took, whole_server=spent.wal_bytes)
    yield goals.IDLE_XIDS.figure(spent.xids, seconds=took)
    if bench.counts_statements:
        yield goals.IDLE_STATEMENTS.figure(
            calls / took, counter="pg_stat_statements", seconds=took, by_statement=meters.by_statement(connection)
        )
    else:
        yield goals.IDLE_STATEMENTS.unmeasured("this server has no pg_stat_statements")


def _await_quiet(bench: Bench, connection: meters.Connection) -> None:
    """Until nobody has written WAL for a while: what the server still logs of before is not the relay's."""
    since, last = time.monotonic(), meters.counters(connection)
    deadline = since + 4 * bench.scale.quiet_seconds + 10
    while time.monotonic() - since < bench.scale.quiet_seconds and time.monotonic() < deadline:
        time.sleep(0.2)
        if (now := meters.counters(connection)) != last:
            since, last = time.monotonic(), now
