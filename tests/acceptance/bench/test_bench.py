"""`ferryman bench` prints its figures as JSON, and its exit code says whether the goals are met."""

import pytest

from ferryman.bench import runs
from support.launch import Launcher

FIELDS = ["name", "value", "unit", "goal", "met", "raw"]
ONLY = ("--only", "drain_wal", "--only", "append_one")


@pytest.mark.slow
@pytest.mark.serial("stacks")
@pytest.mark.real_kafka
def test_bench_prints_its_figures_and_fails_if_a_goal_is_missed(ferryman: Launcher) -> None:
    """This is slow because it starts servers of its own and drains ten thousand entries three times."""
    bench = ferryman.run("bench", "relay", "--quick", "--json", *ONLY, seconds=90)
    figures, machine = bench.json["figures"], bench.json["machine"]
    assert [list(figure) for figure in figures] == [FIELDS, FIELDS]
    assert [figure["name"] for figure in figures] == ["drain_wal", "append_one"]
    assert all(figure["value"] > 0 and figure["raw"]["quick"] for figure in figures), bench.transcript()
    assert {"cores", "cpu", "memory_mb", "postgresql", "kafka", "librdkafka", "python"} <= machine.keys()
    assert bench.wait() == (0 if all(figure["met"] for figure in figures) else 1)


@pytest.mark.slow
@pytest.mark.serial("stacks")
@pytest.mark.real_kafka
@pytest.mark.timeout(300)
def test_pipeline_bench_moves_every_payment_and_reports_cpu_time_by_process(ferryman: Launcher) -> None:
    """This is slow because it starts servers of its own, and every process of the payments three times."""
    bench = ferryman.run("bench", "pipeline", "--quick", "--json", seconds=240)
    assert bench.wait() in (0, 1), bench.transcript()
    figures = {figure["name"]: figure for figure in bench.json["figures"]}
    assert set(figures) == set(runs.names("pipeline"))
    assert all(figure["value"] > 0 and figure["raw"]["quick"] for figure in figures.values()), bench.transcript()
    for figure in figures.values():
        assert {"clients", "relay of requests", "wallet", "orchestrator"} <= set(figure["raw"]["cpu_us_a_payment"])


@pytest.mark.prove
@pytest.mark.parametrize("run", ["sinks", "saga"])
def test_bench_without_kafka_measures_each_of_its_figures(ferryman: Launcher, run: str) -> None:
    """Figures that no other test takes; their values say nothing at a hundredth of the size."""
    bench = ferryman.run("bench", run, "--quick", "--json", seconds=600)
    assert bench.wait() in (0, 1), bench.transcript()
    figures = {figure["name"]: figure["value"] for figure in bench.json["figures"]}
    assert set(figures) == set(runs.names(run))
    assert all(value is not None and value > 0 for value in figures.values()), bench.transcript()


@pytest.mark.parametrize("run", runs.RUNS)
def test_unknown_figure_is_a_usage_error_that_names_the_figures(ferryman: Launcher, run: str) -> None:
    bench = ferryman.run("bench", run, "--only", "speed")
    assert bench.wait() == 2
    assert all(name in bench.stderr for name in runs.names(run))


def test_bench_without_a_real_broker_says_what_is_missing(ferryman: Launcher) -> None:
    environment = {"PATH": "/nowhere", "REQUIRE_REAL_KAFKA": "1", "XDG_CACHE_HOME": str(ferryman.folder)}
    bench = ferryman.run("bench", "latency", "--quick", env=environment)
    assert bench.wait() == 3, bench.transcript()
    assert "no Kafka is available here" in bench.stderr
