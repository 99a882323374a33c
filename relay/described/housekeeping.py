"""Housekeeping of a described outbox: its backlog is measured, and old attempts are deleted.

A running outbox has it in a thread and on a connection of its own: to count a million rows takes half a second, and its
turns must not wait for that.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from ferryman.relay import metrics
from ferryman.relay.described.table import MOST_FORGOTTEN, Table, refusals_are_the_tables
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.life import Life
from ferryman.runtime.logs import frames
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.supervised import supervise

Connected: TypeAlias = Callable[[], AbstractContextManager[Table]]

log = structlog.get_logger(__name__)

_MORE_SECONDS = 1.0
_AFTER_ERROR_SECONDS = 1.0
_END_SECONDS = 1.0
# Counting a large backlog gets at most this share of the time.
_SHARE_OF_TIME = 20


@dataclass(frozen=True, slots=True)
class RowHousekeeping:
    """The housekeeping of one `[outbox.NAME]`."""

    outbox_name: str
    outbox: Outbox
    label: str
    every_seconds: float

    @contextmanager
    def beside(self, life: Life, connected: Connected, of_service: Connected) -> Iterator[Connected]:
        """Do it until the block ends or the service should stop. A bug in it stops the service.

        Yield `of_service` for the service: the housekeeping begins when that succeeded once. So what is wrong with the
        table or its settings is said by the service, and once.
        """
        begun, stopping, bugs = threading.Event(), threading.Event(), list[BaseException]()

        @contextmanager
        def opened() -> Iterator[Table]:
            with of_service() as table:
                begun.set()
                yield table

        def interrupted(problem: FerrymanError, seconds: float) -> None:
            log.warning("housekeeping interrupted", outbox=self.outbox_name, error=str(problem))
            stopping.wait(max(seconds, _AFTER_ERROR_SECONDS))

        def serve(table: Table, succeeded: Callable[[], None]) -> None:
            while not stopping.is_set():
                with refusals_are_the_tables(self.outbox_name):
                    seconds = self.run_once(table)
                succeeded()
                stopping.wait(seconds)

        def keep() -> None:
            begun.wait()
            try:
                supervise(stopping, connected, serve, interrupted, patient=True)
            except BaseException as error:  # it is raised again, in the thread of the service
                log.error("crashed", outbox=self.outbox_name, error=type(error).__name__, where=frames(error))  # noqa: TRY400
                bugs.append(error)
                life.stopping.set()

        thread = threading.Thread(target=keep, name=f"housekeeping of {self.outbox_name}", daemon=True)
        thread.start()
        try:
            yield opened
        finally:
            stopping.set()
            begun.set()
            thread.join(_END_SECONDS)
        if bugs:
            raise bugs[0]

    def run_once(self, table: Table) -> float:
        """Delete a portion of the old attempts, and measure: that may fail. Return the seconds until the next time."""
        more = self.forget(table)
        began = time.monotonic()
        self.measure(table)
        took = time.monotonic() - began
        return _MORE_SECONDS if more else max(self.every_seconds, took * _SHARE_OF_TIME)

    def measure(self, table: Table) -> Sequence[Backlog]:
        """Set the metrics of the backlog."""
        found = table.backlog()
        metrics.backlog(self.label, found)
        return found

    def forget(self, table: Table) -> bool:
        """Delete a portion of the old attempts. Return True if there are more."""
        seconds = self.outbox.attempts_retention_seconds
        if self.outbox.channel == "kafka" or not seconds:
            return False
        mails = self.outbox.channel == "email"
        return table.forget_attempts(self.outbox_name, seconds, mails=mails) >= MOST_FORGOTTEN
