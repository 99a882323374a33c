"""The check of a described table for a person: everything that a start with this login would refuse or warn of."""

import difflib

from ferryman.migrations import chains
from ferryman.relay.described.indexes import lacking
from ferryman.relay.described.layout import TableFlaw, fit, flaws, has_schema, look, quoted
from ferryman.relay.described.status_words import word_flaws
from ferryman.relay.described.table import needed_role
from ferryman.runtime import postgres
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

# True also where there is no engine, which is told otherwise.
_MAY_RECORD = """\
-- outbox.may_record
SELECT current_user::text,
       CASE WHEN to_regnamespace('ferryman') IS NULL THEN true
            WHEN NOT has_schema_privilege('ferryman', 'USAGE') THEN false
            ELSE coalesce(has_table_privilege(to_regclass('ferryman.outbox_attempt'), 'INSERT'), true) END
"""

_TABLES = """\
-- outbox.tables
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('ferryman', 'information_schema') AND n.nspname !~ '^pg_'
ORDER BY 1 LIMIT 10000
"""


def examine(connection: Connection, name: str, outbox: Outbox) -> list[TableFlaw]:
    """Return everything that is wrong with the table, and with the rights of this login."""
    with postgres.translated():
        live = look(connection, outbox)
        found = flaws(outbox, live, has_schema=has_schema(connection, outbox))
        if live is None:
            return [flaw._replace(why=flaw.why + _similar(connection, outbox)) for flaw in found]
        found += _flaws_of_engine(connection, outbox)
        if found:
            return found
        layout = fit(name, outbox, live)
        return word_flaws(connection, outbox, layout) or list(lacking(connection, outbox, layout))


def _similar(connection: Connection, outbox: Outbox) -> str:
    """Return a question about a table that may have been meant, or nothing."""
    known = [table for (table,) in connection.execute(_TABLES).fetchall()]
    same = [table for table in known if table.partition(".")[2] == outbox.table]
    close = same or difflib.get_close_matches(outbox.table, known, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def _flaws_of_engine(connection: Connection, outbox: Outbox) -> list[TableFlaw]:
    """Return what keeps this login from recording attempts. Raise Misconfigured if the database is not migrated."""
    role = needed_role(outbox)
    if outbox.channel == "kafka" or role is None:
        return []
    login, may = postgres.row(connection.execute(_MAY_RECORD))
    if not may:
        return [TableFlaw(f"{login} may not record attempts", f"GRANT {role} TO {quoted(login)};")]
    chains.check(connection)
    return []
