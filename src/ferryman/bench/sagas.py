"""The rates of a saga: results and starts, beside bare psycopg loops that write the same rows from memory."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, LiteralString, NamedTuple
from uuid import UUID, uuid4

import psycopg

from ferryman.bench import goals, journal
from ferryman.bench.goals import Figure
from ferryman.bench.meters import Connection, MeasurementFailed
from ferryman.bench.servers import Bench, ratio
from ferryman.consumer.model import Received, Record
from ferryman.message import Message
from ferryman.outbox import append_many
from ferryman.saga.answers import Go
from ferryman.saga.ddl import table
from ferryman.saga.declaration import Saga
from ferryman.saga.machine import End, State

BATCH = 500
WAITING = 1_000_000
_DUE_TURNS = 9


class BenchSaga(NamedTuple):
    """A row of the saga that is measured."""

    id: UUID
    amount: int
    state: str = "ASKING"
    attempt: int = 1
    reason: str | None = None


def _declared() -> Saga[BenchSaga]:
    saga = Saga(
        "bench_saga", BenchSaga, table="bench.sagas", of=lambda result: UUID(result.data["id"]), commands="bench",
        results={"bench.*": "bench.results"},
        states={
            "ASKING": State("Asked.", ask="bench.ask", within=3600, tries=3, then="OVER"),
            "COUNTING": State("Counts.", within=3600),
            "OVER": End("Over."),
        },
    )  # fmt: skip
    saga.on("ASKING", "bench.answered", to="COUNTING")
    saga.on("COUNTING", "bench.ended", to="OVER")
    saga.on("COUNTING", "bench.counted", to=())(lambda row, _: Go(row.state, set={"amount": row.amount + 1}))
    return saga


_BARE_TABLE = """\
-- bench.bare_sagas
CREATE TABLE bench.bare (LIKE bench.sagas INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
ALTER TABLE bench.bare ADD PRIMARY KEY (id);
CREATE INDEX ON bench.bare (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ON bench.bare (changed_at) WHERE state = 'OVER'
"""
_BARE_INSERT = """\
-- bench.insert_sagas
INSERT INTO bench.bare (id, amount, due_at)
SELECT n.id, n.amount, clock_timestamp() + interval '1 h' FROM unnest(%s::uuid[], %s::bigint[]) n (id, amount)
"""
_BARE_UPDATE = """\
-- bench.update_sagas
UPDATE bench.bare s SET state = n.state, attempt = n.attempt, due_at = clock_timestamp() + interval '1 h',
    changed_at = clock_timestamp()
FROM unnest(%s::uuid[], %s::text[], %s::integer[]) n (id, state, attempt) WHERE s.id = n.id
"""
_WAIT = """\
-- bench.waiting_sagas
INSERT INTO bench.sagas (id, amount, due_at)
SELECT gen_random_uuid(), 1, now() + make_interval(secs => 3600 + n) FROM generate_series(1, %s) n
"""
_MAKE_DUE = """\
-- bench.due_sagas
INSERT INTO bench.sagas (id, amount, due_at) SELECT gen_random_uuid(), 1, now() - interval '1 s'
FROM generate_series(1, %s)
"""
_ANALYZE = "-- bench.analyze_sagas\nANALYZE bench.sagas"


def start_rate(bench: Bench) -> Iterator[Figure]:
    """Measure starts beside bare INSERTs of the same rows and `append_many` of the same messages."""
    saga = _declared()

    def ours(db: Connection) -> None:
        saga.engine.start(db, _rows())

    def bare(db: Connection) -> None:
        rows = _rows()
        db.execute(_BARE_INSERT, ([each.id for each in rows], [each.amount for each in rows]))
        append_many(db, [Message("bench.ask", {"id": each.id, "amount": each.amount}, key=str(each.id), topic="bench")
                         for each in rows])  # fmt: skip

    with _database(bench, saga) as db:
        rates, others = compared(bench, db, ours, bare)
    yield rate_figure(goals.SAGA_START_RATE, rates, others)


def apply_rates(bench: Bench) -> Iterator[Figure]:
    """Measure results of many sagas beside bare UPDATEs of the same rows, and results of one saga."""
    saga = _declared()

    def ours(db: Connection) -> None:
        saga.engine.apply(db, answers.pop())

    def bare(db: Connection) -> None:
        rows = bare_begun.pop()
        db.execute(_BARE_UPDATE, ([each.id for each in rows], ["COUNTING"] * len(rows), [1] * len(rows)))

    def one(db: Connection) -> None:
        saga.engine.apply(db, counts)

    with _database(bench, saga) as db:
        batches = bench.scale.rounds * 3 * _batches(bench) + 10
        begun, bare_begun = [_rows() for _ in range(batches)], [_rows() for _ in range(batches)]
        for each in begun:
            saga.engine.start(db, each)
            db.commit()
        for each in bare_begun:
            db.execute(_BARE_INSERT, ([row.id for row in each], [row.amount for row in each]))
            db.commit()
        [counting] = _rows(1)
        saga.engine.start(db, [counting])
        saga.engine.apply(db, [_result("bench.answered", counting.id)])
        db.commit()
        answers = [[_result("bench.answered", row.id) for row in each] for each in begun]
        counts = [_result("bench.counted", counting.id) for _ in range(BATCH)]
        gc.collect()
        gc.freeze()  # as every service does: what the bench keeps in memory is no part of the work
        rates, others = compared(bench, db, ours, bare, one)
        gc.unfreeze()
    many, plain, of_one = rates
    yield rate_figure(goals.SAGA_APPLY_RATE, (many, plain), others)
    yield goals.SAGA_ONE_RATE.figure(ratio(of_one, many), of_one_per_second=of_one, of_many_per_second=many)


def due_latency(bench: Bench) -> Iterator[Figure]:
    """Measure a batch of sagas that are due, where a million others wait, and where a thousand do."""
    saga = _declared()

    @contextmanager
    def waiting(many: int) -> Iterator[Connection]:
        with _database(bench, saga) as db:
            db.execute(_WAIT, (many,))
            db.execute(_ANALYZE)
            db.commit()
            yield db

    yield due_figure(bench, goals.SAGA_DUE, waiting, _MAKE_DUE, lambda db: saga.engine.due(db, BATCH))


def due_figure(
    bench: Bench, goal: goals.Goal, waiting: Callable[[int], AbstractContextManager[Connection]],
    make_due: LiteralString, due: Callable[[Connection], Sequence[Any]],
) -> Figure:  # fmt: skip
    """Return the figure of a batch that is due beside a million sagas that wait; `waiting` gives so many."""
    many, seconds = max(1000, bench.scale.entries * WAITING // 1_000_000), list[float]()
    for each in (1000, many):
        with waiting(each) as db:
            taken = [_due_seconds(db, make_due, due) for _ in range(2 * _DUE_TURNS)]
            seconds.append(sorted(taken[_DUE_TURNS:])[_DUE_TURNS // 2])  # the first ones warm it up
    few, lots = seconds
    return goal.figure(lots / few, waiting=many, ms_beside_1000=few * 1000, ms_beside_all=lots * 1000)


def _due_seconds(db: Connection, make_due: LiteralString, due: Callable[[Connection], Sequence[Any]]) -> float:
    db.execute(make_due, (BATCH,))
    db.commit()
    began = time.perf_counter()
    moved = due(db)
    db.commit()
    if len(moved) != BATCH:
        raise MeasurementFailed(f"{len(moved)} of {BATCH} due sagas were moved")
    return time.perf_counter() - began


@contextmanager
def _database(bench: Bench, saga: Saga[Any]) -> Iterator[Connection]:
    """Give a connection to a database with the saga's table, and one like it without guards."""
    with bench.database() as url, psycopg.connect(url) as db:
        db.execute(table(saga).encode())
        db.execute(_BARE_TABLE)
        db.commit()
        db.autocommit = True
        journal.checkpoint(db)
        db.autocommit = False
        yield db


def _batches(bench: Bench) -> int:
    return max(2, bench.scale.commands // 10 // BATCH)


def compared(bench: Bench, db: Connection, *works: Callable[[Connection], None]) -> tuple[list[Sequence[float]], Any]:
    def rate(work: Callable[[Connection], None]) -> Callable[[], float]:
        def measured() -> float:
            began = time.perf_counter()
            for _ in range(_batches(bench)):
                work(db)
                db.commit()
            return _batches(bench) * BATCH / (time.perf_counter() - began)

        return measured

    rates, others = bench.compared(**{f"work_{number}": rate(each) for number, each in enumerate(works)})
    return list(rates.values()), others


def rate_figure(goal: goals.Goal, rates: Sequence[Sequence[float]], others: Any) -> Figure:
    ours, bare = rates[:2]
    return goal.figure(ratio(ours, bare), ours_per_second=ours, bare_per_second=bare, cores_of_others=others)


def _rows(many: int = BATCH) -> list[BenchSaga]:
    return [BenchSaga(uuid4(), number) for number in range(many)]


def _result(kind: str, saga: UUID) -> Received:
    record = Record("bench.results", 0, 0, b"", b"", [], 0)
    return Received(uuid4(), kind, {"id": str(saga)}, str(saga), record, b"")
