"""Tells whoever registered for it what was committed: beside the loop, at most once, and on nobody's way.

The verdicts are in the database before anything is told, and nothing waits for the telling: it has a thread of its own
and a queue with an end. What does not fit, what fails, and what is left when the process ends is told to nobody but the
log.
"""

import queue
import threading
from collections.abc import Sequence

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.api import AfterCommit, Handled

log = structlog.get_logger(__name__)

_MOST_WAITING = 10_000
"""Messages, each with all its data."""
_LAST_SECONDS = 5.0
_MOST_NAMED = 100


class Telling:
    """One thread for the functions of one consumer; it begins with the first batch."""

    def __init__(self, consumer: str, functions: Sequence[AfterCommit], most: int = _MOST_WAITING) -> None:
        self._consumer = consumer
        self._functions = functions
        self._waiting: queue.Queue[Sequence[Handled]] = queue.Queue()
        self._most = most
        self._messages = 0
        self._counting = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, handled: Sequence[Handled]) -> None:
        """Returns at once."""
        if not self._functions or not handled:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self._consumer}-telling", daemon=True)
            self._thread.start()
        with self._counting:
            fits = self._messages + len(handled) <= max(self._most, len(handled))
            self._messages += len(handled) if fits else 0
        if fits:
            self._waiting.put(handled)
        else:
            self._untold(handled, "too much waits to be told")

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Tells what waits, as far as there is time."""
        if self._thread is None:
            return
        self._closing.set()
        self._thread.join(seconds)
        left: list[Handled] = []
        while not self._waiting.empty():
            left += self._waiting.get_nowait()
        if left:
            self._untold(left, "the process ends")

    def _run(self) -> None:
        while not (self._closing.is_set() and self._waiting.empty()):
            try:
                handled = self._waiting.get(timeout=0.1)
            except queue.Empty:
                continue
            with self._counting:
                self._messages -= len(handled)
            for function in self._functions:
                self._call(function, handled)

    def _call(self, function: AfterCommit, handled: Sequence[Handled]) -> None:
        try:
            function(handled)
        except Exception as error:
            self._untold(handled, f"{type(error).__name__}: {error}"[:500])

    def _untold(self, handled: Sequence[Handled], why: str) -> None:
        """Which they are is for the log alone to tell, some in a line."""
        metrics.UNTOLD.labels(self._consumer).inc(len(handled))
        for first in range(0, len(handled), _MOST_NAMED):
            some = handled[first : first + _MOST_NAMED]
            ids = [str(message.id) for message, _ in some]
            log.warning("not told", consumer=self._consumer, messages=len(some), ids=ids, error=why)
