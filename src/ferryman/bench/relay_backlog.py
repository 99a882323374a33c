"""A relay with a backlog: how fast it drains beside a bare producer, what that writes, and what it keeps in memory.

Its turns are also measured without Kafka, by its own functions that claim, read and settle: how fast late entries are
read, and what a claim costs after many windows.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median_low

import psycopg

from ferryman.bench import goals, journal, meters, programs
from ferryman.bench.goals import Figure, percentile
from ferryman.bench.meters import Connection, MeasurementFailed
from ferryman.bench.programs import MemorySample
from ferryman.bench.servers import Bench, ratio
from ferryman.relay.lanes import idle_seconds
from ferryman.relay.model import LANES, Walk, Window, walks
from ferryman.relay.store import claims as store
from ferryman.runtime.settings_relay import Relay

BATCH = Relay().batch_entries

_READS = 200
_CLAIMS = 500
_SOME = 1000

_NOW = """\
-- bench.now
SELECT last_value, pg_current_snapshot()::text FROM ferryman.outbox_position_seq
"""
_APPEND = "-- bench.append_to_window\nSELECT ferryman.outbox_append('bench', %s, 'bench.window', 'x')"
_OPEN_SNAPSHOT = "-- bench.open_snapshot\nSELECT pg_current_snapshot()"


def rate(bench: Bench) -> Iterator[Figure]:
    """Measure a drain, the bare producer and a drain under a snapshot, in rounds."""
    entries, wal = bench.scale.entries, list[float]()
    with bench.journal() as (topic, url, connection):

        def drain() -> float:
            per_second, wal_bytes_each = _drain(bench, url, connection)
            wal.append(wal_bytes_each)
            return per_second

        def drain_under_snapshot() -> float:
            with open_snapshot(url):
                return _drain(bench, url, connection)[0]

        journal.preload(bench, connection, topic, entries)
        _bare_rate(bench, url)  # a broker that has just started is still compiling itself
        before = meters.dead_rows(connection)
        rates, others = bench.compared(
            drain=drain, bare=partial(_bare_rate, bench, url), under_snapshot=drain_under_snapshot
        )
        after = meters.dead_rows(connection)
    plain, bare, under = rates.values()
    yield goals.DRAIN_RATE.figure(
        ratio(plain, bare), entries=entries, drain_per_second=plain, bare_per_second=bare, cores_of_others=others
    )
    yield goals.SNAPSHOT_RATE.figure(
        ratio(under, plain), without_per_second=plain, with_snapshot_per_second=under, cores_of_others=others
    )
    yield goals.DRAIN_WAL.figure(median_low(wal), entries=entries, bytes_each=wal)
    yield goals.DEAD_TUPLES.figure(after - before, before=before, after=after)


def _drain(bench: Bench, url: str, connection: Connection) -> tuple[float, float]:
    """Publish everything that is loaded once more. Return entries a second, and bytes of WAL an entry."""
    entries = bench.scale.entries
    journal.rewind(connection)
    before, _ = meters.counters(connection)
    with programs.drain(bench, url) as program:
        seconds = programs.drained_seconds(program.result(_patience(entries)), entries)
    after, _ = meters.counters(connection)
    return entries / seconds, (after - before) / entries


def _bare_rate(bench: Bench, url: str) -> float:
    """Return how many of the same records confluent-kafka alone produces from memory, a second."""
    entries = bench.scale.entries
    kafka = {"bootstrap.servers": bench.kafka.bootstrap_servers, **bench.kafka.properties, "compression.type": "lz4"}
    task = {"database_url": url, "entries": entries, "kafka": kafka}
    return entries / programs.bare_seconds(bench, "produce", task, _patience(entries))


@contextmanager
def open_snapshot(url: str) -> Iterator[None]:
    """Hold a transaction open that reads nothing more, like a forgotten one."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(_OPEN_SNAPSHOT)
        yield
        connection.rollback()


def memory(bench: Bench) -> Iterator[Figure]:
    """Measure resident memory and progress of a drain of five times the entries."""
    entries = bench.scale.retained
    with bench.journal() as (topic, url, connection):
        journal.preload(bench, connection, topic, entries)
        every = 0.01 if bench.scale.quick else 0.1
        with programs.drain(bench, url) as program:
            samples = programs.sampled(program, partial(meters.settled, connection), every, _patience(entries))
            programs.drained_seconds(program.result(_patience(entries)), entries)
    early = [sample.resident_mb for sample in samples if sample.progress >= entries / 50]
    late = [sample.resident_mb for sample in samples if sample.progress >= entries * 0.9]
    first_rate = _rate_between(samples, 0.005 * entries, 0.1 * entries)
    last_rate = _rate_between(samples, 0.9 * entries, 0.995 * entries)
    if not early or not late or first_rate is None or last_rate is None:
        raise MeasurementFailed(f"the drain ended before it could be watched ({len(samples)} samples)")
    yield goals.MEMORY.figure(max(sample.resident_mb for sample in samples), entries=entries, samples=len(samples))
    yield goals.MEMORY_GROWTH.figure(
        median_low(late) / early[0], at_a_fiftieth_mb=early[0], in_the_last_tenth_mb=median_low(late), entries=entries
    )
    yield goals.LAST_TENTH.figure(
        last_rate / first_rate, first_per_second=first_rate, last_per_second=last_rate, entries=entries
    )


