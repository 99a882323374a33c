"""All SQL of sagas, compiled once for the table of each machine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from psycopg import sql
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from ferryman.consumer.model import Received
from ferryman.runtime.postgres import Connection
from ferryman.saga.machine import KeyType, Machine
from ferryman.saga.moves import Key, Stray

# In the order of their keys: two batches with the same sagas wait for one another and do not deadlock.
_LOCK = """\
-- saga.lock
SELECT {columns} FROM {table} WHERE {key} = ANY (%(keys)b::{key_type}[]) ORDER BY {key} FOR UPDATE
"""

# By the clock of the machine, which stands still while somebody does not listen (ferryman.saga_heard). Without a clock:
# statement_timestamp() is stable, so the index can be searched by it; clock_timestamp() is volatile.
_HEARD_AT = """\
coalesce((SELECT heard_at FROM ferryman.saga_clock WHERE machine = %(machine)s), statement_timestamp())"""
_DUE_AT = "{due_at} + ferryman.saga_silent(%(machine)s, {changed_at})"

_DUE = f"""\
-- saga.due
SELECT {{columns}} FROM {{table}} WHERE {{due_at}} <= {_HEARD_AT} AND {_DUE_AT} <= {_HEARD_AT}
ORDER BY {{due_at}} LIMIT %(most)s FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - only our own expressions are put in

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

# Of the first ones: those that were on their way in a silence are due later than their rows say.
_OVERDUE = f"""\
-- saga.overdue
SELECT coalesce(extract(epoch FROM max(late)), 0)::float8 FROM (
    SELECT {_HEARD_AT} - ({_DUE_AT}) AS late FROM {{table}}
    WHERE {{due_at}} <= {_HEARD_AT} ORDER BY {{due_at}} LIMIT 1000
) first
"""  # noqa: S608 - same

_HEARD = """\
-- saga.heard
SELECT ferryman.saga_heard(%(machine)s, %(age)s, %(topics)s, %(idle)s)
"""

_UNPUBLISHED_SECONDS = """\
-- saga.unpublished_seconds
SELECT extract(epoch FROM clock_timestamp() - ferryman.saga_unpublished_since(%(topics)s))::float8
"""

_MOVE = """\
-- saga.move
UPDATE {table} s
SET {state} = n.state::{state_type}, {attempt} = n.attempt, {reason} = n.reason,
    {due_at} = CASE WHEN n.state <> ALL (%(terminals)s)
                  THEN coalesce(clock_timestamp() + make_interval(secs => n.due), 'infinity') END,
    {changed_at} = clock_timestamp()
FROM unnest(%(keys)b::{key_type}[], %(before)b::text[], %(states)b::text[], %(attempts)b::integer[],
            %(reasons)b::text[], %(dues)b::float8[]) n (key, before, state, attempt, reason, due)
WHERE s.{key} = n.key AND s.{state} = n.before::{state_type}
"""

_COUNT = """\
-- saga.count
SELECT {state}::text, {due_at} = 'infinity', count(*) FROM {table} WHERE {due_at} IS NOT NULL GROUP BY 1, 2
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
SELECT ferryman.saga_forget_strays(%(machine)s, %(seconds)s, %(most)s)
"""
_MOST_FORGOTTEN = 10_000

_STRAY_KEYS: Mapping[KeyType, str] = {"uuid": "saga_id", "bigint": "saga_number"}


class Moved(NamedTuple):
    """A step of one saga: the state that it was in, and the new values of its row."""

    key: Key
    before: str
    state: str
    attempt: int
    reason: str | None
    due: float | None


