"""Draining what was preloaded: how fast beside a bare producer, and what it writes.

What is compared is measured by turns on the same entries, so that both meet the same machine.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from ferryman.bench import goals, load, meters, processes
from ferryman.bench.figures import Figure, median
from ferryman.bench.parts import Bench
from ferryman.bench.processes import Child, ProcessFailed
from ferryman.bench.quiet import Taken, quietest

_OPEN_SNAPSHOT = "-- bench.open_snapshot\nSELECT pg_current_snapshot()"


@dataclass(frozen=True, slots=True)
class Drained:
    """One run of `ferryman drain relay`."""

    per_second: float
    wal_bytes_each: float
    relay_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """What is compared with one another."""

    bare: float
    plain: Drained
    under_snapshot: Drained

    @property
    def to_bare(self) -> float:
        return self.plain.per_second / self.bare

    @property
    def to_plain(self) -> float:
        return self.under_snapshot.per_second / self.plain.per_second


def rate(bench: Bench) -> Iterator[Figure]:
    """Drain, bare, drain under a snapshot, over and over."""
    entries = bench.scale.entries
    with bench.topic() as topic, bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        load.preload(connection, topic, entries)
        bench.say(f"{entries:,} entries are loaded")
        bare_rate(bench, url, entries)  # a broker that has just started compiles itself
        before = meters.journal_rows(connection)
        rounds = quietest(bench, partial(_round, bench, url, connection), bench.scale.rounds)
        after = meters.journal_rows(connection)
    yield from _figures(entries, rounds)
    yield goals.DEAD_TUPLES.figure(after["dead"] - before["dead"], before=before, after=after)


def _round(bench: Bench, url: str, connection: load.Connection) -> Round:
    entries = bench.scale.entries
    plain = drained(bench, url, connection, entries)
    bare = bare_rate(bench, url, entries)
    with open_snapshot(url):
        under = drained(bench, url, connection, entries)
    bench.say(f"a second: bare {bare:,.0f}, drain {plain.per_second:,.0f}, under a snapshot {under.per_second:,.0f}")
    return Round(bare, plain, under)


def _figures(entries: int, taken: Sequence[Taken[Round]]) -> Iterator[Figure]:
    rounds = [each.value for each in taken]
    plain = [each.plain.per_second for each in rounds]
    others = [each.others for each in taken]
    yield goals.DRAIN_RATE.figure(
        median([each.to_bare for each in rounds]),
        entries=entries, drain_per_second=plain, bare_per_second=[each.bare for each in rounds],
        relay_cpu_seconds=[each.plain.relay_cpu_seconds for each in rounds], cores_of_others=others,
    )  # fmt: skip
    yield goals.SNAPSHOT_RATE.figure(
        median([each.to_plain for each in rounds]),
        with_snapshot_per_second=[each.under_snapshot.per_second for each in rounds],
        without_per_second=plain, cores_of_others=others,
    )  # fmt: skip
    wal = [each.plain.wal_bytes_each for each in rounds]
    yield goals.DRAIN_WAL.figure(median(wal), entries=entries, bytes_each=wal)


def drained(bench: Bench, url: str, connection: load.Connection, entries: int) -> Drained:
    """Publishes all that is loaded once more, in a process of its own."""
    load.rewind(connection)
    before = meters.counters(connection)
    with processes.drain(bench, url) as child, processes.sampled(child, lambda: 0, 0.2) as samples:
        told = child.result(60 + entries / 1000)
    wal = meters.counters(connection).since(before).wal_bytes
    check(told, entries)
    return Drained(entries / told["seconds"], wal / entries, samples[-1].cpu_seconds if samples else 0)


def check(told: dict[str, Any], entries: int) -> None:
    if told["published"] != entries or told["failed"]:
        raise ProcessFailed(f"the drain of {entries} entries says {json.dumps(told)}")


def bare_rate(bench: Bench, url: str, entries: int) -> float:
    """What confluent-kafka produces of the same records from memory, a second."""
    kafka = {"bootstrap.servers": bench.kafka.bootstrap_servers, **bench.kafka.properties, "compression.type": "lz4"}
    wanted = {"database_url": url, "entries": entries, "kafka": kafka}
    with Child(["-m", "ferryman.bench.bare"], bench.relay_environment(url), wanted) as child:
        told = child.result(60 + entries / 1000)
    return float(told["published"] / told["seconds"])


@contextmanager
def open_snapshot(url: str) -> Iterator[None]:
    """A transaction that reads nothing more, as one that was forgotten."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(_OPEN_SNAPSHOT)
        yield
        connection.rollback()
