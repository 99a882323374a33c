"""A courier by HTTP: its rate beside a bare aiohttp session, its statements, its fairness, and what its claims cost.

The receiver is a process of its own. The bare session posts the same bodies with the same headers to it, as many at
once.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from statistics import median_low
from typing import Any

import psycopg

from ferryman.bench import goals, journal, meters, programs
from ferryman.bench.goals import Figure, Goal, percentile, percentiles
from ferryman.bench.meters import Connection, MeasurementFailed, pace
from ferryman.bench.programs import Program
from ferryman.bench.servers import Bench, ratio
from ferryman.relay.described.rows import Claimed, released
from ferryman.relay.described.table import Table, open_table
from ferryman.relay.described.way_out import Room
from ferryman.runtime.errors import env_name
from ferryman.runtime.setting import leaves
from ferryman.runtime.settings import Database
from ferryman.runtime.settings_outbox import Outbox
from ferryman.testing import places

SLOTS = 64
SLOW_MS = 20
_STEADY_RATE = 100
_WAKING_SECONDS = 1.0
SICK_MS = 5000
_SICK_ROWS = 5000
_DUE = 500
_DESTINATIONS = 10
_CLAIMS = 200

_DESCRIBED = {
    "table": "bench.hooks",
    "channel": "http",
    "words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"},
    "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    "slots": SLOTS,
}
_NOW_AND_THEN = (
    "-- outbox.described_backlog", "-- outbox.forget_attempts", "-- outbox.bury", "-- desk.can_pause_outboxes",
    "-- memos.leave",
)  # fmt: skip
_AT_START = (
    "-- outbox.columns", "-- outbox.words", "-- outbox.indexes", "-- outbox.predicate", "-- postgres.backend",
    "-- postgres.member", "-- migrations.", "-- rights.", "-- desk.paused_outboxes",
)  # fmt: skip
"""At the start; and the look at pauses, once a second."""
_LOST_CLAIMS = 2
"""Claims of lost rows that come with each `bury`."""
_STATEMENTS_AROUND = 3
"""BEGIN, the timeouts and COMMIT."""

# The table and the indexes of docs/couriers.md.
_CREATE = """\
-- bench.create_hooks
CREATE SCHEMA bench;
CREATE TABLE bench.hooks (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), destination text NOT NULL, payload jsonb NOT NULL,
    status text NOT NULL DEFAULT 'PENDING', attempts integer NOT NULL DEFAULT 0, error text, claimed_at timestamptz,
    next_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), done_at timestamptz
);
CREATE INDEX ON bench.hooks (claimed_at) WHERE status = 'SENDING'
"""
TO_ONE = "-- bench.to_one\nCREATE INDEX ON bench.hooks (next_attempt_at, created_at, id) WHERE status = 'PENDING'"
_TO_MANY = """\
-- bench.to_many
CREATE INDEX ON bench.hooks (destination, next_attempt_at, created_at, id) WHERE status = 'PENDING'
"""
_EMPTY = "-- bench.empty_hooks\nTRUNCATE bench.hooks, ferryman.outbox_attempt"
_LOAD = """\
-- bench.load_hooks
INSERT INTO bench.hooks (destination, status, payload)
SELECT %(destination)s || n %% %(destinations)s, %(status)s, jsonb_build_object(
    'order', lpad(n::text, 12, '0'), 'customer', md5(n::text), 'reference', md5((-n)::text), 'currency', 'EUR',
    'state', 'PLACED', 'note', repeat('x', 40))
