"""All SQL of sagas, compiled once for the table of each machine."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from ferryman.consumer.model import Received
from ferryman.runtime.columns import Bigints, Uuids
from ferryman.runtime.postgres import Connection
from ferryman.saga.answers import KEEP, Key, Row, StrayReason, Unsaid
from ferryman.saga.machine import Machine

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

# The first rows in the order of their due times. An index on the state and the time has this order in each state only,
# so they are looked for among the first of each.
_FIRST = """\
(SELECT * FROM {table} WHERE {where} ORDER BY {due_at} LIMIT {most} {locks}) s"""
_FIRST_BY_STATE = """\
(SELECT s.* FROM unnest({on_their_way}) n (in_state) CROSS JOIN LATERAL (
    SELECT * FROM {table} WHERE {state} = n.in_state AND {where} ORDER BY {due_at} LIMIT {most} {locks}
) s ORDER BY s.{due_at} LIMIT {most}) s"""

_DUE = """\
-- saga.due
SELECT {columns} FROM {first_due}
"""
_IS_DUE = f"{{due_at}} <= {_HEARD_AT} AND {_DUE_AT} <= {_HEARD_AT}"

_POSTPONE = """\
-- saga.postpone
UPDATE {table} SET {due_at} = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE {key} = %(key)s AND {due_at} <= statement_timestamp()
"""

_HASTEN = """\
-- saga.hasten
UPDATE {table} SET {due_at} = '-infinity' WHERE {due_at} < 'infinity'
"""

_NEXT_DUE = """\
-- saga.next_due
SELECT extract(epoch FROM {due_at} - clock_timestamp())::float8 FROM {next}
"""

# Of the first ones: those that were on their way in a silence are due later than their rows say.
_OVERDUE = f"""\
-- saga.overdue
SELECT coalesce(extract(epoch FROM max({_HEARD_AT} - ({_DUE_AT}))), 0)::float8 FROM {{first_overdue}}
"""  # noqa: S608 - only our own expressions are put in

_HEARD = """\
-- saga.heard
SELECT ferryman.saga_heard(%(machine)s, %(age)s, %(topics)s, %(idle)s)
"""

_UNPUBLISHED_SECONDS = """\
-- saga.unpublished_seconds
SELECT extract(epoch FROM clock_timestamp() - ferryman.saga_unpublished_since(%(topics)s))::float8
"""

# Sagas of a batch mostly go the same way, so each way is sent once, and each saga names its own. A saga that keeps its
# time keeps what it was given for silences: its row says when it was changed last. Only a batch that sets columns of
# the service pays for them, and only a login that sets them needs the right.
_MOVE = """\
-- saga.move
UPDATE {table} s
SET {state} = n.state::{state_type}, {attempt} = n.attempt, {reason} = n.reason,
    {due_at} = CASE WHEN n.state = ANY (%(terminals)s) THEN NULL
                    WHEN n.due < 0 THEN s.{due_at} + ferryman.saga_silent(%(machine)s, s.{changed_at})
                    ELSE coalesce(clock_timestamp() + make_interval(secs => n.due), 'infinity') END,
    {changed_at} = clock_timestamp(){set}
FROM unnest(%(keys)b::{key_type}[], %(ways)b::bigint[]{values}) m (key, way{given})
JOIN unnest(%(before)s::text[], %(states)s::text[], %(attempts)s::integer[], %(reasons)s::text[], %(dues)s::float8[])
     WITH ORDINALITY n (before, state, attempt, reason, due, way) USING (way)
