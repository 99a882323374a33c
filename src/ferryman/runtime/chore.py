"""Chores: work on a database that is done every so often, such as deleting old rows."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.supervised import supervise, waiting

Work: TypeAlias = Callable[[Any], bool | None]
WorkT = TypeVar("WorkT", bound=Work)

_LONGEST_WAIT_SECONDS = 1.0


class Chore:
    """Work that is done every so often. `ferryman run module:object` runs it, also beside other services.

    Any number of replicas may run it at the same time, so the work must bear that.
    """

    def __init__(self, name: str, *, every_seconds: float = 60.0) -> None:
        if every_seconds <= 0:
            raise Misconfigured(f"every_seconds of the chore {name} must be greater than 0")
        self.name = name
        self.every_seconds = every_seconds
        self._work: Work | None = None

    def work(self, function: WorkT) -> WorkT:
        """Register the function that does the work, in one short transaction: a bounded portion of what there is.

        It takes the connection. If it returns True there is more, and it is called again at once.
        """
        if self._work is not None:
            raise Misconfigured(f"the chore {self.name} has two functions for its work", remedy="keep one")
        self._work = function
        return function

    def run_once(self, connection: Connection, settings: Settings) -> bool:
        """Do one portion of the work. Return True if there is more."""
        if self._work is None:
            raise Misconfigured(f"the chore {self.name} has no work", remedy="register a function: @chore.work")
        with postgres.transaction(connection, settings.database):
            return bool(self._work(connection))


@dataclass(frozen=True, slots=True)
class ChoreService:
    """A chore as a service: it connects, works, rests, and begins anew when its database was away."""

    chore: Chore
    settings: Settings

    @property
    def name(self) -> str:
        return self.chore.name

    def run(self, life: Life) -> None:
        """Work until told to stop."""
        supervise(life.stopping, self._connected, partial(self._serve, life), waiting(life, service=self.name))

    def _connected(self) -> AbstractContextManager[Connection]:
        return postgres.connect(self.settings, self.name, autocommit=True)

    def _serve(self, life: Life, connection: Connection, succeeded: Callable[[], None]) -> None:
        life.ready()
        while not life.stopping.is_set():
            more = self.chore.run_once(connection, self.settings)
            succeeded()
            life.progress()
            until = time.monotonic() + (0 if more else self.chore.every_seconds)
            while (left := until - time.monotonic()) > 0 and not life.wait(min(left, _LONGEST_WAIT_SECONDS)):
                life.progress()
