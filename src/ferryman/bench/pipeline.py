"""Payments from request to outcome, beside the textbook's pipeline: all processes and servers are on one machine."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import psycopg

from ferryman.bench import goals, meters, programs, textbook
from ferryman.bench.commands import open_wallets, unbalanced_wallets
from ferryman.bench.goals import Figure, percentile, percentiles
from ferryman.bench.meters import Connection, MeasurementFailed
from ferryman.bench.servers import KEYS, Bench
from ferryman.runtime.errors import Misconfigured

_TOPICS = ("payments.commands", "payments.events", "wallet.results", "fulfilments.results")
_WARM_SECONDS = 2.0
_TEXTBOOK_SHARE = 5
"""The textbook's pipeline is slower: a fifth of the payments takes it as long."""

_NOT_DONE = "-- bench.not_done\nSELECT count(*) FROM payments.requests WHERE status <> 'SUCCEEDED'"


def payments(bench: Bench) -> Iterator[Figure]:
    """Measure as many payments as possible beside the textbook's pipeline, then the delays at half of that rate."""
    many = bench.scale.commands
    reached, textbook, raw = _rates(bench, many, per_transaction=100, connections=1)
    yield goals.PIPELINE_RATE.figure(reached / textbook, **raw)
    reached, textbook, raw = _rates(bench, many // 4, per_transaction=1, connections=8)
    yield goals.PIPELINE_ONE_RATE.figure(reached / textbook, **raw)
    rate = max(1, round(reached / 2))
    some = round(rate * (bench.scale.steady_seconds + _WARM_SECONDS))
    _, raw, delays = _flow(bench, some, per_transaction=1, connections=8, per_second=rate)
    yield goals.PIPELINE_P99.figure(
        percentile(delays, 99), per_second=rate, **raw, percentiles_ms=percentiles(delays)
    )  # fmt: skip


def _rates(bench: Bench, many: int, **sending: int) -> tuple[float, float, dict[str, Any]]:
    """Return payments a second through our pipeline and through the textbook's, and raw figures."""
    theirs = textbook.rate(bench, many // _TEXTBOOK_SHARE, **sending)
    ours, raw, _ = _flow(bench, many, **sending)
    return ours, theirs, {"per_second": ours, "textbook_per_second": theirs, **raw}


def _flow(bench: Bench, payments: int, **sending: int) -> tuple[float, dict[str, Any], list[float]]:
    """Let payments flow while others are quiet.

    Return payments a second, raw figures, and the milliseconds of each payment from its COMMIT until it was applied.
    """
    _create_topics(bench)
    [(rate, cpu_us, delays)], [others] = bench.quietest(lambda: _run(bench, payments, {"per_second": 0, **sending}), 1)
    return rate, {"cpu_us_a_payment": cpu_us, "cores_of_others": others}, delays


def _run(bench: Bench, payments: int, sending: Mapping[str, int]) -> tuple[float, dict[str, float], list[float]]:
    """Run payments on databases of their own, and check that every payment's money moved."""
    with ExitStack() as closing:
        ours, theirs = closing.enter_context(bench.database()), closing.enter_context(bench.database())
        wallets = closing.enter_context(psycopg.connect(theirs, autocommit=True))
        open_wallets(wallets)
        services = {
            "relay of requests": closing.enter_context(programs.service(bench, "relay", ours)),
            "wallet": closing.enter_context(programs.service(bench, "wallet", theirs)),
            "relay of results": closing.enter_context(programs.service(bench, "relay", theirs)),
        }

        def cpu() -> dict[str, float]:
            return {**{name: each.cpu_seconds() for name, each in services.items()}, **bench.servers_cpu_seconds()}

        before = cpu()
        requesting = {"database_url": ours, "payments": payments, "events": False, "wallets": KEYS, **sending}
        settings = {"database_url": ours, "kafka": bench.kafka_settings(), "payments": {"events": False}}
        applying = {"settings": settings, "messages": payments, "delays": bool(sending["per_second"])}
        patience = 120 + payments / 200
        with programs.own_program(bench, "consuming", applying) as orchestrator:
            sent = programs.result_of(bench, "paying_clients", requesting, patience)
            applied = orchestrator.result(patience)
        used = {name: seconds - before[name] for name, seconds in cpu().items()}
        _check(ours, wallets)
    used |= {"clients": sent["cpu_seconds"], "orchestrator": applied["cpu_seconds"]}
    cpu_us = {name: round(1e6 * each / payments, 1) for name, each in used.items()}
    rate = payments / (applied["ended"] - sent["began"])
    began = min(sent["committed"].values(), default=0.0) + _WARM_SECONDS
    ended = {request: at for request, _, at in applied["committed"]}
    delays = [1000 * (ended[each] - at) for each, at in sent["committed"].items() if at >= began]
    return rate, cpu_us, delays


def _check(database_url: str, wallets: Connection) -> None:
    with psycopg.connect(database_url) as connection:
        left = meters.row(connection, _NOT_DONE)[0]
    wrong = unbalanced_wallets(wallets)
    if left or wrong:
        raise MeasurementFailed(f"{left} payments did not succeed, and {wrong} wallets do not balance")


def _create_topics(bench: Bench) -> None:
    """Create the topics of our catalogue under their own names, which is safe only on a broker of our own."""
    if not bench.owns_all:
        raise Misconfigured(
            "this uses the topics payments.commands and wallet.results by their own names",
            remedy="name no servers, so that it brings up its own",
        )
    bench.create_topics(*_TOPICS)
