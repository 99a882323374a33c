"""The acts of persons on sagas: they look at them, and move one that waits."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import sql

from ferryman.runtime.desk import Act, Desk, Row, audit, dict_rows
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.runtime.times import EndlessTimes, iso
from ferryman.saga import guards
from ferryman.saga.answers import Go, Key
from ferryman.saga.columns import in_json
from ferryman.saga.declaration import Saga

_LIST = """\
-- saga.list
SELECT {columns} FROM {table}
WHERE (%(state)s::text IS NULL OR {state}::text = %(state)s)
  AND (NOT %(waiting)s::boolean OR {due_at} = 'infinity') AND (%(over)s::boolean OR {due_at} IS NOT NULL)
  AND (%(after)s::text IS NULL OR {key} > %(after)s::{key_type})
ORDER BY {key} LIMIT %(most)s
"""

_SHOW = """\
-- saga.show
SELECT {columns} FROM {table} WHERE {key} = %(key)s
"""

_TIMES = """\
-- saga.times
SELECT {due_at} + ferryman.saga_silent(%(machine)s, {changed_at}) AS due_at,
       (SELECT heard_at FROM ferryman.saga_clock WHERE machine = %(machine)s) AS heard_at
FROM {table} WHERE {key} = %(key)s
"""

_STRAYS = """\
-- saga.strays
SELECT message_id, type, why, came_at FROM ferryman.saga_stray
WHERE machine = %(machine)s AND {stray_key} = %(key)s ORDER BY came_at DESC LIMIT 20
"""


_MOVES = """\
-- saga.moves_by_hand
SELECT at, who, reason, filter ->> 'to' AS state, (filter ->> 'again')::boolean AS again FROM ferryman.outbox_audit
WHERE act = 'move' AND filter ->> 'key' = %(key)s AND filter ->> 'machine' = %(machine)s ORDER BY id
"""


class SagaStory(NamedTuple):
    """A saga as it stands: its row, what moves it on, and the results that moved nothing."""

    row: Row
    """Its columns; empty if there is no such saga."""
    waits_for: list[tuple[str, str]]
    """Each event that moves it on, with the state that it leads to."""
    strays: list[Row]
    """The newest first."""
    due_at: datetime | None = None
    """When it is looked at, with the time that it is given for silences."""
    heard_at: datetime | None = None
    """The time of its machine's clock."""


def key_of(saga: Saga[Any], text: str) -> Key:
    """Return the key that a person names."""
    try:
        if saga.key_type == "uuid":
            return UUID(text)
        if -(2**63) <= (number := int(text)) < 2**63:
            return number
        raise ValueError(text)
    except ValueError:
        what = f"{text} is not the key of a saga of {saga.name}"
        raise FerrymanError(what, remedy=f"give a {saga.key_type}") from None


def listed(
    desk: Desk, saga: Saga[Any], *, state: str | None, waiting: bool, over: bool, after: str | None, most: int
) -> list[Row]:
    """Return sagas in the order of their keys: those that are not over, unless one that is over is asked for."""
    if state is not None and state not in saga.states:
        raise FerrymanError(f"{saga.name} has no state {state}", remedy=f"its states are {', '.join(saga.states)}")
    over = over or state in saga.machine.terminals
    given = {"state": state, "waiting": waiting, "over": over, "most": most,
             "after": None if after is None else str(key_of(saga, after))}  # fmt: skip
    with desk.acting() as db:
        _check_table(db, saga)
        return _rows(db, saga, _LIST, given)


def story(desk: Desk, saga: Saga[Any], key: Key) -> SagaStory:
    """Return how a saga stands, and what moves it on."""
    with desk.acting() as db:
        _check_table(db, saga)
        found = look(db, saga, key)
    if not found.row:
        raise FerrymanError(f"{saga.table} has no saga {key}", remedy="correct the key")
    state = found.row["state"]
    if state not in saga.states:
        what = f"the saga {key} is {state}, which is not a state of {saga.name}"
        raise FerrymanError(what, remedy="`ferryman saga sql` shows how its table and its declaration differ")
    return found


