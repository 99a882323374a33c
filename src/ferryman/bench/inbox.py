"""The wallet's consumer: its rate beside bare psycopg, its statements, its latency and its memory.

The compared runs take turns: each has a database with the same wallets, and reads the same topic from the
beginning as a group of its own.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg

from ferryman.bench import goals, meters, programs
from ferryman.bench.commands import Sender, Stream, open_wallets, send_all, unbalanced_wallets
from ferryman.bench.goals import Figure, percentile, percentiles
from ferryman.bench.meters import Connection, MeasurementFailed, pace, until
from ferryman.bench.programs import Program
from ferryman.bench.servers import STEADY_RATE, Bench, ratio
from ferryman.runtime.settings import Settings

BATCH = Settings().consumer.batch_messages

_REPORTED = "-- bench.reported\nSELECT count(*), count(DISTINCT id) FROM ferryman.outbox"
_SPENT = "-- bench.spent\nSELECT coalesce(sum(amount), 0)::bigint FROM wallet.entries WHERE account = 'payments'"
_COMMITS = "-- bench.commits\nSELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_NOT_OF_A_BATCH = (
    "-- consumer.paused",
    "-- consumer.own",
    "-- consumer.release",
    "-- consumer.forget",
    "-- consumer.count_rejected",
    "-- postgres.",
    "-- migrations.",
    "-- rights.",
    "NOT EXISTS (SELECT FROM ferryman.inbox_open",
)
"""Statements at the start or now and then, whatever the batches; the last is a part of COMMIT, which is counted."""


def rates(bench: Bench) -> Iterator[Figure]:
    """Measure bare psycopg, uniform wallets, one hot wallet and duplicates, in rounds."""
    messages = bench.scale.commands
    streams = {"uniform": Stream(messages), "hot": Stream(messages, wallets=1),
               "doubled": Stream(messages, doubled=True)}  # fmt: skip
    with ExitStack() as closing:
        topics = {name: closing.enter_context(bench.topic()) for name in streams}
        for name, stream in streams.items():
            send_all(bench, topics[name], stream)

        def rate(name: str) -> float:
            result, _ = _handled(bench, topics[name], streams[name])
            return float(result["handled"] / result["seconds"])

        ways = {name: partial(rate, name) for name in streams}
        taken, others = bench.compared(bare=lambda: _bare_rate(bench, streams["uniform"]), **ways)
    common: dict[str, Any] = {"messages": messages, "batch": BATCH, "cores_of_others": others}
    for goal, name, beside in (
        (goals.INBOX_RATE, "uniform", "bare"),
        (goals.INBOX_HOT, "hot", "uniform"),
        (goals.INBOX_DUPLICATES, "doubled", "uniform"),
    ):
        per_second = {f"{key}_per_second": taken[key] for key in (name, beside)}
        yield goal.figure(ratio(taken[name], taken[beside]), **per_second, **common)


def _bare_rate(bench: Bench, stream: Stream) -> float:
    with _wallets(bench) as (url, connection):
        task = {"database_url": url, "messages": stream.messages, "wallets": stream.wallets, "batch": BATCH}
        seconds = programs.bare_seconds(bench, "handle", task, _patience(stream))
        _check(connection, stream)
    return stream.messages / seconds


def statements(bench: Bench) -> Iterator[Figure]:
    """Measure the statements of a batch, as the server counts them."""
    if not bench.counts_statements:
        raise MeasurementFailed("this server has no pg_stat_statements")
    stream = Stream(bench.scale.commands)
    with bench.topic() as topic:
        send_all(bench, topic, stream)
        result, counted = _handled(bench, topic, stream)
    batches, commits = result["batches"], counted.pop("commits")
    calls = {name: calls for name, calls in counted.items() if not name.startswith(_NOT_OF_A_BATCH)}
    raw = {"batches": batches, "messages": result["handled"], "calls": calls, "commits_of_the_database": commits}
    yield goals.INBOX_STATEMENTS.figure(sum(calls.values()) / batches, **raw)
    yield goals.INBOX_COMMITS.figure(calls.get("COMMIT", 0) / batches, **raw)


def latency(bench: Bench) -> Iterator[Figure]:
    """Measure from the broker's timestamp of a record, before which nobody can read it, until COMMIT returned."""
    [delays], [others] = bench.quietest(partial(_delays_ms, bench), 1)
    yield goals.INBOX_LATENCY_P99.figure(
        percentile(delays, 99), messages=len(delays), percentiles_ms=percentiles(delays), cores_of_others=others
    )


