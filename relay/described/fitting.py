"""Whether a table is what its description says: what is missing is refused, with the DDL that would mend it."""

from collections.abc import Iterator

from psycopg import sql

from ferryman.relay.described.model import Layout, LiveTable
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_outbox import Outbox

_TEXTS = ("text", "character varying", "character")
_NUMBERS = ("smallint", "integer", "bigint")
_TIMES = ("timestamp with time zone", "timestamp without time zone")
_JSON = ("json", "jsonb")
# A role: the types that can play it (none: any), and what a column for it would be made as.
_ROLES: dict[str, tuple[tuple[str, ...], str]] = {
    "id": ((), "uuid PRIMARY KEY DEFAULT gen_random_uuid()"),
    "key": ((), "text NOT NULL"),
    "payload": (("bytea", *_TEXTS, *_JSON), "bytea NOT NULL"),
    "topic": (_TEXTS, "text NOT NULL"),
    "type": (_TEXTS, "text NOT NULL"),
    "headers": (_JSON, "jsonb"),
    "content_type": (_TEXTS, "text"),
    "status": ((), ""),
    "attempts": (_NUMBERS, "integer NOT NULL DEFAULT 0"),
    "error": (_TEXTS, "text"),
    "lease": (_TIMES, "timestamptz"),
    "created_at": (_TIMES, "timestamptz NOT NULL DEFAULT clock_timestamp()"),
    "next_attempt_at": (_TIMES, "timestamptz"),
    "done_at": (_TIMES, "timestamptz"),
}
_OPTIONAL = ("headers", "content_type", "created_at", "next_attempt_at", "done_at")
CHANGED = ("status", "attempts", "error", "lease", "next_attempt_at", "done_at")
"""The roles of columns that the relay writes."""


def fit(name: str, outbox: Outbox, live: LiveTable | None) -> Layout:
    """The layout that the statements are made for; raises Misconfigured with everything that is wrong."""
    table = tuple(outbox.table.split("."))
    wanted = dict(_wanted(outbox))
    columns = {
        role: column for role, (column, needed) in wanted.items() if needed or live is None or column in live.columns
    }
    ddl = _creation(outbox, columns) if live is None else list(_mending(outbox, columns, live))
    if ddl:
        raise Misconfigured(
            f"the table {outbox.table} is not what it is described as" if live else f"there is no table {outbox.table}",
            setting=f"outbox.{name}.columns" if live else f"outbox.{name}.table",
            remedy="correct the description, or the table: " + " ".join(ddl),
        )
    assert live is not None
    return Layout(table, columns, {role: live.columns[column].type for role, column in columns.items()})


def _wanted(outbox: Outbox) -> Iterator[tuple[str, tuple[str, bool]]]:
    """(role, (column, whether it must be there)): what was named, and what cannot be done without."""
    given = outbox.columns.model_dump(exclude_none=True)
    for role in _ROLES:
        fixed = {"topic": outbox.topic, "type": outbox.type}.get(role)
        if role == "lease":
            yield role, (outbox.lease.column, True)
        elif role in given or not fixed:
            ordering = role == "created_at" and outbox.order == "key"
            yield role, (given.get(role, role), role in given or role not in _OPTIONAL or ordering)


def _creation(outbox: Outbox, columns: dict[str, str]) -> list[str]:
    lines = [f"{_quoted(column)} {_type(role, outbox)}" for role, column in _unlike(columns).items()]
    return [f"CREATE TABLE {_table(outbox)} ({', '.join(lines)});"]


def _mending(outbox: Outbox, columns: dict[str, str], live: LiveTable) -> Iterator[str]:
    alter = f"ALTER TABLE {_table(outbox)}"
    for role, column in _unlike(columns).items():
        found, types = live.columns.get(column), _ROLES[role][0]
        if found is None:
            yield f"{alter} ADD COLUMN {_quoted(column)} {_type(role, outbox)};"
        elif types and found.type.partition("(")[0] not in types and not _timed(found.type, types):
            kind = _type(role, outbox).split(" ")[0]
            yield f"{alter} ALTER COLUMN {_quoted(column)} TYPE {kind} USING {_quoted(column)}::{kind};"
        elif not found.readable:
            yield f"GRANT SELECT ON {_table(outbox)} TO {_quoted(live.role)};"
        elif role in CHANGED and not found.changeable:
            yield f"GRANT UPDATE ({_quoted(column)}) ON {_table(outbox)} TO {_quoted(live.role)};"
    if columns["id"] in live.columns and columns["id"] not in live.unique:
        yield f"{alter} ADD UNIQUE ({_quoted(columns['id'])});"


def _timed(found: str, types: tuple[str, ...]) -> bool:
    """A timestamp with a precision: `timestamp(3) with time zone`."""
    return types is _TIMES and found.startswith("timestamp(")


def _unlike(columns: dict[str, str]) -> dict[str, str]:
    """Each column once, though it plays two roles: the lease may be `next_attempt_at`."""
    return {role: column for role, column in columns.items()
            if role == "lease" or column != columns["lease"]}  # fmt: skip


def _type(role: str, outbox: Outbox) -> str:
    if role == "status":
        return f"text NOT NULL DEFAULT {_literal(outbox.words.pending[0])}"
    return _ROLES[role][1]


def _table(outbox: Outbox) -> str:
    return ".".join(map(_quoted, outbox.table.split(".")))


def _quoted(name: str) -> str:
    """In quotes where it needs them."""
    plain = name.isascii() and name.islower() and name.replace("_", "").isalnum() and not name[0].isdigit()
    return name if plain else sql.Identifier(name).as_string(None)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
