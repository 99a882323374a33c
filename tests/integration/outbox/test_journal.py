"""The journal's reading side: nothing lost, doubled, ghostly or out of order, whatever the writers do."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from ferryman import Message, append_many
from ferryman.relay.lanes import LaneWorker
from ferryman.relay.model import LANES, Entry, key_of, payload_of
from ferryman.relay.store import claims as store
from ferryman.testing import stack
from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries
from support.journal import Stress, Verdict
from support.relay import lane_worker, unlimited

Database = psycopg.Connection[tuple[Any, ...]]


def appended(db: Database, count: int, *, keys: int = 100) -> None:
    with db.transaction():
        append_many(db, [Message("t", str(n).encode(), key=f"k{n % keys}", topic="orders") for n in range(count)])


def drained(worker: LaneWorker, turns: int = 8) -> int:
    """Take turns until nothing came for long enough that every lane was looked at. Return how many were published."""
    total = quiet = 0
    while quiet < turns:
        count = worker.run_once().published
        total += count
        quiet = 0 if count else quiet + 1
    return total


def statuses(db: Database) -> dict[str, int]:
    rows = db.execute("SELECT status, count(*) FROM ferryman.outbox_entries GROUP BY 1").fetchall()
    return {str(status): int(count) for status, count in rows}


@pytest.fixture
def other(ferryman_database_url: str) -> Iterator[Database]:
    with psycopg.connect(ferryman_database_url) as connection:
        yield connection


def test_one_worker_alone_publishes_every_lane_once_and_in_order(ferryman_db: Database, other: Database) -> None:
    appended(ferryman_db, 5000)
    out: list[Entry] = []
    assert drained(lane_worker(other, out.extend)) == 5000
    assert statuses(ferryman_db) == {"PUBLISHED": 5000}
    assert ferryman_db.execute("SELECT * FROM ferryman.backlog").fetchall() == []
    by_key: dict[str, list[int]] = {}
    for entry in out:
        by_key.setdefault(key_of(entry), []).append(int(payload_of(entry) or b""))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_idle_turn_writes_nothing_and_takes_no_transaction_number(ferryman_db: Database, other: Database) -> None:
    """A transaction without a number wrote nothing: an idle relay costs the database reads of a few rows."""
    appended(ferryman_db, 10)
    worker = lane_worker(other, lambda _: None)
    drained(worker)
    state = "SELECT count(*), max(generation) FROM ferryman.outbox_cursor"
    before = ferryman_db.execute(state).fetchone()
    for _ in range(20):
        with other.transaction():
            assert worker.run_once().quiet
            assert other.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    assert ferryman_db.execute(state).fetchone() == before


def test_late_commit_is_published_at_once_and_delays_nobody(
    ferryman_database_url: str, ferryman_db: Database, other: Database
) -> None:
    out: list[Entry] = []
    worker = lane_worker(other, out.extend)
    with psycopg.connect(ferryman_database_url) as late:
        append_many(late, [Message("t", b"late", key="late", topic="orders")])
        for _ in range(3):
            appended(ferryman_db, 50)
            assert drained(worker) == 50
        late.commit()
    assert drained(worker) == 1
    assert key_of(out[-1]) == "late"


def test_writer_that_no_snapshot_lists_is_published_when_it_commits(
    ferryman_database_url: str, other: Database
) -> None:
    """N1: it has a number above all that have ended, and so it is in no snapshot's list of running transactions."""
    out: list[Entry] = []
    worker = lane_worker(other, out.extend)
    with psycopg.connect(ferryman_database_url) as first, psycopg.connect(ferryman_database_url) as unlisted:
        append_many(first, [Message("t", b"first", key="k", topic="orders")])
        append_many(unlisted, [Message("t", b"unlisted", key="k", topic="orders")])
        first.commit()
        assert drained(worker) == 1
        unlisted.commit()
    assert drained(worker) == 1
    assert [payload_of(entry) for entry in out] == [b"first", b"unlisted"]


