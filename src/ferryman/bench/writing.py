"""The cost of writing: appending for the transactions of a writer, and encoding beside fastavro alone."""

import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from statistics import median_low
from typing import Any

import psycopg
from fastavro import schemaless_reader, schemaless_writer

from ferryman.bench import goals, journal
from ferryman.bench.goals import Figure
from ferryman.bench.meters import Connection
from ferryman.bench.servers import KEYS, PAYLOAD_BYTES, Bench
from ferryman.message import Message
from ferryman.outbox import append, append_many
from ferryman.schemas import OURS, json_form
from ferryman.schemas.catalogue import Type, load
from ferryman.schemas.codec import Codec
from ferryman.schemas.registry.local import CatalogueRegistry

_AT_ONCE = 1000
_DATA = b"x" * PAYLOAD_BYTES
_CODEC_ROUNDS = 41
_CODEC_AT_ONCE = 200

_PLAIN_TABLE = "-- bench.plain_table\nCREATE TABLE bench_order (id bigint PRIMARY KEY, note bytea NOT NULL)"
_INSERT_ONE = "-- bench.insert_one\nINSERT INTO bench_order VALUES (%s, %s)"
_SELECT_ONE = "-- bench.select_one\nSELECT 1"
_INSERT_MANY = "-- bench.insert_many\nINSERT INTO bench_order SELECT * FROM unnest(%s::bigint[], %s::bytea[])"
_DURABLE = "-- bench.durable\nSELECT set_config('synchronous_commit', 'on', false)"


def append_thousands(bench: Bench) -> Iterator[Figure]:
    """Measure `append_many` of a thousand in a transaction, beside inserts of as many rows into a plain table."""
    entries = max(_AT_ONCE, bench.scale.entries // 5)

    def appended() -> None:
        append_many(connection, [_message(number) for number in range(_AT_ONCE)])

    def inserted() -> None:
        first = time.monotonic_ns()
        connection.execute(_INSERT_MANY, ([first + n for n in range(_AT_ONCE)], [_DATA] * _AT_ONCE))

    def rate(write: Callable[[], None]) -> float:
        began = time.perf_counter()
        for _ in range(entries // _AT_ONCE):
            write()
            connection.commit()
        return entries / (time.perf_counter() - began)

    with bench.database() as url, psycopg.connect(url) as connection:
        _prepare(connection)
        rates, others = bench.compared(append_many=lambda: rate(appended), plain_insert=lambda: rate(inserted))
    ours, plain = rates.values()
    yield goals.APPEND_MANY.figure(
        median_low(ours), entries=entries, per_second=ours, plain_insert_per_second=plain, cores_of_others=others
    )


def append_one(bench: Bench) -> Iterator[Figure]:
    """Measure transactions with an append, or a SELECT 1 in its place, in turns, so that both meet the same machine."""

    def milliseconds(*, append_too: bool) -> float:
        number = time.monotonic_ns()
        began = time.perf_counter()
        connection.execute(_INSERT_ONE, (number, _DATA))
        if append_too:
            append(connection, _message(number))
        else:
            connection.execute(_SELECT_ONE)
        connection.commit()
        return (time.perf_counter() - began) * 1000

    def pairs() -> Sequence[tuple[float, float]]:
        turns = range(bench.scale.transactions)
        return [(milliseconds(append_too=False), milliseconds(append_too=True)) for _ in turns]

    with bench.database() as url, psycopg.connect(url) as connection:
        _prepare(connection)
        [taken], [others] = bench.quietest(pairs, 1)
    bare, beside = (median_low(each) for each in zip(*taken, strict=True))
    yield goals.APPEND_ONE.figure(
        beside / bare, with_select_ms=bare, with_append_ms=beside, transactions=len(taken), cores_of_others=others
    )


def _prepare(connection: Connection) -> None:
    connection.execute(_PLAIN_TABLE)
    connection.execute(_DURABLE)
    connection.commit()
    connection.autocommit = True
    journal.checkpoint(connection)
    connection.autocommit = False


def _message(number: int) -> Message:
    return Message("bench", _DATA, key=f"key-{number % KEYS}", topic="bench")


def codec_speed(bench: Bench) -> Iterator[Figure]:
    """Measure every type of our catalogue from data to bytes and back, by our codec and by fastavro, which checks less.

    They take turns in short slices, so that both meet the same machine.
    """
    catalogue = load(OURS)
    registry = CatalogueRegistry(catalogue)
    rounds = 3 if bench.scale.quick else _CODEC_ROUNDS
    taken = {kind.name: _round_trips(Codec(kind, registry), kind, rounds) for kind in catalogue.types.values()}
    ratio = sum(bare for bare, _ in taken.values()) / sum(ours for _, ours in taken.values())
    yield goals.CODEC.figure(
        ratio, by_type={name: bare / ours for name, (bare, ours) in taken.items()},
        bare_us={name: 1e6 * bare for name, (bare, _) in taken.items()},
        codec_us={name: 1e6 * ours for name, (_, ours) in taken.items()},
    )  # fmt: skip


def _round_trips(codec: Codec, kind: Type, rounds: int) -> tuple[float, float]:
    """Return the seconds of a round trip by fastavro and by ours, each from its least disturbed slice."""
    schema, data = kind.schema, json_form.from_json(kind.schema, kind.samples[0])

    def bare() -> Any:
        stream = BytesIO()
        schemaless_writer(stream, schema, data)
        return schemaless_reader(BytesIO(stream.getvalue()), schema)

    def ours() -> Any:
        return codec.decode(codec.encode(data))

    assert bare() == ours() == data
    pairs = [(_seconds(bare), _seconds(ours)) for _ in range(rounds)]
    return min(first for first, _ in pairs), min(second for _, second in pairs)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(_CODEC_AT_ONCE):
        call()
    return (time.perf_counter() - began) / _CODEC_AT_ONCE
