"""Checks of each database: it answers, its version, our schema and privileges, settings that do harm, its clock.

A relay refuses a database that was copied from another server, and one whose outbox is bound to another Kafka cluster.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import psycopg

from ferryman.doctor.model import Check, failed, from_error, ok, skipped, warning
from ferryman.migrations import chains
from ferryman.relay.store import kafka_cluster, rebase
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_relay import source_setting

OLDEST = 15
_PREFIX = "postgresql"
CLOCK_WARNING_SECONDS = 1.0
CLOCK_FAILED_SECONDS = 60.0
_MOST_SHOWN = 3

_SETTINGS = """\
-- doctor.settings
SELECT name, setting FROM pg_settings WHERE name = ANY(%s)
"""
_ROLES = """\
-- doctor.roles
SELECT current_user, rolsuper, has_schema_privilege('ferryman', 'USAGE'),
       ARRAY(SELECT r.rolname::text FROM pg_roles r
             WHERE r.rolname LIKE 'ferryman\\_%' AND pg_has_role(current_user, r.oid, 'MEMBER') ORDER BY 1)
FROM pg_roles WHERE rolname = current_user
"""
_MAY_READ_STATE = """\
-- doctor.may_read_state
SELECT has_table_privilege('ferryman.outbox_state', 'SELECT')
"""


# Each setting with its harmful value, the harm, and the remedy.
HARMFUL = {
    "fsync": ("off", "a crash of the machine loses or corrupts data", "turn fsync on"),
    "full_page_writes": ("off", "a crash of the machine can corrupt pages", "turn full_page_writes on"),
    "synchronous_commit": ("off", "a crash loses commits that were acknowledged", "turn synchronous_commit on"),
    "autovacuum": ("off", "tables bloat and transaction ids run out", "turn autovacuum on"),
    "default_transaction_read_only": ("on", "nothing can be appended", "turn default_transaction_read_only off"),
    "default_transaction_isolation": (
        "serializable", "every service retries far more often",
        "leave the default at read committed, and ask for more where it is needed",
    ),
}  # fmt: skip


def checks(settings: Settings) -> Iterator[Check]:
    """Check the database of `database_url`, and those of the relay's sources, whose checks have the source's name."""
    for prefix, setting, each in _databases(settings):
        for check in _checks(each):
            name = check.name.replace(_PREFIX, prefix, 1)
            yield replace(check, name=name, setting=setting if check.setting == postgres.URL else check.setting)


def _databases(settings: Settings) -> Iterator[tuple[str, str, Settings]]:
    """Yield each database: the first part of its checks' names, the setting of its URL, and settings with that URL."""
    sources = settings.relay.sources
    if settings.database_url or not sources:
        yield _PREFIX, postgres.URL, settings
    for name, source in sources.items():
        if source.database_url != settings.database_url:
            prefix, changed = f"relay.sources.{name}", settings.model_copy(update={"database_url": source.database_url})
            yield prefix, source_setting(name), changed


def _checks(settings: Settings) -> Iterator[Check]:
    began = time.monotonic()
    try:
        connection = postgres.connect(settings, "doctor", autocommit=True)
    except FerrymanError as error:
        yield from_error("postgresql.reached", error)
        return
    milliseconds = (time.monotonic() - began) * 1000
    with connection:
        where = f"{connection.info.host}:{connection.info.port}/{connection.info.dbname} as {connection.info.user}"
        yield ok("postgresql.reached", f"{where}, in {milliseconds:.0f} ms")
        for check in (_version, _primary, _migrations, _privileges, _grants, _server, _doors, _harmful, _clock):
            try:
                yield check(connection)
            except psycopg.Error as error:
                yield from_error(f"postgresql.{check.__name__.lstrip('_')}", postgres.translate(error))
            except FerrymanError as error:
                yield from_error(f"postgresql.{check.__name__.lstrip('_')}", error)


def clusters(settings: Settings, cluster: str) -> Iterator[Check]:
    """Check that the outbox of each database that answers is not bound to another Kafka cluster than this one."""
    for prefix, _, each in _databases(settings):
        name = f"{prefix}.cluster"
        try:
            with postgres.connect(each, "doctor", autocommit=True) as connection:
                chains.check(connection)
                kafka_cluster.check_binding(connection, cluster)
        except FerrymanError as error:
            if error.setting == "kafka.bootstrap_servers":
                yield from_error(name, error)
        except psycopg.Error:
            pass  # the checks of the database name the cause
        else:
            yield ok(name, "its outbox is published to this cluster, or to none yet")


def _version(connection: Connection) -> Check:
    name, number = "postgresql.version", connection.info.server_version
    shown = f"{number // 10000}.{number % 10000}"
    if number < OLDEST * 10000:
        return failed(name, shown, f"upgrade the server to PostgreSQL {OLDEST} or newer")
    return ok(name, shown)


