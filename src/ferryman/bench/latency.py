"""From COMMIT until a consumer has it, at a thousand single-row transactions a second."""

from collections.abc import Iterator

from ferryman.bench import goals, processes
from ferryman.bench.figures import Figure, percentile
from ferryman.bench.parts import Bench
from ferryman.bench.traffic import delays_ms, reading, write_steadily


def steady(bench: Bench) -> Iterator[Figure]:
    """Counted from when COMMIT had returned to its writer; `raw` has it from when COMMIT was sent, too."""
    with (
        bench.topic() as topic,
        bench.database() as url,
        processes.relay(bench, url) as relay,
        reading(bench, topic) as reader,
    ):
        warm = write_steadily(url, topic, bench.scale.warm_seconds)
        reader.await_all(warm.committed, 30)
        cpu = relay.cpu_seconds()
        written = write_steadily(url, topic, bench.scale.steady_seconds, first=len(warm.committed))
        reader.await_all(written.committed, 30)
        cpu = relay.cpu_seconds() - cpu
    delays = delays_ms(written.committed, reader.read)
    whole = delays_ms(written.sent, reader.read)
    span = max(written.committed.values()) - min(written.committed.values())
    raw = {
        "messages": len(delays),
        "per_second": len(delays) / span,
        "p50_ms": percentile(delays, 50),
        "p95_ms": percentile(delays, 95),
        "p99_ms": percentile(delays, 99),
        "max_ms": max(delays),
        "from_sending_commit": {"p50_ms": percentile(whole, 50), "p99_ms": percentile(whole, 99)},
        "relay_cpu_percent": 100 * cpu / span,
        "doubled": reader.doubled,
    }
    bench.say(f"p50 {raw['p50_ms']:.1f} ms, p99 {raw['p99_ms']:.1f} ms at {raw['per_second']:,.0f} a second")
    yield goals.LATENCY_P50.figure(percentile(delays, 50), **raw)
    yield goals.LATENCY_P99.figure(percentile(delays, 99), **raw)
