"""The simplest reader of the journal: the relay's worker without its policies."""

from types import SimpleNamespace
from typing import Any

import psycopg

from ferryman.relay.model import LANES, SEGMENTS, Entry, Window
from ferryman.relay.store import claims as store

Database = psycopg.Connection[tuple[Any, ...]]
Place = tuple[str, int]

_LANES = """
SELECT lane, generation, settled, position, done, done_snapshot::text, done_position_at, done_horizon::text,
       target, target_snapshot::text, target_position_at, target_horizon::text
FROM ferryman.outbox_lanes
"""
_WINDOW = """
INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon) VALUES (%s, %s, pg_current_xact_id()) RETURNING id
"""
_CURSOR = """
INSERT INTO ferryman.outbox_cursor (lane, generation, done, target, position, settled)
VALUES (%s, %s, %s, %s, %s, %s)
"""
_OLD_CURSOR = "DELETE FROM ferryman.outbox_cursor WHERE lane = %s AND generation = %s - 2"
_FAILED = "INSERT INTO ferryman.outbox_exception (position, lane, topic, key, status) VALUES (%s, %s, %s, %s, 'FAILED')"


class Publisher:
    """The simplest reader of the lanes: it keeps what it published, and fails given keys."""

    def __init__(self, connection: Database, *, most: int = 50) -> None:
        self._connection = connection
        self._most = most
        self.published: list[Place] = []
        self.failing: set[str] = set()

    def turn(self) -> int:
        """Read everything before writing: a transaction with an id takes no window."""
        with self._connection.transaction():
            store.hold(self._connection, range(LANES), wait_seconds=10)
            self._connection.execute("SET LOCAL enable_bitmapscan = off")
            together: dict[Any, list[Any]] = {}
            for lane, generation, settled, *place in self._connection.execute(_LANES).fetchall():
                together.setdefault(tuple(place), []).append((lane, generation + 1, settled))
            steps = [self._read(cursors, *place) for place, cursors in together.items()]
            for step in steps:
                if step.moved:
                    self._settle(step)
            return sum(max(1, len(step.entries)) for step in steps if step.moved)

    def drain(self) -> None:
        while self.turn():
            pass

    def _read(self, cursors: list[Any], position: int, *places: Any) -> Any:
        done, target = (
            Window(snapshot, position_at, horizon, number) if number is not None else None
            for number, snapshot, position_at, horizon in (places[:4], places[4:])
        )
        lanes = [lane for lane, *_ in cursors]
        step: Any = SimpleNamespace(lanes=lanes, cursors=cursors, done=done, target=target, position=position)
        step.entries, step.reached = store.read(self._connection, step, self._most)
        step.moved = bool(step.entries) or target is not None
        return step

    def _settle(self, step: Any) -> None:
        db, target = self._connection, step.reached.id
        if target is None:
            target = one(db, _WINDOW, step.reached.snapshot, step.reached.position_at)
        counts = {lane: settled for lane, _, settled in step.cursors}
        for entry in map(Entry._make, step.entries):
            segment, lane = divmod(entry.slot, LANES)
            if segment < SEGMENTS:
                counts[lane][segment] += 1
            if entry.key in self.failing:
                db.execute(_FAILED, (entry.position, lane, entry.topic, entry.key))
            else:
                self.published.append((entry.key, int(entry.payload or b"")))
        more = len(step.entries) == self._most
        values = (step.done.id, target, step.entries[-1][0]) if more else (target, None, 0)
        for lane, generation, settled in step.cursors:
            db.execute(_CURSOR, (lane, generation, *values, settled))
            db.execute(_OLD_CURSOR, (lane, generation))


def append(db: Database, key: str, *numbers: int) -> None:
    for number in numbers:
        db.execute("SELECT ferryman.outbox_append('orders', %s, 't', %s)", (key, str(number).encode()))


def one(db: Database, query: str, *values: Any) -> Any:
    row = db.execute(query, values).fetchone()
    assert row is not None
    return row[0]
