"""The turns of a described outbox, on a table and a way out in memory: what happens as it stops, or its way is away."""

import threading
from contextlib import nullcontext
from typing import Any, cast

import pytest

from ferryman.relay.described.hooks import Hooks, SettledFailed
from ferryman.relay.described.rows import released
from ferryman.relay.described.table import Table
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime.errors import Transient, Unreachable
from ferryman.runtime.metrics import REGISTRY
from support.turning import TableInMemory, TurnsInMemory, row


def test_rows_that_were_claimed_as_the_stop_came_are_released_unsent() -> None:
    """N16."""
    turns = TurnsInMemory()
    turns.table.due, turns.table.as_claimed = [row("a"), row("b")], turns.stopping.set
    assert turns.run_once().quiet
    assert (turns.way.begun, turns.ends()) == ([], [("a", "released"), ("b", "released")])


def test_row_that_waits_to_go_alone_is_released_when_the_process_stops() -> None:
    """N16: it was lost twice, and claimed while another was under way."""
    turns = TurnsInMemory()
    turns.table.due = [row("under way")]
    turns.run_once()
    turns.table.lost_twice = [row("alone", lost=True)]
    turns.service.lost_at = 0.0
    turns.run_once()
    turns.way.deliver("under way")
    turns.finish()
    assert (turns.way.begun, turns.ends()) == (["under way"], [("alone", "released"), ("under way", "done")])


def test_process_that_stops_does_not_wait_for_a_way_out_that_is_away() -> None:
    """N16: its rows wait for their leases."""
    turns = TurnsInMemory()
    turns.table.due = [row("a")]
    turns.run_once()
    turns.way.away = "Kafka is away"

    def asked() -> None:
        raise AssertionError("the way out was asked while it was away")

    turns.way.as_asked = asked
    turns.finish()
    assert turns.ends() == []


@pytest.mark.parametrize("left", [{"pending": 1}, {"retrying": 1}, {"claimed": 1}, {"held": 1, "failed": 1}])
def test_drain_whose_way_out_goes_away_in_its_last_turn_fails_if_rows_wait(left: dict[str, Any]) -> None:
    """It does not report that nothing is left to send; nor an outage that concerns no row."""
    turns = TurnsInMemory()
    turns.table.left = [Backlog("here", 0, None, 0, 0, 0)._replace(**left)]
    turns.way.as_asked = lambda: setattr(turns.way, "away", "Kafka is away")
    waits = "held" not in left
    with pytest.raises(Unreachable, match="Kafka is away") if waits else nullcontext():
        assert turns.service.drain(threading.Event(), lambda _: None) == turns.table.left


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_are_given_up_are_counted_when_their_report_fails(rows: int) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    def counted() -> float:
        return REGISTRY.get_sample_value("ferryman_relay_failed_total", labels) or 0.0

    labels = {"source": "mine", "topic": "in memory"}
    turns = TurnsInMemory(Hooks(settled=fail))
    turns.table.too_often = [row(str(number), lost=True) for number in range(rows)]
    before = counted()
    turns.run_once()
    assert counted() - before == rows


@pytest.mark.parametrize("error", [KeyError("a bug"), Transient("a timeout"), Unreachable("its own peer is away")])
def test_any_error_of_settled_is_its_rows_own(error: Exception) -> None:
    """N10: the database is not away as long as the connection holds."""

    def fail(*_: object) -> None:
        raise error

    with pytest.raises(SettledFailed, match=type(error).__name__):
        Hooks(settled=fail).tell(cast(Table, TableInMemory()), [released(row("a"))])


def test_lost_connection_in_settled_is_no_failure_of_the_hook() -> None:
    """N3: then the rows are settled again, with the hook."""
    table: Any = TableInMemory()

    def fail(*_: object) -> None:
        table.connection.broken = True
        raise Unreachable("the connection is lost")

    with pytest.raises(Unreachable):
        Hooks(settled=fail).tell(table, [released(row("a"))])
