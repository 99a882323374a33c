"""One long transaction that commits late, over a journal that retains millions."""

import time
from collections.abc import Iterator
from functools import partial

import psycopg

from ferryman.bench import goals, load, turns
from ferryman.bench.figures import Figure, median, percentile
from ferryman.bench.parts import Bench
from ferryman.bench.quiet import quietest

_SAMPLES = 200
_SOME = 1000


def reading(bench: Bench) -> Iterator[Figure]:
    """Times whole reads, of which the late part is one: while the transaction is open, and when it has committed."""
    late_entries = bench.scale.entries
    with (
        bench.database() as url,
        psycopg.connect(url, autocommit=True) as others,
        psycopg.connect(url) as late,
        psycopg.connect(url) as worker,
    ):
        load.preload(others, "bench", bench.scale.retained)
        bench.say(f"{bench.scale.retained:,} entries are loaded")
        load.append(late, "bench", late_entries)
        load.append(others, "bench", _SOME)
        turns.skip_all(worker)
        [none_late] = quietest(bench, lambda: [_read_ms(worker) for _ in range(_SAMPLES)], 1)
        late.commit()
        [all_late] = quietest(bench, partial(_read_all, worker), 1)
    nothing, (rows, seconds) = none_late.value, all_late.value
    bench.say(f"a read with nothing late: {median(nothing):.2f} ms; of the late: {rows / seconds:,.0f} rows a second")
    retained = {"retained": bench.scale.retained, "late": late_entries}
    yield goals.LATE_NOTHING.figure(
        percentile(nothing, 99), median_ms=median(nothing), max_ms=max(nothing), reads=_SAMPLES,
        cores_of_others=none_late.others, **retained,
    )  # fmt: skip
    if rows == late_entries:
        yield goals.LATE_RATE.figure(
            rows / seconds, rows=rows, seconds=seconds, batch=turns.BATCH, cores_of_others=all_late.others, **retained
        )
    else:
        yield goals.LATE_RATE.unmeasured(f"{rows} of {late_entries} late entries were read")


def _read_ms(worker: load.Connection) -> float:
    with turns.claimed(worker) as found:
        began = time.perf_counter()
        for walk in found:
            turns.step(worker, walk)
        return (time.perf_counter() - began) * 1000


def _read_all(worker: load.Connection) -> tuple[int, float]:
    """(rows, seconds) of reading all that is new, batch after batch. Settles nothing: it can be read again."""
    rows, seconds = 0, 0.0
    with turns.claimed(worker) as found:
        for walk in found:
            count = turns.BATCH
            while count == turns.BATCH:
                began = time.perf_counter()
                count = turns.step(worker, walk)
                seconds += time.perf_counter() - began
                rows += count
                walk.steps.clear()  # a tenure ends long before a million
    return rows, seconds
