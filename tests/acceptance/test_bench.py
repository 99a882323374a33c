"""`ferryman bench`: each figure beside its goal, for people and for machines. Slow: it brings servers of its own."""

import pytest

from support.launch import Launcher

pytestmark = [pytest.mark.serial, pytest.mark.slow, pytest.mark.real_kafka]


def test_a_bench_prints_its_figures_and_exits_by_whether_the_goals_are_met(ferryman: Launcher) -> None:
    only = ("append_one", "drain_wal", "idle_wal")
    names = [each for name in only for each in ("--only", name)]
    bench = ferryman.run("bench", "relay", "--quick", "--json", *names, seconds=110)
    assert bench.wait() in {0, 1}, bench.transcript()
    figures = {figure["name"]: figure for figure in bench.json["figures"]}
    assert set(figures) == set(only)
    assert set(figures["append_one"]) == {"name", "value", "unit", "goal", "met", "raw"}
    assert (bench.wait() == 0) == all(figure["met"] for figure in figures.values())
    assert {"cores", "cpu", "memory_mb", "postgresql", "kafka", "librdkafka", "python"} <= set(bench.json["machine"])


def test_a_figure_that_does_not_exist_is_refused_by_name(ferryman: Launcher) -> None:
    refused = ferryman.run("bench", "relay", "--only", "drain_rat")
    assert refused.wait() == 2
    assert "drain_rat" in refused.stderr
