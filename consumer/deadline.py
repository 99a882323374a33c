"""A handler that does not come back: first its statement is cancelled, then the process ends."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import structlog

from ferryman.consumer.store.receipts import Connection
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Settings

log = structlog.get_logger(__name__)

_MOST_GRACE_SECONDS = 5.0


def refuse(settings: Settings) -> None:
    """A session that ends before its handler has to would be lost with each batch that takes so long."""
    deadline, idle = settings.consumer.deadline_seconds, settings.database.idle_in_transaction_timeout_seconds
    if deadline >= idle:
        raise Misconfigured(
            f"a handler may take {deadline:g} s, and PostgreSQL ends its session after {idle:g} s without a statement "
            "(database.idle_in_transaction_timeout_seconds)",
            setting="consumer.deadline_seconds", remedy="lower it, or raise the other",
        )  # fmt: skip


class Deadline:
    """Watches from a thread of its own. A process that ended so is found by its successor, message by message."""

    def __init__(self, seconds: float, *, exit: Callable[[int], object] = os._exit) -> None:
        self._seconds = seconds
        self._grace = min(seconds, _MOST_GRACE_SECONDS)
        self._exit = exit
        self.passed = False
        self._until: float | None = None
        self._connection: Connection | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """What is inside must end in time."""
        with self._changed:
            self.passed = False
            self._until, self._connection = time.monotonic() + self._seconds, connection
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._until = self._connection = None
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._until is None or (left := self._until - time.monotonic()) > 0:
                    self._changed.wait(None if self._until is None else left)
                until, connection, self.passed = self._until, self._connection, True
            log.error("deadline passed", seconds=self._seconds)
            self._cancel(connection)
            with self._changed:
                if self._changed.wait_for(lambda: self._until != until, self._grace):  # noqa: B023 - used at once
                    continue
            log.critical("handler hangs", seconds=self._seconds + self._grace)
            self._exit(int(Exit.FAILURE))
            return

    @staticmethod
    def _cancel(connection: Connection | None) -> None:
        try:
            if connection is not None:
                connection.cancel_safe(timeout=_MOST_GRACE_SECONDS)
        except psycopg.Error as error:
            log.warning("not cancelled", error=str(error))