def _delays_ms(bench: Bench) -> list[float]:
    """Return each message's delay, without the first seconds, when consumer and server are still waking up."""
    warm = round(STEADY_RATE * bench.scale.warm_seconds)
    stream = Stream(warm + round(STEADY_RATE * bench.scale.steady_seconds))
    with bench.topic(**{"message.timestamp.type": "LogAppendTime"}) as topic, _wallets(bench) as (url, connection):
        sender = Sender(bench, topic, **{"linger.ms": 0})
        commands = iter(stream)
        sender.send(next(commands))
        sender.flush()
        with _handling(bench, url, topic, stream, delays=True) as program:
            until(lambda: meters.row(connection, _SPENT)[0], "handling of the first command", 30)
            began = time.monotonic()
            for number, command in enumerate(commands):
                pace(began, number, STEADY_RATE)
                sender.send(command)
            sender.flush()
            committed = program.result(60)["committed"]
        _check(connection, stream)
    return [1000 * at - readable_ms for _, readable_ms, at in committed][warm:]


def memory(bench: Bench) -> Iterator[Figure]:
    """Measure the consumer's resident memory while it handles a backlog."""
    stream = Stream(bench.scale.entries)
    with bench.topic() as topic, _wallets(bench) as (url, connection):
        send_all(bench, topic, stream)
        every = 0.05 if bench.scale.quick else 0.2
        with _handling(bench, url, topic, stream) as program:
            samples = programs.sampled(program, lambda: 0, every, _patience(stream))
            result = program.result(_patience(stream))
        _check(connection, stream)
    most, rate = max(sample.resident_mb for sample in samples), result["handled"] / result["seconds"]
    yield goals.INBOX_MEMORY.figure(
        most, messages=stream.messages, samples=len(samples), per_second=rate,
        halfway_mb=samples[len(samples) // 2].resident_mb,
    )  # fmt: skip


def _handled(bench: Bench, topic: str, stream: Stream) -> tuple[dict[str, Any], dict[str, int]]:
    """Let the consumer handle a topic. Return its result, and the calls of each statement where they are counted."""
    with _wallets(bench) as (url, connection):
        if bench.counts_statements:
            meters.reset_statements(connection)
        before = meters.row(connection, _COMMITS)[0]
        with _handling(bench, url, topic, stream) as program:
            result: dict[str, Any] = program.result(_patience(stream))
        counted = meters.by_statement(connection) if bench.counts_statements else {}
        calls = {name: each["calls"] for name, each in counted.items()}
        calls["commits"] = meters.row(connection, _COMMITS)[0] - before
        _check(connection, stream)
    return result, calls


@contextmanager
def _wallets(bench: Bench) -> Iterator[tuple[str, Connection]]:
    """Give a database with wallets in which nothing was decided yet."""
    with bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        open_wallets(connection)
        yield url, connection


def _handling(
    bench: Bench, url: str, topic: str, stream: Stream, *, delays: bool = False
) -> AbstractContextManager[Program]:
    """Start the consumer. It ends when it has handled the whole stream."""
    task = {
        "settings": {"database_url": url, "kafka": bench.kafka_settings()}, "topic": topic,
        "name": f"wallet-{secrets.token_hex(4)}", "messages": stream.messages, "delays": delays,
    }  # fmt: skip
    return programs.own_program(bench, "consuming", task)


def _check(connection: Connection, stream: Stream) -> None:
    """Check that each command took effect once and each message was answered; a duplicate as its first was."""
    firsts = len({each.id for each in stream}) if stream.doubled else stream.messages
    answers, distinct = meters.row(connection, _REPORTED)
    spent, wrong = meters.row(connection, _SPENT)[0], unbalanced_wallets(connection)
    if (spent, distinct, answers, wrong) != (firsts, firsts, stream.messages, 0):
        raise MeasurementFailed(
            f"of {stream.messages} commands {firsts} should take effect: {spent} did, {answers} answers are about "
            f"{distinct}, and {wrong} wallets do not balance"
        )


def _patience(stream: Stream) -> float:
    return 60 + stream.messages / 500
