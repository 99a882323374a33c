"""The chains of migrations: a folder of SQL files for each owner, and a table with the revision that a database has.

Every process checks the level of its database when it starts. Migrations run in one transaction and under one lock:
replicas may start at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import psycopg
from psycopg import sql

from ferryman.migrations import rights
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.postgres import Connection
from ferryman.runtime.version import __version__

HOME = Path(__file__).resolve().parent
SCHEMA = "ferryman"
ENGINE = "engine"

# An arbitrary number of our own: a migration holds this advisory lock until its commit.
_LOCK = 0x46455252594D414E  # "FERRYMAN"

# A DDL lock that is not granted in 5 s must not make every writer queue behind it. A function in `public` must not
# stand for PostgreSQL's own in views, policies and functions, which are parsed here.
_PREPARE = f"""\
-- migrations.prepare
SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true);
SELECT set_config('search_path', 'pg_catalog, pg_temp', true);
SELECT pg_advisory_xact_lock({_LOCK});
SELECT set_config('lock_timeout', '5s', true);
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
"""
_VERSION_TABLE = """\
-- migrations.version_table
CREATE TABLE {table} (version_num varchar(32) NOT NULL CONSTRAINT version_{owner}_pkc PRIMARY KEY);
"""
_VERSION_TABLES = f"""\
-- migrations.version_tables
SELECT substr(c.relname, 9) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = '{SCHEMA}' AND c.relname LIKE 'version\\_%'
"""  # noqa: S608 - only our own name is put in
_RECORD = """\
-- migrations.record
DELETE FROM {table};
INSERT INTO {table} (version_num) VALUES ('{revision}');
"""
_UNREADABLE = f"""\
-- migrations.unreadable
SELECT o FROM unnest(%s::text[]) o WHERE NOT has_table_privilege(to_regclass('{SCHEMA}.version_' || o), 'SELECT')
"""  # noqa: S608 - only our own name is put in
_PUBLIC = """\
EXISTS (SELECT FROM pg_database d CROSS JOIN aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
        WHERE d.datname = current_database() AND a.grantee = 0 AND a.privilege_type = 'CONNECT')"""

# Roles belong to the whole server, so a login for another database must not get into this one. Whoever has rights in
# it, or owns something, may still connect; whatever an administrator changes later stays.
_CLOSE = f"""\
-- migrations.close
DO $$
DECLARE
    role regrole;
BEGIN
    IF {_PUBLIC} AND (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()) THEN
        FOR role IN
            SELECT DISTINCT d.refobjid
            FROM pg_shdepend d JOIN pg_database b ON b.oid = d.dbid JOIN pg_roles r ON r.oid = d.refobjid
            WHERE b.datname = current_database() AND d.refclassid = 'pg_authid'::regclass
        LOOP
            EXECUTE format('GRANT CONNECT ON DATABASE %I TO %s', current_database(), role);
        END LOOP;
        EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database());
    END IF;
END $$;
"""  # noqa: S608 - only our own condition is put in

_BOUND_OUTBOX = re.compile(r"ferryman\.bind\('outbox', '[^']+', '(\w+)'\)")

# Where Ferryman's roles have rights, there is one of its databases.
_OPEN = f"""\
-- migrations.open
SELECT current_database(), {_PUBLIC}, ARRAY(
    SELECT DISTINCT b.datname::text
    FROM pg_shdepend d JOIN pg_database b ON b.oid = d.dbid JOIN pg_roles r ON r.oid = d.refobjid
    WHERE d.refclassid = 'pg_authid'::regclass AND r.rolname LIKE 'ferryman\\_%' AND b.datname <> current_database()
      AND NOT u.rolsuper AND has_database_privilege(b.oid, 'CONNECT')
    ORDER BY 1
) FROM pg_roles u WHERE u.rolname = current_user
"""  # noqa: S608 - same


@cache
def owners() -> tuple[str, ...]:
    """Return the owner of every chain, the engine first: the others may refer to its tables."""
    found = {folder.name for folder in HOME.iterdir() if any(folder.glob("[0-9]*.sql"))}
    return (ENGINE, *sorted(found - {ENGINE}))


def revisions(owner: str) -> dict[str, Path]:
    """Return the file of each revision, `<owner>_<number of its file>`, the oldest first."""
    return {f"{owner}_{file.name[:4]}": file for file in sorted((HOME / owner).glob("[0-9]*.sql"))}


@cache
def head(owner: str) -> str:
    """Return the newest revision that this version of Ferryman knows."""
    return max(revisions(owner))


def worker_role(owner: str) -> str:
    """Return the role that delivers an owner's outbox: the one that its chain binds the outbox to."""
    texts = "".join(file.read_text(encoding="utf-8") for file in revisions(owner).values())
    bound = _BOUND_OUTBOX.search(texts)
    return bound[1] if bound else f"ferryman_{owner}"


def level(connection: Connection, wanted: Iterable[str]) -> dict[str, str | None]:
    """Return the revision of each chain in this database, None for a chain that was never migrated."""
    return {owner: _revision(connection, owner) for owner in wanted}


def unreadable(connection: Connection, wanted: Iterable[str]) -> list[str]:
    """Return the chains that stand in this database and whose level this login may not read: they are not its own."""
    return [owner for (owner,) in connection.execute(_UNREADABLE, (list(wanted),)).fetchall()]


