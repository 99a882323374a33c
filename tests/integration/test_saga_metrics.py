"""Who looks after sagas is told how they stand: what was committed is counted, and warned of where a person acts."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman import use_schemas
from ferryman.consumer.face import Plain
from ferryman.consumer.transaction import BatchTransaction
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.settings import Settings
from ferryman.saga.service import DueLoop
from ferryman.schemas import active
from ferryman.services.payments.rules import Rules
from support.paying import Desk, failed, succeeded

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[Desk]:
    yield Desk(ferryman_db, use_schemas(), Rules(most_attempts=1))
    active.forget()


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"ferryman_saga_{name}", {"machine": "payment", **labels}) or 0.0


def turn(desk: Desk) -> None:
    DueLoop(desk.sagas, Settings()).turn(desk.db)


def test_what_waits_for_a_person_is_told_from_what_goes_on_by_itself_and_warned_of(desk: Desk) -> None:
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


def test_what_a_batch_did_is_counted_and_warned_of_once_it_is_committed(desk: Desk) -> None:
    stuck, taken = desk.request(), desk.request()
    desk.late(stuck)
    batch = BatchTransaction(
        desk.consumer, desk.db, Plain(desk.db), [failed(stuck, "UNKNOWN", "CANCEL"), succeeded(taken, amount=1)]
    )
    moves, strays = counted()
    batch.run()
    assert counted() == (moves, strays)
    with capture_logs() as logs:
        for tell in desk.consumer.told:
            tell(batch.handled)
    assert [each["saga"] for each in logs if each["event"] == "waits for a person"] == [str(stuck.uuid)]
    assert counted() == (moves + 1, strays + 1)


def counted() -> tuple[float, float]:
    return metric("moves_total", state="STUCK"), metric("strays_total", why="FORGED")
