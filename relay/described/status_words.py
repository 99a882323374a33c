"""The words of the status, and whether the column takes all of them: its type, and the table's CHECK constraints."""

from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from ferryman.relay.described.layout import Layout, TableFlaw, literal, quoted, table_of
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

# An enum only has the words that it was created with, and a domain those that its constraint has.
_WORDS = "-- outbox.words\nSELECT {}::text[]::{}[]::text[]"

_CHECKS = """\
-- outbox.checks
SELECT c.conname::text, pg_get_expr(c.conbin, c.conrelid)
FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
WHERE c.contype = 'c' AND c.conrelid = to_regclass(%(table)s) AND a.attname = %(status)s
  AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
ORDER BY 1
"""

_TRUE_OF = "-- outbox.predicate\nSELECT {status}::text FROM unnest({words}::text[]::{type}[]) t ({status}) WHERE "


def check_words(connection: Connection, name: str, outbox: Outbox, layout: Layout) -> None:
    """Refuse words for which the status has no room. A constraint may change meanwhile: the first write finds it."""
    if flaw := _flaw_of_type(connection, outbox, layout):
        raise Misconfigured(
            flaw.why, setting=f"outbox.{name}.words", remedy=f"correct the words, or the table: {flaw.ddl}"
        )


def word_flaws(connection: Connection, outbox: Outbox, layout: Layout) -> list[TableFlaw]:
    """Return why the status cannot hold all words: its type lacks one or the room, or a constraint refuses some."""
    flaw = _flaw_of_type(connection, outbox, layout)
    return [flaw] if flaw else list(_flaws_of_checks(connection, outbox, layout))


def words_where(connection: Connection, layout: Layout, predicate: str, words: Sequence[str]) -> set[str] | None:
    """Return the words of the status of which a predicate is true; None if it looks at more than the status."""
    status, kind = sql.Identifier(layout.columns["status"]), sql.SQL(layout.types["status"])
    statement = sql.SQL(_TRUE_OF).format(status=status, words=sql.Literal(list(words)), type=kind) + sql.SQL(predicate)
    try:
        return {word for (word,) in connection.execute(statement).fetchall()}
    except psycopg.Error:
        if connection.broken:
            raise
        return None


def _flaw_of_type(connection: Connection, outbox: Outbox, layout: Layout) -> TableFlaw | None:
    words, kind, column = outbox.words.every, layout.types["status"], quoted(layout.columns["status"])
    mends = f"ALTER TABLE {table_of(outbox)} ALTER COLUMN {column} TYPE text;"
    try:
        row = connection.execute(sql.SQL(_WORDS).format(sql.Literal(words), sql.SQL(kind))).fetchone()
        if row == (words,):
            return None
    except psycopg.errors.CheckViolation as error:
        name = quoted(error.diag.constraint_name or "")
        allowed = ", ".join(map(literal, words))
        mends = (
            f"ALTER DOMAIN {kind} DROP CONSTRAINT {name}; "
            f"ALTER DOMAIN {kind} ADD CONSTRAINT {name} CHECK (VALUE IN ({allowed}));"
        )
    except psycopg.DataError:
        mends = " ".join(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS {literal(word)};" for word in words)
    return TableFlaw(f"the status column of {outbox.table} cannot hold all of {', '.join(words)}", mends)


def _flaws_of_checks(connection: Connection, outbox: Outbox, layout: Layout) -> Iterator[TableFlaw]:
    """Yield each constraint on the status alone that refuses a word. The DDL keeps all that it allows already."""
    status, table = layout.columns["status"], sql.Identifier(*layout.table).as_string(connection)
    for name, expression in connection.execute(_CHECKS, {"table": table, "status": status}).fetchall():
        refused = words_where(connection, layout, f"({expression}) IS FALSE", outbox.words.every)
        if refused:
            words = [word for word in outbox.words.every if word in refused]
            allowed = f"({expression}) OR {quoted(status)} IN ({', '.join(map(literal, words))})"
            yield TableFlaw(
                f"the constraint {name} of {outbox.table} refuses {', '.join(words)} as a status",
                f"ALTER TABLE {table_of(outbox)} DROP CONSTRAINT {quoted(name)}, "
                f"ADD CONSTRAINT {quoted(name)} CHECK ({allowed});",
            )
