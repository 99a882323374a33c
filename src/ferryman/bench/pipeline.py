"""Payments from request to outcome: clients, relay, wallet, relay, orchestrator, and the servers, on this machine."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka.admin import NewTopic

from ferryman.bench import goals, meters
from ferryman.bench.figures import Figure, percentile
from ferryman.bench.parts import Bench
from ferryman.bench.processes import Child, ProcessFailed, running
from ferryman.bench.quiet import quietest
from ferryman.bench.scale import KEYS, PARTITIONS
from ferryman.bench.spending import Connection, open_wallets
from ferryman.runtime import kafka as runtime_kafka
from ferryman.runtime.errors import Misconfigured

_TOPICS = ("payments.commands", "payments.events", "wallet.results", "fulfilments.results")
_PACE = 1500
_WARM_SECONDS = 2.0

_NOT_DONE = "-- bench.not_done\nSELECT count(*) FROM payments.requests WHERE status <> 'SUCCEEDED'"
_WRONG = "-- bench.unbalanced\nSELECT count(*) FROM wallet.unbalanced"


@dataclass(frozen=True, slots=True)
class Run:
    """How the clients send."""

    payments: int
    per_transaction: int
    connections: int = 1
    per_second: int = 0
    events: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """What came of it: payments a second, seconds from COMMIT to applied, and CPU time by process."""

    per_second: float
    delays_ms: list[float]
    cpu_us: dict[str, float]


def rates(bench: Bench) -> Iterator[Figure]:
    """As fast as it goes: a hundred requests to a transaction, and one."""
    _topics(bench)
    many = quietest(bench, lambda: flow(bench, Run(bench.scale.commands, 100)), 1)[0]
    yield goals.PIPELINE_RATE.figure(many.value.per_second, **_raw(many.value, many.others))
    one = quietest(bench, lambda: flow(bench, Run(bench.scale.commands // 4, 1, connections=8)), 1)[0]
    yield goals.PIPELINE_ONE_RATE.figure(one.value.per_second, **_raw(one.value, one.others))


def latency(bench: Bench) -> Iterator[Figure]:
    """At a steady pace, one request to a transaction; without the first seconds, when all were still waking."""
    seconds = bench.scale.steady_seconds + _WARM_SECONDS
    _topics(bench)
    run = Run(round(_PACE * seconds), 1, connections=8, per_second=_PACE)
    [taken] = quietest(bench, lambda: flow(bench, run), 1)
    delays = taken.value.delays_ms
    bench.say(f"p50 {percentile(delays, 50):.0f} ms, p99 {percentile(delays, 99):.0f} ms at {_PACE:,} a second")
    raw = {
        **_raw(taken.value, taken.others),
        "percentiles_ms": {str(p): percentile(delays, p) for p in (50, 90, 99, 100)},
    }
    yield goals.PIPELINE_P99.figure(percentile(delays, 99), **raw)


def flow(bench: Bench, run: Run) -> Flow:
    """One run, on databases of its own: checked to have moved every payment's money."""
    with ExitStack() as closing:
        ours, theirs = closing.enter_context(bench.database()), closing.enter_context(bench.database())
        looking = closing.enter_context(psycopg.connect(theirs, autocommit=True))
        open_wallets(looking)
        processes = {
            "relay of requests": closing.enter_context(running(bench, "relay", ours)),
            "wallet": closing.enter_context(running(bench, "wallet", theirs)),
            "relay of results": closing.enter_context(running(bench, "relay", theirs)),
        }
        before = _cpu(bench, processes)
        applied, sent = _send_and_apply(bench, run, ours)
        after = _cpu(bench, processes)
        _check(ours, looking)
    seconds = applied["ended"] - sent["began"]
    used = {name: after[name] - before[name] for name in after}
    used |= {"clients": sent["cpu_seconds"], "orchestrator": applied["cpu_seconds"]}
    cpu = {name: round(1e6 * each / run.payments, 1) for name, each in used.items()}
    bench.say(f"{run.payments / seconds:,.0f} payments a second; CPU microseconds a payment: {json.dumps(cpu)}")
    began = min(sent["committed"].values(), default=0.0) + _WARM_SECONDS
    delays = [1000 * (applied["applied"][each] - at) for each, at in sent["committed"].items() if at >= began]
    return Flow(run.payments / seconds, delays, cpu)


def _send_and_apply(bench: Bench, run: Run, database_url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the orchestrator and the clients told at their end."""
    kafka = {"bootstrap_servers": bench.kafka.bootstrap_servers, **bench.kafka.properties}
    common = {"database_url": database_url, "payments": run.payments, "events": run.events}
    applying = {**common, "kafka": kafka, "delays": bool(run.per_second)}
    sending = {**common, "wallets": KEYS, "per_transaction": run.per_transaction, "connections": run.connections,
               "per_second": run.per_second}  # fmt: skip
    patience = 120 + run.payments / 200
    with _child(bench, "applying", applying) as orchestrator, _child(bench, "requesting", sending) as clients:
        sent = clients.result(patience)
        return orchestrator.result(patience), sent


def _child(bench: Bench, module: str, wanted: dict[str, Any]) -> Child:
    return Child(["-m", f"ferryman.bench.{module}"], bench.environment(), wanted)


def _cpu(bench: Bench, processes: dict[str, Child]) -> dict[str, float]:
    return {**{name: each.cpu_seconds() for name, each in processes.items()}, **bench.servers_cpu_seconds()}


def _check(database_url: str, wallets: Connection) -> None:
    """Nothing is measured that did not work."""
    with psycopg.connect(database_url) as connection:
        left = meters.row(connection, _NOT_DONE)[0]
    wrong = meters.row(wallets, _WRONG)[0]
    if left or wrong:
        raise ProcessFailed(f"{left} payments did not succeed, and {wrong} wallets do not balance")


def _raw(flow: Flow, others: float) -> dict[str, Any]:
    return {"cpu_us_a_payment": flow.cpu_us, "cores_of_others": others}


def _topics(bench: Bench) -> None:
    """Those of the catalogue, by their own names: so only on a broker of our own."""
    if not bench.owns_all:
        raise Misconfigured(
            "this uses the topics payments.commands and wallet.results by their own names",
            remedy="name no servers, so that it brings up its own",
        )
    admin = runtime_kafka.admin(bench.kafka, "bench")
    wanted = [NewTopic(name, PARTITIONS, 1) for name in _TOPICS]
    runtime_kafka.create_topics(admin, wanted, bench.kafka.timeout_seconds)
