"""The measurements of each run, with the goals whose figures they yield."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import psycopg
from confluent_kafka import KafkaException

from ferryman.bench import (
    goals,
    inbox,
    mail_sinks,
    pipeline,
    relay_backlog,
    running_relay,
    sagas,
    sinks,
    webhook_rates,
    writing,
)  # fmt: skip
from ferryman.bench.goals import Figure, Goal
from ferryman.bench.servers import Bench
from ferryman.runtime.errors import FerrymanError

Take = Callable[[Bench], Iterator[Figure]]
"""A function that yields a figure for each of its goals."""

RUNS: dict[str, Mapping[Take, Sequence[Goal]]] = {
    "relay": {
        relay_backlog.rate: (goals.DRAIN_RATE, goals.SNAPSHOT_RATE, goals.DRAIN_WAL, goals.DEAD_TUPLES),
        relay_backlog.memory: (goals.MEMORY, goals.MEMORY_GROWTH, goals.LAST_TENTH),
        relay_backlog.late: (goals.LATE_NOTHING, goals.LATE_RATE),
        relay_backlog.claims: (goals.SNAPSHOT_CLAIM,),
        running_relay.wal: (goals.STEADY_WAL,),
        running_relay.idle_writer: (goals.IDLE_WRITER,),
        writing.append_thousands: (goals.APPEND_MANY,),
        writing.append_one: (goals.APPEND_ONE,),
        running_relay.idle_costs: (goals.IDLE_CPU, goals.IDLE_WAL, goals.IDLE_XIDS, goals.IDLE_STATEMENTS),
        running_relay.wake: (goals.WAKE,),
    },
    "inbox": {
        inbox.rates: (goals.INBOX_RATE, goals.INBOX_HOT, goals.INBOX_DUPLICATES),
        inbox.statements: (goals.INBOX_STATEMENTS, goals.INBOX_COMMITS),
        inbox.latency: (goals.INBOX_LATENCY_P99,),
        inbox.memory: (goals.INBOX_MEMORY,),
    },
    "pipeline": {
        pipeline.payments: (goals.PIPELINE_RATE, goals.PIPELINE_ONE_RATE, goals.PIPELINE_P99),
    },
    "sinks": {
        sinks.slow_rate: (goals.HTTP_RATE_SLOW,),
        sinks.fast_rate: (goals.HTTP_RATE_FAST,),
        sinks.statements: (goals.SINK_STATEMENTS,),
        sinks.healthy_latency: (goals.HEALTHY_P99,),
        sinks.claims_after_done: (goals.CLAIM_AFTER_MILLION_DONE,),
        sinks.claims_beside_waiting: (goals.CLAIM_BESIDE_MILLION_WAITING,),
        mail_sinks.rate: (goals.SMTP_RATE,),
        mail_sinks.fast_rate: (goals.SMTP_RATE_FAST,),
        mail_sinks.statements: (goals.MAIL_STATEMENTS,),
        mail_sinks.claims_after_sent: (goals.CLAIM_AFTER_MILLION_SENT,),
    },
    "saga": {
        sagas.apply_rates: (goals.SAGA_APPLY_RATE, goals.SAGA_ONE_RATE),
        sagas.start_rate: (goals.SAGA_START_RATE,),
        sagas.due_latency: (goals.SAGA_DUE,),
    },
    "webhooks": {
        webhook_rates.route_rate: (goals.WEBHOOK_ROUTING,),
        webhook_rates.apply_rate: (goals.WEBHOOK_APPLY_RATE,),
        webhook_rates.due_latency: (goals.WEBHOOK_DUE,),
        webhook_rates.event_rate: (goals.WEBHOOK_RATE,),
        webhook_rates.neighbour_latency: (goals.WEBHOOK_HEALTHY_P99,),
    },
    "codec": {writing.codec_speed: (goals.CODEC,)},
    "latency": {running_relay.latency: (goals.LATENCY_P50, goals.LATENCY_P99, goals.LATENCY_P99_CROWDED)},
}

WITHOUT_SERVERS = frozenset({"codec"})
WITHOUT_KAFKA = frozenset({"saga", "sinks"})


def names(run: str) -> list[str]:
    """Return the names of a run's figures."""
    return [goal.name for given in RUNS[run].values() for goal in given]


def measure(bench: Bench, run: str, only: Collection[str] = ()) -> Iterator[Figure]:
    """Yield the figures, or only the named ones. A figure that cannot be measured says why, and the others go on."""
    for take, given in RUNS[run].items():
        wanted = {goal.name for goal in given if not only or goal.name in only}
        if not wanted:
            continue
        bench.say(f"measuring {', '.join(sorted(wanted))}")
        try:
            figures = list(take(bench))
        except (FerrymanError, psycopg.Error, KafkaException) as error:
            figures = [goal.unmeasured(" ".join(str(error).split())) for goal in given]
        for figure in figures:
            if figure.name in wanted:
                bench.say(str(figure))
                yield replace(figure, raw={"quick": True, **figure.raw}) if bench.scale.quick else figure
