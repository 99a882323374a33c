"""Compares a user's table with its description: whatever is missing is refused, with the DDL that mends it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import psycopg
from psycopg import sql

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import URL, Connection
from ferryman.runtime.settings_outbox import Outbox

_COLUMNS = """\
-- outbox.columns
SELECT a.attname, format_type(a.atttypid, a.atttypmod), has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE'),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
               AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
       current_user, NOT a.attnotnull
FROM pg_attribute a WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
"""

_SCHEMA = "-- outbox.schema\nSELECT FROM pg_namespace WHERE nspname = %s"

_TEXTS = ("text", "character varying", "character")
_NUMBERS = ("smallint", "integer", "bigint")
_TIMES = ("timestamp with time zone", "timestamp without time zone")
_JSON = ("json", "jsonb")
# By role: the types that a column may have (none: any), and the definition of a new column.
_ROLES: dict[str, tuple[tuple[str, ...], str]] = {
    "id": ((), "uuid PRIMARY KEY DEFAULT gen_random_uuid()"),
    "key": ((), "text NOT NULL"),
    "payload": (("bytea", *_TEXTS, *_JSON), "bytea NOT NULL"),
    "topic": (_TEXTS, "text NOT NULL"),
    "type": (_TEXTS, "text NOT NULL"),
    "destination": ((), "text NOT NULL"),
    "headers": (_JSON, "jsonb"),
    "content_type": (_TEXTS, "text"),
    "status": ((), ""),
    "attempts": (_NUMBERS, "integer NOT NULL DEFAULT 0"),
    "error": (_TEXTS, "text"),
    "lease": (_TIMES, "timestamptz"),
    "created_at": (_TIMES, "timestamptz NOT NULL DEFAULT clock_timestamp()"),
    "next_attempt_at": (_TIMES, "timestamptz NOT NULL DEFAULT clock_timestamp()"),
    "done_at": (_TIMES, "timestamptz"),
    "reference": (_TEXTS, "text"),
    "updated_at": (_TIMES, "timestamptz"),
    "subject": ((), "uuid"),
}
_USEFUL = {"destination", "payload", "created_at", "next_attempt_at", "done_at"}
"""The roles of optional columns that a new table gets."""
_OF_KAFKA, _OF_CHANNELS = {"topic"}, {"destination", "reference", "updated_at"}
_ON_REQUEST = ("updated_at", "subject")
"""The roles of columns that a table has only if they are named."""
CHANGED = ("status", "attempts", "error", "lease", "next_attempt_at", "done_at", "reference", "updated_at")
"""The roles of columns that the relay writes."""


class LiveColumn(NamedTuple):
    """A column as the database has it, and whether this role may read and change it."""

    type: str
    readable: bool = True
    changeable: bool = True
    nullable: bool = True


class TableFlaw(NamedTuple):
    """One thing that is wrong with a table, and the DDL that mends it."""

    why: str
    ddl: str


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table as the database has it."""

    columns: Mapping[str, LiveColumn]
    unique: frozenset[str] = frozenset()
    """The columns that are unique alone."""
    role: str = "the relay's role"


@dataclass(frozen=True, slots=True)
class Layout:
    """A table that fits its description: the column of each role, and the column's type."""

    table: tuple[str, ...]
    columns: Mapping[str, str]
    types: Mapping[str, str] = field(default_factory=dict)
    never_null: frozenset[str] = frozenset()
    """The roles whose columns are NOT NULL."""

    def has(self, role: str) -> bool:
        return role in self.columns

    @property
    def order(self) -> list[str]:
        """The roles by which claims order due rows: also the order of the index that they need."""
        due = ["next_attempt_at"] if "next_attempt_at" in self.never_null else []  # else some are due without a time
        return [*due, *(role for role in ("created_at", "id") if self.has(role))]


def look(connection: Connection, outbox: Outbox) -> LiveTable | None:
    """Return the table as the database has it; None if there is no such table."""
    name = sql.Identifier(*outbox.table.split(".")).as_string(connection)
    try:
        rows = connection.execute(_COLUMNS, {"table": name}).fetchall()
    except psycopg.errors.InsufficientPrivilege as error:
        schema, login = quoted(outbox.table.partition(".")[0]), quoted(connection.info.user)
        raise Misconfigured(
            f"{connection.info.user} may not use the schema of {outbox.table}",
            remedy=f"as its owner, GRANT USAGE ON SCHEMA {schema} TO {login};",
        ) from error
    if not rows:
        return None
    return LiveTable(
        {column: LiveColumn(kind, may_read, may_change, nullable)
         for column, kind, may_read, may_change, _, _, nullable in rows},
        frozenset(column for column, _, _, _, unique, *_ in rows if unique),
        str(rows[0][-2]),
    )  # fmt: skip


