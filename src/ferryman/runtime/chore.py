"""Chores: work on a database that is done every so often, such as deleting old rows."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import psycopg

from ferryman.runtime import postgres, user_code
from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent
from ferryman.runtime.life import Life
from ferryman.runtime.metrics import Named
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.supervised import supervise, waiting
from ferryman.runtime.user_functions import check_function, check_name

Work: TypeAlias = Callable[[Any], bool | None]
Measure: TypeAlias = Callable[[Any], Mapping[str, float]]
WorkT = TypeVar("WorkT", bound=Work)
MeasureT = TypeVar("MeasureT", bound=Measure)
ReturnedT = TypeVar("ReturnedT")

_MEASURED = Named("ferryman_chore_", ["chore", "what"], ()).gauge("measured", "Numbers that a chore measures.")
_LONGEST_WAIT_SECONDS = 1.0
_MEASURE_SECONDS = 15.0
_REGISTER = "decorate it with `work` of the chore, as in `@prune.work` above `def delete_old_rows(db):`"


class Chore:
    """Work that is done every so often. `ferryman run module:object` runs it, also beside other services.

    Any number of replicas may run it at the same time, so the work must bear that.
    """

    def __init__(self, name: str, *, every_seconds: float = 60.0) -> None:
        check_name("chore", name)
        given: object = every_seconds
        if not (isinstance(given, int | float) and 0 < given < math.inf):
            raise Misconfigured(f"every_seconds of the chore {name} must be a number greater than 0")
        self.name = name
        self.every_seconds = every_seconds
        self._work: Work | None = None
        self._measure: Measure | None = None

    def work(self, function: WorkT) -> WorkT:
        """Register the function that does the work, in one short transaction: a bounded portion of what there is.

        It takes the connection. If it returns True there is more, and it is called again at once.
        """
        if self._work is not None:
            raise Misconfigured(f"the chore {self.name} has two functions for its work", remedy="keep one")
        check_function(f"work of the chore {self.name}", function)
        self._work = function
        return function

    def measured(self, function: MeasureT) -> MeasureT:
        """Register a function that returns numbers by their names, which are shown as gauges.

        It takes the connection, and is called every 15 seconds. `ferryman_chore_measured` has the numbers.
        """
        if self._measure is not None:
            raise Misconfigured(f"the chore {self.name} has two functions that measure", remedy="keep one")
        check_function(f"measured of the chore {self.name}", function)
        self._measure = function
        return function

    def check(self) -> None:
        """Refuse a chore without work."""
        if self._work is None:
            raise Misconfigured(f"the chore {self.name} has no work", remedy=f"register a function: {_REGISTER}")

    def run_once(self, connection: Connection, settings: Settings) -> bool:
        """Do one portion of the work. Return True if there is more."""
        self.check()
        assert self._work is not None
        return bool(self._call("work", self._work, connection, settings))

    def measure(self, connection: Connection, settings: Settings) -> None:
        """Set the gauges."""
        if self._measure is not None:
            for what, value in self._call("numbers", self._measure, connection, settings).items():
                _MEASURED.labels(self.name, what).set(value)

    def _call(
        self, role: str, function: Callable[[Any], ReturnedT], connection: Connection, settings: Settings
    ) -> ReturnedT:
        """Call a function of the user's in a transaction."""
        with postgres.transaction(connection, settings.database):
            try:
                return function(connection)
            except FerrymanError:
                raise
            except Exception as error:  # whatever the user's function raises
                if connection.broken:
                    raise
                what = f"the {role} of the chore {self.name}"
                if passing := user_code.passing(what, error):
                    raise passing from error
                if isinstance(user_code.raised(error), psycopg.Error):
                    raise Permanent(f"{what} failed: {user_code.told(error)}", remedy="correct it there") from error
                raise


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
        self.chore.check()
        supervise(life.stopping, self._connected, partial(self._serve, life), waiting(life, service=self.name))

    def drain(self, stopping: threading.Event) -> None:
        """Do all the work that there is now."""
        with postgres.translated(), self._connected() as connection:
            while not stopping.is_set() and self.chore.run_once(connection, self.settings):
                pass

    def _connected(self) -> AbstractContextManager[Connection]:
        return postgres.connect(self.settings, self.name, autocommit=True)

    def _serve(self, life: Life, connection: Connection, succeeded: Callable[[], None]) -> None:
        life.ready()
        measure_at = 0.0
        while not life.stopping.is_set():
            if time.monotonic() >= measure_at:
                self.chore.measure(connection, self.settings)
                measure_at = time.monotonic() + _MEASURE_SECONDS
            more = self.chore.run_once(connection, self.settings)
            succeeded()
            life.progress()
            until = time.monotonic() + (0 if more else self.chore.every_seconds)
            while (left := until - time.monotonic()) > 0 and not life.wait(min(left, _LONGEST_WAIT_SECONDS)):
                life.progress()
