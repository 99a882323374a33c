"""Relay and writers through a real PgBouncer in transaction mode: a server session lasts one transaction."""

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.orm import Session

from ferryman import Message, append, append_many
from ferryman.relay.model import LANES, Claim, key_of, payload_of, walks
from ferryman.relay.store import claims
from ferryman.runtime import postgres
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.settings import Database as Limits
from ferryman.runtime.settings import Settings
from ferryman.testing.parts import NotHere, started
from support.journal import Place, Verdict
from support.pgbouncer import LocalPgBouncer, Program, program

POOL = 3
WORKERS, WRITERS = 4, 6
BATCH, KEYS, ENOUGH = 37, 20, 60

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="session")
def pgbouncer() -> Program:
    try:
        return program()
    except NotHere as why:
        pytest.skip(str(why))


Pooler = Callable[[int], LocalPgBouncer]


@pytest.fixture
def pooler_of(ferryman_database_url: str, pgbouncer: Program) -> Iterator[Pooler]:
    """Start a pooler with so many sessions."""
    made: list[LocalPgBouncer] = []

    def make(pool_size: int) -> LocalPgBouncer:
        made.append(started(LocalPgBouncer(ferryman_database_url, pgbouncer, pool_size=pool_size)))
        return made[-1]

    yield make
    for pooler in made:
        pooler.close()


@pytest.fixture
def pooler(pooler_of: Pooler) -> LocalPgBouncer:
    return pooler_of(POOL)


def connected(url: str, *, autocommit: bool = False) -> Database:
    return postgres.connect(Settings(database_url=url), "test", autocommit=autocommit)


def one(db: Database, query: str, *values: Any) -> Any:
    row = db.execute(query, values).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("autocommit", [True, False])
def test_pooler_is_detected_and_a_server_is_not_mistaken_for_one(
    pooler: LocalPgBouncer, ferryman_database_url: str, autocommit: bool
) -> None:
    with (
        connected(pooler.url, autocommit=autocommit) as pooled,
        connected(ferryman_database_url, autocommit=autocommit) as direct,
    ):
        assert postgres.behind_pooler(pooled)
        assert not postgres.behind_pooler(direct)
        for db in (pooled, direct):
            assert db.autocommit == autocommit
            assert db.info.transaction_status == TransactionStatus.IDLE
        assert pooled.prepare_threshold is None
        assert direct.prepare_threshold is not None


def by_psycopg(url: str, messages: list[Message]) -> list[Any]:
    with connected(url) as db:
        return [append(db, messages[0]), *append_many(db, messages[1:])]


def by_session(url: str, messages: list[Message]) -> list[Any]:
    engine = sa.create_engine(url.replace("ql", "ql+psycopg", 1), connect_args={"prepare_threshold": None})
    with Session(engine) as session:
        ids = [append(session, messages[0]), *append_many(session, messages[1:])]
        session.commit()
    engine.dispose()
    return ids


@pytest.mark.parametrize("by", [by_psycopg, by_session])
def test_writers_append_through_the_pooler(
    pooler: LocalPgBouncer, ferryman_db: Database, by: Callable[[str, list[Message]], list[Any]]
) -> None:
    """N1: more writers at once than it has sessions."""
    messages = [Message("t", b"", key=f"k{n}", topic="orders") for n in range(4)]
    with ThreadPoolExecutor(3 * POOL) as threads:
        given = [row for ids in threads.map(by, [pooler.url] * 3 * POOL, [messages] * 3 * POOL) for row in ids]
    stored = {row for (row,) in ferryman_db.execute("SELECT id FROM ferryman.outbox").fetchall()}
    assert len(given) == 12 * POOL
    assert set(given) == stored


def claim(db: Database, most: int, *, idle_seconds: float = 10.0) -> Claim:
    wanted = random.sample(range(LANES), LANES)
    return claims.claim(db, wanted, most, idle_seconds=idle_seconds, statement_seconds=10.0)