def has_schema(connection: Connection, outbox: Outbox) -> bool:
    """Return True if the table's name has no schema, or one that exists."""
    schema, dot, _ = outbox.table.partition(".")
    found = connection.execute(_SCHEMA, (schema,)).fetchone()
    return not dot or found is not None


def fit(name: str, outbox: Outbox, live: LiveTable | None, *, by_relay: bool = True) -> Layout:
    """Return the layout that the statements are made for; raise Misconfigured with everything that is wrong.

    Without `by_relay` the login only looks: the rights of the relay are not asked for.
    """
    if found := flaws(outbox, live, by_relay=by_relay):
        rights = live is not None and found == list(_refused_rights(outbox, _columns(outbox, live), live))
        mend = (
            "connect with a login that may, or as the owner of" if rights else "correct the description, or the table"
        )
        raise Misconfigured(
            "; ".join(flaw.why for flaw in found),
            setting=URL if rights else f"outbox.{name}.columns" if live else f"outbox.{name}.table",
            remedy=f"{mend} {outbox.table}: " + " ".join(flaw.ddl for flaw in found),
        )
    assert live is not None
    columns = _columns(outbox, live)
    of_role = {role: live.columns[column] for role, column in columns.items()}
    never_null = frozenset(role for role, column in of_role.items() if not column.nullable)
    types = {role: column.type for role, column in of_role.items()}
    return Layout(tuple(outbox.table.split(".")), columns, types, never_null)


def flaws(outbox: Outbox, live: LiveTable | None, *, by_relay: bool = True, has_schema: bool = True) -> list[TableFlaw]:
    """Return everything in which a table does not fit its description."""
    columns = _columns(outbox, live)
    if live is None:
        schema = "" if has_schema else f"CREATE SCHEMA {quoted(outbox.table.partition('.')[0])}; "
        return [TableFlaw(f"there is no table {outbox.table}", schema + _creation(outbox, columns))]
    found = list(_mending(outbox, columns, live, by_relay=by_relay))
    return [*found, *_refused_rights(outbox, columns, live)] if by_relay else found


def _columns(outbox: Outbox, live: LiveTable | None) -> dict[str, str]:
    """Return the column of each role that the table has or must have."""
    return {
        role: column
        for role, (column, needed) in _wanted(outbox)
        if needed or (role in _USEFUL if live is None else column in live.columns)
    }  # fmt: skip


