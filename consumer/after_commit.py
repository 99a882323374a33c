"""Calls `after_commit` functions in a thread of their own, at most once: the loop never waits for them.

The verdicts are in the database before any call. The queue is bounded: messages that do not fit, functions that fail,
and what is pending when the process ends are logged and counted.
"""

import queue
import threading
from collections.abc import Sequence

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.api import AfterCommit, Handled
from ferryman.consumer.partition_buffer import size_of

log = structlog.get_logger(__name__)

_MOST_WAITING = 10_000
_MOST_BYTES = 64 << 20
_LAST_SECONDS = 5.0
_MOST_IDS = 100


class AfterCommitThread:
    """The thread that calls the functions of one consumer. It starts with the first batch."""

    def __init__(
        self,
        consumer: str,
        functions: Sequence[AfterCommit],
        most_bytes: int = _MOST_BYTES,
        most: int = _MOST_WAITING,
    ) -> None:
        self._consumer = consumer
        self._functions = functions
        self._waiting: queue.Queue[tuple[Sequence[Handled], int] | None] = queue.Queue()
        """Batches with their sizes, and None as the last."""
        self._most, self._most_bytes = most, most_bytes
        self._messages = self._bytes = 0
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, handled: Sequence[Handled]) -> None:
        """Queue the calls for a batch, and return at once."""
        if not self._functions or not handled:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self._consumer}-after-commit", daemon=True)
            self._thread.start()
        size = sum(size_of(message.record) for message, _ in handled)
        with self._counting:
            messages, total = self._messages + len(handled), self._bytes + size
            if fits := not self._messages or (messages <= self._most and total <= self._most_bytes):
                self._messages, self._bytes = messages, total
        if fits:
            self._waiting.put((handled, size))
        else:
            self._drop(handled, "too much waits")

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Make the pending calls, as far as there is time."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(seconds)
        left: list[Handled] = []
        while not self._waiting.empty():
            left += (self._waiting.get_nowait() or ((), 0))[0]
        self._waiting.put(None)  # a function that still runs was the last
        if left:
            self._drop(left, "the process ends")

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            handled, size = batch
            with self._counting:
                self._messages, self._bytes = self._messages - len(handled), self._bytes - size
            for function in self._functions:
                try:
                    function(handled)
                except Exception as error:
                    self._drop(handled, f"{type(error).__name__}: {error}"[:500])

    def _drop(self, handled: Sequence[Handled], why: str) -> None:
        """Log the ids of messages that were not delivered, 100 per line: nothing else knows which they are."""
        metrics.UNTOLD.labels(self._consumer).inc(len(handled))
        for first in range(0, len(handled), _MOST_IDS):
            some = handled[first : first + _MOST_IDS]
            ids = [str(message.id) for message, _ in some]
            log.warning("not told", consumer=self._consumer, messages=len(some), ids=ids, error=why)
