"""The state of a whole database, kept in memory and put back. It knows no table by name."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from ferryman.consumer.store.receipts import Connection
from ferryman.runtime.errors import Misconfigured

# Tables of extensions are left out.
_RELATIONS = """\
-- prove.relations
SELECT c.relkind::text, n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'S') AND c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY 1, 2, 3
"""  # noqa: E501
_BARE = """\
-- prove.bare
SET LOCAL session_replication_role = replica; SET LOCAL lock_timeout = '10s'
"""

Name = tuple[str, str]


class DatabaseState:
    """The rows and sequences at one time. Triggers and foreign keys are off while they are put back."""

    def __init__(self, connection: Connection) -> None:
        with _transaction(connection):
            tables, sequences = _relations(connection)
            self._rows = {table: _copied(connection, table) for table in tables}
            self._sequences = {each: _position(connection, each) for each in sequences}

    def restore(self, connection: Connection) -> None:
        """Put everything back, and drop tables that did not exist. Columns must be as they were."""
        with _transaction(connection):
            tables, sequences = _relations(connection)
            known = [table for table in tables if table in self._rows]
            connection.execute(_each("DELETE FROM ONLY {}", known))
            connection.execute(_each("DROP TABLE {} CASCADE", [each for each in tables if each not in self._rows]))
            for table in known:
                if rows := self._rows[table]:
                    _write(connection, table, rows)
            for sequence in sequences:
                if sequence in self._sequences:
                    _set(connection, sequence, *self._sequences[sequence])


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    try:
        with connection.transaction():
            connection.execute(_BARE)
            yield
    except InsufficientPrivilege as error:
        raise Misconfigured(
            f"prove cannot put the database back as it was: {' '.join(str(error).split())}",
            remedy="let it connect as a superuser, as `ferryman_db` does",
        ) from error


def _relations(connection: Connection) -> tuple[list[Name], list[Name]]:
    found = connection.execute(_RELATIONS).fetchall()
    return ([row[1:] for row in found if row[0] == "r"], [row[1:] for row in found if row[0] == "S"])


def _copied(connection: Connection, table: Name) -> bytes:
    with connection.cursor().copy(sql.SQL("-- prove.keep\nCOPY {} TO STDOUT").format(sql.Identifier(*table))) as rows:
        return b"".join(bytes(each) for each in rows)


def _write(connection: Connection, table: Name, rows: bytes) -> None:
    with connection.cursor().copy(sql.SQL("-- prove.restore\nCOPY {} FROM STDIN").format(sql.Identifier(*table))) as to:
        to.write(rows)


def _position(connection: Connection, sequence: Name) -> tuple[int, bool]:
    query = sql.SQL("-- prove.sequence\nSELECT last_value, is_called FROM {}").format(sql.Identifier(*sequence))
    [(value, called)] = connection.execute(query).fetchall()
    return value, called


def _set(connection: Connection, sequence: Name, value: int, called: bool) -> None:
    name = sql.Identifier(*sequence).as_string(connection)
    connection.execute("-- prove.set_sequence\nSELECT setval(%s::regclass, %s, %s)", (name, value, called))


def _each(statement: str, tables: Iterable[Name]) -> sql.Composed:
    """Return a statement per table, for one round trip."""
    made = [sql.SQL(statement).format(sql.Identifier(*table)) for table in tables]
    return sql.SQL("-- prove.restore\n") + sql.SQL("; ").join([*made, sql.SQL("SELECT")])


def url_of(connection: "psycopg.Connection[object]") -> str:
    """Return the URL by which others can connect as this connection did."""
    return psycopg.conninfo.make_conninfo(connection.info.dsn, password=connection.info.password or None)
