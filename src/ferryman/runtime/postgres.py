"""Connections to PostgreSQL: named, bounded in time, and with errors told by their remedy.

Timeouts are set per transaction (`SET LOCAL` by `set_config`), never per session: a session behind PgBouncer in
transaction mode is shared. Statements begin with a comment that names them (`-- relay.claim_lanes`), so that
`pg_stat_activity` shows our words.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool, PoolTimeout

from ferryman.runtime import codes
from ferryman.runtime.errors import FerrymanError, Misconfigured, Unreachable
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Database, Settings

URL = "database_url"

_BACKEND = """\
-- postgres.backend
SELECT pg_backend_pid()
"""

_ANSWERS = """\
-- postgres.answers
SELECT 1
"""

_MOST_SAID = 300
"""A value may stand there too: `invalid input syntax for type uuid: "..."`."""

_SET_TIMEOUTS = """\
-- postgres.set_timeouts
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true)
"""


def required_url(settings: Settings) -> str:
    if settings.database_url is None or not settings.database_url.get_secret_value():
        raise Misconfigured(
            "no database is named", setting=URL, remedy="set it to postgresql://user:password@host/name"
        )
    return settings.database_url.get_secret_value()


def parameters(url: str, database: Database, process: str) -> dict[str, Any]:
    """libpq's parameters for one of our processes; the URL's own win over ours."""
    try:
        given = conninfo.conninfo_to_dict(re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url))
        if not re.fullmatch(r"[\d,]*", str(given.get("port", ""))):
            raise psycopg.ProgrammingError(f"{given['port']} is not a port")
    except psycopg.Error as error:
        raise Misconfigured(
            f"the database URL cannot be read: {redact(_one_line(error))}",
            setting=URL,
            remedy="write postgresql://user:password@host:port/name, with special characters percent-encoded",
        ) from error
    ours = {
        "application_name": f"ferryman {process}"[:63],
        "connect_timeout": max(1, round(database.connect_timeout_seconds)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    return {**ours, **given}


def connect(settings: Settings, process: str, *, autocommit: bool = False) -> psycopg.Connection[tuple[Any, ...]]:
    """One connection, for the processes that hold one."""
    wanted = parameters(required_url(settings), settings.database, process)
    try:
        connection = psycopg.connect(**wanted, autocommit=autocommit)
        suit_pooler(connection)
        return connection
    except psycopg.Error as error:
        raise connection_error(error, wanted) from error


def suit_pooler(connection: psycopg.Connection[Any]) -> None:
    """Behind a pooler no statement is prepared: the next transaction may be in a session that does not know it."""
    if behind_pooler(connection):
        connection.prepare_threshold = None


def behind_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Whether sessions are shared: PgBouncer logs its clients in under numbers of its own, PostgreSQL under the true.

    One round trip, on a connection without an open transaction, and it opens none.
    """
    autocommit, connection.autocommit = connection.autocommit, True
    row = connection.cursor(row_factory=tuple_row).execute(_BACKEND).fetchone()
    connection.autocommit = autocommit
    return row != (connection.info.backend_pid,)


def answers(connection: psycopg.Connection[Any]) -> None:
    """Raises the library's error where the server does not."""
    connection.execute(_ANSWERS)


def closed_pool(settings: Settings, process: str) -> ConnectionPool[psycopg.Connection[tuple[Any, ...]]]:
    """A pool that is not open yet: for who begins before the server answers."""
    return ConnectionPool(
        kwargs=parameters(required_url(settings), settings.database, process),
        min_size=1,
        max_size=settings.database.pool_max,
        timeout=settings.database.connect_timeout_seconds,
        name=process,
        configure=suit_pooler,
        open=False,
    )


@contextmanager
def pool(settings: Settings, process: str) -> Iterator[ConnectionPool[psycopg.Connection[tuple[Any, ...]]]]:
    """A pool that has proven it can connect, closed at the end."""
    connections = closed_pool(settings, process)
    connect(settings, process).close()
    with connections:
        yield connections


@contextmanager
def transaction(connection: psycopg.Connection[Any], database: Database) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
    """A transaction with our timeouts, and with the library's errors told by their remedy."""
    limits = {
        "statement": f"{round(database.statement_timeout_seconds * 1000)}ms",
        "lock": f"{round(database.lock_timeout_seconds * 1000)}ms",
        "idle": f"{round(database.idle_in_transaction_timeout_seconds * 1000)}ms",
    }
    try:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(_SET_TIMEOUTS, limits)
            yield cursor
    except (psycopg.Error, PoolTimeout) as error:
        raise translate(error) from error


@contextmanager
def translated() -> Iterator[None]:
    """The library's errors inside it are ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: Exception) -> FerrymanError:
    """The library's error as one of ours, decided by its SQLSTATE."""
    if isinstance(error, PoolTimeout):
        return Unreachable(
            f"no connection to PostgreSQL within the time: {_one_line(error)}",
            setting="database.pool_max",
            remedy="start PostgreSQL, or raise the pool if all its connections are busy",
        )
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    words = said(error) if isinstance(error, psycopg.Error) else _one_line(error)
    return codes.sqlstate(state).error(f"PostgreSQL: {redact(words)}" + (f" ({state})" if state else ""))


def said(error: psycopg.Error) -> str:
    """What the server says, and of what: without its details and context, which quote rows and their values (N14)."""
    told = error.diag
    if not told.message_primary:  # the library's own words
        return _one_line(error)
    words = " ".join(told.message_primary.split())
    known = (("table", told.table_name), ("column", told.column_name), ("constraint", told.constraint_name))
    names = ", ".join(f"{what} {name}" for what, name in known if name and name not in words)
    return words[:_MOST_SAID] + (f" [{names}]" if names else "")


def connection_error(error: psycopg.Error, wanted: dict[str, Any]) -> FerrymanError:
    """Why a connection could not be made. libpq gives no SQLSTATE here, only the server's words."""
    where = f"PostgreSQL at {address(wanted)}"
    words = redact(_one_line(error))
    for pattern, reason, remedy in _REFUSALS:
        if re.search(pattern, words):
            return Misconfigured(f"{where} {reason}: {words}", setting=URL, remedy=remedy)
    return Unreachable(
        f"{where} does not answer: {words}", setting=URL, remedy="start PostgreSQL, or correct the host and port"
    )


_REFUSALS = (
    ("(password|SASL|Peer) authentication failed|no password supplied|no such user|role .* does not exist",
     "refuses the login", "correct the user or the password"),
    ("no pg_hba.conf entry", "refuses this host, user or database", "allow it in pg_hba.conf, or use TLS"),
    ("database .* does not exist|no such database", "has no such database", "create it, or correct the name"),
    ("unsupported startup parameter", "is behind a pooler that does not pass on all that the URL asks for",
     "take it out of the URL: the session it would be set in is shared"),
    ("could not translate host name|Name or service not known|failed to resolve",
     "cannot be found", "correct the host name"),
    ("certificate|SSL|sslmode", "and we do not agree on TLS", "correct sslmode and sslrootcert in the URL"),
)  # fmt: skip


def address(wanted: dict[str, Any]) -> str:
    """host:port/database as user, for messages: no password."""
    host = wanted.get("host") or wanted.get("hostaddr") or "localhost"
    name = wanted.get("dbname") or wanted.get("user") or "postgres"
    return f"{host}:{wanted.get('port') or 5432}/{name}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
