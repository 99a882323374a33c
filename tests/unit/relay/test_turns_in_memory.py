"""The turns of a described outbox, on a table and a way out in memory: what happens as it stops, or its way is away."""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ferryman.relay.described import service
from ferryman.relay.described.hooks import Hooks, SettledFailed, never
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
    assert (turns.way.begun, turns.ends()) == (["under way"], [("alone", "returned"), ("under way", "done")])


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


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function by which time passes for the service, and no other way."""
    now = [100.0]
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


@pytest.mark.parametrize(("seconds", "begun"), [(59.0, ["a", "b"]), (60.0, [])])
def test_rows_are_not_sent_after_their_leases(wait: Callable[[float], None], seconds: float, begun: list[str]) -> None:
    """N2: the process was suspended, and another one may have sent them meanwhile."""
    turns = TurnsInMemory()
    turns.run_once()
    wait(1000)
    turns.table.due = [row("a"), row("b", lost=True)]
    turns.service.before = lambda step: wait(seconds) if step == "send rows" else None
    turns.run_once()
    assert turns.way.begun == begun
    assert turns.ends() == ([] if begun else [("a", "released"), ("b", "returned")])


def test_row_that_waited_too_long_to_go_alone_is_released(wait: Callable[[float], None]) -> None:
    """N2."""
    turns = TurnsInMemory()
    turns.table.due = [row("under way")]
    turns.run_once()
    turns.table.lost_twice = [row("alone", lost=True)]
    wait(1)
    turns.run_once()
    wait(60)
    turns.way.deliver("under way")
    for _ in range(2):
        turns.run_once()
    assert (turns.way.begun, turns.ends()) == (["under way"], [("under way", "done"), ("alone", "returned")])


@pytest.mark.usefixtures("wait")
def test_due_rows_go_between_rows_that_go_alone() -> None:
    """N10."""
    turns = TurnsInMemory()
    turns.table.lost_twice = [row("1", lost=True)]
    turns.run_once()
    turns.table.lost_twice, turns.table.due = [row("2", lost=True)], [row("due")]
    for each in ("1", "due", "2"):
        turns.run_once()
        assert turns.way.begun[-1] == each, "nothing else is begun before it has ended"
        turns.way.deliver(each)
        turns.run_once()
        turns.run_once()


@pytest.mark.usefixtures("wait")
def test_rows_that_go_alone_do_not_wait_for_due_rows_that_are_not_there() -> None:
    """The turn between them takes no rest, so a drain does not end with it."""
    turns = TurnsInMemory()
    turns.table.lost_twice = [row("1", lost=True)]
    turns.run_once()
    turns.table.lost_twice = [row("2", lost=True)]
    turns.way.deliver("1")
    for walks in (False, True, False):
        turns.run_once()
        assert turns.service._walks is walks
    assert turns.way.begun == ["1", "2"]


def test_lost_rows_are_looked_for_once_a_second_and_when_one_has_ended(wait: Callable[[float], None]) -> None:
    turns = TurnsInMemory()
    turns.table.lost = [row("1", lost=True)]
    for _ in range(2):  # the second look finds nothing
        turns.run_once()
    turns.table.lost = [row("2", lost=True)]
    turns.run_once()
    assert turns.way.begun == ["1"]
    turns.way.deliver("1")
    for _ in range(2):
        turns.run_once()
    assert turns.way.begun == ["1", "2"], "there is room for it"
    turns.run_once()
    turns.table.lost = [row("3", lost=True)]
    wait(1)
    turns.run_once()
    assert turns.way.begun == ["1", "2", "3"]


@pytest.mark.usefixtures("wait")
def test_rows_whose_report_waits_are_not_claimed() -> None:
    """N2: a person has set one back by SQL, so it is due."""

    def fail(*_: object) -> None:
        raise Transient("locked")

    turns = TurnsInMemory(Hooks(settled=fail))
    turns.table.due = [row("a")]
    turns.run_once()
    turns.way.deliver("a")
    turns.run_once()
    assert turns.service.reports.ids == {"a"}
    turns.service.reports.again_at = float("inf")
    turns.table.due = [row("a"), row("b")]
    turns.run_once()
    assert turns.way.begun == ["a", "b"]


def test_rows_whose_preparation_breaks_the_connection_again_wait_for_their_leases() -> None:
    """N10: released, they would be claimed at once, and break it for ever."""
    turns = TurnsInMemory()

    def fail(*_: object) -> Any:
        turns.table.connection.broken = True
        raise Unreachable("lost")

    released_then = list[str]()
    for ids, breaks in (("ab", True), ("ac", True), ("c", True), ("", False), ("c", False), ("c", True), ("", False)):
        turns.service.hooks = Hooks(prepare=fail, reads=never) if breaks else Hooks()
        turns.table.due, turns.table.connection.broken = [row(each) for each in ids], False
        with pytest.raises(Unreachable) if breaks else nullcontext():
            turns.run_once()
        released_then.append("".join(each.row.id for each in turns.table.settled))
        turns.table.settled.clear()
        turns.way.rows.clear()
    assert released_then == ["", "ab", "c", "", "", "", "c"], "what went well meanwhile is released again"
