"""Meters and clocks: the machine, counters of the server, CPU time of processes, and waiting with a deadline."""

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
import fastavro
import psutil
import psycopg

from ferryman.runtime.errors import FerrymanError

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

_SERVER = """\
-- bench.server
SELECT name, current_setting(name) FROM pg_settings
WHERE name IN ('server_version', 'shared_buffers', 'fsync', 'full_page_writes', 'synchronous_commit', 'wal_level',
               'data_checksums', 'max_wal_size', 'autovacuum')
"""
# An open transaction's number counts only when it ends: everybody sees the largest that ended.
_COUNTERS = """\
-- bench.counters
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
"""
_MAINTENANCE = """\
-- bench.maintenance
SELECT coalesce(sum(vacuum_count + autovacuum_count + analyze_count + autoanalyze_count), 0)::bigint
FROM pg_stat_all_tables
"""
_DEAD = """\
-- bench.dead_rows
SELECT coalesce(sum(s.n_dead_tup), 0)::bigint
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
# The bench's own statements begin with its name; pg_stat_statements keeps the comment.
_BY_STATEMENT = """\
-- bench.by_statement
SELECT left(split_part(s.query, E'\\n', 1), 60), sum(calls)::bigint, sum(wal_bytes)::bigint,
       sum(total_exec_time)::float8
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT LIKE '-- bench.%' AND calls > 0
GROUP BY 1 ORDER BY 2 DESC
"""
_RESET_STATEMENTS = "-- bench.reset_statements\nSELECT pg_stat_statements_reset()"


class MeasurementFailed(FerrymanError):
    """A measured process failed, or did not do in time what the measurement waited for."""


def describe(database_url: str | None, kafka: str) -> dict[str, Any]:
    """Return the machine and the versions of everything that is measured; without servers if there is no URL."""
    servers = {}
    if database_url:
        with psycopg.connect(database_url) as connection:
            server: dict[str, str] = dict(connection.execute(_SERVER).fetchall())
        version = server.pop("server_version")
        servers = {"postgresql": version, "postgresql_settings": dict(sorted(server.items())), "kafka": kafka}
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_name(),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **servers,
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent_kafka": confluent_kafka.__version__,
        "fastavro": fastavro.__version__,
        "psycopg": psycopg.__version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def counters(connection: Connection) -> tuple[int, int]:
    """Return how many bytes of WAL the server has written, and how many transaction numbers it has used."""
    return row(connection, _COUNTERS)


def maintenance(connection: Connection) -> int:
    """Return how many vacuums and analyzes there were: the relay does not cause what they write."""
    return int(row(connection, _MAINTENANCE)[0])


def dead_rows(connection: Connection) -> int:
    """Return how many rows of the journal are dead."""
    return int(row(connection, _DEAD)[0])


def settled(connection: Connection) -> int:
    """Return how many entries were ever settled."""
    return int(row(connection, _SETTLED)[0])


def await_empty_backlog(connection: Connection, seconds: float = 60) -> None:
    """Wait until every entry is published."""
    until(lambda: row(connection, _PENDING)[0] == 0, "empty backlog", seconds)


def reset_statements(connection: Connection) -> None:
    """Let pg_stat_statements start counting from zero."""
    connection.execute(_RESET_STATEMENTS)


def by_statement(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return the calls, bytes of WAL and milliseconds of every statement in this database that is not the bench's."""
    found = connection.execute(_BY_STATEMENT).fetchall()
    return {name: {"calls": calls, "wal_bytes": wal, "ms": ms} for name, calls, wal, ms in found}


def row(connection: Connection, query: str, values: Any = None) -> tuple[Any, ...]:
    """Return the one row of a query's result."""
    [found] = connection.execute(query, values).fetchall()
    return found


def cpu_seconds(root: psutil.Process) -> float:
    """Return the CPU time of a process and of everything it started, ended or not."""
    used = 0.0
    for each in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended: its parent counts its time
            used += sum(each.cpu_times()[:4])
    return used


def until(condition: Callable[[], T], what: str, seconds: float) -> T:
    """Poll until the condition is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"no {what} within {seconds:.0f} s")
        time.sleep(0.01)
    return value


def pace(began: float, number: int, per_second: float) -> None:
    """Sleep until it is this number's turn. Return at once if that has passed."""
    left = began + number / per_second - time.monotonic()
    if left > 0:
        time.sleep(left)
