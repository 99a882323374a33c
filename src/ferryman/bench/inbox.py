"""The wallet's consumer: how fast beside a bare loop of psycopg, on one hot wallet, and with duplicates.

What is compared is measured by turns: each run has a database with the same wallets, and reads the same topic from its
beginning as a group of its own.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from ferryman.bench import goals, meters
from ferryman.bench.figures import Figure, median
from ferryman.bench.parts import Bench
from ferryman.bench.processes import Child, ProcessFailed
from ferryman.bench.quiet import Taken, quietest
from ferryman.bench.spending import Connection, Stream, open_wallets, send_all
from ferryman.runtime.settings import Settings

BATCH = Settings().consumer.batch_messages

_REPORTED = "-- bench.reported\nSELECT count(*), count(DISTINCT id) FROM ferryman.outbox"
SPENT = "-- bench.spent\nSELECT coalesce(sum(amount), 0)::bigint FROM wallet.entries WHERE account = 'payments'"
_UNBALANCED = "-- bench.unbalanced\nSELECT count(*) FROM wallet.unbalanced"
_COMMITS = "-- bench.commits\nSELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
# Said by the clock or at the start, and not by a batch.
_NOT_OF_A_BATCH = (
    "-- consumer.paused",
    "-- consumer.own",
    "-- consumer.release",
    "-- consumer.forget",
    "-- migrations.",
)


@dataclass(frozen=True, slots=True)
class Round:
    """What is compared with one another: messages a second."""

    bare: float
    uniform: float
    hot: float
    doubled: float

    @property
    def to_bare(self) -> float:
        return self.uniform / self.bare

    @property
    def hot_to_uniform(self) -> float:
        return self.hot / self.uniform

    @property
    def doubled_to_uniform(self) -> float:
        return self.doubled / self.uniform


def rates(bench: Bench) -> Iterator[Figure]:
    """Bare, uniform wallets, one hot wallet, every second message a duplicate; over and over."""
    streams = {
        "uniform": Stream(bench.scale.commands),
        "hot": Stream(bench.scale.commands, wallets=1),
        "doubled": Stream(bench.scale.commands, doubled=True),
    }
    with bench.topic() as uniform, bench.topic() as hot, bench.topic() as doubled:
        topics = {"uniform": uniform, "hot": hot, "doubled": doubled}
        for name, stream in streams.items():
            send_all(bench, topics[name], stream)
        bench.say(f"three topics with {bench.scale.commands:,} commands each are loaded")
        taken = quietest(bench, partial(_round, bench, topics, streams), bench.scale.rounds)
    yield from _figures(bench, taken)


def _round(bench: Bench, topics: dict[str, str], streams: dict[str, Stream]) -> Round:
    bare = bare_rate(bench, streams["uniform"])
    per_second = {name: handled(bench, topics[name], streams[name]) for name in streams}
    said = ", ".join(f"{name} {rate:,.0f}" for name, rate in per_second.items())
    bench.say(f"a second: bare {bare:,.0f}, {said}")
    return Round(bare, **per_second)


def _figures(bench: Bench, taken: Sequence[Taken[Round]]) -> Iterator[Figure]:
    rounds, others = [each.value for each in taken], [each.others for each in taken]
    uniform = [each.uniform for each in rounds]
    common: dict[str, Any] = {"messages": bench.scale.commands, "batch": BATCH, "cores_of_others": others}
    yield goals.INBOX_RATE.figure(
        median([each.to_bare for each in rounds]),
        per_second=uniform, bare_per_second=[each.bare for each in rounds], **common,
    )  # fmt: skip
    yield goals.INBOX_HOT.figure(
        median([each.hot_to_uniform for each in rounds]),
        hot_per_second=[each.hot for each in rounds], uniform_per_second=uniform, **common,
    )  # fmt: skip
    yield goals.INBOX_DUPLICATES.figure(
        median([each.doubled_to_uniform for each in rounds]),
        doubled_per_second=[each.doubled for each in rounds], uniform_per_second=uniform, **common,
    )  # fmt: skip


def bare_rate(bench: Bench, stream: Stream) -> float:
    """What psycopg does of the same transactions, a second."""
    with database(bench) as (url, connection):
        wanted = {"database_url": url, "messages": stream.messages, "wallets": stream.wallets, "batch": BATCH}
        with Child(["-m", "ferryman.bench.bare_inbox"], bench.environment(), wanted) as child:
            told = child.result(_patience(stream))
        check(connection, stream)
    return float(told["handled"] / told["seconds"])


def handled(bench: Bench, topic: str, stream: Stream) -> float:
    """What the consumer handles of the topic, a second."""
    with database(bench) as (url, connection):
        with handling(bench, url, topic, stream.messages) as child:
            told = child.result(_patience(stream))
        check(connection, stream)
    return float(told["handled"] / told["seconds"])


def statements(bench: Bench) -> Iterator[Figure]:
    """What one batch costs the server: as it counts itself."""
    if not bench.counts_statements:
        for goal in (goals.INBOX_STATEMENTS, goals.INBOX_COMMITS):
            yield goal.unmeasured("this server has no pg_stat_statements")
        return
    stream = Stream(bench.scale.commands)
    with bench.topic() as topic, database(bench) as (url, connection):
        send_all(bench, topic, stream)
        meters.forget_statements(connection)
        before = meters.row(connection, _COMMITS)[0]
        with handling(bench, url, topic, stream.messages) as child:
            told = child.result(_patience(stream))
        counted = meters.by_statement(connection)
        whole = meters.row(connection, _COMMITS)[0] - before
    batches = told["batches"]
    calls = {name: each["calls"] for name, each in counted.items() if not name.startswith(_NOT_OF_A_BATCH)}
    bench.say(f"{batches} batches of {told['handled'] / batches:.0f}: {json.dumps(calls)}")
    raw = {"batches": batches, "messages": told["handled"], "calls": calls, "commits_of_the_database": whole}
    yield goals.INBOX_STATEMENTS.figure(sum(calls.values()) / batches, **raw)
    yield goals.INBOX_COMMITS.figure(calls.get("COMMIT", 0) / batches, **raw)


@contextmanager
def database(bench: Bench) -> Iterator[tuple[str, Connection]]:
    """With wallets in it, and nothing that was decided."""
    with bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        open_wallets(connection)
        yield url, connection


@contextmanager
def handling(bench: Bench, url: str, topic: str, messages: int, *, delays: bool = False) -> Iterator[Child]:
    """The consumer, until it has handled so many of the topic from its beginning."""
    kafka = {"bootstrap_servers": bench.kafka.bootstrap_servers, **bench.kafka.properties}
    wanted = {
        "database_url": url, "kafka": kafka, "topic": topic, "name": f"wallet-{secrets.token_hex(4)}",
        "messages": messages, "delays": delays,
    }  # fmt: skip
    with Child(["-m", "ferryman.bench.handling"], bench.environment(), wanted) as child:
        yield child


def check(connection: Connection, stream: Stream) -> None:
    """Each command took effect once; each message was answered, a duplicate with the answer of its first."""
    firsts = len({each.id for each in stream}) if stream.doubled else stream.messages
    answers, distinct = meters.row(connection, _REPORTED)
    spent, wrong = meters.row(connection, SPENT)[0], meters.row(connection, _UNBALANCED)[0]
    if (spent, distinct, answers, wrong) != (firsts, firsts, stream.messages, 0):
        raise ProcessFailed(
            f"{firsts} of {stream.messages} commands are to take effect: {spent} did, {answers} answers tell of "
            f"{distinct}, and {wrong} wallets do not balance"
        )


def _patience(stream: Stream) -> float:
    return 60 + stream.messages / 500