def turn(db: Database, published: list[Place], most: int = LANES // 2) -> int:
    """Take a turn like a worker's, with a list in place of the broker."""
    count = 0
    with db.transaction():
        under_way = walks(claim(db, most).cursors)
        for walk in under_way:
            entries, target = claims.read(db, walk, BATCH)
            published.extend((key_of(entry), int(payload_of(entry) or b"")) for entry in entries)
            walk.take(entries, target, more=len(entries) == BATCH)
            count += len(entries)
        if moved := [cursor for walk in under_way if walk.moved for cursor in walk.new_cursors()]:
            claims.settle(db, moved)
    return count


def business(db: Database, dice: random.Random) -> None:
    """Run one writer's transaction: each key is locked before its message is appended."""
    for key in sorted(dice.sample(range(KEYS), dice.choice([1, 1, 3]))):
        number = one(db, "UPDATE counters SET number = number + 1 WHERE key = %s RETURNING number", key)
        append(db, Message("t", str(number).encode(), key=f"k{key}", topic="orders"))
    if dice.random() < 0.1:
        db.rollback()
    else:
        db.commit()


class Traffic:
    """Writers and workers through one pooler; a lost connection is opened again."""

    def __init__(self, url: str, direct: Database, seed: int) -> None:
        self._url = url
        self._direct = direct
        self._seed = seed
        self._writing, self._reading = threading.Event(), threading.Event()
        self._published: list[Place] = []

    def run(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> Verdict:
        self._direct.execute("CREATE TABLE counters (key int PRIMARY KEY, number bigint NOT NULL DEFAULT 0)")
        self._direct.execute("INSERT INTO counters (key) SELECT generate_series(0, %s)", (KEYS - 1,))
        self._writing.set()
        self._reading.set()
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(WRITERS + WORKERS) as threads:
            dice = [random.Random(f"{self._seed}-{n}") for n in range(WRITERS)]
            writers = [threads.submit(self._keep, self._writing, business, each) for each in dice]
            workers = [threads.submit(self._keep, self._reading, self._work) for _ in range(WORKERS)]
            try:
                meanwhile()
                self._watch(lambda: time.monotonic() > until and len(self._published) > ENOUGH)
                self._writing.clear()
                for writer in writers:
                    writer.result(20)
                self._watch(lambda: not self._direct.execute("SELECT FROM ferryman.backlog").fetchall())
            finally:
                self._writing.clear()
                self._reading.clear()
            for worker in workers:
                worker.result(20)
        rows = self._direct.execute("SELECT key, convert_from(payload, 'UTF8')::bigint FROM ferryman.outbox").fetchall()
        return Verdict(Counter((str(key), int(number)) for key, number in rows), self._published)

    def _keep(self, going: threading.Event, act: Callable[..., None], *values: Any) -> None:
        while going.is_set():
            with suppress(psycopg.OperationalError, Unreachable), connected(self._url) as db:
                while going.is_set():
                    act(db, *values)
            time.sleep(0.01)

    def _work(self, db: Database) -> None:
        if not turn(db, self._published):
            time.sleep(0.002)

    def _watch(self, enough: Callable[[], bool]) -> None:
        """Wait until it is enough, and check that there are never more sessions than the pooler may have."""
        mine = "application_name = 'ferryman test' AND datname = current_database()"
        deadline = time.monotonic() + 20
        while not enough() and time.monotonic() < deadline:
            assert int(one(self._direct, f"SELECT count(*) FROM pg_stat_activity WHERE {mine}")) <= POOL
            time.sleep(0.01)


def test_more_workers_and_writers_than_sessions_lose_and_double_nothing(
    pooler: LocalPgBouncer, ferryman_db: Database, seed: int
) -> None:
    """N1 to N4, with each transaction in any free session."""
    verdict = Traffic(pooler.url, ferryman_db, seed).run(2)
    assert len(verdict.committed) > ENOUGH
    assert (verdict.missing, verdict.doubled, verdict.ghosts, verdict.inverted) == (set(), 0, set(), [])


def test_workers_and_writers_survive_a_pooler_that_is_killed_twice(
    pooler: LocalPgBouncer, ferryman_db: Database, seed: int
) -> None:
    """N1 and N4: all lose the connection at once, and open another; no ghosts, doubles are allowed."""

    def kill_twice() -> None:
        for _ in range(2):
            time.sleep(1)
            pooler.kill()
            pooler.start()

    verdict = Traffic(pooler.url, ferryman_db, seed).run(2, kill_twice)
    assert len(verdict.committed) > ENOUGH
    assert (verdict.missing, verdict.ghosts, verdict.inverted) == (set(), set(), [])


def await_lanes(db: Database, count: int, seconds: float) -> int:
    """Return how many lanes can be claimed, at once or before the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        with db.transaction():
            free = len(claim(db, LANES).cursors)
        if free >= count or time.monotonic() > deadline:
            return free
        time.sleep(0.01)


def test_client_that_vanishes_in_its_transaction_frees_its_lanes_at_once(
    pooler_of: Pooler, ferryman_db: Database
) -> None:
    """N11: the pooler ends the session instead of giving it to another client."""
    url = pooler_of(1).url
    worker = connected(url)
    assert len(claim(worker, 5).cursors) == 5
    backend = one(worker, "SELECT pg_backend_pid()")
    assert await_lanes(ferryman_db, LANES, 0) == LANES - 5
    with socket.socket(fileno=os.dup(worker.fileno())) as wire:  # as when its process is killed
        wire.shutdown(socket.SHUT_RDWR)
    assert await_lanes(ferryman_db, LANES, 2) == LANES
    worker.close()
    with connected(url) as other:
        assert one(other, "SELECT pg_backend_pid()") != backend


def test_client_that_hangs_in_its_transaction_loses_its_lanes_and_cannot_settle(
    pooler: LocalPgBouncer, ferryman_db: Database
) -> None:
    """N11: as if its host were gone and nobody had closed the socket."""
    with closing(connected(pooler.url)) as worker:
        (cursor, *_) = claim(worker, LANES, idle_seconds=0.5).cursors
        assert await_lanes(ferryman_db, LANES, 0) == 0
        assert await_lanes(ferryman_db, LANES, 5) == LANES
        with pytest.raises((psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)):
            claims.settle(worker, [cursor])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_turn_leaves_nothing_for_the_next_client_of_its_session(pooler_of: Pooler, end: str) -> None:
    url = pooler_of(1).url

    def standing(db: Database) -> list[Any]:
        """Return the state of a session: its role, settings, locks and prepared statements."""
        left = [
            "SELECT pg_backend_pid(), coalesce(nullif(current_setting('ferryman.target', true), ''), 'none')",
            "SELECT name, setting FROM pg_settings ORDER BY 1",
            "SELECT locktype, classid, objid FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
            "SELECT name FROM pg_prepared_statements",
        ]
        return [db.execute(query).fetchall() for query in left]

    with connected(url, autocommit=True) as one_client, connected(url) as other:
        append(other, Message("t", b"1", key="k", topic="orders"))
        other.commit()
        before = standing(one_client)
        with suppress(ZeroDivisionError), other.transaction():
            assert turn(other, [], LANES) == 1
            claims.hold(other, [1, 2], wait_seconds=1)
            assert len(standing(other)[2]) >= 2
            if end == "rollback":
                raise ZeroDivisionError
        with postgres.transaction(other, Limits()) as cursor:
            cursor.execute("SELECT 1")
        assert standing(one_client) == before
