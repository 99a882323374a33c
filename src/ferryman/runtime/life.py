"""The life of a running service: it says when to stop, and takes reports of progress and readiness."""

import threading
import time
from collections.abc import Callable

from ferryman.runtime.metrics import PROGRESS, READY

Before = Callable[[str], None]
"""Called with the name of a step before it is taken: tests kill the process there."""


def no_hook(_step: str) -> None:
    """Do nothing before a step."""


class Life:
    """The life of one service. Its loop calls `progress` each time round and ends soon after `stopping` is set."""

    def __init__(
        self, name: str, stopping: threading.Event | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.stopping = stopping or threading.Event()
        self._clock = clock
        self._progress_at = clock()
        self._why_not_ready: str | None = None
        self.serves = ""
        self.not_ready("starting")

    def progress(self) -> None:
        """Report that the loop went round once more: /livez looks at nothing else."""
        self._progress_at = self._clock()
        PROGRESS.labels(self.name).set_to_current_time()

    def ready(self, serves: str = "") -> None:
        """Report that the service is ready, and in words what it serves, if that is not always the same."""
        self._why_not_ready, self.serves = None, serves
        READY.labels(self.name).set(1)

    def not_ready(self, why: str) -> None:
        """Report in words why the service is not ready: /readyz shows it until `ready` is called."""
        self._why_not_ready = why
        READY.labels(self.name).set(0)

    def wait(self, seconds: float) -> bool:
        """Wait this long, or until the service should stop. Return True if it should."""
        return self.stopping.wait(seconds)

    @property
    def seconds_since_progress(self) -> float:
        return self._clock() - self._progress_at

    @property
    def why_not_ready(self) -> str | None:
        return "stopping: finishing the work in flight" if self.stopping.is_set() else self._why_not_ready
