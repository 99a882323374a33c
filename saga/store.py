"""All SQL of sagas, compiled once for each machine's table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from ferryman.saga.machine import KeyType, Machine
from ferryman.saga.model import Key

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# In the order of their keys, so that two batches with the same sagas wait for one another and do not deadlock.
_LOCK = """\
-- saga.lock
SELECT {columns} FROM {table} WHERE {key} = ANY (%(keys)b::{key_type}[]) ORDER BY {key} FOR UPDATE
"""

# A stable time, which an index can be searched by; clock_timestamp() is not.
_DUE = """\
-- saga.due
SELECT {columns} FROM {table} WHERE {due_at} <= statement_timestamp()
ORDER BY {due_at} LIMIT %(most)s FOR UPDATE SKIP LOCKED
"""

_DUE_KEYS = """\
-- saga.due_keys
SELECT {key} FROM {table} WHERE {due_at} <= statement_timestamp() ORDER BY {due_at} LIMIT %(most)s
"""

_DUE_ONE = """\
-- saga.due_one
SELECT {columns} FROM {table} WHERE {key} = %(key)s AND {due_at} <= statement_timestamp() FOR UPDATE SKIP LOCKED
"""

_POSTPONE = """\
-- saga.postpone
UPDATE {table} SET {due_at} = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE {key} = %(key)s AND {due_at} <= statement_timestamp()
"""

_NEXT_DUE = """\
-- saga.next_due
SELECT extract(epoch FROM {due_at} - clock_timestamp())::float8 FROM {table}
WHERE {due_at} < 'infinity' ORDER BY {due_at} LIMIT 1
"""

_MOVE = """\
-- saga.move
UPDATE {table} s
SET {state} = n.state, {attempt} = n.attempt, {reason} = n.reason,
    {due_at} = CASE WHEN n.state <> ALL (%(terminals)s)
                  THEN coalesce(clock_timestamp() + make_interval(secs => n.due), 'infinity') END,
    {changed_at} = clock_timestamp()
FROM unnest(%(keys)b::{key_type}[], %(before)b::text[], %(states)b::text[], %(attempts)b::integer[],
            %(reasons)b::text[], %(dues)b::float8[]) n (key, before, state, attempt, reason, due)
WHERE s.{key} = n.key AND s.{state} = n.before
"""

_COUNT = """\
-- saga.count
SELECT {state}, {due_at} = 'infinity', count(*) FROM {table} WHERE {due_at} IS NOT NULL GROUP BY 1, 2
"""

_KEEP_STRAYS = """\
-- saga.keep_strays
INSERT INTO ferryman.saga_stray (machine, message_id, {stray_key}, why, type, data)
SELECT %(machine)s, n.message_id, n.saga_id, n.why, n.type, n.data
FROM unnest(%(messages)s::uuid[], %(sagas)s::{key_type}[], %(whys)s::text[], %(types)s::text[], %(data)s::jsonb[])
     n (message_id, saga_id, why, type, data)
ORDER BY n.message_id
ON CONFLICT (machine, message_id) DO NOTHING
"""

_FORGET_STRAYS = """\
-- saga.forget_strays
DELETE FROM ferryman.saga_stray WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM ferryman.saga_stray
    WHERE machine = %(machine)s AND came_at < statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY came_at LIMIT %(most)s
))
"""
_MOST_FORGOTTEN = 10_000


_STRAY_KEYS: Mapping[KeyType, str] = {"uuid": "saga_id", "bigint": "saga_number"}


class Moved(NamedTuple):
    """One saga's step: where it was, and what is to stand in its row."""

    key: Key
    before: str
    state: str
    attempt: int
    reason: str | None
    due: float | None


class Kept(NamedTuple):
    """A result that was applied to nothing."""

    message_id: UUID
    saga: Key
    why: str
    type: str
    data: dict[str, Any]


class Store:
    """The statements of one machine."""

    def __init__(self, machine: Machine, columns: Sequence[str]) -> None:
        ours = asdict(machine.columns)
        names = {
            "table": sql.Identifier(*machine.table.split(".")),
            "key": sql.Identifier(machine.key),
            "key_type": sql.SQL(machine.key_type),
            "stray_key": sql.Identifier(_STRAY_KEYS[machine.key_type]),
            "columns": sql.SQL(", ").join(sql.Identifier(ours.get(each, each)) for each in columns),
            **{name: sql.Identifier(column) for name, column in ours.items()},
        }

        def compiled(text: str) -> str:
            return sql.SQL(text).format(**names).as_string()

        self._machine, self._terminals = machine.name, list(machine.terminals)
        self._lock, self._due, self._next_due = compiled(_LOCK), compiled(_DUE), compiled(_NEXT_DUE)
        self._due_keys, self._due_one, self._postpone = compiled(_DUE_KEYS), compiled(_DUE_ONE), compiled(_POSTPONE)
        self._move, self._count, self._keep_strays = compiled(_MOVE), compiled(_COUNT), compiled(_KEEP_STRAYS)

    def lock(self, db: Connection, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """Those of these sagas that there are, nobody else's until the transaction ends."""
        return _rows(db, self._lock, {"keys": list(keys)})

    def due(self, db: Connection, most: int) -> list[tuple[Any, ...]]:
        """Those that have waited long enough and that nobody else has in hand."""
        return _rows(db, self._due, {"most": most})

    def due_keys(self, db: Connection, most: int) -> list[Key]:
        """Whose time has come, whoever has them in hand."""
        return [key for (key,) in _rows(db, self._due_keys, {"most": most})]

    def due_one(self, db: Connection, key: Key) -> list[tuple[Any, ...]]:
        """As `due`, of this one."""
        return _rows(db, self._due_one, {"key": key})

    def postpone(self, db: Connection, key: Key, seconds: float) -> None:
        """Nothing else of it changes."""
        db.execute(self._postpone, {"key": key, "seconds": seconds})

    def next_due_seconds(self, db: Connection) -> float | None:
        """Until the next has to be looked at, negative where it is late; None where none waits."""
        rows = _rows(db, self._next_due, {})
        return float(rows[0][0]) if rows else None

    def move(self, db: Connection, moved: Sequence[Moved]) -> int:
        """How many were still where they were."""
        keys, before, states, attempts, reasons, dues = (list(column) for column in zip(*moved, strict=True))
        given = {"keys": keys, "before": before, "states": states, "attempts": attempts, "reasons": reasons,
                 "dues": dues, "terminals": self._terminals}  # fmt: skip
        return db.execute(self._move, given).rowcount

    def count(self, db: Connection) -> dict[tuple[str, bool], int]:
        """How many are not over, by state and by whether they wait for a person."""
        return {(state, person): many for state, person, many in _rows(db, self._count, {})}

    def keep_strays(self, db: Connection, kept: Sequence[Kept]) -> None:
        messages, sagas, whys, types, data = (list(column) for column in zip(*kept, strict=True))
        given = {"machine": self._machine, "messages": messages, "sagas": sagas, "whys": whys, "types": types,
                 "data": [Jsonb(each) for each in data]}  # fmt: skip
        db.execute(self._keep_strays, given)

    def forget_strays(self, db: Connection, seconds: float) -> int:
        """How many were old enough, of which some may be left for the next time; 0 seconds keeps them for ever."""
        if not seconds:
            return 0
        meant = {"machine": self._machine, "seconds": seconds, "most": _MOST_FORGOTTEN}
        return db.execute(_FORGET_STRAYS, meant).rowcount


def _rows(db: Connection, query: str, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    return db.cursor(row_factory=tuple_row, binary=True).execute(query, given).fetchall()
