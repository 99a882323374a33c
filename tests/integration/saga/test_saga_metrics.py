"""Metrics and warnings of sagas: committed moves are counted, and sagas that wait for a person are logged."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman import use_schemas
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.transaction import BatchTransaction
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.settings import Settings
from ferryman.saga.timeouts import DueLoop
from ferryman.schemas import active
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from support.paying import Desk, failed, succeeded

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[Desk]:
    yield Desk(ferryman_db, use_schemas(), Rules(PaymentsSettings(most_attempts=1)))
    active.forget()


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"ferryman_saga_{name}", {"machine": "payment", **labels}) or 0.0


def turn(desk: Desk) -> None:
    desk.db.execute("DELETE FROM ferryman.outbox")  # as if it was published: before that, time stands still
    DueLoop(desk.sagas, Settings()).turn(desk.db)


def test_sagas_that_wait_for_a_person_are_counted_apart_and_logged(desk: Desk) -> None:
    waiting, on_its_way = desk.request(), desk.request()
    desk.late(waiting)
    desk.db.execute("UPDATE payments.requests SET due_at = now() WHERE uuid = %s", (waiting.uuid,))
    with capture_logs() as logs:
        turn(desk)
    [warning] = [each for each in logs if each["event"] == "waits for a person"]
    assert (warning["log_level"], warning["saga"], warning["state"]) == ("warning", str(waiting.uuid), "CANCELLING")
    assert desk.stands(on_its_way)[0] == "DEDUCTING"
    assert metric("waiting_for_person", state="CANCELLING") == 1
    assert metric("on_their_way", state="CANCELLING") == 0
    assert metric("on_their_way", state="DEDUCTING") == 1
    assert metric("waiting_for_person", state="DEDUCTING") == 0


def test_the_moves_of_a_batch_are_counted_and_logged_after_its_commit(desk: Desk) -> None:
    stuck, taken = desk.request(), desk.request()
    desk.late(stuck)
    results = [failed(stuck, "UNKNOWN", "CANCEL"), succeeded(taken, amount=1)]
    batch = BatchTransaction(desk.consumer, HandlerConnection(desk.db), results)
    moves, strays = counted()
    batch.run()
    assert counted() == (moves, strays)
    with capture_logs() as logs:
        for tell in desk.consumer.callbacks:
            tell(batch.handled)
    assert [each["saga"] for each in logs if each["event"] == "waits for a person"] == [str(stuck.uuid)]
    assert counted() == (moves + 1, strays + 1)


def counted() -> tuple[float, float]:
    return metric("moves_total", state="STUCK"), metric("strays_total", why="FORGED")
