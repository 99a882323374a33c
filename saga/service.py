"""The loop that looks after timeouts: `ferryman run` runs it beside the saga's consumer. Any number of them may run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import structlog

from ferryman.migrations import chains
from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.saga import metrics
from ferryman.saga.engine import Sagas
from ferryman.saga.model import Key
from ferryman.saga.store import Connection, Moved

log = structlog.get_logger(__name__)

_RECONNECTING = Backoff(base_seconds=0.1, cap_seconds=5)
_IDLE_SECONDS = 1.0
_MOST = 500
_COUNT_SECONDS = 15.0
_POSTPONE_SECONDS = 60.0


@dataclass(slots=True)
class DueLoop:
    """One process's part: each turn takes some that are due and that nobody else has in hand."""

    sagas: Sagas[Any]
    settings: Settings
    owners: Sequence[str] = (chains.ENGINE,)
    _count_at: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.sagas.machine.name}-timeouts"

    def run(self, life: Life) -> None:
        failures = 0
        while not life.stopping.is_set():
            try:
                with postgres.connect(self.settings, self.name, autocommit=True) as connection:
                    chains.check(connection, self.owners)
                    life.ready()
                    failures = 0
                    self._serve(life, connection)
            except (Transient, psycopg.OperationalError) as error:
                failures += 1
                seconds = _RECONNECTING.delay_seconds(failures)
                life.not_ready(str(error))
                log.warning(
                    "interrupted", service=self.name, error=str(error)[:500], again_in_seconds=round(seconds, 1)
                )
                life.progress()
                life.wait(seconds)

    def _serve(self, life: Life, connection: Connection) -> None:
        while not life.stopping.is_set():
            moved = self.turn(connection)
            life.progress()
            if moved < _MOST:
                life.wait(self._pause_seconds(connection))

    def _pause_seconds(self, connection: Connection) -> float:
        """Until the next is due; what is late already is in another's hand."""
        seconds = self.sagas.store.next_due_seconds(connection)
        return seconds if seconds is not None and 0 < seconds < _IDLE_SECONDS else _IDLE_SECONDS

    def turn(self, connection: Connection) -> int:
        """Those that are due now, as far as one transaction takes them; one by one where not all can be moved."""
        try:
            moved = self._moved(connection, lambda: self.sagas.due(connection, _MOST))
        except (Transient, Misconfigured):
            raise
        except Exception as error:
            log.warning("one by one", service=self.name, error=str(error)[:500])
            moved = self._one_by_one(connection)
        self.sagas.tell_due(moved)
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _COUNT_SECONDS
            self._measure(connection)
        return len(moved)

    def _one_by_one(self, connection: Connection) -> list[Moved]:
        """One that cannot be moved stops no other: it is looked at again after a while."""
        moved: list[Moved] = []
        for key in self.sagas.store.due_keys(connection, _MOST):
            try:
                moved += self._moved(connection, partial(self.sagas.due_one, connection, key))
            except (Transient, Misconfigured):
                raise
            except Exception as error:
                self._put_off(connection, key, error)
        return moved

    def _put_off(self, connection: Connection, key: Key, error: Exception) -> None:
        self.sagas.store.postpone(connection, key, _POSTPONE_SECONDS)
        metrics.UNMOVED.labels(self.sagas.machine.name).inc()
        log.error(
            "cannot be moved", service=self.name, saga=str(key), error=f"{type(error).__name__}: {error}"[:500],
            again_in_seconds=_POSTPONE_SECONDS,
        )  # fmt: skip

    def _moved(self, connection: Connection, move: Callable[[], list[Moved]]) -> list[Moved]:
        """Committed, all of them."""
        with postgres.transaction(connection, self.settings.database):
            return move()

    def _measure(self, connection: Connection) -> None:
        machine = self.sagas.machine
        counted = self.sagas.store.count(connection)
        for state in machine.states:
            if state not in machine.terminals:
                metrics.ON_THEIR_WAY.labels(machine.name, state).set(counted.get((state, False), 0))
                metrics.WAITING_FOR_PERSON.labels(machine.name, state).set(counted.get((state, True), 0))
        metrics.OVERDUE.labels(machine.name).set(max(0.0, -(self.sagas.store.next_due_seconds(connection) or 0.0)))
        self.sagas.store.forget_strays(connection, self.settings.consumer.receipts_retention_seconds)
