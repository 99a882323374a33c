"""A goal is a comparison that says whether a figure meets it, and a figure says honestly what it is."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.bench import goals, quiet, runs
from ferryman.bench.figures import Figure, Goal, median, percentile, rounded
from ferryman.bench.parts import Bench
from ferryman.bench.scale import Scale
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka

AT_LEAST = Goal("rate", ">=", 0.5, "of bare", "a rate")
AT_MOST = Goal("wal", "<=", 5, "bytes", "a cost")
ALL = [value for value in vars(goals).values() if isinstance(value, Goal)]


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (AT_LEAST, 0.5, True),
        (AT_LEAST, 0.499, False),
        (AT_MOST, 5, True),
        (AT_MOST, 5.001, False),
        (AT_LEAST, math.nan, False),
        (AT_LEAST, math.inf, False),
    ],
)
def test_a_figure_meets_its_goal_up_to_the_limit_itself(goal: Goal, value: float, met: bool) -> None:
    assert goal.figure(value).met is met


def test_what_was_rounded_to_be_shown_is_judged_as_it_was() -> None:
    figure = AT_MOST.figure(5.00001)
    assert figure.as_dict()["value"] == 5.0
    assert not figure.met


def test_a_figure_that_could_not_be_measured_says_why_and_is_not_met() -> None:
    figure = AT_MOST.unmeasured("the relay ended with 4")
    assert figure.as_dict() == {
        "name": "wal",
        "value": None,
        "unit": "bytes",
        "goal": "<= 5",
        "met": False,
        "raw": {"why": "the relay ended with 4"},
    }


def test_a_figure_has_exactly_the_six_fields_and_is_json() -> None:
    figure = AT_LEAST.figure(0.61234567, per_second=[61234.567, 7], each={"bytes": 0.123456})
    assert json.loads(json.dumps(figure.as_dict())) == {
        "name": "rate",
        "value": 0.6123,
        "unit": "of bare",
        "goal": ">= 0.5",
        "met": True,
        "raw": {"per_second": [61235, 7], "each": {"bytes": 0.1235}},
    }


def test_large_goals_are_written_out() -> None:
    assert str(goals.LATE_RATE) == ">= 200,000"
    assert str(goals.APPEND_MANY) == ">= 50,000"


@pytest.mark.parametrize(("value", "shown"), [(math.nan, None), (True, True), (3, 3), (12345.6, 12346), ("x", "x")])
def test_numbers_are_rounded_and_nothing_else(value: object, shown: object) -> None:
    assert rounded(value) == shown


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile(values, 0) == 1
    assert median([3.0, 1.0, 2.0]) == 2
    assert percentile([7.0], 50) == 7


def test_every_goal_is_measured_by_exactly_one_measurement() -> None:
    measured = [name for run in runs.RUNS for name in runs.names(run)]
    assert sorted(measured) == sorted(goal.name for goal in ALL)
    assert len(set(measured)) == len(measured)


def test_every_goal_says_what_it_is_about() -> None:
    assert all(goal.about and goal.unit for goal in ALL)


def test_a_quick_run_is_a_hundredth() -> None:
    full, quick = Scale.of(1_000_000, quick=False), Scale.of(1_000_000, quick=True)
    assert (full.entries, full.retained, full.windows) == (1_000_000, 5_000_000, 20_000)
    assert (quick.entries, quick.retained, quick.windows) == (10_000, 50_000, 200)
    assert quick.steady_seconds < full.steady_seconds / 10


def bench(*, quick: bool) -> Bench:
    kafka, scale = Kafka(bootstrap_servers="nowhere:1"), Scale.of(1_000_000, quick=quick)
    return Bench(scale, "postgresql://nowhere", "template", kafka, "none", False, True, dict, lambda _: None)


def both(_: Bench) -> Iterator[Figure]:
    yield AT_LEAST.figure(0.7)
    yield AT_MOST.figure(4)


def broken(_: Bench) -> Iterator[Figure]:
    yield AT_LEAST.figure(0.7)
    raise FerrymanError("the relay ended")


def measured(monkeypatch: pytest.MonkeyPatch, take: Any, *, quick: bool = False, only: Any = ()) -> list[Figure]:
    monkeypatch.setitem(runs.RUNS, "relay", (runs.Measurement(take, (AT_LEAST, AT_MOST)),))
    return list(runs.measure(bench(quick=quick), "relay", only))


def test_a_figure_of_a_quick_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [figure.raw for figure in measured(monkeypatch, both, quick=True)] == [{"quick": True}] * 2
    assert [figure.raw for figure in measured(monkeypatch, both)] == [{}, {}]


def test_only_the_figures_that_are_named_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [figure.name for figure in measured(monkeypatch, both, only=["wal"])] == ["wal"]


def test_a_measurement_that_fails_leaves_figures_that_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = measured(monkeypatch, broken)
    assert [figure.raw["why"] for figure in figures] == ["the relay ended."] * 2
    assert not any(figure.met for figure in figures)


def quietest(monkeypatch: pytest.MonkeyPatch, others: list[float], rounds: int, *, quick: bool = False) -> list[float]:
    """What is kept when others take so many cores, measurement after measurement."""
    calls = iter(others)
    monkeypatch.setattr(quiet, "_usage", lambda: None)
    monkeypatch.setattr(quiet, "_others", lambda *_: next(calls))
    return [each.others for each in quiet.quietest(bench(quick=quick), lambda: 1, rounds)]


def test_a_quiet_machine_is_measured_no_more_often_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quietest(monkeypatch, [0.01, 0.02], 2) == [0.01, 0.02]


def test_what_others_disturbed_is_measured_again_and_the_least_disturbed_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quietest(monkeypatch, [9, 0.02, 8, 0.01], 2) == [0.01, 0.02]
    assert quietest(monkeypatch, [9, 8, 7, 6, 5, 4], 2) == [4, 5]


def test_a_quick_run_measures_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quietest(monkeypatch, [9], 1, quick=True) == [9]