def _rate_between(samples: Sequence[MemorySample], start: float, end: float) -> float | None:
    """Return entries a second from the last sample before `start` to the first after `end`; None if there is none."""
    before = [sample for sample in samples if sample.progress <= start]
    after = [sample for sample in samples if sample.progress >= end]
    if not before or not after:
        return None
    return (after[0].progress - before[-1].progress) / (after[0].at - before[-1].at)


def _patience(entries: int) -> float:
    return 60 + entries / 1000


def late(bench: Bench) -> Iterator[Figure]:
    """Measure reads while a long transaction is open over a journal that retains millions, and after its commit."""
    late_entries = bench.scale.entries
    retained = {"retained": bench.scale.retained, "late": late_entries}
    with (
        bench.database() as url,
        psycopg.connect(url, autocommit=True) as others,
        psycopg.connect(url) as late,
        psycopg.connect(url) as worker,
    ):
        journal.preload(bench, others, "bench", bench.scale.retained)
        journal.append(late, "bench", late_entries)
        journal.append(others, "bench", _SOME)
        _skip_all(worker)
        [nothing], [disturbed] = bench.quietest(lambda: [_read_ms(worker) for _ in range(_READS)], 1)
        late.commit()
        [(rows, seconds)], [disturbed_late] = bench.quietest(partial(_read_all, worker), 1)
    yield goals.LATE_NOTHING.figure(
        percentile(nothing, 99), median_ms=median_low(nothing), max_ms=max(nothing), reads=_READS,
        cores_of_others=disturbed, **retained,
    )  # fmt: skip
    if rows != late_entries:
        raise MeasurementFailed(f"{rows} of {late_entries} late entries were read")
    yield goals.LATE_RATE.figure(
        rows / seconds, rows=rows, seconds=seconds, batch=BATCH, cores_of_others=disturbed_late, **retained
    )


def claims(bench: Bench) -> Iterator[Figure]:
    """Measure claims with many windows beside claims with one, while a snapshot keeps old rows from being vacuumed."""
    windows = bench.scale.windows
    with (
        bench.database() as old_url,
        bench.database() as new_url,
        psycopg.connect(old_url) as old,
        psycopg.connect(new_url) as new,
        open_snapshot(old_url),
    ):
        _write_windows(old_url, old, windows)
        _write_windows(new_url, new, 1)
        pairs = [(_claim_ms(old), _claim_ms(new)) for _ in range(_CLAIMS)]
    after, first = (median_low(each) for each in zip(*pairs[_CLAIMS // 10 :], strict=True))
    yield goals.SNAPSHOT_CLAIM.figure(after / first, windows=windows, first_ms=first, after_ms=after)


@contextmanager
def _claimed(connection: Connection) -> Iterator[list[Walk]]:
    """Claim all lanes until the transaction of this block ends."""
    with connection.transaction():
        claim = store.claim(connection, range(LANES), LANES, idle_seconds=idle_seconds(Relay()))
        yield walks(claim.cursors)


def _step(connection: Connection, walk: Walk) -> int:
    """Read one batch as if it were published. Return the number of its entries."""
    entries, target = store.read(connection, walk, BATCH)
    walk.take(entries, target, more=len(entries) == BATCH)
    return len(entries)


def _skip_all(connection: Connection) -> None:
    """Make everything that is visible now count as published."""
    with _claimed(connection) as found:
        position, snapshot = meters.row(connection, _NOW)
        for walk in found:
            walk.done, walk.target, walk.position = Window(snapshot, position), None, 0
        store.settle(connection, [cursor for walk in found for cursor in walk.new_cursors()])


def _read_ms(worker: Connection) -> float:
    with _claimed(worker) as found:
        began = time.perf_counter()
        for walk in found:
            _step(worker, walk)
        return (time.perf_counter() - began) * 1000


def _read_all(worker: Connection) -> tuple[int, float]:
    """Read everything new, batch after batch. Return rows and seconds. Settle nothing: it can be repeated."""
    rows, seconds = 0, 0.0
    with _claimed(worker) as found:
        for walk in found:
            count = BATCH
            while count == BATCH:
                began = time.perf_counter()
                count = _step(worker, walk)
                seconds += time.perf_counter() - began
                rows += count
                walk.steps.clear()  # a tenure ends long before a million entries
    return rows, seconds


def _claim_ms(connection: Connection) -> float:
    began = time.perf_counter()
    with _claimed(connection):
        return (time.perf_counter() - began) * 1000


def _write_windows(url: str, worker: Connection, windows: int) -> None:
    """Append so many entries, and publish each in a window of its own."""
    with psycopg.connect(url, autocommit=True) as writer:
        for number in range(windows):
            writer.execute(_APPEND, (f"key-{number}",))
            with _claimed(worker) as found:
                for walk in found:
                    _step(worker, walk)
                store.settle(worker, [cursor for walk in found if walk.moved for cursor in walk.new_cursors()])
