"""What a running service is given: when to stop, and a place to say how it is."""

import threading
import time
from collections.abc import Callable

from ferryman.runtime.metrics import PROGRESS, READY


class Life:
    """One service's life. Its loop calls `progress` each time round and ends soon after `stopping` is set."""

    def __init__(
        self, name: str, stopping: threading.Event | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.stopping = stopping or threading.Event()
        self._clock = clock
        self._progress_at = clock()
        self._why_not_ready: str | None = None
        self.not_ready("starting")

    def progress(self) -> None:
        """The loop went round once more: /livez believes nothing else."""
        self._progress_at = self._clock()
        PROGRESS.labels(self.name).set_to_current_time()

    def ready(self) -> None:
        self._why_not_ready = None
        READY.labels(self.name).set(1)

    def not_ready(self, why: str) -> None:
        """Says in words why not; it stands on /readyz until `ready` is called."""
        self._why_not_ready = why
        READY.labels(self.name).set(0)

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until the service should stop; True when it should."""
        return self.stopping.wait(seconds)

    @property
    def seconds_since_progress(self) -> float:
        return self._clock() - self._progress_at

    @property
    def why_not_ready(self) -> str | None:
        return "stopping: finishing the work in flight" if self.stopping.is_set() else self._why_not_ready
