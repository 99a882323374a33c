"""A long drain: what the relay keeps in memory, and whether its end is as fast as its beginning."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import psycopg

from ferryman.bench import goals, load, meters, processes
from ferryman.bench.drain import check
from ferryman.bench.figures import Figure, median
from ferryman.bench.parts import Bench
from ferryman.bench.processes import Sample


def long_drain(bench: Bench) -> Iterator[Figure]:
    """Five million beside one: resident memory and progress, watched from outside."""
    entries = bench.scale.retained
    with bench.topic() as topic, bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        load.preload(connection, topic, entries)
        bench.say(f"{entries:,} entries are loaded")
        every = 0.01 if bench.scale.quick else 0.1
        with (
            processes.drain(bench, url) as child,
            processes.sampled(child, partial(meters.settled, connection), every) as samples,
        ):
            told = child.result(60 + entries / 1000)
    check(told, entries)
    yield from _figures(bench, entries, samples)


def _figures(bench: Bench, entries: int, samples: Sequence[Sample]) -> Iterator[Figure]:
    early = [sample.resident_mb for sample in samples if sample.told >= entries / 50]
    late = [sample.resident_mb for sample in samples if sample.told >= entries * 0.9]
    first_rate, last_rate = _rate(samples, entries, 0.005, 0.1), _rate(samples, entries, 0.9, 0.995)
    if not early or not late or first_rate is None or last_rate is None:
        for goal in (goals.MEMORY, goals.MEMORY_GROWTH, goals.LAST_TENTH):
            yield goal.unmeasured(f"it was over before it could be watched ({len(samples)} samples)")
        return
    most = max(sample.resident_mb for sample in samples)
    bench.say(f"resident: {early[0]:.0f} MB at a fiftieth, {most:.0f} MB at most; {last_rate:,.0f} a second at the end")
    yield goals.MEMORY.figure(most, entries=entries, samples=len(samples))
    yield goals.MEMORY_GROWTH.figure(
        median(late) / early[0], at_a_fiftieth_mb=early[0], in_the_last_tenth_mb=median(late), entries=entries
    )
    yield goals.LAST_TENTH.figure(
        last_rate / first_rate, first_per_second=first_rate, last_per_second=last_rate, entries=entries
    )


def _rate(samples: Sequence[Sample], entries: int, start: float, end: float) -> float | None:
    """Entries a second between two shares of all; None when the samples do not show them."""
    began, ended = _crossing(samples, start * entries), _crossing(samples, end * entries)
    if began is None or ended is None or ended <= began:
        return None
    return (end - start) * entries / (ended - began)


def _crossing(samples: Sequence[Sample], count: float) -> float | None:
    """When so many were settled, between two samples by proportion."""
    for before, after in pairwise(samples):
        if before.told <= count < after.told:
            return before.at + (after.at - before.at) * (count - before.told) / (after.told - before.told)
    return None
