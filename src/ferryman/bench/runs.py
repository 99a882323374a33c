"""Which measurement gives which figures, and running those that are wanted."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
from confluent_kafka import KafkaException

from ferryman.bench import (
    appending,
    codec,
    drain,
    goals,
    idle,
    inbox,
    inbox_strain,
    late,
    latency,
    memory,
    pipeline,
    steady,
    windows,
)
from ferryman.bench.figures import Figure, Goal
from ferryman.bench.parts import Bench
from ferryman.runtime.errors import FerrymanError


@dataclass(frozen=True, slots=True)
class Measurement:
    """Gives a figure for each of its goals."""

    take: Callable[[Bench], Iterator[Figure]]
    goals: Sequence[Goal]


RUNS: dict[str, Sequence[Measurement]] = {
    "relay": (
        Measurement(drain.rate, (goals.DRAIN_RATE, goals.SNAPSHOT_RATE, goals.DRAIN_WAL, goals.DEAD_TUPLES)),
        Measurement(memory.long_drain, (goals.MEMORY, goals.MEMORY_GROWTH, goals.LAST_TENTH)),
        Measurement(late.reading, (goals.LATE_NOTHING, goals.LATE_RATE)),
        Measurement(windows.claim, (goals.SNAPSHOT_CLAIM,)),
        Measurement(steady.wal, (goals.STEADY_WAL,)),
        Measurement(steady.idle_writer, (goals.IDLE_WRITER,)),
        Measurement(appending.many, (goals.APPEND_MANY,)),
        Measurement(appending.one, (goals.APPEND_ONE,)),
        Measurement(idle.costs, (goals.IDLE_CPU, goals.IDLE_WAL, goals.IDLE_XIDS, goals.IDLE_STATEMENTS)),
        Measurement(idle.wake, (goals.WAKE,)),
    ),
    "inbox": (
        Measurement(inbox.rates, (goals.INBOX_RATE, goals.INBOX_HOT, goals.INBOX_DUPLICATES)),
        Measurement(inbox.statements, (goals.INBOX_STATEMENTS, goals.INBOX_COMMITS)),
        Measurement(inbox_strain.latency, (goals.INBOX_LATENCY_P99,)),
        Measurement(inbox_strain.memory, (goals.INBOX_MEMORY,)),
    ),
    "pipeline": (
        Measurement(pipeline.rates, (goals.PIPELINE_RATE, goals.PIPELINE_ONE_RATE)),
        Measurement(pipeline.latency, (goals.PIPELINE_P99,)),
    ),
    "codec": (Measurement(codec.speed, (goals.CODEC,)),),
    "latency": (Measurement(latency.steady, (goals.LATENCY_P50, goals.LATENCY_P99)),),
}

WITHOUT_SERVERS = frozenset({"codec"})


def names(run: str) -> list[str]:
    """The figures of a run."""
    return [goal.name for measurement in RUNS[run] for goal in measurement.goals]


def measure(bench: Bench, run: str, only: Collection[str] = ()) -> Iterator[Figure]:
    """The figures, or only those named. One that cannot be measured says why, and the others go on."""
    for measurement in RUNS[run]:
        wanted = {goal.name for goal in measurement.goals if not only or goal.name in only}
        if not wanted:
            continue
        bench.say(f"measuring {', '.join(sorted(wanted))}")
        for figure in _taken(bench, measurement):
            if figure.name in wanted:
                yield replace(figure, raw={"quick": True, **figure.raw}) if bench.scale.quick else figure


def _taken(bench: Bench, measurement: Measurement) -> list[Figure]:
    try:
        return list(measurement.take(bench))
    except (FerrymanError, psycopg.Error, KafkaException) as error:
        why = " ".join(str(error).split())
        bench.say(f"not measured: {why}")
        return [goal.unmeasured(why) for goal in measurement.goals]
