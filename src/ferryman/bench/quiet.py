"""Other programs on the same machine: how much of it they took, and measuring again when that was much."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import psutil

from ferryman.bench.parts import Bench

T = TypeVar("T")

# Of all cores. What a desktop does by itself stays below it.
_DISTURBED_SHARE = 0.05
_MOST_TIMES = 3


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """What was measured, and how many cores others kept busy meanwhile."""

    value: T
    others: float


@dataclass(frozen=True, slots=True)
class _Usage:
    at: float
    ours: float
    everyone: float


def quietest(bench: Bench, take: Callable[[], T], rounds: int) -> Sequence[Taken[T]]:
    """Measures so often, and again for each time that others disturbed; gives the least disturbed."""
    taken: list[Taken[T]] = []
    quiet = 0
    most = _MOST_TIMES * rounds if bench.owns_all and not bench.scale.quick else rounds
    while quiet < rounds and len(taken) < most:
        before = _usage()
        value = take()
        taken.append(Taken(value, _others(before, _usage())))
        quiet += taken[-1].others <= _DISTURBED_SHARE * (os.cpu_count() or 1)
    return sorted(taken, key=lambda each: each.others)[:rounds]


def _others(before: _Usage, after: _Usage) -> float:
    ours, everyone = after.ours - before.ours, after.everyone - before.everyone
    return max(0.0, everyone - ours) / (after.at - before.at)


def _usage() -> _Usage:
    me, ours = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # what it took is then its parent's to tell
            ours += sum(process.cpu_times()[:4])
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
    return _Usage(time.monotonic(), ours, busy - getattr(times, "guest_nice", 0.0))
