"""Connections to PostgreSQL: named, bounded in time, with errors translated by their remedy.

Timeouts are set per transaction (`SET LOCAL` by `set_config`), never per session: behind PgBouncer in transaction mode
sessions are shared. Statements begin with a comment that names them (`-- relay.claim_lanes`), so that
`pg_stat_activity` shows our names.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo
from psycopg.rows import tuple_row

from ferryman.runtime import codes, roles
from ferryman.runtime.errors import FerrymanError, Misconfigured, Unreachable
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Database, Settings

URL = "database_url"

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_REMEDY = "ferryman_remedy"
"""The attribute of the library's error that has the remedy that the connection knew."""

# A role that does not exist has no members.
_MEMBER = """\
-- postgres.member
SELECT current_user::text, coalesce(pg_has_role(to_regrole(%(role)s), 'USAGE'), false)
"""

_BACKEND = """\
-- postgres.backend
SELECT pg_backend_pid()
"""

_ANSWERS = """\
-- postgres.answers
SELECT 1
"""

_MOST_SAID = 300
"""Characters of a server's message that are shown."""
_DATA_EXCEPTION = "22"
# A RAISE in one of our functions, such as the one that refuses an entry: those messages have no values.
_RAISE, _SCHEMA = "exec_stmt_raise", " ferryman."
_QUOTES = "\"'\u00ab\u00bb\u2018-\u201f\u2039\u203a\u300c\u300d"
# Such messages have the value in quotes, behind a colon, or as a bare number, in the server's language.
_VALUE = re.compile(rf"[{_QUOTES}].*[{_QUOTES}]|[:\uff1a].*|\d{{4,}}")

_SET_TIMEOUTS = """\
-- postgres.set_timeouts
SELECT set_config('statement_timeout', %(statement)s, true),
       set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true)
"""

_READ_COMMITTED = """\
-- postgres.read_committed
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
"""


class NamedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose errors name its login and the role that is needed, where a privilege is missing."""

    refusal: str | None = None
    """The remedy if a privilege is missing."""

    def wait(self, *given: Any, **named: Any) -> Any:
        """Wait for the server's answer: every statement does."""
        try:
            return super().wait(*given, **named)
        except psycopg.errors.InsufficientPrivilege as error:
            setattr(error, _REMEDY, self.refusal)
            raise


def row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the only row of a result that has one."""
    found = cursor.fetchone()
    assert found is not None
    return found


def value(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Any:
    """Return the first column of the only row."""
    return row(cursor)[0]


def milliseconds(seconds: float) -> str:
    """Return the time as PostgreSQL's settings take it; at least 1 ms, because 0 would mean no limit."""
    return f"{max(1, round(seconds * 1000))}ms"


def read_committed(connection: Connection) -> None:
    """Give each statement of the open transaction a snapshot of its own, whatever the role's default is."""
    connection.execute(_READ_COMMITTED)


def required_url(settings: Settings) -> str:
    if settings.database_url is None or not settings.database_url.get_secret_value():
        raise Misconfigured(
            "no database is named", setting=URL, remedy="set it to postgresql://user:password@host/name"
        )
    return settings.database_url.get_secret_value()


def parameters(url: str, database: Database, process: str) -> dict[str, Any]:
    """Return libpq's parameters for one of our processes; those in the URL win over ours."""
    try:
        given = conninfo.conninfo_to_dict(re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url))
        if not re.fullmatch(r"[\d,]*", str(given.get("port", ""))):
            raise psycopg.ProgrammingError(f"{given['port']} is not a valid port")
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


def connect(
    settings: Settings, process: str, *, autocommit: bool = False, writes: bool = False, role: str | None = None
) -> Connection:
    """Open one connection; with `writes`, only to a server that takes writes, unless the URL says otherwise.

    `role` is what its process needs (`roles.needed`): errors name it where a privilege is missing.
    """
    wanted = parameters(required_url(settings), settings.database, process)
    if writes:
        wanted = {"target_session_attrs": "read-write", **wanted}
    try:
        connection = NamedConnection.connect(**wanted, autocommit=autocommit)
        suit_pooler(connection)
        if role:
            with _outside(connection):
                expect(connection, role)
        return connection
    except psycopg.Error as error:
        raise connection_error(error, wanted) from error


def expect(connection: Connection, *wanted: str) -> None:
    """Let errors where a privilege is missing name the login, and the first of these roles that it lacks."""
    if not isinstance(connection, NamedConnection):
        return
    for role in wanted:
        login, has = connection.info.user, False
        if role != roles.OWNER:
            login, has = row(connection.execute(_MEMBER, {"role": role}))
        connection.refusal = roles.remedy(login, role, has=has)
        if not has:
            return


