"""The loop of timeouts: `ferryman run` runs it beside the saga's consumers. Any number of replicas may run."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import structlog

from ferryman.migrations import chains, rights
from ferryman.runtime import postgres, roles
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.supervised import supervise, waiting
from ferryman.saga import guards, metrics
from ferryman.saga.answers import Key
from ferryman.saga.engine import SagaEngine
from ferryman.saga.listening import Listeners, ParticipantOutbox
from ferryman.saga.store import Moved

log = structlog.get_logger(__name__)

_IDLE_SECONDS = 1.0
_MOST = 500
_COUNT_SECONDS = 15.0
_POSTPONE_SECONDS = 60.0
_SILENT_SECONDS = 10.0
"""So long after somebody stopped listening it is logged."""


@dataclass(slots=True)
class DueLoop:
    """One replica's loop: each turn moves some sagas that are due and that no other replica has locked."""

    sagas: SagaEngine[Any]
    settings: Settings
    owners: Sequence[str] = (chains.ENGINE,)
    _count_at: float = 0.0
    _listeners: Listeners | None = None
    _idle: bool = True
    _is_silent: bool = False

    @property
    def name(self) -> str:
        return f"{self.sagas.machine.name}-timeouts"

    def run(self, life: Life) -> None:
        if self.settings.kafka.bootstrap_servers:
            self._idle = False  # sagas may have been on their way before
            saga = self.sagas.saga
            outboxes = [ParticipantOutbox(topic, url, self.settings) for topic, url in saga.outboxes.items()]
            self._listeners = Listeners(saga.name, saga.listeners, self.settings.kafka, outboxes)
            threading.Thread(target=self._listeners.watch, args=(life.stopping,), daemon=True).start()
        supervise(life.stopping, self._connected, partial(self._serve, life), waiting(life, service=self.name))

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        role = roles.needed(roles.RUN_CONSUMER)
        with postgres.connect(self.settings, self.name, autocommit=True, role=role) as connection:
            chains.check(connection, self.owners)
            rights.check_name(connection, "machine", self.sagas.machine.name)
            guards.check(connection, self.sagas.machine)
            yield connection

    def _serve(self, life: Life, connection: Connection, succeeded: Callable[[], None]) -> None:
        life.ready()
        while not life.stopping.is_set():
            moved = self.turn(connection)
            succeeded()
            life.progress()
            if moved < _MOST:
                life.wait(self._pause_seconds(connection))

    def _pause_seconds(self, connection: Connection) -> float:
        """Return the time until the next saga is due. One that is overdue is locked by another replica."""
        seconds = self.sagas.store.next_due_seconds(connection)
        return seconds if seconds is not None and 0 < seconds < _IDLE_SECONDS else _IDLE_SECONDS

    def turn(self, connection: Connection) -> int:
        """Move sagas that are due, and measure now and then. Return how many were moved."""
        moved = self._move(connection, _MOST) if self._listens(connection) else []
        self.sagas.tell_due(moved)
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _COUNT_SECONDS
            self._measure(connection)
        return len(moved)

    def _listens(self, connection: Connection) -> bool:
        """Let time count up to when everybody listened. Return False if that is not known yet.

        While no saga is on its way, the clock need not go.
        """
        store, machine = self.sagas.store, self.sagas.machine.name
        if store.next_due_seconds(connection) is None:
            self._idle = True
            return True
        age = self._listeners.age if self._listeners else 0.0
        if age < inf:
            age = store.heard(connection, age, self.sagas.saga.command_topics, idle=self._idle)
            self._idle = False
        if (age > _SILENT_SECONDS) != self._is_silent:
            self._is_silent = age > _SILENT_SECONDS
            unread = self._listeners if self._listeners and self._listeners.age > _SILENT_SECONDS else None
            why = unread.why if unread else "commands wait to be published"
            log.warning("time stands still" if self._is_silent else "time counts again", machine=machine, why=why)
        metrics.LISTENING.labels(machine).set(not self._is_silent)
        return age < inf

    def _move(self, connection: Connection, most: int) -> list[Moved]:
        """Move sagas that are due in one transaction, or one by one if that fails. Return the committed moves.

        One that cannot be moved must not stop the others, and is looked at again later.
        """
        rows: list[tuple[Any, ...]] = []
        try:
            with postgres.transaction(connection, self.settings.database):
                rows = self.sagas.store.due(connection, most)
                return self.sagas.move_due(connection, rows)
        except (Transient, Misconfigured):
            raise
        except Exception as error:
            if not rows:
                raise
            if most == 1:
                self._postpone(connection, rows[0][0], error)
                return []
            log.warning("one by one", service=self.name, error=str(error)[:500])
        return [each for _ in rows for each in self._move(connection, 1)]

    def _postpone(self, connection: Connection, key: Key, error: Exception) -> None:
        self.sagas.store.postpone(connection, key, _POSTPONE_SECONDS)
        metrics.UNMOVED.labels(self.sagas.machine.name).inc()
        log.error(
            "cannot be moved", service=self.name, saga=str(key), error=f"{type(error).__name__}: {error}"[:500],
            again_in_seconds=_POSTPONE_SECONDS,
        )  # fmt: skip

    def _measure(self, connection: Connection) -> None:
        """Set the gauges, and delete old strays."""
        machine = self.sagas.machine
        counted = self.sagas.store.count(connection)
        for state in machine.states:
            if state not in machine.terminals:
                metrics.ON_THEIR_WAY.labels(machine.name, state).set(counted.get((state, False), 0))
                metrics.WAITING_FOR_PERSON.labels(machine.name, state).set(counted.get((state, True), 0))
        metrics.OVERDUE.labels(machine.name).set(max(0.0, self.sagas.store.overdue_seconds(connection)))
        self.sagas.store.forget_strays(connection, self.settings.consumer.receipts_retention_seconds)
