"""Rows are settled with their reports, on a table in memory: the function `settled` fails as the test wants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ferryman.channels.outcome import Delivered, Rejected, Retry
from ferryman.message import Message
from ferryman.relay.described import reports
from ferryman.relay.described.hooks import Hooks
from ferryman.relay.described.reports import Reports
from ferryman.relay.described.rows import RowEnd, Settling
from ferryman.relay.described.table import Table
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.life import no_hook
from ferryman.runtime.settings_outbox import Outbox
from support.turning import TableInMemory, row

OUTBOX = Outbox.model_validate(
    {"table": "shop.hooks", "channel": "http", "url": "http://here/", "unsigned": True,
     "words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}}
)  # fmt: skip


@dataclass
class Told:
    """The function `settled`: it fails for these rows, and remembers the rows of each call."""

    failing: set[str] = field(default_factory=set)
    error: Exception = field(default_factory=lambda: TimeoutError("locked"))
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, _: Any, settlings: Sequence[Settling]) -> None:
        ids = [each.row.id for each in settlings]
        self.calls.append(ids)
        if self.failing.intersection(ids):
            raise self.error


@dataclass
class Scene:
    told: Told = field(default_factory=Told)
    memory: TableInMemory = field(default_factory=TableInMemory)
    reports: Reports = field(init=False)
    now: float = 100.0

    def __post_init__(self) -> None:
        self.reports = Reports("hooks", OUTBOX, Hooks(settled=self.told), no_hook)

    @property
    def table(self) -> Table:
        return cast(Table, self.memory)

    def settle(self, *ids: str, again: bool = False) -> set[str]:
        return self.reports.settle(self.table, [delivered(each) for each in ids], again=again)


def delivered(identity: str) -> Settling:
    return Settling(row(identity), RowEnd.DONE, "SENT", outcome=Delivered())


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(reports.time, "monotonic", lambda: made.now)  # type: ignore[attr-defined]
    return made


def test_rows_whose_report_may_succeed_later_keep_their_slots(scene: Scene) -> None:
    scene.told.failing = {"2"}
    assert scene.settle("1", "2", "3") == {"1", "3"}
    assert scene.reports.ids == {"2"}
    assert (scene.reports.problem, scene.reports.room(10), scene.reports.room(1)) == (None, 9, 0)


def test_one_row_finds_out_whether_reports_succeed_again(scene: Scene) -> None:
    """N10: the others wait, and are not sent without a report."""
    scene.told.failing = {"1", "2"}
    assert scene.settle("1", "2") == set()
    assert isinstance(scene.reports.problem, Transient)
    assert [scene.reports.room(10), scene.reports.room(10)] == [1, 0]
    assert scene.settle("3") == {"3"}
    assert scene.reports.room(10) == 8


def test_no_row_is_claimed_while_a_privilege_is_missing(scene: Scene) -> None:
    scene.told.failing = {"1"}
    scene.settle("1")
    scene.reports.problem = Misconfigured("a right is missing")
    assert scene.reports.room(10) == 0


def test_rows_that_failed_go_behind_those_that_were_not_tried(scene: Scene) -> None:
    scene.told.failing = set("12345")
    scene.settle("1", "2", "3", "4", "5")
    assert scene.told.calls == [["1", "2", "3", "4", "5"], ["1"], ["2"]]
    assert [each.row.id for each in scene.reports.unreported] == ["3", "4", "5", "1", "2"]


def test_row_that_fails_again_says_nothing_about_the_others(scene: Scene) -> None:
    scene.told.failing = {"1"}
    scene.settle("1", "2")
    scene.now = 200.0
    again = scene.reports.again()
    assert [each.row.id for each in again] == ["1"]
    scene.reports.settle(scene.table, again, again=True)
    assert scene.reports.problem is None


def test_problem_stays_while_no_report_has_succeeded(scene: Scene) -> None:
    scene.told.failing = {"1"}
    scene.settle("1")
    first, scene.told.error = scene.reports.problem, ConnectionError("away")
    scene.settle("1", again=True)
    assert first is not None
    assert scene.reports.problem is not first


@pytest.mark.parametrize(("reports", "works"), [((Message("refused", {}, key="k", topic="t"),), True), ((), False)])
def test_report_of_a_row_that_is_tried_again_shows_that_reports_work(scene: Scene, reports: Any, works: bool) -> None:
    scene.told.failing = {"1"}
    scene.settle("1")
    refused = delivered("2")._replace(end=RowEnd.FAILED, outcome=Rejected("no", reports=reports))
    assert scene.reports.settle(scene.table, [refused]) == {"2"}
    assert (scene.reports.problem is None) is works


def test_reports_that_wait_for_a_lock_rest_for_longer_than_they_took(scene: Scene) -> None:
    def slow(_: Any, __: Any) -> None:
        scene.now += 10
        raise TimeoutError

    scene.reports.hooks = Hooks(settled=slow)
    scene.settle("1")
    assert scene.reports.again_at >= 110.0 + 3 * 10
    scene.now = 139.0
    assert scene.reports.again() == []


def test_rests_grow_until_no_report_waits(scene: Scene) -> None:
    scene.told.failing = {"1", "2"}
    rests = []
    for _ in range(3):
        scene.settle("1", again=True)
        scene.reports.take()
        rests.append(scene.reports.again_at - scene.now)
        scene.reports.unreported = [delivered("2")]
        scene.settle("3")  # succeeds, while another still waits
    assert rests == sorted(set(rests))
    scene.reports.unreported = []
    scene.settle("3")
    scene.settle("1")
    assert scene.reports.again_at - scene.now == pytest.approx(rests[0])


def test_bug_in_a_report_costs_the_report_alone(scene: Scene) -> None:
    scene.told.failing, scene.told.error = {"2"}, ValueError("a bug")
    assert scene.settle("1", "2", "3") == {"1", "2", "3"}
    assert (scene.reports.unreported, scene.reports.problem) == ([], None)


@pytest.mark.parametrize("bug", [True, False])
def test_rows_that_have_no_report_are_settled_first(scene: Scene, bug: bool) -> None:
    scene.told.failing, scene.told.error = {"2"}, ValueError() if bug else TimeoutError()
    again = Settling(row("1"), RowEnd.FAILED, "PENDING", "503", 1.0, Retry("503"))
    message = Message("refused", {}, key="k", topic="t")
    refused = again._replace(row=row("2"), outcome=Rejected("no", reports=(message,)))
    assert scene.reports.settle(scene.table, [again, refused]) == ({"1", "2"} if bug else {"1"})
    assert scene.reports.ids == (set() if bug else {"2"})


@pytest.mark.parametrize(("failing", "buried"), [
    (set(), {"1", "2", "3", "4"}), ({"1"}, {"2", "3", "4"}), ({"1", "2"}, set()),
])  # fmt: skip
def test_rows_whose_report_may_succeed_later_are_not_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, failing: set[str], buried: set[str]
) -> None:
    """Two failures are enough: the rest waits for the next look."""
    rows = [row(each) for each in "1234"]

    def bury(also: Any, begun: Sequence[str]) -> Any:
        found = [each for each in rows if each.id not in begun]
        also(found)
        return found

    scene.told.failing = failing
    monkeypatch.setattr(scene.memory, "bury", bury)
    assert {each.id for each in scene.reports.bury(scene.table, [])} == buried
    assert len(scene.told.calls) <= 6
