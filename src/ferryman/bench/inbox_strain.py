"""The wallet's consumer at a steady rate, and under a backlog: how soon it commits, and what it keeps in memory."""

import time
from collections.abc import Iterator

from ferryman.bench import goals, meters
from ferryman.bench.figures import Figure, percentile
from ferryman.bench.inbox import SPENT, check, database, handling
from ferryman.bench.parts import Bench
from ferryman.bench.processes import sampled
from ferryman.bench.quiet import quietest
from ferryman.bench.scale import STEADY_RATE
from ferryman.bench.spending import Sender, Stream, send_all
from ferryman.bench.waiting import pace, until


def latency(bench: Bench) -> Iterator[Figure]:
    """From the broker's own stamp on a record, which nobody can read before, until COMMIT had returned."""
    [taken] = quietest(bench, lambda: _delays_ms(bench), 1)
    delays = taken.value
    p50, p99 = percentile(delays, 50), percentile(delays, 99)
    bench.say(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms at {STEADY_RATE:,} a second")
    yield goals.INBOX_LATENCY_P99.figure(
        p99, messages=len(delays), percentiles_ms={str(p): percentile(delays, p) for p in (50, 90, 95, 99, 99.9, 100)},
        cores_of_others=taken.others,
    )  # fmt: skip


def _delays_ms(bench: Bench) -> list[float]:
    """Of each message but those of the first seconds, when consumer and server were still waking."""
    warm = round(STEADY_RATE * bench.scale.warm_seconds)
    stream = Stream(warm + round(STEADY_RATE * bench.scale.steady_seconds))
    with bench.topic(**{"message.timestamp.type": "LogAppendTime"}) as topic, database(bench) as (url, connection):
        sender = Sender(bench, topic, **{"linger.ms": 0})
        spendings = iter(stream)
        sender.send(next(spendings))
        sender.flush()
        with handling(bench, url, topic, stream.messages, delays=True) as child:
            until(lambda: meters.row(connection, SPENT)[0], "first command that is handled", 30)
            began = time.monotonic()
            for number, spending in enumerate(spendings):
                pace(began, number, STEADY_RATE)
                sender.send(spending)
            sender.flush()
            told = child.result(60)
        check(connection, stream)
    delays: list[float] = told["delays_ms"]
    return delays[warm:]


def memory(bench: Bench) -> Iterator[Figure]:
    """All of a backlog, watched from outside."""
    stream = Stream(bench.scale.entries)
    with bench.topic() as topic, database(bench) as (url, connection):
        send_all(bench, topic, stream)
        bench.say(f"{stream.messages:,} commands are waiting")
        every = 0.05 if bench.scale.quick else 0.2
        with handling(bench, url, topic, stream.messages) as child, sampled(child, lambda: 0, every) as samples:
            told = child.result(120 + stream.messages / 500)
        check(connection, stream)
    most = max(sample.resident_mb for sample in samples)
    rate = told["handled"] / told["seconds"]
    bench.say(f"resident: {most:.0f} MB at most, at {rate:,.0f} a second")
    yield goals.INBOX_MEMORY.figure(
        most, messages=stream.messages, samples=len(samples), per_second=rate,
        halfway_mb=samples[len(samples) // 2].resident_mb,
    )  # fmt: skip
