"""Finds the indexes that the claims of a described table lack: without them each claim reads the whole table."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from psycopg import sql

from ferryman.relay.described.layout import Layout, TableFlaw, literal, quoted, table_of
from ferryman.relay.described.status_words import words_where
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

_INDEXES = """\
-- outbox.indexes
SELECT ARRAY(SELECT a.attname::text
             FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY k (attnum, place)
             LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY k.place),
       pg_get_expr(i.indpred, i.indrelid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = to_regclass(%(table)s) AND i.indisvalid AND m.amname = 'btree'
"""


class _Need(NamedTuple):
    """An index that is needed: on these columns, for rows with these words and not for those that are done."""

    why: str
    words: Sequence[str]
    begins_with: Sequence[str]
    columns: Sequence[str]
    of_all: bool = False
    """True if the index must have all rows: PostgreSQL cannot see that a partial one has those that are looked for."""


class _Index(NamedTuple):
    """A valid index: its columns (None for an expression), and the words of the rows in it, if it is partial."""

    columns: list[str | None]
    words: set[str] | None


def lacking(connection: Connection, outbox: Outbox, layout: Layout) -> Iterator[TableFlaw]:
    """Yield what no index serves, judged by the columns and predicates of the valid ones."""
    found = connection.execute(_INDEXES, {"table": sql.Identifier(*layout.table).as_string(connection)}).fetchall()
    every = outbox.words.every
    indexes = [
        _Index(columns, (words_where(connection, layout, predicate, every) or set()) if predicate else None)
        for columns, predicate in found
    ]
    status = layout.columns["status"]
    for need in _needs(outbox, layout):
        if not any(_serves(need, index, status, outbox.words.done) for index in indexes):
            columns, words = ", ".join(map(quoted, need.columns)), ", ".join(map(literal, need.words))
            where = "" if need.of_all else f" WHERE {quoted(status)} IN ({words})"
            yield TableFlaw(need.why, f"CREATE INDEX CONCURRENTLY ON {table_of(outbox)} ({columns}){where};")


def _needs(outbox: Outbox, layout: Layout) -> Iterator[_Need]:
    """Yield the indexes that claims need: of due rows in their order, of rows being sent, and of keys in order."""
    order = [layout.columns[role] for role in layout.order]
    keyed = [layout.columns[role] for role in ("created_at", "id") if layout.has(role)]
    place = [layout.columns["destination"]] if layout.has("destination") and outbox.channel != "email" else []
    pending, claimed = outbox.words.pending, [outbox.words.claimed] if outbox.words.claimed else []
    why = "no index leads from destination to destination" if place else "no index has the due rows in their order"
    yield _Need(f"{why}: each claim reads the whole table", pending, [*place, order[0]], [*place, *order])
    if claimed:
        why = "no index has the rows that are being sent: the look for lost ones reads the whole table each second"
        yield _Need(why, claimed, [], [layout.columns["lease"]])
    if outbox.order == "key":
        key = layout.columns["key"]
        why = "no index has the rows of a key in their order: each claim reads the whole table for each row"
        yield _Need(why, [], [key, keyed[0]], [key, *keyed], of_all=True)


def _serves(need: _Need, index: _Index, status: str, done: str) -> bool:
    """Return True if the index has the needed rows and none that are done, beginning with the needed columns."""
    columns = index.columns
    if index.words is not None:
        if need.of_all or done in index.words or not index.words >= set(need.words):
            return False
    elif columns[0] == status and len(need.words) == 1:
        columns = columns[1:]
    elif not need.of_all:
        return False
    return columns[: len(need.begins_with)] == list(need.begins_with)
