"""What the server counts: WAL, transaction numbers, dead rows, statements."""

from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]

# An open transaction's number counts only when it ends: the largest that ended is what everybody can see.
_COUNTERS = """\
-- bench.counters
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
"""
_MAINTENANCE = """\
-- bench.maintenance
SELECT coalesce(sum(vacuum_count + autovacuum_count + analyze_count + autoanalyze_count), 0)::bigint
FROM pg_stat_all_tables
"""
_JOURNAL = """\
-- bench.journal_rows
SELECT coalesce(sum(s.n_dead_tup), 0)::bigint, coalesce(sum(s.n_tup_upd), 0)::bigint,
       coalesce(sum(s.n_tup_del), 0)::bigint
FROM pg_inherits i JOIN pg_stat_all_tables s ON s.relid = i.inhrelid
WHERE i.inhparent = 'ferryman.outbox'::regclass
"""
_SETTLED = """\
-- bench.settled
SELECT coalesce(sum(n), 0)::bigint FROM ferryman.outbox_lanes, unnest(settled) n
"""
_PENDING = """\
-- bench.pending
SELECT coalesce(sum(pending), 0)::bigint FROM ferryman.backlog
"""
# Statements of ours have our word in front; pg_stat_statements keeps it.
_STATEMENTS = """\
-- bench.statements
SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(wal_bytes), 0)::bigint
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT LIKE '-- bench.%'
"""
_BY_STATEMENT = """\
-- bench.by_statement
SELECT left(split_part(s.query, E'\\n', 1), 60), sum(calls)::bigint, sum(wal_bytes)::bigint,
       sum(total_exec_time)::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT LIKE '-- bench.%' AND calls > 0
GROUP BY 1 ORDER BY 2 DESC LIMIT 12
"""
_FORGET = "-- bench.forget\nSELECT pg_stat_statements_reset()"


@dataclass(frozen=True, slots=True)
class Counters:
    """What only grows."""

    wal_bytes: int
    xids: int

    def since(self, before: "Counters") -> "Counters":
        return Counters(self.wal_bytes - before.wal_bytes, self.xids - before.xids)


def counters(connection: Connection) -> Counters:
    return Counters(*row(connection, _COUNTERS))


def maintenance(connection: Connection) -> int:
    """How many vacuums and analyzes there were: what they write is not the relay's."""
    return int(row(connection, _MAINTENANCE)[0])


def journal_rows(connection: Connection) -> dict[str, int]:
    return dict(zip(("dead", "updated", "deleted"), row(connection, _JOURNAL), strict=True))


def settled(connection: Connection) -> int:
    """How many entries were ever settled."""
    return int(row(connection, _SETTLED)[0])


def pending(connection: Connection) -> int:
    """How many entries are still to be published."""
    return int(row(connection, _PENDING)[0])


def forget_statements(connection: Connection) -> None:
    connection.execute(_FORGET)


def statements(connection: Connection) -> tuple[int, int]:
    """(calls, bytes of WAL) of all statements in this database that are not the bench's."""
    calls, wal_bytes = row(connection, _STATEMENTS)
    return calls, wal_bytes


def by_statement(connection: Connection) -> dict[str, Any]:
    found = connection.execute(_BY_STATEMENT).fetchall()
    return {name: {"calls": calls, "wal_bytes": wal, "ms": ms} for name, calls, wal, ms in found}


def row(connection: Connection, query: str) -> tuple[Any, ...]:
    found = connection.execute(query).fetchone()
    assert found is not None
    return found
