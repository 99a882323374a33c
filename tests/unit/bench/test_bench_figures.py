"""Goals, figures, and the measurements that yield them."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.bench import goals, runs, servers
from ferryman.bench.goals import Figure, Goal, percentile, rounded
from ferryman.bench.servers import Bench, Scale
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
def test_figure_meets_its_goal_up_to_and_at_the_limit(goal: Goal, value: float, met: bool) -> None:
    assert goal.figure(value).met is met


def test_figure_is_judged_before_it_is_rounded() -> None:
    figure = AT_MOST.figure(5.00001)
    assert figure.as_dict()["value"] == 5.0
    assert not figure.met


def test_unmeasured_figure_says_why_and_misses_its_goal() -> None:
    figure = AT_MOST.unmeasured("the relay ended with 4")
    assert figure.as_dict() == {
        "name": "wal",
        "value": None,
        "unit": "bytes",
        "goal": "<= 5",
        "met": False,
        "raw": {"why": "the relay ended with 4"},
    }


def test_figure_is_json_with_exactly_six_fields() -> None:
    figure = AT_LEAST.figure(0.61234567, per_second=[61234.567, 7], each={"bytes": 0.123456})
    assert json.loads(json.dumps(figure.as_dict())) == {
        "name": "rate",
        "value": 0.6123,
        "unit": "of bare",
        "goal": ">= 0.5",
        "met": True,
        "raw": {"per_second": [61235, 7], "each": {"bytes": 0.1235}},
    }


def test_large_goals_are_not_in_scientific_notation() -> None:
    assert str(goals.LATE_RATE) == ">= 200,000"
    assert str(goals.APPEND_MANY) == ">= 50,000"


@pytest.mark.parametrize(("value", "shown"), [(math.nan, None), (True, True), (3, 3), (12345.6, 12346), ("x", "x")])
def test_only_floats_are_rounded(value: object, shown: object) -> None:
    assert rounded(value) == shown


def test_percentile_is_one_of_the_measured_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile(values, 0) == 1
    assert percentile([7.0], 50) == 7


def test_every_goal_has_exactly_one_measurement() -> None:
    measured = [name for run in runs.RUNS for name in runs.names(run)]
    assert sorted(measured) == sorted(goal.name for goal in ALL)
    assert len(set(measured)) == len(measured)


def test_every_goal_has_a_unit_and_a_description() -> None:
    assert all(goal.about and goal.unit for goal in ALL)


def test_quick_run_measures_a_hundredth() -> None:
    full, quick = Scale.of(1_000_000, quick=False), Scale.of(1_000_000, quick=True)
    assert (full.entries, full.retained, full.windows) == (1_000_000, 5_000_000, 20_000)
    assert (quick.entries, quick.retained, quick.windows) == (10_000, 50_000, 200)
    assert quick.steady_seconds < full.steady_seconds / 10


def bench(*, quick: bool) -> Bench:
    kafka, scale = Kafka(bootstrap_servers="nowhere:1"), Scale.of(1_000_000, quick=quick)
    return Bench(scale, kafka, dict, lambda _: None)


def both(_: Bench) -> Iterator[Figure]:
    yield AT_LEAST.figure(0.7)
    yield AT_MOST.figure(4)


def broken(_: Bench) -> Iterator[Figure]:
    yield AT_LEAST.figure(0.7)
    raise FerrymanError("the relay ended")


def measured(monkeypatch: pytest.MonkeyPatch, take: Any, *, quick: bool = False, only: Any = ()) -> list[Figure]:
    monkeypatch.setitem(runs.RUNS, "relay", {take: (AT_LEAST, AT_MOST)})
    return list(runs.measure(bench(quick=quick), "relay", only))


def test_figures_of_a_quick_run_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [figure.raw for figure in measured(monkeypatch, both, quick=True)] == [{"quick": True}] * 2
    assert [figure.raw for figure in measured(monkeypatch, both)] == [{}, {}]


def test_only_the_named_figures_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [figure.name for figure in measured(monkeypatch, both, only=["wal"])] == ["wal"]


def test_failed_measurement_leaves_figures_that_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = measured(monkeypatch, broken)
    assert [figure.raw["why"] for figure in figures] == ["the relay ended."] * 2
    assert not any(figure.met for figure in figures)


def quietest(monkeypatch: pytest.MonkeyPatch, others: list[float], rounds: int, *, quick: bool = False) -> list[float]:
    """Return the rounds that are kept if others take so many cores during each."""
    calls = iter(others)
    monkeypatch.setattr(servers, "_usage", lambda: None)
    monkeypatch.setattr(servers, "_others", lambda *_: next(calls))
    _, kept = bench(quick=quick).quietest(lambda: 1, rounds)
    return kept


def test_quiet_machine_is_measured_only_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quietest(monkeypatch, [0.01, 0.02], 2) == [0.01, 0.02]


def test_disturbed_rounds_are_repeated_and_the_least_disturbed_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quietest(monkeypatch, [9, 0.02, 8, 0.01], 2) == [0.01, 0.02]
    assert quietest(monkeypatch, [9, 8, 7, 6, 5, 4], 2) == [4, 5]


def test_quick_run_repeats_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quietest(monkeypatch, [9], 1, quick=True) == [9]