class SagaStore:
    """The statements of one machine."""

    def __init__(self, machine: Machine, columns: Sequence[str]) -> None:
        ours = asdict(machine.columns)
        names = {
            "table": sql.Identifier(*machine.table.split(".")),
            "key": sql.Identifier(machine.key),
            "key_type": sql.SQL(machine.key_type),
            "stray_key": sql.Identifier(_STRAY_KEYS[machine.key_type]),
            "state_type": sql.SQL(machine.state_type),
            "columns": sql.SQL(", ").join(
                sql.SQL("{}::text" if each == "state" else "{}").format(sql.Identifier(ours.get(each, each)))
                for each in columns
            ),
            **{name: sql.Identifier(column) for name, column in ours.items()},
        }

        def compiled(text: str) -> str:
            return sql.SQL(text).format(**names).as_string()

        self._machine, self._terminals = machine.name, list(machine.terminals)
        self._lock, self._move, self._keep_strays = compiled(_LOCK), compiled(_MOVE), compiled(_KEEP_STRAYS)
        self._due, self._next_due, self._postpone = compiled(_DUE), compiled(_NEXT_DUE), compiled(_POSTPONE)
        self._count, self._overdue = compiled(_COUNT), compiled(_OVERDUE)

    def lock(self, db: Connection, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """Lock these sagas until the transaction ends, and return the rows of those that exist."""
        return _rows(db, self._lock, {"keys": list(keys)})

    def due(self, db: Connection, most: int) -> list[tuple[Any, ...]]:
        """Lock sagas that are due and not locked by anybody else, and return their rows."""
        return _rows(db, self._due, {"most": most, "machine": self._machine})

    def postpone(self, db: Connection, key: Key, seconds: float) -> None:
        """Make a due saga due that much later; nothing else of it changes."""
        db.execute(self._postpone, {"key": key, "seconds": seconds})

    def next_due_seconds(self, db: Connection) -> float | None:
        """Return the time until the next saga is due, negative if it is overdue; None if none will be."""
        rows = _rows(db, self._next_due, {})
        return float(rows[0][0]) if rows else None

    def overdue_seconds(self, db: Connection) -> float:
        """Return how late the first due saga is; negative if it is due later because nobody listened for a while."""
        return float(_rows(db, self._overdue, {"machine": self._machine})[0][0])

    def heard(self, db: Connection, age: float, topics: Sequence[str], *, idle: bool) -> float:
        """Advance the clock: all that was sent `age` seconds ago has been read. Return the age of the clock.

        It goes no further than to the first entry here that waits to be published.
        """
        given = {"machine": self._machine, "age": age, "topics": list(topics), "idle": idle}
        return float(_rows(db, _HEARD, given)[0][0])

    def move(self, db: Connection, moved: Sequence[Moved]) -> int:
        """Write moves. Return how many sagas were still in the state that they were read in."""
        keys, before, states, attempts, reasons, dues = (list(column) for column in zip(*moved, strict=True))
        given = {"keys": keys, "before": before, "states": states, "attempts": attempts, "reasons": reasons,
                 "dues": dues, "terminals": self._terminals}  # fmt: skip
        return db.execute(self._move, given).rowcount

    def count(self, db: Connection) -> dict[tuple[str, bool], int]:
        """Count the sagas that are not over, by state and by whether they wait for a person."""
        return {(state, person): many for state, person, many in _rows(db, self._count, {})}

    def keep_strays(self, db: Connection, strays: Sequence[tuple[Key, Received, Stray]]) -> None:
        keys, results, answers = zip(*strays, strict=True)
        given = {"machine": self._machine, "messages": [each.id for each in results], "sagas": list(keys),
                 "whys": [each.why for each in answers], "types": [each.type for each in results],
                 "data": [_json(each.data) for each in results]}  # fmt: skip
        db.execute(self._keep_strays, given)

    def forget_strays(self, db: Connection, seconds: float) -> int:
        """Delete some strays older than this and than an hour. Return how many; 0 seconds keeps them for ever."""
        if not seconds:
            return 0
        meant = {"machine": self._machine, "seconds": seconds, "most": _MOST_FORGOTTEN}
        return int(_rows(db, _FORGET_STRAYS, meant)[0][0])


def unpublished_seconds(db: Connection, topics: Sequence[str]) -> float:
    """Return how long the first entry here that may be for one of these topics has waited; 0 if none waits."""
    return float(_rows(db, _UNPUBLISHED_SECONDS, {"topics": list(topics)})[0][0] or 0.0)


def _rows(db: Connection, query: str, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    return db.cursor(row_factory=tuple_row, binary=True).execute(query, given).fetchall()


def _json(data: Any) -> Jsonb:
    """Return the data of a result as JSON, for people to read."""
    return Jsonb({"bytes": len(data)} if isinstance(data, bytes) else data, dumps=partial(json.dumps, default=str))
