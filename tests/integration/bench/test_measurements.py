"""Every measurement yields its figures, on the servers of the tests and with small amounts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ferryman.bench import goals, runs
from ferryman.bench.goals import Goal
from ferryman.bench.runs import Take
from ferryman.bench.servers import Bench, Scale
from ferryman.cli import wiring
from ferryman.runtime.settings import Kafka
from ferryman.schemas import active
from ferryman.testing.parts import Given

BY_STATEMENT = {
    goals.IDLE_STATEMENTS.name, goals.INBOX_STATEMENTS.name, goals.INBOX_COMMITS.name, goals.SINK_STATEMENTS.name,
    goals.MAIL_STATEMENTS.name,
}  # fmt: skip
"""The shared server does not count statements."""
OWN_SERVERS = {"pipeline"}
MEASUREMENTS = [
    pytest.param(take, given, id=" ".join(goal.name for goal in given))
    for run, measurements in runs.RUNS.items()
    for take, given in measurements.items()
    if run not in OWN_SERVERS and {goal.name for goal in given} - BY_STATEMENT
]


@pytest.mark.prove
@pytest.mark.real_kafka
@pytest.mark.parametrize(("take", "given"), MEASUREMENTS)
def test_measurement_yields_a_value_for_each_of_its_goals(
    take: Take, given: Sequence[Goal], ferryman_postgres: str, ferryman_kafka: str, ferryman_database_url: str
) -> None:
    """Long, because some of them wait for idleness, and because of the processes that they start."""
    scale = replace(Scale.of(1000, quick=True), retained=20_000, steady_seconds=0.6, trials=1)
    servers = {"PostgreSQL": Given(ferryman_postgres), "Kafka": Given(ferryman_kafka)}
    template = ferryman_database_url.rpartition("/")[2]
    bench = Bench(scale, Kafka(bootstrap_servers=ferryman_kafka), wiring.environment, print, servers, "", template)
    figures = list(take(bench))
    active.forget()
    assert [figure.name for figure in figures] == [goal.name for goal in given]
    for figure in figures:
        measured = figure.value is not None and math.isfinite(figure.value)
        assert measured or figure.name in BY_STATEMENT, figure
