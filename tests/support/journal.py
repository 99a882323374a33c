"""Writers of every kind and workers on one journal; the published entries are compared with the committed ones."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg

from ferryman.relay.model import Entry, key_of, payload_of
from support.relay import lane_worker, unlimited

KEYS = 40
KINDS = ("plain", "plain", "savepoint", "copy", "select", "repeatable", "prepared", "async", "long", "rollback")
_COPY = "COPY ferryman.outbox (topic, key, type, payload) FROM STDIN"
_SELECT = "INSERT INTO ferryman.outbox (topic, key, type, payload) SELECT 'stress', %s, 't', %s"
_APPEND = "SELECT ferryman.outbox_append('stress', %s, 't', %s)"

Database = psycopg.Connection[tuple[Any, ...]]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The (key, number) of committed entries, and of published ones in the order of publication."""

    committed: Counter[Place]
    published: list[Place]

    @property
    def missing(self) -> set[Place]:
        return set(self.committed) - set(self.published)

    @property
    def doubled(self) -> int:
        return len(self.published) - len(set(self.published))

    @property
    def ghosts(self) -> set[Place]:
        return set(self.published) - set(self.committed)

    @property
    def inverted(self) -> list[Place]:
        """First occurrences that were published after a later one of their key."""
        highest: dict[str, int] = {}
        seen: set[Place] = set()
        found = []
        for key, number in self.published:
            if (key, number) not in seen and number < highest.get(key, 0):
                found.append((key, number))
            seen.add((key, number))
            highest[key] = max(number, highest.get(key, 0))
        return found


class Stress:
    """Writers and workers side by side; a lost connection is opened again, as after a restart of the server."""

    def __init__(self, url: str, seed: int, *, writers: int, workers: int) -> None:
        self._url = url
        self._seed = seed
        self._writers = writers
        self._workers = workers
        self._writing, self._reading = threading.Event(), threading.Event()
        self._published: list[Place] = []
        self._lock = threading.Lock()
        self.errors: list[BaseException] = []

    def run(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> Verdict:
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute("CREATE TABLE counters (key text PRIMARY KEY, number bigint NOT NULL DEFAULT 0)")
            db.execute("INSERT INTO counters (key) SELECT 'k' || n FROM generate_series(1, %s) n", (KEYS,))
        self._writing.set()
        self._reading.set()
        writers = [self._thread(self._write, random.Random(f"{self._seed}-{n}")) for n in range(self._writers)]
        readers = [self._thread(self._read) for _ in range(self._workers)]
        readers.append(self._thread(self._resolve))
        deadline = time.monotonic() + seconds
        meanwhile()
        while time.monotonic() < deadline:
            time.sleep(0.05)
        self._writing.clear()
        for thread in writers:
            thread.join(30)
        self._await_drained()
        self._reading.clear()
        for thread in readers:
            thread.join(30)
        return self._verdict()

    def _thread(self, body: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                body(*arguments)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _write(self, dice: random.Random) -> None:
        while self._writing.is_set():
            try:
                with psycopg.connect(self._url) as connection:
                    while self._writing.is_set():
                        self._transaction(connection, dice)
            except psycopg.OperationalError:  # the server went away; the next connection waits for it
                time.sleep(0.05)

    def _transaction(self, db: Database, dice: random.Random) -> None:
        kind = dice.choice(KINDS)
        try:
            if kind == "repeatable":
                db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if kind == "async":
                db.execute("SET LOCAL synchronous_commit = off")
            for key in sorted(dice.sample(range(1, KEYS + 1), dice.choice([1, 1, 2, 4]))):
                self._append(db, kind, f"k{key}", dice)
                if kind == "long" or dice.random() < 0.05:
                    time.sleep(dice.random() * 0.2)
            if kind == "rollback" or dice.random() < 0.05:
                db.rollback()
            elif kind == "prepared":
                self._in_two_phases(db, dice)
            else:
                db.commit()
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            db.rollback()

    def _append(self, db: Database, kind: str, key: str, dice: random.Random) -> None:
        """Append under the lock of the key's row, so that its messages commit in the order of their numbers."""
        row = db.execute("UPDATE counters SET number = number + 1 WHERE key = %s RETURNING number", (key,)).fetchone()
        assert row is not None
        payload = str(row[0]).encode()
        if kind == "savepoint":
            if dice.random() < 0.5:
                with db.transaction(force_rollback=True):
                    db.execute(_APPEND, (key, b"-1"))
            with db.transaction(), db.transaction():
                db.execute(_APPEND, (key, payload))
        elif kind == "copy":
            with db.cursor().copy(_COPY) as copy:
                copy.write_row(("stress", key, "t", payload))
        else:
            db.execute(_SELECT if kind == "select" else _APPEND, (key, payload))

    def _in_two_phases(self, db: Database, dice: random.Random) -> None:
        name = uuid4().hex
        db.execute(f"PREPARE TRANSACTION '{name}'")
        db.rollback()
        time.sleep(dice.random() * 0.1)
        db.autocommit = True
        db.execute(f"COMMIT PREPARED '{name}'")
        db.autocommit = False

    def _read(self) -> None:
        while self._reading.is_set():
            try:
                with psycopg.connect(self._url) as connection:
                    worker = lane_worker(connection, self._publish, unlimited(batch_entries=37, tenure_seconds=0.02))
                    while self._reading.is_set():
                        if worker.run_once().quiet:
                            time.sleep(0.002)
            except psycopg.OperationalError:
                time.sleep(0.05)

    def _publish(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            self._published.extend((key_of(entry), int(payload_of(entry) or b"")) for entry in entries)

    def _resolve(self) -> None:
        """Commit transactions that a crash left prepared: they hold their locks, and their writers are gone."""
        forgotten = "SELECT gid FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '1 second'"
        while self._reading.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as db:
                for (name,) in db.execute(forgotten).fetchall():
                    db.execute(f"COMMIT PREPARED '{name}'")
            time.sleep(0.2)

    def _await_drained(self) -> None:
        left = "SELECT FROM pg_prepared_xacts UNION ALL SELECT FROM ferryman.backlog"
        deadline = time.monotonic() + 30
        with psycopg.connect(self._url, autocommit=True) as db:
            while db.execute(left).fetchall() and time.monotonic() < deadline:
                time.sleep(0.02)

    def _verdict(self) -> Verdict:
        with psycopg.connect(self._url) as db:
            rows = db.execute("SELECT key, convert_from(payload, 'UTF8')::bigint FROM ferryman.outbox").fetchall()
        return Verdict(Counter((str(key), int(number)) for key, number in rows), self._published)
