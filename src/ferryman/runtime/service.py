"""The service loop: start, serve until a signal, drain within the deadline, exit 0. A second signal stops at once."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from ferryman.runtime import health, signals
from ferryman.runtime.exits import Exit
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings

log = structlog.get_logger(__name__)


class Service(Protocol):
    """Anything `ferryman run` can run: a name, and a loop that ends soon after `life.stopping` is set."""

    @property
    def name(self) -> str: ...

    def run(self, life: Life) -> None: ...


class _Running:
    """One service in its thread, and how it ended."""

    def __init__(self, service: Service, life: Life, ended: threading.Event) -> None:
        self.service = service
        self.life = life
        self.error: BaseException | None = None
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name=service.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, deadline: float) -> bool:
        """Whether it ended by the deadline."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self.alive

    def _run(self) -> None:
        try:
            self.service.run(self.life)
        except BaseException as error:  # it is raised again, in the main thread
            self.error = error
        finally:
            self._ended.set()


def serve(services: Sequence[Service], settings: Settings, *, stop_at_once: Callable[[int], Any] = os._exit) -> Exit:
    """Runs the services until one ends or a signal comes; raises what ended one of them in error."""
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
    stuck = [each.service.name for each in running if not each.join(deadline)]
    if error := next((each.error for each in running if each.error), None):
        raise error
    if stuck:
        log.error("not drained within the deadline", services=stuck, setting="service.drain_seconds")
        stop_at_once(Exit.FAILURE)  # its thread cannot be ended in any other way
        return Exit.FAILURE
    log.info("stopped")
    return Exit.OK
