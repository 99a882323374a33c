"""How long to rest behind a small portion of work, so that the next is larger.

What comes in small portions costs most by the portion: claims, statements, commits, a request to Kafka for each
partition. Who finds less than it could take rests in proportion to what that took. Where nothing else is to do that is
a few milliseconds; where servers and machine are busy everything takes longer, and portions grow by themselves.
"""

import time
from collections.abc import Callable

_LONGEST_SECONDS = 0.05
_SCHEDULER, _PROCESSORS = "/proc/thread-self/schedstat", "/proc/stat"
_LOOK_SECONDS = 0.25
_ROOMY = 0.1
"""While so much of the machine is idle, nobody is in anybody's way."""

Clock = Callable[[], float]


class Pace:
    """Of one thread's portions: `began`, and then how long to rest, by what this clock says it took."""

    def __init__(self, times: Callable[[], float], at_least: float = 0.0, clock: Clock = time.monotonic) -> None:
        self._times = times
        self._at_least = at_least
        self._clock = clock
        self._since = 0.0

    def began(self) -> None:
        self._since = self._clock()

    def rest_seconds(self) -> float:
        return rest_seconds(self._clock() - self._since, self._times(), self._at_least)


def rest_seconds(took: float, times: float, at_least: float = 0.0) -> float:
    """So many times what it took, within bounds."""
    return max(at_least, min(_LONGEST_SECONDS, times * took))


def stood_in_line() -> float:
    """A clock that goes while the thread that asks could work and has no processor, as Linux counts it.

    It stands still where the machine has processors to spare, and on systems that do not count.
    """
    try:
        with open(_SCHEDULER, "rb", buffering=0) as scheduler:
            return int(scheduler.read().split()[1]) / 1e9
    except OSError:
        return 0.0


class Crowd:
    """How crowded the machine was a moment ago: 0 while it has room, 1 where no processor was ever idle."""

    def __init__(self, counted: Callable[[], tuple[int, int]] | None = None, clock: Clock = time.monotonic) -> None:
        self._counted = counted or _processors
        self._clock = clock
        self._share = 0.0
        self._before = self._counted()
        self._look_at = clock() + _LOOK_SECONDS

    def share(self) -> float:
        """Looks four times a second at most."""
        if (now := self._clock()) >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            (idle, total), before = self._counted(), self._before
            self._before = idle, total
            left = (idle - before[0]) / (total - before[1]) if total > before[1] else 1.0
            self._share = max(0.0, 1.0 - left / _ROOMY)
        return self._share


def _processors() -> tuple[int, int]:
    """How long all of them were idle, and how long altogether, as Linux counts it; nothing, where nobody counts."""
    try:
        with open(_PROCESSORS, "rb") as counts:
            _, *spent = counts.readline().split()
    except OSError:
        return 0, 0
    user, nice, system, idle, waiting, *others = map(int, spent[:8])  # behind these, what is counted among them
    return idle + waiting, user + nice + system + idle + waiting + sum(others)