def check(connection: Connection, wanted: Sequence[str] = (ENGINE,)) -> None:
    """Refuse a database that is older or newer than this code."""
    for owner, have in level(connection, wanted).items():
        if problem := misfit(owner, have):
            raise problem


def misfit(owner: str, have: str | None) -> Misconfigured | None:
    """Return why this version cannot work with a database at that revision, or None."""
    need = head(owner)
    if have == need:
        return None
    migrate = f"run `ferryman migrate{'' if owner == ENGINE else f' --for {owner}'}`"
    if have is None:
        return Misconfigured(f"the database has no {owner} schema", setting="database_url", remedy=migrate)
    if have < need:
        return Misconfigured(
            f"the database is older than the code: {owner} is at {have}, Ferryman {__version__} needs {need}",
            remedy=migrate,
        )
    return Misconfigured(
        f"the database is newer than the code: {owner} is at {have}, Ferryman {__version__} knows {need}",
        remedy="upgrade this process: migrations only go forward",
    )


def parse(names: str) -> tuple[str, ...]:
    """Return the owners that `--for` names, as in `engine,wallet` or `all`; the engine is always among them."""
    if names == "all":
        return owners()
    asked = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := sorted(asked - set(owners())):
        raise Misconfigured(
            f"no chain of migrations is called {', '.join(unknown)}", remedy=f"the chains are: {', '.join(owners())}"
        )
    return tuple(owner for owner in owners() if owner == ENGINE or owner in asked)


def _revision(connection: Connection, owner: str) -> str | None:
    table = f"{SCHEMA}.version_{owner}"
    exists = connection.execute(
        "-- migrations.has_version_table\nSELECT to_regclass(%s) IS NOT NULL", (table,)
    ).fetchone()
    if not exists or not exists[0]:
        return None
    query = sql.SQL("-- migrations.read_level\nSELECT version_num FROM {}").format(
        sql.Identifier(SCHEMA, f"version_{owner}")
    )
    row = connection.execute(query).fetchone()
    return str(row[0]) if row else None


def upgrade(
    connect: Callable[[], Connection], wanted: Sequence[str], granted: Callable[[str], None] = lambda _: None
) -> list[dict[str, str | None]]:
    """Apply missing revisions, if another replica was not first. Return the old and new level of each chain.

    Then grant again what roles have lost, as by a restore without grants; `granted` is called with each statement.
    """
    try:
        with connect() as connection:
            connection.autocommit = False  # the lock must last for the transaction
            connection.execute(_PREPARE)
            before = level(connection, wanted)
            check(connection, [owner for owner, have in before.items() if have and have > head(owner)])
            for owner, have in before.items():
                for statements in _missing(owner, have):
                    connection.execute(statements.encode())
            for statement in lost_rights(connection):
                connection.execute(statement.encode())
                granted(statement)
            connection.execute(_CLOSE)
            return [{"chain": owner, "from": have, "to": head(owner)} for owner, have in before.items()]
    except psycopg.Error as error:
        raise postgres.translate(error) from error


def lost_rights(connection: Connection) -> list[str]:
    """Return the statements that give the roles what they lack of what the chains of this database grant.

    There are none where the engine was never migrated.
    """
    present = {name for (name,) in connection.execute(_VERSION_TABLES).fetchall()}
    if ENGINE not in present:
        return []
    files = {owner: [file.read_text(encoding="utf-8") for file in revisions(owner).values()] for owner in owners()}
    return rights.missing(connection, {owner: texts for owner, texts in files.items() if owner in present}, ENGINE)


def unmade_roles(connection: Connection) -> list[tuple[str, str]]:
    """Return what is bound to a role that does not exist, each with its remedy."""
    return [
        (
            f"the {kind} {name} is bound to the role {role}, which does not exist",
            f"CREATE ROLE {role}, then `ferryman migrate`",
        )
        for kind, name, role, exists in rights.bound(connection)
        if exists is None
    ]


def doors(connection: Connection) -> list[tuple[str, str]]:
    """Return which connections are possible that no process needs, each with its remedy."""
    database, public, others = connection.execute(_OPEN).fetchone() or ("", False, [])
    found = []
    if public:
        remedy = f'as its owner, REVOKE CONNECT ON DATABASE "{database}" FROM PUBLIC (docs/roles.md)'
        found.append((f"every login of the server may connect to {database}", remedy))
    if others:
        remedy = "give each database logins of its own (docs/roles.md)"
        found.append(
            (f"this login may also connect to {', '.join(others)}, where Ferryman's roles have rights", remedy)
        )
    return found


def as_sql(wanted: Sequence[str], since: str | None = None) -> str:
    """Return the migration as SQL, for those who do not let a program change the schema."""
    pieces = ["BEGIN;", _PREPARE]
    for owner in wanted:
        pieces += _missing(owner, since if since and since.startswith(f"{owner}_") else None)
    return "\n".join([*pieces, _CLOSE, "COMMIT;", ""])


def _missing(owner: str, have: str | None) -> Iterator[str]:
    """Yield the SQL that brings a chain to its newest revision, from an older one or from nothing."""
    names = {"owner": owner, "table": f"{SCHEMA}.version_{owner}"}
    if have is None:
        yield _VERSION_TABLE.format(**names)
    for revision, file in revisions(owner).items():
        if have is None or revision > have:
            yield file.read_text(encoding="utf-8")
            yield _RECORD.format(**names, revision=revision)
