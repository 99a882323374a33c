"""A courier by SMTP: the memos' worker beside bare aiosmtplib clients, its statements, and what its claims cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median_low

import psycopg

from ferryman.bench import goals, journal, meters, programs
from ferryman.bench.goals import Figure, Goal, percentiles
from ferryman.bench.meters import Connection, MeasurementFailed
from ferryman.bench.servers import Bench, ratio
from ferryman.bench.sinks import batch_statements, claim_ms, patience, receiver
from ferryman.relay.described.table import Table, claim_values, open_table
from ferryman.relay.described.way_out import Room
from ferryman.runtime.settings import Database
from ferryman.runtime.settings_outbox import Outbox
from ferryman.services.memos.memos_settings import MemosSettings, described

_AT_ONCE = 16
_SLOW_MS = 20
_SENDER = "memos@example.com"
_DUE = 500
_CLAIMS = 200

_EMPTY = "-- bench.empty_mails\nTRUNCATE memos.email_outbox, memos.request, memos.memos, ferryman.outbox_attempt"
_LOAD = """\
-- bench.load_mails
WITH memo AS (
    INSERT INTO memos.memos (memo_number_prefix, department_code, title) VALUES ('BENCH', 'people', 'Party')
    RETURNING id
)
INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type, status,
                                idempotency_key, meta_created_at)
SELECT memo.id, 'memo.created', jsonb_build_object('subject', 'Memo No. ' || n || ' Created', 'body', repeat(
    'Please read what was decided, and tell the others. ', 8)), 'reader-' || n || '@example.com', 'MEMO_CREATED',
    %(status)s, memo.id || '-memo.created-' || n, now() - (%(rows)s::bigint - n) * interval '1 ms'
FROM memo, generate_series(1, %(rows)s::bigint) n
"""
_VACUUM = "-- bench.vacuum_mails\nVACUUM (ANALYZE) memos.email_outbox"


@contextmanager
def _mails(bench: Bench) -> Iterator[tuple[str, Connection]]:
    """Give the URL of a database with the memos' tables, and an autocommit connection to it."""
    with bench.database() as url, psycopg.connect(url, autocommit=True) as connection:
        yield url, connection


def _load(connection: Connection, rows: int, status: str = "PENDING") -> None:
    """Write mails, and vacuum them as autovacuum would have done."""
    connection.execute(_LOAD, {"rows": rows, "status": status})
    connection.execute(_VACUUM)
    journal.checkpoint(connection)


def rate(bench: Bench) -> Iterator[Figure]:
    """Measure mails a second to a server that accepts after 20 ms, as one that writes each mail to its disk."""
    yield _rate(bench, goals.SMTP_RATE, bench.scale.commands // 10, _SLOW_MS)


def fast_rate(bench: Bench) -> Iterator[Figure]:
    """Measure mails a second to a server that accepts at once."""
    yield _rate(bench, goals.SMTP_RATE_FAST, bench.scale.commands // 4, 0)


def _rate(bench: Bench, goal: Goal, rows: int, milliseconds: int) -> Figure:
    """Measure a drain beside the bare clients, in rounds."""
    with _mails(bench) as (url, connection), receiver(bench, "mail_receiver", milliseconds=milliseconds) as server:
        task = {"database_url": url, "port": server.port, "rows": rows, "at_once": _AT_ONCE, "sender": _SENDER}

        def courier() -> float:
            connection.execute(_EMPTY)
            _load(connection, rows)
            return rows / _drained(bench, url, server.port, rows)

        def bare() -> float:
            return rows / float(programs.result_of(bench, "bare_mails", task, patience(rows))["seconds"])

        rates, others = bench.compared(courier=courier, bare=bare)
        received = server.result()
    if received["mails"] % rows or received["mails"] < 2 * rows * len(others):
        raise MeasurementFailed(f"the server had {received['mails']} mails, in rounds of {rows}")
    return goal.figure(
        ratio(rates["courier"], rates["bare"]), courier_per_second=rates["courier"], bare_per_second=rates["bare"],
        rows=rows, connections=_AT_ONCE, answer_ms=milliseconds, cores_of_others=others,
    )  # fmt: skip


def _drained(bench: Bench, database_url: str, port: int, rows: int) -> float:
    """Let the memos' worker send all mails, and return its seconds."""
    settings = {
        "FERRYMAN_EMAIL__PROVIDER": "smtp", "FERRYMAN_EMAIL__SENDER": _SENDER,
        "FERRYMAN_EMAIL__SMTP__HOST": "127.0.0.1", "FERRYMAN_EMAIL__SMTP__PORT": str(port),
        "FERRYMAN_EMAIL__SMTP__TLS": "none", "FERRYMAN_EMAIL__SMTP__CONNECTIONS": str(_AT_ONCE),
    }  # fmt: skip
    with programs.drain(bench, database_url, "memos", **settings) as program:
        return programs.drained_seconds(program.result(patience(rows)), rows)


def statements(bench: Bench) -> Iterator[Figure]:
    """Measure the statements of a turn, which claims one batch and settles another, as the server counts them."""
    if not bench.counts_statements:
        raise MeasurementFailed("this server has no pg_stat_statements")
    rows = bench.scale.commands // 4
    with _mails(bench) as (url, connection), receiver(bench, "mail_receiver", milliseconds=0) as server:
        _load(connection, rows)
        meters.reset_statements(connection)
        _drained(bench, url, server.port, rows)
        yield batch_statements(goals.MAIL_STATEMENTS, connection, rows)


def claims_after_sent(bench: Bench) -> Iterator[Figure]:
    """Measure claims over sent mails beside claims on a table without them, by the index of the document."""
    rows = bench.scale.entries
    with _mails(bench) as (_, full), _mails(bench) as (_, bare):
        _load(full, rows, "SENT")
        for connection in (full, bare):
            _load(connection, _DUE)
        tables = [_opened(connection) for connection in (full, bare)]
        pairs = [tuple(claim_ms(table, _AT_ONCE) for table in tables) for _ in range(_CLAIMS)]
        plan = _plan(tables[0])
    full_ms, bare_ms = zip(*pairs[_CLAIMS // 10 :], strict=True)
    yield goals.CLAIM_AFTER_MILLION_SENT.figure(
        median_low(full_ms) / median_low(bare_ms), rows=rows, claims=len(full_ms), full_ms=percentiles(full_ms),
        bare_ms=percentiles(bare_ms), plan=plan,
    )  # fmt: skip


def _opened(connection: Connection) -> Table:
    return open_table(connection, "memos", Outbox.model_validate(described(MemosSettings(), 15)), Database())


def _plan(table: Table) -> list[str]:
    """Return how PostgreSQL claims: the nodes of its plan."""
    explain = b"EXPLAIN (COSTS off) " + table.statements["claim"]
    lines = [line for (line,) in table.connection.execute(explain, claim_values(Room(_AT_ONCE))).fetchall()]
    return [line.strip() for line in lines if "->" in line or "Index Cond" in line]