FROM generate_series(1, %(rows)s::bigint) n
"""
_VACUUM = "-- bench.vacuum_hooks\nVACUUM (ANALYZE) bench.hooks"
_WRITE = "-- bench.write_hook\nINSERT INTO bench.hooks (destination, payload) VALUES (%s, '{}') RETURNING id::text"
_UNSENT = "-- bench.unsent_hooks\nSELECT count(*) FROM bench.hooks WHERE destination = '%s' AND status <> 'SENT'"


class ReceiverProgram:
    """The program `http_receiver` or `mail_receiver`."""

    def __init__(self, program: Program, port: int) -> None:
        self._program = program
        self.port = port

    def url(self, milliseconds: int) -> str:
        """Return the URL of requests that are answered after so long."""
        return f"http://127.0.0.1:{self.port}/{milliseconds}"

    def result(self) -> Any:
        """End it, and return what it received."""
        self._program.stop(seconds=10)
        return self._program.result(0)


@contextmanager
def receiver(bench: Bench, module: str = "http_receiver", **task: Any) -> Iterator[ReceiverProgram]:
    """Give a receiver that listens."""
    port = places.free_port()
    with programs.own_program(bench, module, {"port": port, **task}) as program:
        meters.until(lambda: _listens(port), "answer of the receiver", 10)
        yield ReceiverProgram(program, port)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def hooks(bench: Bench, index: str) -> Iterator[tuple[str, Connection]]:
    """Give the URL of a database with an empty table, and an autocommit connection to it."""
    with bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CREATE)
        connection.execute(index)
        yield url, connection


def load(connection: Connection, rows: int, destination: str = "", *, many: int = 1, status: str = "PENDING") -> None:
    """Write rows to so many destinations, and vacuum them as autovacuum would have done."""
    values = {"rows": rows, "destination": destination, "destinations": many, "status": status}
    connection.execute(_LOAD, values)
    connection.execute(_VACUUM)
    journal.checkpoint(connection)


def _settings(url: str | None) -> dict[str, str]:
    """Return the environment that describes the table, whose rows go to this URL or to the one that each names."""
    outbox = leaves({"outbox": {"hooks": {**_DESCRIBED, **({"url": url} if url else {})}}})
    named = {env_name(name): value if isinstance(value, str) else json.dumps(value) for name, value in outbox}
    return {**named, "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]'}


def slow_rate(bench: Bench) -> Iterator[Figure]:
    """Measure rows a second to a receiver that answers after 20 ms."""
    yield _rate(bench, goals.HTTP_RATE_SLOW, bench.scale.commands // 4, SLOW_MS)


def fast_rate(bench: Bench) -> Iterator[Figure]:
    """Measure rows a second to a receiver that answers at once."""
    yield _rate(bench, goals.HTTP_RATE_FAST, bench.scale.commands, 0)


def _rate(bench: Bench, goal: Goal, rows: int, milliseconds: int) -> Figure:
    """Measure a drain beside the bare session, in rounds."""
    with hooks(bench, TO_ONE) as (database_url, connection), receiver(bench, timed=False) as server:
        url = server.url(milliseconds)

        def courier() -> float:
            connection.execute(_EMPTY)
            load(connection, rows)
            return rows / _drained(bench, database_url, url, rows)

        rates, others = bench.compared(courier=courier, bare=partial(bare_rate, bench, database_url, url, rows))
        received = server.result()["requests"]
    if received % rows or received < 2 * rows * len(others):
        raise MeasurementFailed(f"the receiver had {received} requests, in rounds of {rows}")
    return goal.figure(
        ratio(rates["courier"], rates["bare"]), courier_per_second=rates["courier"], bare_per_second=rates["bare"],
        rows=rows, in_flight=SLOTS, answer_ms=milliseconds, cores_of_others=others,
    )  # fmt: skip


def bare_rate(bench: Bench, database_url: str, url: str, rows: int) -> float:
    """Return the rate at which the bare session posts the rows of the table."""
    task = {"database_url": database_url, "url": url, "secrets": _DESCRIBED["secrets"], "rows": rows, "at_once": SLOTS}
    return rows / programs.bare_seconds(bench, "post", task, patience(rows))


def _drained(bench: Bench, database_url: str, url: str, rows: int) -> float:
    """Let a courier deliver all rows, and return its seconds."""
    with programs.drain(bench, database_url, "hooks", **_settings(url)) as program:
        return programs.drained_seconds(program.result(patience(rows)), rows)


def patience(rows: int) -> float:
    """Return the seconds within which so many rows are sent."""
    return 60 + rows / 200


def statements(bench: Bench) -> Iterator[Figure]:
    """Measure the statements of a turn, which claims one batch and settles another, as the server counts them.

    Once a second or less, a courier looks for lost rows and measures its backlog: that is left out.
    """
    if not bench.counts_statements:
        raise MeasurementFailed("this server has no pg_stat_statements")
    rows = bench.scale.commands // 4
    with hooks(bench, TO_ONE) as (database_url, connection), receiver(bench, timed=False) as server:
        load(connection, rows)
        meters.reset_statements(connection)
        _drained(bench, database_url, server.url(0), rows)
        yield batch_statements(goals.SINK_STATEMENTS, connection, rows)


def batch_statements(goal: Goal, connection: Connection, rows: int) -> Figure:
    """Return the figure of the statements of a turn, after so many rows were sent."""
    calls = {name: each["calls"] for name, each in meters.by_statement(connection).items()}
    seldom = sum(calls.get(name, 0) for name in _NOW_AND_THEN) + _LOST_CLAIMS * calls["-- outbox.bury"]
    claims, settles = calls["-- outbox.claim"] - _LOST_CLAIMS * calls["-- outbox.bury"], calls["-- outbox.settle"]
    at_start = sum(times for name, times in calls.items() if name.startswith(_AT_START))
    counted = sum(calls.values()) - at_start - (_STATEMENTS_AROUND + 1) * seldom
    return goal.figure(
        counted / max(claims, settles), claims=claims, settles=settles, rows=rows, rows_each=rows / settles, calls=calls
    )


def healthy_latency(bench: Bench) -> Iterator[Figure]:
    """Measure an endpoint's p99 beside another one that takes 5 s and has a backlog, and without it, in turns."""
    yield beside_sick(bench, goals.HEALTHY_P99, partial(_delays_ms, bench), _SICK_ROWS)


