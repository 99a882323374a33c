"""From COMMIT until a consumer has it, at a thousand single-row transactions a second."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ferryman.bench import goals
from ferryman.bench.figures import Figure, percentile
from ferryman.bench.parts import Bench
from ferryman.bench.quiet import quietest
from ferryman.bench.traffic import WAKING_SECONDS, Steady, delays_ms, steady_traffic


@dataclass(frozen=True, slots=True)
class Delays:
    """Of one steady run, in milliseconds: from when COMMIT had returned to its writer, and from when it was sent."""

    after_commit: list[float]
    with_commit: list[float]
    per_second: float
    relay_cpu_percent: float

    @property
    def raw(self) -> dict[str, Any]:
        return {
            "messages": len(self.after_commit),
            "per_second": self.per_second,
            "percentiles_ms": {str(p): percentile(self.after_commit, p) for p in (50, 90, 95, 99, 99.9, 100)},
            "from_sending_commit_ms": {str(p): percentile(self.with_commit, p) for p in (50, 99)},
            "relay_cpu_percent": self.relay_cpu_percent,
        }


def steady(bench: Bench) -> Iterator[Figure]:
    """Counted from when COMMIT had returned to its writer: a writer knows then that it is committed."""
    with steady_traffic(bench) as traffic:
        [taken] = quietest(bench, partial(_delays, traffic, bench.scale.steady_seconds), 1)
    delays = taken.value.after_commit
    p50, p99 = percentile(delays, 50), percentile(delays, 99)
    raw = {**taken.value.raw, "cores_of_others": taken.others}
    bench.say(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms at {taken.value.per_second:,.0f} a second")
    yield goals.LATENCY_P50.figure(p50, **raw)
    yield goals.LATENCY_P99.figure(p99, **raw)


def _delays(traffic: Steady, seconds: float) -> Delays:
    assert traffic.relay is not None
    cpu = traffic.relay.cpu_seconds()
    written = traffic.run(WAKING_SECONDS + seconds).after(WAKING_SECONDS)
    cpu = traffic.relay.cpu_seconds() - cpu
    span = max(written.committed.values()) - min(written.committed.values())
    return Delays(
        delays_ms(written.committed, traffic.read),
        delays_ms(written.sent, traffic.read),
        len(written.committed) / span,
        100 * cpu / (span + WAKING_SECONDS),
    )
