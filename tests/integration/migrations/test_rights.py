"""Rights that a restore has lost come back with `ferryman migrate`, and nothing else changes."""

import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ferryman.doctor import Status, examine
from ferryman.migrations import chains
from ferryman.runtime.settings import Settings
from ferryman.testing import stack
from ferryman.testing.postgres import binaries

Database = psycopg.Connection[tuple[Any, ...]]

RIGHTS = """
SELECT o.what, a.grantee::regrole::text, a.privilege_type FROM (
    SELECT 'schema ' || nspname, nspacl, oid FROM pg_namespace
    UNION ALL SELECT oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner)), pronamespace FROM pg_proc
    UNION ALL SELECT oid::regclass::text, relacl, relnamespace FROM pg_class
    UNION ALL SELECT format('%s(%s)', oid::regclass, attname), attacl, relnamespace
    FROM pg_class JOIN pg_attribute ON attrelid = oid
) o (what, acl, schema) CROSS JOIN aclexplode(o.acl) a
WHERE o.schema = ANY ('{ferryman,wallet,payments}'::regnamespace[]) AND a.grantee <> 10
"""
POLICIES = """
SELECT polrelid::regclass::text, polname, polcmd,
       ARRAY(SELECT r::regrole::text FROM unnest(polroles) r ORDER BY 1)::text
FROM pg_policy
"""


@pytest.fixture
def bound_role(ferryman_db: Database) -> Iterator[None]:
    """Bind a consumer to a role whose name needs quotes."""
    name = f"Shop {ferryman_db.info.dbname}"
    role = sql.Identifier(name)
    ferryman_db.execute(sql.SQL("CREATE ROLE {}").format(role))
    ferryman_db.execute("SELECT ferryman.bind('consumer', 'shop', to_regrole(quote_ident(%s)))", (name,))
    yield
    ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def state(db: Database) -> set[tuple[Any, ...]]:
    """Return all rights and policies. What a bound role gets besides its consumer's rights is of no account."""
    bound = {role for (role,) in db.execute("SELECT role FROM ferryman.bound_name")}
    rights = {each for each in db.execute(RIGHTS) if not ("version_" in each[0] and each[1] in bound)}
    return rights | set(db.execute(POLICIES))


def migrate(url: str, *, wanted: tuple[str, ...] = (chains.ENGINE,)) -> list[str]:
    granted: list[str] = []
    chains.upgrade(lambda: psycopg.connect(url), wanted, granted.append)
    return granted


def grants(url: str) -> Status:
    return next(each.status for each in examine(Settings(database_url=url)) if each.name == "postgresql.grants")


@pytest.mark.usefixtures("bound_role")
def test_a_migrated_database_lacks_no_right(ferryman_db: Database, ferryman_database_url: str) -> None:
    before = state(ferryman_db)
    assert chains.lost_rights(ferryman_db) == []
    assert migrate(ferryman_database_url, wanted=chains.owners()) == []
    assert state(ferryman_db) ^ before == set()
    assert grants(ferryman_database_url) is Status.OK


@pytest.mark.usefixtures("bound_role")
def test_migrate_grants_again_what_a_restore_without_grants_lost(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    before, restored = state(ferryman_db), f"{ferryman_db.info.dbname}_restored"
    url = stack.new_database(ferryman_database_url, restored)
    try:
        dump = [str(binaries() / "pg_dump"), "--no-acl", ferryman_database_url]
        text = subprocess.run(dump, check=True, capture_output=True, timeout=60).stdout
        restore = [str(binaries() / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", url]
        subprocess.run(restore, check=True, input=text, capture_output=True, timeout=60)
        with psycopg.connect(url, autocommit=True) as db:
            assert state(db) != before
            assert grants(url) is Status.FAILED
            assert migrate(url)
            assert state(db) ^ before == set()
            assert grants(url) is Status.OK
            assert migrate(url) == []
            missing = db.execute(
                "SELECT rolname FROM pg_roles WHERE rolname LIKE 'ferryman\\_%' "
                "AND NOT has_database_privilege(oid, current_database(), 'CONNECT')"
            )
            assert missing.fetchall() == []
    finally:
        stack.drop_database(ferryman_database_url, restored)


@pytest.mark.parametrize(
    "loss",
    [
        "REVOKE ALL ON ALL TABLES IN SCHEMA ferryman FROM ferryman_relay",
        "REVOKE USAGE ON SCHEMA ferryman FROM ferryman_monitor",
        "REVOKE SELECT (code) ON ferryman.inbox_rejected FROM ferryman_monitor",
        "REVOKE SELECT ON SEQUENCE ferryman.outbox_position_seq FROM ferryman_relay",
        "GRANT EXECUTE ON FUNCTION wallet.book TO PUBLIC",
        "DROP POLICY unbound ON ferryman.inbox; DROP POLICY read ON ferryman.saga_clock",
        "DROP POLICY payments ON ferryman.outbox_audit",
    ],
)
def test_a_single_lost_right_or_policy_comes_back(ferryman_db: Database, ferryman_database_url: str, loss: str) -> None:
    before = state(ferryman_db)
    ferryman_db.execute(loss.encode())
    assert state(ferryman_db) != before
    assert grants(ferryman_database_url) is Status.FAILED
    migrate(ferryman_database_url)
    assert state(ferryman_db) ^ before == set()


def test_a_migration_leaves_grants_of_administrators_and_closed_doors(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    ferryman_db.execute("GRANT SELECT ON ferryman.outbox_key TO ferryman_monitor")
    name = sql.Identifier(ferryman_db.info.dbname)
    ferryman_db.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM ferryman_relay, PUBLIC").format(name))
    before = state(ferryman_db)
    migrate(ferryman_database_url)
    assert state(ferryman_db) ^ before == set()
    query = "SELECT has_database_privilege('ferryman_relay', current_database(), 'CONNECT')"
    assert ferryman_db.execute(query).fetchone() == (False,)


def test_a_bound_role_that_does_not_exist_is_reported(ferryman_db: Database, ferryman_database_url: str) -> None:
    ferryman_db.execute("INSERT INTO ferryman.bound_name VALUES ('consumer', 'shop', 'nobody_made_it')")
    found = next(
        each for each in examine(Settings(database_url=ferryman_database_url)) if each.name == "postgresql.grants"
    )
    assert found.status is Status.FAILED
    assert "nobody_made_it" in str(found.remedy)