@contextmanager
def _outside(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let statements run outside of a transaction, and leave none open."""
    autocommit, connection.autocommit = connection.autocommit, True
    yield
    connection.autocommit = autocommit


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Translate errors, and name this setting in those about a URL: a source of the relay has its own."""
    try:
        with translated():
            yield
    except FerrymanError as error:
        if error.setting == URL:
            error.setting = setting
        raise


def suit_pooler(connection: psycopg.Connection[Any]) -> None:
    """Prepare no statements behind a pooler: the next transaction may be in a session that does not know them."""
    if behind_pooler(connection):
        connection.prepare_threshold = None


def behind_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Return True if sessions are shared: PgBouncer gives its clients process numbers of its own.

    This takes one round trip on a connection without an open transaction, and leaves none open.
    """
    with _outside(connection):
        return row(connection.cursor(row_factory=tuple_row).execute(_BACKEND)) != (connection.info.backend_pid,)


def answers(connection: psycopg.Connection[Any]) -> None:
    """Ask the server for a sign of life; raise the library's error if it does not answer."""
    connection.execute(_ANSWERS)


@contextmanager
def transaction(connection: psycopg.Connection[Any], database: Database) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
    """Open a transaction with our timeouts, and translate the library's errors."""
    limits = {
        "statement": milliseconds(database.statement_timeout_seconds),
        "lock": milliseconds(database.lock_timeout_seconds),
        "idle": milliseconds(database.idle_in_transaction_timeout_seconds),
    }
    with translated(), connection.transaction(), connection.cursor() as cursor:
        cursor.execute(_SET_TIMEOUTS, limits)
        yield cursor


@contextmanager
def translated() -> Iterator[None]:
    """Raise the library's errors as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: Exception) -> FerrymanError:
    """Return one of our errors for the library's, decided by its SQLSTATE."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    words = said(error) if isinstance(error, psycopg.Error) else _one_line(error)
    told = f"PostgreSQL: {redact(words)}" + (f" ({state})" if state else "")
    return codes.sqlstate(state).error(told, getattr(error, _REMEDY, None))


def said(error: psycopg.Error) -> str:
    """Return the server's message without its details and context, which quote rows, and without values (N14)."""
    told = error.diag
    if not told.message_primary:  # the library's own words
        return _one_line(error)
    words = " ".join(told.message_primary.split())
    ours = told.source_function == _RAISE and _SCHEMA in (told.context or "").partition("\n")[0]
    if (error.sqlstate or "").startswith(_DATA_EXCEPTION) and not ours:
        words = _VALUE.sub("...", words)
    known = (("table", told.table_name), ("column", told.column_name), ("constraint", told.constraint_name))
    names = ", ".join(f"{what} {name}" for what, name in known if name and name not in words)
    return words[:_MOST_SAID] + (f" [{names}]" if names else "")


def connection_error(error: psycopg.Error, wanted: dict[str, Any]) -> FerrymanError:
    """Return why a connection could not be made. libpq gives no SQLSTATE here, only the server's words."""
    where = f"PostgreSQL at {address(wanted)}"
    words = redact(_one_line(error))
    for pattern, reason, remedy in _REFUSALS:
        if re.search(pattern, words):
            told = remedy.format(user=wanted.get("user", "this login"), database=wanted.get("dbname", "the database"))
            return Misconfigured(f"{where} {reason}: {words}", setting=URL, remedy=told)
    if "session is read-only" in words:
        return codes.sqlstate(psycopg.errors.ReadOnlySqlTransaction.sqlstate).error(f"{where} takes no writes: {words}")
    if re.search(_FULL, words):
        full = "end connections that nobody needs, or raise max_connections, or the CONNECTION LIMIT of the role"
        return Unreachable(f"{where} takes no more connections: {words}", setting=URL, remedy=full)
    return Unreachable(
        f"{where} does not answer: {words}", setting=URL, remedy="start PostgreSQL, or correct the host and port"
    )


_FULL = "too many (connections|clients)|remaining connection slots"
_REFUSALS = (
    ("(password|SASL|Peer) authentication failed|no password supplied|no such user|role .* does not exist",
     "refuses the login", "correct the user or the password"),
    ("is not permitted to log in", "refuses the login", 'as an administrator, ALTER ROLE "{user}" LOGIN'),
    ("permission denied for database", "does not let this login in",
     'as the owner, GRANT CONNECT ON DATABASE "{database}" TO "{user}" (docs/roles.md), or correct the user'),
    ("no pg_hba.conf entry", "refuses this host, user or database", "allow it in pg_hba.conf, or use TLS"),
    ("database .* does not exist|no such database", "has no such database", "create it, or correct the name"),
    ("unsupported startup parameter", "is behind a pooler that does not pass on a parameter of the URL",
     "take the parameter out of the URL: its session is shared"),
    ("could not translate host name|Name or service not known|failed to resolve",
     "cannot be found", "correct the host name"),
    ("certificate|SSL|sslmode", "and this client do not agree on TLS", "correct sslmode and sslrootcert in the URL"),
)  # fmt: skip


def address(wanted: dict[str, Any]) -> str:
    """Return host:port/database for messages, without the password."""
    host = wanted.get("host") or wanted.get("hostaddr") or "localhost"
    name = wanted.get("dbname") or wanted.get("user") or "postgres"
    return f"{host}:{wanted.get('port') or 5432}/{name}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def psycopg_below(db: Any, what: str) -> Any:
    """Return the connection of psycopg below a session or a connection of SQLAlchemy, for what is done there."""
    below = db
    if hasattr(db, "flush"):
        db.flush()
        below = db.connection()
    if not isinstance(below, psycopg.Connection):
        below = getattr(getattr(below, "connection", None), "dbapi_connection", None)
    if not isinstance(below, psycopg.Connection):
        remedy = "give a connection of psycopg, or a session or connection of SQLAlchemy on psycopg; none of asyncio"
        raise Misconfigured(f"{what} in a {type(db).__name__}", remedy=remedy)
    return below