def beside_sick(bench: Bench, goal: Goal, delays_ms: Callable[[int], list[float]], sick_rows: int) -> Figure:
    """Return the figure of an endpoint's p99 beside one with so many rows, and without it."""
    delays: dict[str, list[float]] = {}

    def p99(which: str, rows: int) -> float:
        delays[which] = delays_ms(rows)
        return percentile(delays[which], 99)

    p99s, others = bench.compared(without=lambda: p99("without", 0), beside=lambda: p99("beside", sick_rows))
    return goal.figure(
        ratio(p99s["beside"], p99s["without"]), p99_ms_without=p99s["without"], p99_ms_beside=p99s["beside"],
        percentiles_ms={which: percentiles(each) for which, each in delays.items()}, per_second=_STEADY_RATE,
        sick_rows=sick_rows, sick_ms=SICK_MS, cores_of_others=others,
    )  # fmt: skip


def _delays_ms(bench: Bench, sick_rows: int) -> list[float]:
    """Return how long after its COMMIT each row of the healthy endpoint arrived."""
    with hooks(bench, _TO_MANY) as (database_url, connection), receiver(bench, timed=True) as server:
        healthy = server.url(0)
        if sick_rows:
            load(connection, sick_rows, server.url(SICK_MS) + "?")
        write = partial(meters.row, connection, _WRITE, (healthy,))
        with programs.service(bench, "hooks", database_url, **_settings(None)):
            return arrivals_ms(
                bench, server, lambda: str(write()[0]), partial(meters.row, connection, _UNSENT % healthy)
            )


def arrivals_ms(
    bench: Bench, server: ReceiverProgram, write: Callable[[], str], unsent: Callable[[], tuple[Any, ...]]
) -> list[float]:
    """Write rows at a steady rate until there is enough, each with the id that its request has. Return how long after
    its COMMIT each arrived.
    """
    seconds = bench.scale.steady_seconds / 3 + _WAKING_SECONDS
    began, committed = time.monotonic(), dict[str, float]()
    for number in range(round(_STEADY_RATE * seconds)):
        pace(began, number, _STEADY_RATE)
        committed[write()] = time.monotonic()
    meters.until(lambda: not unsent()[0], "delivery to the healthy one", 60)
    arrived = server.result()["arrived"]
    counted = [identity for identity, at in committed.items() if at >= began + _WAKING_SECONDS]
    return [(arrived[identity] - committed[identity]) * 1000 for identity in counted]


def claims_after_done(bench: Bench) -> Iterator[Figure]:
    """Measure claims over delivered rows beside claims on a table without them."""
    yield _claims(bench, goals.CLAIM_AFTER_MILLION_DONE, TO_ONE, status="SENT")


def claims_beside_waiting(bench: Bench) -> Iterator[Figure]:
    """Measure claims beside the waiting rows of a destination that has no room beside claims on a table without."""
    yield _claims(bench, goals.CLAIM_BESIDE_MILLION_WAITING, _TO_MANY, status="PENDING")


def _claims(bench: Bench, goal: Goal, index: str, *, status: str) -> Figure:
    rows, url = bench.scale.entries, "http://all" if index == TO_ONE else None
    with hooks(bench, index) as (_, full), hooks(bench, index) as (_, bare):
        load(full, rows, "http://full/", status=status)
        for connection in (full, bare):
            load(connection, _DUE, "http://healthy/", many=_DESTINATIONS)
        tables = [_opened(connection, url) for connection in (full, bare)]
        pairs = [tuple(claim_ms(table, SLOTS) for table in tables) for _ in range(_CLAIMS)]
    full_ms, bare_ms = zip(*pairs[_CLAIMS // 10 :], strict=True)
    return goal.figure(
        median_low(full_ms) / median_low(bare_ms), rows=rows, claims=len(full_ms), full_ms=percentiles(full_ms),
        bare_ms=percentiles(bare_ms),
    )  # fmt: skip


def _opened(connection: Connection, url: str | None) -> Table:
    outbox = Outbox.model_validate({**_DESCRIBED, "url": url})
    return open_table(connection, "hooks", outbox, Database())


def claim_ms(table: Table, most: int) -> float:
    """Return the time of one claim, and give its rows back."""
    room = Room(most, each=8, busy={"http://full/0": 8})
    began = time.perf_counter()
    rows: list[Claimed] = table.claim_fair(room, None)[0] if "claim_fair" in table.statements else table.claim(most)
    took = (time.perf_counter() - began) * 1000
    if len(rows) != most:
        raise MeasurementFailed(f"a claim had {len(rows)} rows of {most}")
    table.settle([released(row) for row in rows])
    return took
