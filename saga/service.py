"""The loop that looks after timeouts: `ferryman run` runs it beside the saga's consumer. Any number of them may run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from ferryman.migrations import chains
from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Transient
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings
from ferryman.saga import metrics
from ferryman.saga.engine import Sagas
from ferryman.saga.store import Connection

log = structlog.get_logger(__name__)

_RECONNECTING = Backoff(base_seconds=0.1, cap_seconds=5)
_IDLE_SECONDS = 1.0
_MOST = 500
_COUNT_SECONDS = 15.0


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
        """Those that are due now, as far as one transaction takes them."""
        try:
            with postgres.transaction(connection, self.settings.database):
                moved = self.sagas.due(connection, _MOST)
        except psycopg.Error as error:
            raise postgres.translate(error) from error
        self.sagas.tell_due(moved)
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _COUNT_SECONDS
            self._measure(connection)
        return len(moved)

    def _measure(self, connection: Connection) -> None:
        machine = self.sagas.machine
        counted = self.sagas.store.count(connection)
        for state in machine.states:
            if state not in machine.terminals:
                metrics.ON_THEIR_WAY.labels(machine.name, state).set(counted.get((state, False), 0))
                metrics.WAITING_FOR_PERSON.labels(machine.name, state).set(counted.get((state, True), 0))
        metrics.OVERDUE.labels(machine.name).set(max(0.0, -(self.sagas.store.next_due_seconds(connection) or 0.0)))
        self.sagas.store.forget_strays(connection, self.settings.consumer.receipts_retention_seconds)
