"""The service loop: start, serve until a signal, drain within the deadline, exit 0. A second signal stops at once."""

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from ferryman.runtime import health, signals
from ferryman.runtime.errors import Exit, FerrymanError
from ferryman.runtime.life import Life
from ferryman.runtime.logs import frames
from ferryman.runtime.settings import Settings

log = structlog.get_logger(__name__)

_ROWS_BETWEEN_COLLECTIONS = 50_000


class Service(Protocol):
    """Anything that `ferryman run` can run: a name, and a loop that ends soon after `life.stopping` is set."""

    @property
    def name(self) -> str: ...

    def run(self, life: Life) -> None: ...


def collect_less() -> None:
    """Make Python's cycle collector run rarely in a process that handles rows by the thousand.

    Rows are tuples in lists: they form no cycles and are freed when nobody holds them. With the default threshold the
    collector would walk through all rows in memory after every few hundred. Call it when everything is imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ROWS_BETWEEN_COLLECTIONS, 20, 20)


class _Running(threading.Thread):
    """A service in its thread, and the error that ended it."""

    def __init__(self, service: Service, life: Life, ended: threading.Event) -> None:
        super().__init__(name=service.name, daemon=True)
        self.life = life
        self.error: BaseException | None = None
        self._service = service
        self._ended = ended

    def run(self) -> None:
        try:
            self._service.run(self.life)
        except BaseException as error:  # it is raised again, in the main thread
            self.error = error
            if not isinstance(error, FerrymanError):  # a bug: no values are logged, which may be secret
                log.error("failed", service=self.name, error=type(error).__name__, where=frames(error))  # noqa: TRY400
        finally:
            self._ended.set()


def serve(services: Sequence[Service], settings: Settings, *, stop_at_once: Callable[[int], Any] = os._exit) -> Exit:
    """Run the services until one ends or a signal comes; raise the error that ended one of them."""
    stopping, ended = threading.Event(), threading.Event()
    running = [_Running(service, Life(service.name, stopping), ended) for service in services]

    def asked() -> None:
        if stopping.is_set():
            stop_at_once(Exit.INTERRUPTED)
        stopping.set()
        ended.set()

    with signals.heard(asked):
        with health.endpoint(settings.health, [each.life for each in running]) as url:
            for each in running:
                each.start()
            log.info("started", services=[service.name for service in services], health=url)
            ended.wait()
            return _drain(running, stopping, settings.service.drain_seconds, stop_at_once)


def _drain(
    running: Sequence[_Running], stopping: threading.Event, seconds: float, stop_at_once: Callable[[int], Any]
) -> Exit:
    stopping.set()
    log.info("draining", deadline_seconds=seconds)
    deadline = time.monotonic() + seconds
    for each in running:
        each.join(max(0.0, deadline - time.monotonic()))
    stuck = [each.name for each in running if each.is_alive()]
    if error := next((each.error for each in running if each.error), None):
        raise error
    if stuck:
        log.error("not drained within the deadline", services=stuck, setting="service.drain_seconds")
        stop_at_once(Exit.FAILURE)  # a thread cannot be ended in any other way
        return Exit.FAILURE
    log.info("stopped")
    return Exit.OK
