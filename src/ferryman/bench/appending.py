"""What appending costs its writers."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg

from ferryman.bench import goals, load
from ferryman.bench.figures import Figure, median
from ferryman.bench.parts import Bench
from ferryman.bench.quiet import quietest
from ferryman.bench.scale import KEYS, PAYLOAD_BYTES
from ferryman.message import Message
from ferryman.outbox import append, append_many

_AT_ONCE = 1000
_DATA = b"x" * PAYLOAD_BYTES

_PLAIN_TABLE = "-- bench.plain_table\nCREATE TABLE bench_order (id bigint PRIMARY KEY, note bytea NOT NULL)"
_INSERT_ONE = "-- bench.insert_one\nINSERT INTO bench_order VALUES (%s, %s)"
_INSERT_MANY = "-- bench.insert_many\nINSERT INTO bench_order SELECT * FROM unnest(%s::bigint[], %s::bytea[])"
_DURABLE = "-- bench.durable\nSELECT set_config('synchronous_commit', 'on', false)"


def many(bench: Bench) -> Iterator[Figure]:
    """`append_many`, a thousand in a transaction, beside an insert of as many rows into a plain table."""
    entries = max(_AT_ONCE, bench.scale.entries // 5)
    with bench.database() as url, psycopg.connect(url) as connection:
        _prepare(connection)

        def take() -> tuple[float, float]:
            """(appended, plainly inserted) a second."""
            return entries / _seconds_of(_append_thousand, connection, entries), entries / _seconds_of(
                _insert_thousand, connection, entries
            )

        taken = quietest(bench, take, bench.scale.rounds)
    appended, inserted = ([each.value[side] for each in taken] for side in (0, 1))
    bench.say(f"append_many: {median(appended):,.0f} a second; plain inserts: {median(inserted):,.0f}")
    yield goals.APPEND_MANY.figure(
        median(appended), entries=entries, per_second=appended, plain_insert_per_second=inserted,
        cores_of_others=[each.others for each in taken],
    )  # fmt: skip


def one(bench: Bench) -> Iterator[Figure]:
    """Transactions with and without an append, by turns, so that both meet the same machine."""
    with bench.database() as url, psycopg.connect(url) as connection:
        _prepare(connection)
        [taken] = quietest(bench, partial(_pairs, connection, bench.scale.transactions), 1)
    bare, beside = ([pair[side] for pair in taken.value] for side in (0, 1))
    bench.say(f"a bare insert: {median(bare):.3f} ms; with an append: {median(beside):.3f} ms")
    yield goals.APPEND_ONE.figure(
        median(beside) / median(bare), bare_ms=median(bare), with_append_ms=median(beside), transactions=len(bare),
        cores_of_others=taken.others,
    )  # fmt: skip


def _prepare(connection: psycopg.Connection[Any]) -> None:
    connection.execute(_PLAIN_TABLE)
    connection.execute(_DURABLE)
    connection.commit()
    connection.autocommit = True
    load.checkpoint(connection)
    connection.autocommit = False


def _seconds_of(thousand: Any, connection: psycopg.Connection[Any], entries: int) -> float:
    began = time.perf_counter()
    for _ in range(entries // _AT_ONCE):
        thousand(connection)
        connection.commit()
    return time.perf_counter() - began


def _append_thousand(connection: psycopg.Connection[Any]) -> None:
    append_many(connection, [Message("bench", _DATA, key=f"key-{n % KEYS}", topic="bench") for n in range(_AT_ONCE)])


def _insert_thousand(connection: psycopg.Connection[Any]) -> None:
    first = time.monotonic_ns()
    connection.execute(_INSERT_MANY, ([first + n for n in range(_AT_ONCE)], [_DATA] * _AT_ONCE))


def _pairs(connection: psycopg.Connection[Any], transactions: int) -> list[tuple[float, float]]:
    """Milliseconds of transactions (without, with) an append."""
    return [
        (_transaction_ms(connection, append_too=False), _transaction_ms(connection, append_too=True))
        for _ in range(transactions)
    ]


def _transaction_ms(connection: psycopg.Connection[Any], *, append_too: bool) -> float:
    number = time.monotonic_ns()
    began = time.perf_counter()
    connection.execute(_INSERT_ONE, (number, _DATA))
    if append_too:
        append(connection, Message("bench", _DATA, key=f"key-{number % KEYS}", topic="bench"))
    connection.commit()
    return (time.perf_counter() - began) * 1000