def _wanted(outbox: Outbox) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield (role, (column, whether it is required)): columns that were named, and those that are indispensable."""
    given = outbox.columns.model_dump(exclude_none=True)
    fixed = {"topic": outbox.topic, "type": outbox.type, "destination": outbox.url}
    optional = set(_optional(outbox))
    for role in _ROLES:
        if role == "lease":
            yield role, (outbox.lease.column, True)
        elif role in (_OF_CHANNELS if outbox.channel == "kafka" else _OF_KAFKA):
            continue
        elif role not in given and role in optional and role in given.values():
            continue  # the column with this role's usual name was given another role
        elif role in given or not (fixed.get(role) or role in _ON_REQUEST):
            yield role, (given.get(role, role), role in given or role not in optional)


def _optional(outbox: Outbox) -> Iterator[str]:
    """Yield the roles that a table may lack."""
    yield from ("headers", "content_type", "done_at", "reference")
    if outbox.order != "key" and outbox.retry.max_outage_seconds is None:
        yield "created_at"
    if not outbox.retry.jitter:
        yield "next_attempt_at"
    if outbox.channel != "kafka":
        yield "type"
        if outbox.order != "key" and outbox.channel != "email":
            yield "key"
    if outbox.channel not in ("kafka", "http", "email"):
        yield from ("destination", "payload")  # a class of the user's may need neither


def _creation(outbox: Outbox, columns: dict[str, str]) -> str:
    lines = [f"{quoted(column)} {_type(role, outbox)}" for role, column in _unlike(columns).items()]
    return f"CREATE TABLE {table_of(outbox)} ({', '.join(lines)});"


def _mending(outbox: Outbox, columns: dict[str, str], live: LiveTable, *, by_relay: bool) -> Iterator[TableFlaw]:
    alter = f"ALTER TABLE {table_of(outbox)}"
    for role, column in _unlike(columns).items():
        found, types, name = live.columns.get(column), _ROLES[role][0], quoted(column)
        if found is None:
            why = f"there is no column {name}: {_why_needed(role, outbox)}"
            yield TableFlaw(why, f"{alter} ADD COLUMN {name} {_addition(role, outbox)};")
        elif types and re.sub(r"\(.*?\)", "", found.type) not in types:
            kind = _type(role, outbox).split(" ")[0]
            mends = f"{alter} ALTER COLUMN {name} TYPE {kind} USING {name}::{kind};"
            yield TableFlaw(f"{_called(name, role)} is {found.type}, not {' or '.join(types)}", mends)
        elif by_relay and (flaw := _unworkable(outbox, role, found)):
            yield TableFlaw(f"{_called(name, role)} {flaw.why}", f"{alter} ALTER COLUMN {name} {flaw.ddl};")
    if columns["id"] in live.columns and columns["id"] not in live.unique:
        name = quoted(columns["id"])
        yield TableFlaw(f"{_called(name, 'id')} is not unique by itself", f"{alter} ADD UNIQUE ({name});")


def _called(name: str, role: str) -> str:
    return f"the column {name}" if name == role else f"the column {name} ({role})"


def _refused_rights(outbox: Outbox, columns: dict[str, str], live: LiveTable) -> Iterator[TableFlaw]:
    """Yield the rights that this login lacks, each once with all of its columns."""
    table, role = table_of(outbox), quoted(live.role)
    there = {column: live.columns[column] for column in columns.values() if column in live.columns}
    changed = {columns[each] for each in CHANGED if each in columns}
    if unread := [quoted(column) for column, found in there.items() if not found.readable]:
        yield TableFlaw(f"{live.role} may not read {', '.join(unread)}", f"GRANT SELECT ON {table} TO {role};")
    if fixed := [quoted(column) for column, found in there.items() if column in changed and not found.changeable]:
        names = ", ".join(fixed)
        yield TableFlaw(f"{live.role} may not change {names}", f"GRANT UPDATE ({names}) ON {table} TO {role};")


def _why_needed(role: str, outbox: Outbox) -> str:
    """Return what asks for a column that the table lacks, and what would do without it."""
    if role == "lease":
        return "lease.column can name another timestamp"
    if role in outbox.columns.model_dump(exclude_none=True):
        return f"columns.{role} names it"
    needs = {
        "next_attempt_at": "retry.jitter needs it; ",
        "created_at": 'order = "key" needs it; ' if outbox.order == "key" else "retry.max_outage_seconds needs it; ",
        "key": 'order = "key" needs it; ' if outbox.order == "key" else "",
    }
    instead = {
        "topic": ", or topic the one topic of all rows", "type": ", or type the one type of all rows",
        "destination": ", or url the one destination of all rows" if outbox.channel == "http" else "",
        "status": "; the rows that are there count as not sent with this DDL",
    }  # fmt: skip
    return f"{needs.get(role, '')}columns.{role} can name another{instead.get(role, '')}"


def _unworkable(outbox: Outbox, role: str, found: LiveColumn) -> TableFlaw | None:
    """Return why a column of the right type would fail claims or settlings, and what mends it."""
    if role == "error" and not found.nullable:  # a row that succeeds has none
        return TableFlaw("cannot be set to null", "DROP NOT NULL")
    if role == "destination" and found.nullable and outbox.channel != "email":
        return TableFlaw("may be null, and claims walk past such rows: fill it", "SET NOT NULL")
    if role == "lease" and re.search(r"\([0-2]\)", found.type):  # the lease tells the attempts of a row apart
        return TableFlaw("is not precise to the millisecond", f"TYPE {re.sub(r'[(].*?[)]', '', found.type)}")
    return None


def _unlike(columns: dict[str, str]) -> dict[str, str]:
    """Return each column once, even if it has two roles: the lease may be `next_attempt_at`."""
    return {role: column for role, column in columns.items()
            if role == "lease" or column != columns["lease"]}  # fmt: skip


def _type(role: str, outbox: Outbox) -> str:
    if role == "payload" and outbox.channel != "kafka":
        return "jsonb NOT NULL"
    if role == "status":
        return f"text NOT NULL DEFAULT {literal(outbox.words.pending[0])}"
    return _ROLES[role][1]


def _addition(role: str, outbox: Outbox) -> str:
    """Return the definition of a column that a table with rows can be given."""
    definition = {"id": "uuid NOT NULL UNIQUE DEFAULT gen_random_uuid()", "next_attempt_at": "timestamptz"}.get(role)
    definition = definition or _type(role, outbox)
    return definition if "DEFAULT" in definition else definition.removesuffix(" NOT NULL")


def table_of(outbox: Outbox) -> str:
    return ".".join(map(quoted, outbox.table.split(".")))


def quoted(name: str) -> str:
    """Quote a name where it needs quotes."""
    plain = name.isascii() and name.islower() and name.replace("_", "").isalnum() and not name[0].isdigit()
    return name if plain else sql.Identifier(name).as_string(None)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