def test_transactions_during_a_slow_acknowledgement_are_not_looked_for(ferryman_db: Database, other: Database) -> None:
    """N12: a read looks for each number up to the window's horizon, and there may be thousands of them a second."""
    appended(ferryman_db, 100)

    def while_waiting(step: str) -> None:
        for n in range(200 * (step == "acknowledge")):
            appended(ferryman_db, 1, keys=n + 1)

    published = lane_worker(other, lambda _: None, before=while_waiting).run_once().published
    assert published > 0
    looked_for = ferryman_db.execute(
        "SELECT horizon::text::bigint - pg_snapshot_xmax(snapshot)::text::bigint "
        "FROM ferryman.outbox_window ORDER BY id DESC LIMIT 1"
    ).fetchone()
    assert looked_for is not None
    assert 0 <= looked_for[0] < 100
    assert drained(lane_worker(other, lambda _: None)) == 300 - published


class Interrupted(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which something happens just before a statement."""

    statement = ""
    happens: Callable[[], object] = staticmethod(lambda: None)

    def execute(self, query: Any, *values: Any, **options: Any) -> Any:
        if self.statement and self.statement in str(query):
            self.statement = ""
            self.happens()
        return super().execute(query, *values, **options)


def test_lanes_are_read_where_their_last_holder_left_them(ferryman_database_url: str, ferryman_db: Database) -> None:
    """N3: what another worker settled until the locks were given is not published again."""
    out: list[Entry] = []
    appended(ferryman_db, 20)
    with psycopg.connect(ferryman_database_url) as one, Interrupted.connect(ferryman_database_url) as two:
        quick = lane_worker(one, out.extend)
        two.statement, two.happens = "relay.lock_lanes", lambda: drained(quick)
        assert drained(lane_worker(two, out.extend)) == 0
    assert len(out) == 20


def test_failed_turn_settles_nothing_and_the_next_publishes_again(ferryman_db: Database, other: Database) -> None:
    appended(ferryman_db, 100)

    def refuse(_: object) -> None:
        raise ConnectionError("the broker is away")

    with pytest.raises(ConnectionError):
        drained(lane_worker(other, refuse))
    assert statuses(ferryman_db) == {"PENDING": 100}
    assert drained(lane_worker(other, lambda _: None)) == 100


def test_lanes_that_one_worker_holds_are_not_given_to_another(ferryman_database_url: str) -> None:
    limits = {"idle_seconds": 10.0, "statement_seconds": 10.0}
    with psycopg.connect(ferryman_database_url) as one, psycopg.connect(ferryman_database_url) as two:
        held = {cursor.lane for cursor in store.claim(one, range(LANES), 5, **limits).cursors}
        assert len(held) == 5
        assert {cursor.lane for cursor in store.claim(two, range(LANES), 8, **limits).cursors} == set(
            range(LANES)
        ) - held
        one.rollback()
        two.rollback()
        assert len(store.claim(two, range(LANES), 8, **limits).cursors) == LANES


def test_worker_whose_lock_was_lost_cannot_settle(ferryman_db: Database, ferryman_database_url: str) -> None:
    """Its connection may have been ended and its lanes claimed by another: the generation is taken."""
    appended(ferryman_db, 10)
    limits = {"idle_seconds": 10.0, "statement_seconds": 10.0}
    with psycopg.connect(ferryman_database_url) as stale:
        cursors = store.claim(stale, range(LANES), LANES, **limits).cursors
        stale.rollback()
        with psycopg.connect(ferryman_database_url) as other:
            drained(lane_worker(other, lambda _: None))
        moved = [type(cursor)(**{**_fields(cursor), "generation": cursor.generation + 1}) for cursor in cursors]
        with pytest.raises(psycopg.errors.UniqueViolation):
            store.settle(stale, moved)


def _fields(cursor: Any) -> dict[str, Any]:
    return {name: getattr(cursor, name) for name in cursor.__dataclass_fields__}


def test_cursors_do_not_pile_up(ferryman_db: Database, other: Database) -> None:
    worker = lane_worker(other, lambda _: None, unlimited(batch_entries=10, tenure_seconds=0))
    appended(ferryman_db, 1000)
    drained(worker)
    row = ferryman_db.execute("SELECT count(*) FROM ferryman.outbox_cursor").fetchone()
    assert row is not None
    assert row[0] <= 2 * LANES


def test_settled_entries_are_counted_by_segment(ferryman_db: Database, other: Database) -> None:
    appended(ferryman_db, 700)
    drained(lane_worker(other, lambda _: None))
    row = ferryman_db.execute("SELECT sum(settled[1]) FROM ferryman.outbox_lanes").fetchone()
    assert row == (700,)


def judge(verdict: Verdict, stress: Stress, *, doubles_allowed: bool) -> None:
    assert stress.errors == []
    assert len(verdict.committed) > 100
    assert verdict.missing == set()
    assert verdict.inverted == []
    if not doubles_allowed:
        assert verdict.doubled == 0
        assert verdict.ghosts == set()


@pytest.mark.slow
def test_twelve_writers_and_three_workers_lose_double_and_invert_nothing(ferryman_database_url: str, seed: int) -> None:
    """N1 to N4, with savepoints, prepared and long transactions, COPY, REPEATABLE READ and rollbacks.

    Slow on a busy machine. The long form meets rarer interleavings.
    """
    stress = Stress(ferryman_database_url, seed, writers=12, workers=3)
    judge(stress.run(2), stress, doubles_allowed=False)


@pytest.mark.slow
def test_stress_finds_the_loss_of_a_reader_that_skips_unlisted_transactions(
    ferryman_database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stress test has teeth: a running transaction may be missing from a snapshot's list. Slow, as above."""
    assert "%(horizon)s::xid8" in store._READ
    monkeypatch.setattr(store, "_READ", store._READ.replace("%(horizon)s::xid8", "'3'::xid8"))
    assert Stress(ferryman_database_url, seed, writers=12, workers=3).run(6).missing


def crashing(server: LocalPostgres, times: int, pause: float) -> None:
    for _ in range(times):
        time.sleep(pause)
        server.crash()
        server.start()


@pytest.mark.slow
@pytest.mark.serial
def test_stress_survives_immediate_restarts_of_postgresql(seed: int) -> None:
    """N1 and N4: entries that a crash interrupts are published again. Slow, for the same reason.

    A commit that the server acknowledged without waiting for the disk may be published and then lost in the crash:
    such writers accepted that, so ghosts are allowed.
    """
    server = started(LocalPostgres(binaries(), FAST))
    try:
        url = stack.new_database(server.url, "stress")
        stack.migrate(url)
        stress = Stress(url, seed, writers=12, workers=3)
        judge(stress.run(7, lambda: crashing(server, 2, 2.0)), stress, doubles_allowed=True)
    finally:
        server.close()


@pytest.mark.prove
def test_two_minutes_of_stress_lose_double_and_invert_nothing(ferryman_database_url: str, seed: int) -> None:
    """Long, to meet rare interleavings."""
    stress = Stress(ferryman_database_url, seed, writers=16, workers=4)
    judge(stress.run(120), stress, doubles_allowed=False)


@pytest.mark.prove
def test_million_rows_in_one_late_transaction_come_out_once(
    ferryman_database_url: str, ferryman_db: Database, other: Database
) -> None:
    """Others flow meanwhile, and the late rows come in bounded batches."""
    counted = threading.local()
    counted.largest = 0

    def publish(entries: Any) -> None:
        counted.largest = max(counted.largest, len(entries))

    worker = lane_worker(other, publish)
    with psycopg.connect(ferryman_database_url) as late:
        late.execute(
            "INSERT INTO ferryman.outbox (segment, lane, topic, key, type, payload) "
            "SELECT 0, ferryman.outbox_lane(n::text), 'bulk', n::text, 't', '' FROM generate_series(1, 1000000) n"
        )
        appended(ferryman_db, 100)
        assert drained(worker) == 100
        late.commit()
    assert drained(worker) == 1_000_000
    assert counted.largest <= 1000