def _primary(connection: Connection) -> Check:
    row = connection.execute("-- doctor.in_recovery\nSELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        return failed("postgresql.primary", "a standby", "connect to the primary", postgres.URL)
    return ok("postgresql.primary", "it takes writes")


def _migrations(connection: Connection) -> Check:
    others = chains.unreadable(connection, chains.owners()[1:])  # those of other processes
    levels = chains.level(connection, [owner for owner in chains.owners() if owner not in others])
    present = {owner: have for owner, have in levels.items() if have is not None or owner == chains.ENGINE}
    for owner, have in present.items():
        if problem := chains.misfit(owner, have):
            return from_error("postgresql.migrations", problem)
    return ok("postgresql.migrations", ", ".join(str(have) for have in present.values()))


def _privileges(connection: Connection) -> Check:
    name = "postgresql.privileges"
    exists = connection.execute("-- doctor.has_schema\nSELECT to_regnamespace('ferryman') IS NOT NULL").fetchone()
    if not exists or not exists[0]:
        return failed(name, "the schema ferryman does not exist", "run `ferryman migrate`")
    user, superuser, usage, roles = connection.execute(_ROLES).fetchone() or ("?", False, False, [])
    if superuser:
        return ok(name, f"{user} is a superuser; in production grant a user only the role of its process")
    if not usage:
        if roles:
            what = f"{user} has {', '.join(roles)}, and may not use the schema ferryman: the role has lost its rights"
            return failed(name, what, "as the owner of the database, run `ferryman migrate`")
        others = "ferryman_courier, ferryman_consumer, ferryman_writer, ferryman_monitor"
        grant = f"GRANT ferryman_relay TO {user} (or {others})"
        return failed(name, f"{user} may not use the schema ferryman", grant)
    return ok(name, f"{user} has {', '.join(roles) or 'rights of its own'}")


def _grants(connection: Connection) -> Check:
    """Compare what the roles may do with what the migrations grant."""
    name = "postgresql.grants"
    if lost := chains.lost_rights(connection):
        more = f" (and {len(lost) - _MOST_SHOWN} more)" if len(lost) > _MOST_SHOWN else ""
        what = f"{len(lost)} statements of the migrations are not in force: {' '.join(lost[:_MOST_SHOWN])}{more}"
        return failed(
            name, what, "as the owner of the database, run `ferryman migrate`: it grants again what is missing"
        )
    if unmade := chains.unmade_roles(connection):
        what, remedies = map("; ".join, zip(*unmade, strict=True))
        return failed(name, what, remedies)
    return ok(name, "the roles have what the migrations grant")


def _server(connection: Connection) -> Check:
    name = "postgresql.server"
    if not chains.level(connection, [chains.ENGINE])[chains.ENGINE]:
        return skipped(name, "there is no outbox")
    may = connection.execute(_MAY_READ_STATE).fetchone()
    if not may or not may[0]:
        return skipped(name, "this login has nothing to do with the journal")
    rebase.check_server(connection)
    return ok(name, "the outbox has the transaction numbers of this server")


def _doors(connection: Connection) -> Check:
    name = "postgresql.doors"
    _, superuser, *_ = connection.execute(_ROLES).fetchone() or ("?", False)
    if open_ := chains.doors(connection):
        what, remedies = map("; ".join, zip(*open_, strict=True))
        return ok(name, f"{what}; in production, {remedies}") if superuser else warning(name, what, remedies)
    return ok(name, "only logins with rights here may connect, and this one to no other database of Ferryman's")


def _harmful(connection: Connection) -> Check:
    name = "postgresql.settings"
    values: dict[str, str] = dict(connection.execute(_SETTINGS, (list(HARMFUL),)).fetchall())
    harmful = {setting: told for setting, told in HARMFUL.items() if values.get(setting) == told[0]}
    if not harmful:
        return ok(name, "none that does harm")
    detail = "; ".join(f"{setting} is {value}: {harm}" for setting, (value, harm, _) in harmful.items())
    return warning(name, detail, "; ".join(remedy for _, _, remedy in harmful.values()))


def _clock(connection: Connection) -> Check:
    before = time.time()
    row = connection.execute("-- doctor.clock\nSELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    after = time.time()
    difference = float(row[0]) - (before + after) / 2 if row else 0.0
    return judge_clock(max(0.0, abs(difference) - (after - before) / 2))


def judge_clock(seconds: float) -> Check:
    """Judge by how many seconds the server's clock differs from ours, beyond the time that the question took."""
    name, detail = "postgresql.clock", f"{seconds * 1000:.0f} ms from this machine's"
    remedy = "run NTP on both machines: ages, leases and retries are judged by the database's clock"
    if seconds >= CLOCK_FAILED_SECONDS:
        return failed(name, detail, remedy)
    if seconds >= CLOCK_WARNING_SECONDS:
        return warning(name, detail, remedy)
    return ok(name, detail)