WHERE s.{key} = m.key AND s.{state} = n.before::{state_type}
"""
_SET = ", ({own}) = (SELECT {theirs} FROM jsonb_populate_record(s.*, m.given) p)"
_KEPT = -1.0
"""The due time, in seconds, of a saga that keeps its own."""

_INSERT = """\
-- saga.insert
INSERT INTO {table} ({names}, {due_at}, {changed_at})
SELECT {names}, coalesce(clock_timestamp() + make_interval(secs => %(seconds)s::float8), 'infinity'), clock_timestamp()
FROM jsonb_populate_recordset(NULL::{table}, %(rows)s::jsonb) ORDER BY {key}
ON CONFLICT ({key}) DO NOTHING
RETURNING {key}
"""

_FIND = """\
-- saga.find
SELECT {columns} FROM {table} WHERE {key} = ANY (%(keys)b::{key_type}[])
"""

_INSERT_ROWS = """\
-- saga.insert_rows
INSERT INTO {table} ({names}) SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, %(rows)s::jsonb)
"""

_COUNT = """\
-- saga.count
SELECT {state}::text, {due_at} = 'infinity', count(*) FROM {table} WHERE {are_on_their_way} GROUP BY 1, 2
"""
_DUE_SOME_TIME = "{due_at} IS NOT NULL"
_IN_STATES = f"{{state}} = ANY ({{on_their_way}}) AND {_DUE_SOME_TIME}"
"""An index on the state and the time may have all rows, and then it finds these by their states alone."""

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


class Moved(NamedTuple):
    """A step of one saga: the state that it was in, and the new values of its row."""

    key: Key
    before: str
    state: str
    attempt: int
    reason: str | None
    due: float | Unsaid | None
    set: Mapping[str, Any] = {}

    def then(self, later: "Moved") -> "Moved":
        """Return this step and a later one of the same saga, which stays, as one."""
        due = self.due if later.due is KEEP else later.due
        return later._replace(before=self.before, due=due, set={**self.set, **later.set})


class Stray(NamedTuple):
    """A result that changes nothing: its saga is elsewhere by now, is unknown, or never asked for it."""

    key: Key
    result: Received
    why: StrayReason


class SagaStore:
    """The statements of one machine."""

    def __init__(self, machine: Machine, columns: Sequence[str]) -> None:
        ours = asdict(machine.columns)
        names = {
            "table": sql.Identifier(*machine.table.split(".")),
            "key": sql.Identifier(machine.key),
            "key_type": sql.SQL(machine.key_type),
            "stray_key": sql.Identifier(machine.stray_key),
            "state_type": sql.SQL(machine.state_type),
            "columns": sql.SQL(", ").join(
                # Any column of text is read as text: psycopg does not know an enum of the service.
                sql.SQL("{}::text" if each == "state" or machine.own.get(each) is str else "{}").format(
                    sql.Identifier(ours.get(each, each))
                )
                for each in columns
            ),
            **{name: sql.Identifier(column) for name, column in ours.items()},
        }

        def compiled(text: str) -> str:
            return sql.SQL(text).format(**names).as_string()

        def first(where: str, most: str, locks: str = "") -> sql.Composed:
            text = sql.SQL(_FIRST_BY_STATE if machine.due_by_state else _FIRST)
            given = {"where": sql.SQL(where).format(**names), "most": sql.SQL(most), "locks": sql.SQL(locks)}
            return text.format(**names, **given)

        self._column: type[list[Any]] = Uuids if machine.key_type == "uuid" else Bigints
        self._machine, self._terminals = machine.name, list(machine.terminals)
        on_their_way = [sql.Literal(each) for each in machine.states if each not in machine.terminals]
        names["on_their_way"] = sql.SQL("ARRAY[{}]::{}[]").format(sql.SQL(", ").join(on_their_way), names["state_type"])
        names |= {
            "first_due": first(_IS_DUE, "%(most)s", "FOR UPDATE SKIP LOCKED"),
            "first_overdue": first(f"{{due_at}} <= {_HEARD_AT}", "1000"),
            "next": first("{due_at} < 'infinity'", "1"),
            "are_on_their_way": sql.SQL(_IN_STATES if machine.due_by_state else _DUE_SOME_TIME).format(**names),
        }
        self._names = {each: ours.get(each, each) for each in columns}
        self._own = frozenset(each for each in columns if each not in ours and each != machine.key)
        names |= {
            "names": _listed(self._names.values()),
            "set": sql.SQL(""),
            "values": sql.SQL(""),
            "given": sql.SQL(""),
        }
        self._lock, self._move, self._keep_strays = compiled(_LOCK), compiled(_MOVE), compiled(_KEEP_STRAYS)
        self._due, self._next_due, self._postpone = compiled(_DUE), compiled(_NEXT_DUE), compiled(_POSTPONE)
        self._count, self._overdue = compiled(_COUNT), compiled(_OVERDUE)
        self._insert, self._find, self._hasten = compiled(_INSERT), compiled(_FIND), compiled(_HASTEN)
        names |= {"values": sql.SQL(", %(sets)s::jsonb[]"), "given": sql.SQL(", given")}

        def setting(columns: tuple[str, ...]) -> str:
            names["set"] = sql.SQL(_SET).format(own=_listed(columns), theirs=_listed(columns, "p"))
            return compiled(_MOVE)

        self._move_and_set = cache(setting)

    def insert(self, db: Connection, rows: Sequence[Sequence[Any]], seconds: float | None) -> set[Key]:
        """Insert these sagas, due after so many seconds. Return the keys of those that are new."""
        given = [dict(zip(self._names.values(), row, strict=False)) for row in rows]
        return {key for (key,) in _rows(db, self._insert, {"rows": _as_json(given), "seconds": seconds})}

    def insert_rows(self, db: Connection, table: str, rows: Sequence[Row]) -> None:
        """Insert rows into a table of the service: one statement for those with the same columns."""
        by_columns: dict[tuple[str, ...], list[Any]] = {}
        for each in rows:
            by_columns.setdefault(tuple(each.values), []).append(each.values)
        for columns, values in by_columns.items():
            into = sql.Identifier(*table.split(".")).as_string().replace("%", "%%")
            names = _listed(columns).as_string().replace("%", "%%")
            db.execute(_INSERT_ROWS.format(table=into, names=names).encode(), {"rows": _as_json(values)})

    def find(self, db: Connection, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """Return the rows of those of these sagas that exist, without a lock."""
        return _rows(db, self._find, {"keys": self._column(keys)}) if keys else []

    def lock(self, db: Connection, keys: Iterable[Key]) -> list[tuple[Any, ...]]:
        """Lock these sagas until the transaction ends, and return the rows of those that exist."""
        return _rows(db, self._lock, {"keys": self._column(keys)})

    def due(self, db: Connection, most: int) -> list[tuple[Any, ...]]:
        """Lock sagas that are due and not locked by anybody else, and return their rows."""
        return _rows(db, self._due, {"most": most, "machine": self._machine})

    def postpone(self, db: Connection, key: Key, seconds: float) -> None:
        """Make a due saga due that much later; nothing else of it changes."""
        db.execute(self._postpone, {"key": key, "seconds": seconds})

    def hasten(self, db: Connection) -> None:
        """Make every saga due that goes on by itself: for tests."""
        db.execute(self._hasten)

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
        numbers: dict[tuple[Any, ...], int] = {}
        ways = Bigints(numbers.setdefault(each[1:6], len(numbers) + 1) for each in moved)
        before, states, attempts, reasons, dues = (list(column) for column in zip(*numbers, strict=True))
        given = {"keys": self._column(each.key for each in moved), "ways": ways, "before": before, "states": states,
                 "attempts": attempts, "reasons": reasons, "dues": [_KEPT if due is KEEP else due for due in dues],
                 "terminals": self._terminals, "machine": self._machine}  # fmt: skip
        if not (columns := tuple(sorted({name for each in moved for name in each.set if name in self._own}))):
            return db.execute(self._move, given).rowcount
        sets = [_as_json(each.set) for each in moved]
        return db.execute(self._move_and_set(columns), {**given, "sets": sets}).rowcount

    def count(self, db: Connection) -> dict[tuple[str, bool], int]:
        """Count the sagas that are not over, by state and by whether they wait for a person."""
        return {(state, person): many for state, person, many in _rows(db, self._count, {})}

    def keep_strays(self, db: Connection, strays: Sequence[Stray]) -> None:
        keys, results, whys = zip(*strays, strict=True)
        given = {"machine": self._machine, "messages": [each.id for each in results], "sagas": list(keys),
                 "whys": list(whys), "types": [each.type for each in results],
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


def _listed(names: Iterable[str], of: str | None = None) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(*([of] if of else []), each) for each in names)


def _rows(db: Connection, query: str, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows, however the caller's connection would: a cursor of another kind has no binary results."""
    return psycopg.Cursor(db, row_factory=tuple_row).execute(query, given, binary=True).fetchall()


def _as_json(values: Any) -> Jsonb:
    """Return rows, or columns of one, for PostgreSQL to read by the types of their table."""
    return Jsonb(values, dumps=partial(json.dumps, default=_text))


def _text(value: Any) -> str:
    """Return a value as the text that PostgreSQL reads."""
    kind: Any = type(value)
    if kind in (set, frozenset) or kind.__repr__ is object.__repr__:
        raise TypeError(f"{value!r:.100} is not the value of a column")
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


def _json(data: Any) -> Jsonb:
    """Return the data of a result as JSON, for people to read."""
    return Jsonb({"bytes": len(data)} if isinstance(data, bytes) else data, dumps=_readable)


def _readable(data: Any) -> str:
    """Return data as JSON that PostgreSQL takes: it has no null bytes, no halves of letters, and no NaN."""
    try:
        said = json.dumps(data, default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:
        said = json.dumps({"text": str(data)}, ensure_ascii=False)
    return said.encode(errors="replace").decode().replace("\\u0000", "\\ufffd")
