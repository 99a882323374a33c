"""The loop around a connection: connect, serve, and begin anew when something is away.

What goes wrong decides by its kind. `Transient` is retried with backoff. `Misconfigured` ends the loop unless the
connection was right before: what was right once may become right again. Anything else is raised: a library's error
that nobody expected is a bug, and retrying a bug for ever hides it.

A connection alone is no success: a server may accept it and refuse the work each time. So the waits grow until the loop
reports that work succeeded.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import structlog

from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient
from ferryman.runtime.life import Life

log = structlog.get_logger(__name__)

ConnectionT = TypeVar("ConnectionT")

RECONNECTING = Backoff(base_seconds=0.1, cap_seconds=5)


def supervise(
    stopping: threading.Event,
    connect: Callable[[], AbstractContextManager[ConnectionT]],
    serve: Callable[[ConnectionT, Callable[[], None]], None],
    interrupted: Callable[[FerrymanError, float], None],
    *,
    patient: bool = False,
) -> None:
    """Serve one connection after another until `stopping` is set or `serve` returns.

    `serve` calls its second argument when work succeeded: the next wait is short again. `connect` also checks what must
    be right about the database. `interrupted` is called with each error that is retried: it says so, and waits so many
    seconds. `patient` retries a wrong setting from the beginning, for loops that must not stop their neighbours.
    """
    failures, was_right = 0, patient

    def succeeded() -> None:
        nonlocal failures
        failures = 0

    while not stopping.is_set():
        try:
            with postgres.translated(), connect() as connection:
                was_right = True
                serve(connection, succeeded)
                return
        except Transient as error:
            problem: FerrymanError = error
        except Misconfigured as error:
            if not was_right:
                raise
            problem = error
        failures += 1
        interrupted(problem, RECONNECTING.delay_seconds(failures))


def waiting(life: Life, **who: str) -> Callable[[FerrymanError, float], None]:
    """Return an `interrupted` that tells the life and the log what is wrong, and waits."""

    def interrupted(problem: FerrymanError, seconds: float) -> None:
        life.not_ready(str(problem))
        log.warning("interrupted", **who, error=str(problem)[:500], again_in_seconds=round(seconds, 1))
        life.wait(seconds)
        life.progress()

    return interrupted
