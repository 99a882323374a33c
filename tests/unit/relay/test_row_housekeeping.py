"""The housekeeping of a described outbox, on a table in memory: how often it counts, and what it waits out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from ferryman.relay.described import housekeeping
from ferryman.relay.described.housekeeping import RowHousekeeping
from ferryman.relay.described.table import Table
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from support.turning import TableInMemory, TurnsInMemory


def keeping() -> RowHousekeeping:
    return TurnsInMemory().service.housekeeping


@pytest.mark.parametrize(("took", "until_next"), [(0.1, 60), (30, 600)])
def test_counting_a_large_backlog_gets_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, took: float, until_next: float
) -> None:
    """N12: a small one is counted as often as the settings say."""
    clock = iter([100.0, 100.0 + took])
    monkeypatch.setattr(housekeeping, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert replace(keeping(), every_seconds=60).run_once(cast(Table, TableInMemory())) == until_next


def test_housekeeping_that_is_refused_at_first_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: a login that may not connect twice, say, must not stop the turns beside it."""
    monkeypatch.setattr(housekeeping, "_AFTER_ERROR_SECONDS", 0.0)
    connected = threading.Event()

    @contextmanager
    def connect() -> Iterator[Table]:
        if not connected.is_set():
            connected.set()
            raise Misconfigured("too many connections for the login")
        counted.set()
        yield cast(Table, TableInMemory())

    counted, life = threading.Event(), Life("mine")

    @contextmanager
    def of_service() -> Iterator[Table]:
        yield cast(Table, TableInMemory())

    with keeping().beside(life, connect, of_service) as opened:
        with opened():
            pass
        assert counted.wait(10)
    assert not life.stopping.is_set()
