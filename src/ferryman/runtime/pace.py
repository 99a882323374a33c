"""Rests after small batches, so that the next batch is larger.

Small batches cost most by the batch: claims, statements, commits, a request to Kafka for each partition. A loop that
found less than it could take rests in proportion to what its own thread waited for, within bounds.
"""

import time
from collections.abc import Callable

_SCHEDULER = "/proc/thread-self/schedstat"

Clock = Callable[[], float]


class Pace:
    """The pace of one thread: call `began`, then ask how long to rest, by the time that has passed on this clock."""

    def __init__(self, times: float, longest_seconds: float, clock: Clock, at_least: float = 0.0) -> None:
        self._times = times
        self._longest = longest_seconds
        self._at_least = at_least
        self._clock = clock
        self._since = 0.0

    def began(self) -> None:
        self._since = self._clock()

    def rest_seconds(self) -> float:
        """Return a multiple of what the batch took, within bounds."""
        took = self._clock() - self._since
        return max(self._at_least, min(self._longest, self._times * took))


def stood_in_line() -> float:
    """Return how long this thread has waited for a processor, as Linux counts it.

    It stays the same where the machine has processors to spare, and on systems that do not count it.
    """
    try:
        with open(_SCHEDULER, "rb", buffering=0) as scheduler:
            return int(scheduler.read().split()[1]) / 1e9
    except OSError:
        return 0.0


def waited() -> float:
    """Return how long this thread has waited: for servers, or for a processor."""
    return time.monotonic() - time.thread_time()
