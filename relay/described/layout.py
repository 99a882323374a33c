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
       current_user
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

    def has(self, role: str) -> bool:
        return role in self.columns


def look(connection: Connection, outbox: Outbox) -> LiveTable | None:
    """Return the table as the database has it; None if there is no such table."""
    quoted = sql.Identifier(*outbox.table.split(".")).as_string(connection)
    rows = connection.execute(_COLUMNS, {"table": quoted}).fetchall()
    if not rows:
        return None
    return LiveTable(
        {column: LiveColumn(kind, readable, changeable) for column, kind, readable, changeable, _, _ in rows},
        frozenset(column for column, *_, unique, _ in rows if unique),
        str(rows[0][-1]),
    )


def fit(name: str, outbox: Outbox, live: LiveTable | None) -> Layout:
    """Return the layout that the statements are made for; raise Misconfigured with everything that is wrong."""
    table = tuple(outbox.table.split("."))
    wanted = dict(_wanted(outbox))
    columns = {
        role: column for role, (column, needed) in wanted.items() if needed or live is None or column in live.columns
    }
    ddl = _creation(outbox, columns) if live is None else list(_mending(outbox, columns, live))
    if ddl:
        raise Misconfigured(
            f"the table {outbox.table} does not fit its description" if live else f"there is no table {outbox.table}",
            setting=f"outbox.{name}.columns" if live else f"outbox.{name}.table",
            remedy="correct the description, or the table: " + " ".join(ddl),
        )
    assert live is not None
    return Layout(table, columns, {role: live.columns[column].type for role, column in columns.items()})


def check_words(connection: Connection, name: str, outbox: Outbox, kind: str) -> None:
    """Refuse words that the status cannot hold: an enum may lack one, and a short text the room for one."""
    words = [*outbox.words.pending, *filter(None, (outbox.words.claimed, outbox.words.done, outbox.words.dead))]
    mends = f"ALTER TABLE {outbox.table} ALTER COLUMN {outbox.columns.status or 'status'} TYPE text;"
    try:
        row = connection.execute(sql.SQL(_WORDS).format(sql.Literal(words), sql.SQL(kind))).fetchone()
        if row == (words,):
            return
    except psycopg.DataError:
        mends = " ".join(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS {_literal(word)};" for word in words)
    raise Misconfigured(
        f"the status column of {outbox.table} cannot hold all of {', '.join(words)}",
        setting=f"outbox.{name}.words", remedy=f"correct the words, or the type: {mends}",
    )  # fmt: skip


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
        if outbox.order != "key":
            yield "key"
    if outbox.channel not in ("kafka", "http"):
        yield from ("destination", "payload")  # a class of the user's may need neither


def _creation(outbox: Outbox, columns: dict[str, str]) -> list[str]:
    lines = [f"{_quoted(column)} {_type(role, outbox)}" for role, column in _unlike(columns).items()]
    return [f"CREATE TABLE {_table(outbox)} ({', '.join(lines)});"]


def _mending(outbox: Outbox, columns: dict[str, str], live: LiveTable) -> Iterator[str]:
    alter = f"ALTER TABLE {_table(outbox)}"
    for role, column in _unlike(columns).items():
        found, types = live.columns.get(column), _ROLES[role][0]
        if found is None:
            yield f"{alter} ADD COLUMN {_quoted(column)} {_type(role, outbox)};"
        elif types and re.sub(r"\(.*?\)", "", found.type) not in types:
            kind = _type(role, outbox).split(" ")[0]
            yield f"{alter} ALTER COLUMN {_quoted(column)} TYPE {kind} USING {_quoted(column)}::{kind};"
        elif not found.readable:
            yield f"GRANT SELECT ON {_table(outbox)} TO {_quoted(live.role)};"
        elif role in CHANGED and not found.changeable:
            yield f"GRANT UPDATE ({_quoted(column)}) ON {_table(outbox)} TO {_quoted(live.role)};"
    if columns["id"] in live.columns and columns["id"] not in live.unique:
        yield f"{alter} ADD UNIQUE ({_quoted(columns['id'])});"


def _unlike(columns: dict[str, str]) -> dict[str, str]:
    """Return each column once, even if it has two roles: the lease may be `next_attempt_at`."""
    return {role: column for role, column in columns.items()
            if role == "lease" or column != columns["lease"]}  # fmt: skip


def _type(role: str, outbox: Outbox) -> str:
    if role == "status":
        return f"text NOT NULL DEFAULT {_literal(outbox.words.pending[0])}"
    return _ROLES[role][1]


def _table(outbox: Outbox) -> str:
    return ".".join(map(_quoted, outbox.table.split(".")))


def _quoted(name: str) -> str:
    """Quote a name where it needs quotes."""
    plain = name.isascii() and name.islower() and name.replace("_", "").isalnum() and not name[0].isdigit()
    return name if plain else sql.Identifier(name).as_string(None)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