def look(db: Connection, saga: Saga[Any], key: Key) -> SagaStory:
    """Return what a database knows of a saga whose table it has."""
    given = {"key": key, "machine": saga.name}
    row, strays, times = ([*_rows(db, saga, each, given)] for each in (_SHOW, _STRAYS, _TIMES))
    state = row[0]["state"] if row else None
    ways = [(to, events) for (before, to), events in saga.machine.events.items() if before == state]
    waits_for = [(event, to) for to, events in ways for event in events]
    return SagaStory(row[0] if row else {}, waits_for, strays, **(times[0] if times else {}))


def moves_by_hand(db: Connection, saga: Saga[Any], key: Key) -> list[Row]:
    """Return what persons did to a saga, as the audit has it."""
    return dict_rows(db, _MOVES, {"key": str(key), "machine": saga.name})


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it."""
    return {name: iso(value) if isinstance(value, datetime) else in_json(value) for name, value in row.items()}


def move(desk: Desk, saga: Saga[Any], key: Key, go: Go, act: Act, *, before: str) -> Row:
    """Move one saga by hand that is still in the state that it was in before, with an audit. Return its row."""
    with desk.acting() as db:
        if not saga.engine.act(db, [key], lambda row: go if row.state == before else None):
            raise FerrymanError(f"{key} was moved in the meantime", remedy=f"look again: `ferryman saga show` {key}")
        said = {"machine": saga.name, "key": str(key), "from": before, "to": go.state, "again": go.again}
        audit(db, "move", act, said=said, entries=1)
        return _rows(db, saga, _SHOW, {"key": key})[0]


def check_move(saga: Saga[Any], row: Mapping[str, Any], to: str | None) -> Go:
    """Return the step that a person asks for: to another state, or the command of this state once more."""
    state = row["state"]
    ways = saga.ways_by_hand(state)
    if saga.instead_of_move:
        raise FerrymanError(f"no person moves sagas of {saga.name}", remedy=saga.instead_of_move)
    if state in saga.machine.terminals:
        raise FerrymanError(f"the saga is over: it is {state}", remedy="start another; nothing changes this one")
    if to is None:
        if saga.states[state].ask is None:
            where = " or ".join(ways)
            raise FerrymanError(f"in {state} nothing is asked for", remedy=f"name where it goes: --to {where}")
        return Go(state, again=True)
    if to == state:
        raise FerrymanError(f"it is in {state} already", remedy="leave out --to: then its command is sent once more")
    if to not in ways:
        further = f"; a further way is declared by State(..., to=('{to}',))" if to in saga.states else ""
        raise FerrymanError(f"no way leads from {state} to {to}", remedy=f"it may go to {', '.join(ways)}{further}")
    return Go(to)


def _check_table(db: Connection, saga: Saga[Any]) -> None:
    if not guards.exists(db, saga.machine):
        remedy = "create it in a migration: `ferryman saga sql --new` prints it"
        raise Misconfigured(f"the table {saga.table} of the saga {saga.name} does not exist", remedy=remedy)


def _rows(db: Connection, saga: Saga[Any], statement: str, given: Mapping[str, Any]) -> list[Row]:
    db.adapters.register_loader("timestamptz", EndlessTimes)  # a saga that waits for a person is due at infinity
    return dict_rows(db, _composed(saga, statement), given)


def _composed(saga: Saga[Any], statement: str) -> sql.Composed:
    machine = saga.machine
    ours = asdict(machine.columns)
    shown = [*((each, ours.get(each, each)) for each in saga.fields), ("due_at", ours["due_at"]),
             ("changed_at", ours["changed_at"])]  # fmt: skip
    return sql.SQL(statement).format(
        columns=sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(sql.Identifier(column), sql.Identifier(name)) for name, column in shown
        ),
        table=sql.Identifier(*machine.table.split(".")), key=sql.Identifier(machine.key),
        key_type=sql.SQL(machine.key_type), stray_key=sql.Identifier(machine.stray_key),
        **{name: sql.Identifier(ours[name]) for name in ("state", "due_at", "changed_at")},
    )  # fmt: skip
