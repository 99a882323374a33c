"""A described table: looked at when the relay starts, then claimed from and settled with the statements made for it."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from ferryman.migrations import chains
from ferryman.relay.described.fitting import fit
from ferryman.relay.described.model import LiveColumn, LiveTable, Row, Settling
from ferryman.relay.described.statements import Statements, compiled
from ferryman.relay.model import Entry
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Database
from ferryman.runtime.settings_outbox import Outbox

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_COLUMNS = """\
-- outbox.columns
SELECT a.attname, format_type(a.atttypid, a.atttypmod), has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE'),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
               AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
       current_user
FROM pg_attribute a WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
"""

# An enum has only the words that it was made with.
_WORDS = "-- outbox.words\nSELECT {}::text[]::{}[]::text[]"


@dataclass(frozen=True, slots=True)
class Table:
    """One described outbox in its database. Each call is one short transaction."""

    statements: Statements
    database: Database

    def claim(
        self, connection: Connection, most: int, avoided: Collection[str] = (), *, lost: bool = False
    ) -> list[Row]:
        """Rows that are due and nobody else's from now on, the oldest first; or what another relay left behind."""
        statement = self.statements.claim_lost if lost else self.statements.claim
        with postgres.transaction(connection, self.database) as cursor:
            found = cursor.execute(statement, {"most": most, "avoided": list(avoided)}).fetchall()
        rows = [_row(columns, alone=lost) for columns in found]
        return sorted(rows, key=lambda row: (row.entry.created_us, row.id))

    def settle(self, connection: Connection, what: Sequence[Settling]) -> set[str]:
        """All in one statement; which of them were still ours to settle."""
        ids, claimed_ats, statuses, backs, errors, dones, waits = map(list, zip(*what, strict=True))
        given = {"ids": ids, "claimed_ats": claimed_ats, "statuses": statuses, "backs": backs, "errors": errors,
                 "dones": dones, "waits": waits}  # fmt: skip
        with postgres.transaction(connection, self.database) as cursor:
            return {identity for (identity,) in cursor.execute(self.statements.settle, given).fetchall()}

    def bury(self, connection: Connection) -> list[str]:
        """Gives up what ended its relay each time; the topics of those rows."""
        with postgres.transaction(connection, self.database) as cursor:
            return [topic for (topic,) in cursor.execute(self.statements.bury).fetchall()]

    def backlog(self, connection: Connection) -> list[Backlog]:
        with postgres.transaction(connection, self.database) as cursor:
            return [Backlog(*row) for row in cursor.execute(self.statements.backlog).fetchall()]


def open_table(connection: Connection, name: str, outbox: Outbox, database: Database) -> Table:
    """The table as it is described; raises Misconfigured, with the DDL that would mend it, when it is another."""
    with postgres.translated():
        live, owner = look(connection, outbox), outbox.table.partition(".")[0]
        if live is None and owner in chains.owners():
            chains.check(connection, (owner,))  # one of ours: its migrations make it
        layout = fit(name, outbox, live)
        _check_words(connection, name, outbox, layout.types["status"])
    return Table(compiled(outbox, layout), database)


def look(connection: Connection, outbox: Outbox) -> LiveTable | None:
    """None where there is no such table."""
    quoted = sql.Identifier(*outbox.table.split(".")).as_string(connection)
    rows = connection.execute(_COLUMNS, {"table": quoted}).fetchall()
    if not rows:
        return None
    return LiveTable(
        {column: LiveColumn(kind, readable, changeable) for column, kind, readable, changeable, _, _ in rows},
        frozenset(column for column, *_, unique, _ in rows if unique),
        str(rows[0][-1]),
    )


def _check_words(connection: Connection, name: str, outbox: Outbox, kind: str) -> None:
    """The status can say each of them: an enum may not have it, and a short text no room for it."""
    words = [*outbox.words.pending, *filter(None, (outbox.words.claimed, outbox.words.done, outbox.words.dead))]
    mends = f"ALTER TABLE {outbox.table} ALTER COLUMN {outbox.columns.status or 'status'} TYPE text;"
    try:
        row = connection.execute(sql.SQL(_WORDS).format(sql.Literal(words), sql.SQL(kind))).fetchone()
        if row == (words,):
            return
    except psycopg.DataError:
        mends = " ".join(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS {_literal(word)};" for word in words)
    raise Misconfigured(
        f"the status of {outbox.table} cannot be all of {', '.join(words)}",
        setting=f"outbox.{name}.words", remedy=f"correct the words, or the type: {mends}",
    )  # fmt: skip


def _literal(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def _row(columns: Sequence[Any], *, alone: bool) -> Row:
    """What has no key has an empty one, and what has no payload an empty one: a null would be a tombstone."""
    ce_id, topic, key, kind, payload, headers, content_type, created_us, attempts, claimed_at, error, status = columns
    body, created = bytes(payload or b""), created_us or 0
    entry = Entry(0, ce_id, topic or "", key or "", kind or "", body, _headers(headers), content_type, created, 0)
    return Row(entry, attempts, claimed_at, error, status, alone)


def _headers(text: str | None) -> str | None:
    """As the journal has them: an object of texts. What is no text is written as JSON; what is no object, not."""
    given = json.loads(text) if text else None
    if not isinstance(given, dict):
        return None
    said = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    return json.dumps({name: value for name, value in said.items() if given[name] is not None})
