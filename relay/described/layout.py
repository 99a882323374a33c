"""Compares a user's table with its description: whatever is missing is refused, with the DDL that mends it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import psycopg
from psycopg import sql

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection
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

# An enum only has the words that it was created with.
_WORDS = "-- outbox.words\nSELECT {}::text[]::{}[]::text[]"

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
    "next_attempt_at": (_TIMES, "timestamptz"),
    "done_at": (_TIMES, "timestamptz"),
    "reference": (_TEXTS, "text"),
    "updated_at": (_TIMES, "timestamptz"),
}
_OF_KAFKA, _OF_CHANNELS = {"topic"}, {"destination", "reference", "updated_at"}
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
    quoted = sql.Identifier(*outbox.table.split(".")).as_string(connection)
    rows = connection.execute(_COLUMNS, {"table": quoted}).fetchall()
    if not rows:
        return None
    return LiveTable(
        {column: LiveColumn(kind, may_read, may_change, nullable)
         for column, kind, may_read, may_change, _, _, nullable in rows},
        frozenset(column for column, _, _, _, unique, *_ in rows if unique),
        str(rows[0][-2]),
    )  # fmt: skip


def fit(name: str, outbox: Outbox, live: LiveTable | None, *, by_relay: bool = True) -> Layout:
    """Return the layout that the statements are made for; raise Misconfigured with everything that is wrong.

    Without `by_relay` the login only looks: the rights of the relay are not asked for.
    """
    if found := flaws(outbox, live, by_relay=by_relay):
        raise Misconfigured(
            f"the table {outbox.table} does not fit its description" if live else f"there is no table {outbox.table}",
            setting=f"outbox.{name}.columns" if live else f"outbox.{name}.table",
            remedy="correct the description, or the table: " + " ".join(flaw.ddl for flaw in found),
        )
    assert live is not None
    columns = _columns(outbox, live)
    of_role = {role: live.columns[column] for role, column in columns.items()}
    never_null = frozenset(role for role, column in of_role.items() if not column.nullable)
    types = {role: column.type for role, column in of_role.items()}
    return Layout(tuple(outbox.table.split(".")), columns, types, never_null)


def flaws(outbox: Outbox, live: LiveTable | None, *, by_relay: bool = True) -> list[TableFlaw]:
    """Return everything in which a table does not fit its description."""
    columns = _columns(outbox, live)
    if live is None:
        return [TableFlaw(f"there is no table {outbox.table}", _creation(outbox, columns))]
    return list(_mending(outbox, columns, live, by_relay=by_relay))


def _columns(outbox: Outbox, live: LiveTable | None) -> dict[str, str]:
    """Return the column of each role that the table has or must have."""
    return {
        role: column
        for role, (column, needed) in _wanted(outbox)
        if needed or live is None or column in live.columns
    }  # fmt: skip


def check_words(connection: Connection, name: str, outbox: Outbox, kind: str) -> None:
    """Refuse words that the status cannot hold."""
    if flaw := word_flaw(connection, outbox, kind):
        raise Misconfigured(
            flaw.why, setting=f"outbox.{name}.words", remedy=f"correct the words, or the type: {flaw.ddl}"
        )


def word_flaw(connection: Connection, outbox: Outbox, kind: str) -> TableFlaw | None:
    """Return why the status cannot hold the words: an enum may lack one, and a short text the room for one."""
    words = outbox.words.every
    mends = f"ALTER TABLE {table_of(outbox)} ALTER COLUMN {quoted(outbox.columns.status or 'status')} TYPE text;"
    try:
        row = connection.execute(sql.SQL(_WORDS).format(sql.Literal(words), sql.SQL(kind))).fetchone()
        if row == (words,):
            return None
    except psycopg.DataError:
        mends = " ".join(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS {literal(word)};" for word in words)
    return TableFlaw(f"the status column of {outbox.table} cannot hold all of {', '.join(words)}", mends)


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
        elif role in given or not (fixed.get(role) or role == "updated_at"):
            yield role, (given.get(role, role), role in given or role not in optional)


def _optional(outbox: Outbox) -> Iterator[str]:
    """Yield the roles that a table may lack."""
    yield from ("headers", "content_type", "done_at", "reference")
    if outbox.order != "key":
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
    table, alter = table_of(outbox), f"ALTER TABLE {table_of(outbox)}"
    for role, column in _unlike(columns).items():
        found, types, name = live.columns.get(column), _ROLES[role][0], quoted(column)
        if found is None:
            yield TableFlaw(f"there is no column {name} ({role})", f"{alter} ADD COLUMN {name} {_type(role, outbox)};")
        elif types and re.sub(r"\(.*?\)", "", found.type) not in types:
            kind = _type(role, outbox).split(" ")[0]
            mends = f"{alter} ALTER COLUMN {name} TYPE {kind} USING {name}::{kind};"
            yield TableFlaw(f"the column {name} ({role}) is {found.type}, not {' or '.join(types)}", mends)
        elif by_relay and not found.readable:
            yield TableFlaw(f"{live.role} may not read {name}", f"GRANT SELECT ON {table} TO {quoted(live.role)};")
        elif by_relay and role in CHANGED and not found.changeable:
            mends = f"GRANT UPDATE ({name}) ON {table} TO {quoted(live.role)};"
            yield TableFlaw(f"{live.role} may not change {name}", mends)
        elif by_relay and (flaw := _unworkable(outbox, role, found)):
            yield TableFlaw(f"the column {name} ({role}) {flaw.why}", f"{alter} ALTER COLUMN {name} {flaw.ddl};")
    if columns["id"] in live.columns and columns["id"] not in live.unique:
        name = quoted(columns["id"])
        yield TableFlaw(f"the column {name} (id) is not unique by itself", f"{alter} ADD UNIQUE ({name});")


def _unworkable(outbox: Outbox, role: str, found: LiveColumn) -> TableFlaw | None:
    """Return why a column of the right type would fail claims or settlings, and what mends it."""
    if role == "error" and not found.nullable:  # a row that succeeds has none
        return TableFlaw("cannot be set to null", "DROP NOT NULL")
    if role == "destination" and found.nullable and outbox.channel != "email":
        return TableFlaw("may be null, and claims walk past such rows", "SET NOT NULL")
    if role == "lease" and re.search(r"\([0-2]\)", found.type):  # the lease tells the attempts of a row apart
        return TableFlaw("is not precise to the millisecond", f"TYPE {re.sub(r'[(].*?[)]', '', found.type)}")
    return None


def _unlike(columns: dict[str, str]) -> dict[str, str]:
    """Return each column once, even if it has two roles: the lease may be `next_attempt_at`."""
    return {role: column for role, column in columns.items()
            if role == "lease" or column != columns["lease"]}  # fmt: skip


def _type(role: str, outbox: Outbox) -> str:
    if role == "status":
        return f"text NOT NULL DEFAULT {literal(outbox.words.pending[0])}"
    return _ROLES[role][1]


def table_of(outbox: Outbox) -> str:
    return ".".join(map(quoted, outbox.table.split(".")))


def quoted(name: str) -> str:
    """Quote a name where it needs quotes."""
    plain = name.isascii() and name.islower() and name.replace("_", "").isalnum() and not name[0].isdigit()
    return name if plain else sql.Identifier(name).as_string(None)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
