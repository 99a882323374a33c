"""The rights of each process's role: what it must not do, tried with a login that has the role alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import conninfo, sql

from ferryman.migrations import chains
from ferryman.testing import stack

Database = psycopg.Connection[tuple[Any, ...]]

WRITER, RELAY, CONSUMER, MONITOR = "ferryman_writer", "ferryman_relay", "ferryman_consumer", "ferryman_monitor"
WALLET, PAYMENTS = "ferryman_wallet", "ferryman_payments"
API, REPORTS = "ferryman_payments_api", "ferryman_payments_reports"
COURIER, RUNNER = "ferryman_courier", "ferryman_runner"
ROLES = (WRITER, RELAY, COURIER, RUNNER, CONSUMER, MONITOR, WALLET, PAYMENTS, API, REPORTS)

PLANTED = """
SELECT wallet.open('00000000-0000-0000-0000-000000000001', 'EUR', 900);
INSERT INTO payments.requests (uuid, wallet_id, amount, currency, due_at)
VALUES ('00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001', 100, 'EUR', 'infinity');
UPDATE payments.requests SET state = 'FAILED', due_at = NULL, changed_at = '2020-01-01';
INSERT INTO payments.requests (uuid, wallet_id, amount, currency, due_at)
VALUES ('00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000001', 100, 'EUR', 'infinity');
INSERT INTO payments.reference VALUES ('00000000-0000-0000-0000-000000000003', 'Invoice 17');
INSERT INTO payments.outbox (uuid, topic, key, type, payload) VALUES (gen_random_uuid(), 't', 'k', 't', 'secret');
SELECT ferryman.outbox_append('t', 'k', 't', 'secret', idempotency_key => 'mine');
INSERT INTO ferryman.outbox_audit (who, act, reason) VALUES ('ann', 'pause', 'r');
INSERT INTO ferryman.outbox_paused (topic, who, reason) VALUES ('orders', 'ann', 'r');
INSERT INTO ferryman.outbox_replay (who, reason, filter, last_position) VALUES ('ann', 'r', '{}', 0);
SELECT ferryman.bind('outbox', 'letters', 'ferryman_memos_worker');
INSERT INTO ferryman.described_paused (outbox, who, reason)
SELECT o, 'ann', 'r' FROM unnest('{hooks,letters,runner}'::text[]) o;
SELECT runner.enqueue('t', 'k', '{}');
INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome)
SELECT outbox, '1', now(), 'held' FROM ferryman.described_paused;
INSERT INTO ferryman.inbox (consumer, id, status, hash, type, topic, partition, "offset", results)
SELECT c, gen_random_uuid(), 'HANDLED', '', 't', 't', 0, 0, '[["t", "k", "t", "c2VjcmV0", "{}", "00000000", null]]'
FROM unnest('{wallet,payments,payments-fulfilments,shop}'::text[]) c;
INSERT INTO ferryman.inbox_rejected (consumer, topic, partition, "offset", id, hash, type, value, headers, code, error)
SELECT consumer, topic, partition, "offset", id, hash, type, 'secret', '[]', 'BUG', '' FROM ferryman.inbox;
INSERT INTO ferryman.inbox_start (consumer, topic, partition, owned) SELECT consumer, 't', 0, true FROM ferryman.inbox;
INSERT INTO ferryman.inbox_paused (consumer, who, reason) SELECT consumer, 'ann', 'r' FROM ferryman.inbox;
INSERT INTO ferryman.saga_stray (machine, message_id, saga_id, why, type, data, came_at)
SELECT m, gen_random_uuid(), gen_random_uuid(), 'LATE', 't', '{}', '2020-01-01'
FROM unnest('{payment,order}'::text[]) m;
INSERT INTO ferryman.saga_clock SELECT machine, now() FROM ferryman.saga_stray;
INSERT INTO ferryman.saga_silence SELECT machine, now(), now() FROM ferryman.saga_stray;
CREATE SCHEMA mine;
GRANT ALL ON SCHEMA mine TO PUBLIC;
"""

MOVE = "UPDATE payments.requests SET state = 'SUCCEEDED', due_at = NULL WHERE state = 'DEDUCTING'"
RECORD = (
    "INSERT INTO payments.requests (uuid, wallet_id, amount, currency, due_at) "
    "VALUES (gen_random_uuid(), gen_random_uuid(), 1, 'EUR', 'infinity')"
)
BOOK = (
    "SELECT wallet.book(now(), '{%s}', '{s}', '{%s}', '{00000000-0000-0000-0000-000000000001}', '{NULL}', '{5}', "
    "'{EUR}', '{905}')"
)
LEDGER = (
    "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, balance, currency, decided_at) "
    "VALUES (gen_random_uuid(), 's', 'REFUND', '00000000-0000-0000-0000-000000000001', 5, 905, 'EUR', '2020-01-01')"
)
DEDUCT = BOOK % (uuid4(), "DEDUCT")
LOCK = "SELECT wallet.lock('{00000000-0000-0000-0000-000000000001}')"
READ_ENTRY, READ_KEYS = "SELECT payload FROM ferryman.outbox", "SELECT idempotency_key FROM ferryman.outbox_key"
APPEND = "SELECT ferryman.outbox_append_many('{t}', '{k}', '{t}', '{x}', idempotency_keys => '{%s}')"
FORGET_STRAYS = "SELECT FROM ferryman.saga_forget_strays('%s', 0, 10) n WHERE n > 0"
PLACE_RECEIPT = (
    'INSERT INTO ferryman.inbox (consumer, id, status, hash, type, topic, partition, "offset") '
    "VALUES ('%s', gen_random_uuid(), 'HANDLED', '', 't', 't', 0, 0)"
)
PLACE_STRAY = (
    "INSERT INTO ferryman.saga_stray (machine, message_id, saga_id, why, type, data) "
    "VALUES ('%s', gen_random_uuid(), gen_random_uuid(), 'LATE', 't', '{}')"
)
PLACE_ATTEMPT = (
    "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) VALUES ('%s', '2', now(), 'delivered')"
)
AUDIT = "INSERT INTO ferryman.outbox_audit (who, act, reason, filter) VALUES ('ann', '%s', 'r', '%s')"

# Functions and tables that PostgreSQL finds before its own, for the act that follows.
BELONGS = """
CREATE FUNCTION mine.pg_has_role(regrole, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SET search_path = mine, pg_catalog;
"""
OWNS = """
CREATE TEMP TABLE pg_class AS SELECT 'ferryman.{0}'::regclass::oid AS oid, to_regrole(current_user)::oid AS relowner;
{1};
SELECT FROM ferryman.{0} WHERE who = 'bob'
"""
SIGN = {
    "outbox_audit": "INSERT INTO ferryman.outbox_audit (who, act, reason) VALUES ('bob', 'pause', 'r')",
    "outbox_paused": "INSERT INTO ferryman.outbox_paused (topic, who, reason) VALUES ('t', 'bob', 'r')",
    "outbox_replay": "INSERT INTO ferryman.outbox_replay (who, reason, filter, last_position) "
    "VALUES ('bob', 'r', '{}', 0)",
    "described_paused": "INSERT INTO ferryman.described_paused (outbox, who, reason) VALUES ('o', 'bob', 'r')",
    "inbox_paused": "INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES ('new', 'bob', 'r')",
    "inbox_rejected": "UPDATE ferryman.inbox_rejected SET who = 'bob'",
}
"""By table: an act that writes a name."""

NOBODY = (
    "UPDATE ferryman.bound_name SET role = 'ferryman_consumer'",
    "UPDATE ferryman.version_engine SET version_num = 'x'",
    "INSERT INTO ferryman.outbox_key (type, idempotency_key, id) VALUES ('t', 'theirs', gen_random_uuid())",
    "INSERT INTO ferryman.outbox_audit (at, who, act, reason) VALUES ('2020-01-01', 'ann', 'pause', 'r')",
    "UPDATE ferryman.outbox_audit SET who = 'bob'",
    "DELETE FROM ferryman.outbox_audit",
    "DELETE FROM ferryman.saga_stray",
    "SELECT payments.archive(now(), 'ann', 'r')",
    RECORD.replace("due_at)", "due_at, created_at)").replace("'infinity')", "'infinity', now())"),
    "SELECT wallet.open(gen_random_uuid(), 'EUR', 1)",
    "UPDATE wallet.wallets SET balance = 901",
    "INSERT INTO wallet.wallets (id, currency, balance) VALUES (gen_random_uuid(), 'EUR', 5)",
    LEDGER,
)
"""The acts that no process may do."""


def named(*names: str) -> list[str]:
    """Return the acts on what goes by the names of other consumers."""
    return [
        act
        for name in names
        for act in (
            f"SELECT status FROM ferryman.inbox WHERE consumer = '{name}'",
            f"SELECT id FROM ferryman.inbox_receipts WHERE consumer = '{name}'",
            f"UPDATE ferryman.inbox SET status = 'REOPENED' WHERE consumer = '{name}'",
            f"DELETE FROM ferryman.inbox WHERE consumer = '{name}'",
            PLACE_RECEIPT % name,
            f"SELECT value FROM ferryman.inbox_rejected WHERE consumer = '{name}'",
            f"UPDATE ferryman.inbox_rejected SET status = 'DISCARDED' WHERE consumer = '{name}'",
            f"DELETE FROM ferryman.inbox_rejected WHERE consumer = '{name}'",
            f"UPDATE ferryman.inbox_start SET owned = false WHERE consumer = '{name}'",
            f"DELETE FROM ferryman.inbox_paused WHERE consumer = '{name}'",
            AUDIT % ("discard", f'{{"consumer": "{name}"}}'),
            f"{BELONGS} SELECT status FROM ferryman.inbox WHERE consumer = '{name}'",
            f"{BELONGS} SELECT value FROM ferryman.inbox_rejected WHERE consumer = '{name}'",
            f"{BELONGS} DELETE FROM ferryman.inbox WHERE consumer = '{name}'",
            BELONGS + AUDIT % ("discard", f'{{"consumer": "{name}"}}'),
        )
    ]


def machines(*names: str) -> list[str]:
    """Return the acts on other machines."""
    return [
        act
        for name in names
        for act in (
            f"SELECT data FROM ferryman.saga_stray WHERE machine = '{name}'",
            PLACE_STRAY % name,
            FORGET_STRAYS % name,
            f"UPDATE ferryman.saga_clock SET heard_at = 'infinity' WHERE machine = '{name}'",
            f"DELETE FROM ferryman.saga_silence WHERE machine = '{name}'",
            f"{BELONGS} UPDATE ferryman.saga_clock SET heard_at = 'infinity' WHERE machine = '{name}'",
        )
    ]


def outboxes(*names: str) -> list[str]:
    """Return the acts on other described outboxes."""
    return [
        act
        for name in names
        for act in (
            f"SELECT excerpt FROM ferryman.outbox_attempt WHERE outbox = '{name}'",
            f"DELETE FROM ferryman.outbox_attempt WHERE outbox = '{name}'",
            PLACE_ATTEMPT % name,
            *pauses(name),
            AUDIT % ("replay", f'{{"outbox": "{name}"}}'),
            f"{BELONGS} DELETE FROM ferryman.outbox_attempt WHERE outbox = '{name}'",
        )
    ]


def pauses(name: str) -> list[str]:
    return [
        f"DELETE FROM ferryman.described_paused WHERE outbox = '{name}'",
        f"INSERT INTO ferryman.described_paused VALUES ('{name}', 'here', now(), 'ann', 'r')",
    ]


def unsigned(*tables: str) -> list[str]:
    """Return the acts that write a name without the login that it came from."""
    return [OWNS.format(table, SIGN[table]) for table in tables]


READ_REFERENCE = "SELECT * FROM payments.reference"
CHANGE_PAUSE = "UPDATE ferryman.described_paused SET who = 'bob'"
CHANGE_ATTEMPT = "UPDATE ferryman.outbox_attempt SET outcome = 'delivered'"
SETTLE = AUDIT % ("reconcile", f'{{"settle": "{uuid4()}"}}')
INBOX = [PLACE_RECEIPT % "shop", "SELECT status FROM ferryman.inbox", "DELETE FROM ferryman.inbox_rejected"]
FORBIDDEN: dict[str, Sequence[str]] = {
    WRITER: (READ_ENTRY, READ_KEYS, MOVE, RECORD, DEDUCT, LOCK, SETTLE, *INBOX),
    RELAY: (MOVE, RECORD, DEDUCT, LOCK, SETTLE, READ_REFERENCE, APPEND % "k2", *INBOX,
            *unsigned("outbox_audit", "outbox_paused", "outbox_replay", "described_paused"), CHANGE_PAUSE,
            *pauses("letters"),
            "UPDATE ferryman.outbox_paused SET who = 'bob'", "UPDATE ferryman.outbox_replay SET who = 'bob'"),
    COURIER: (READ_ENTRY, READ_KEYS, MOVE, RECORD, DEDUCT, LOCK, SETTLE, READ_REFERENCE, APPEND % "k2", *INBOX,
              *unsigned("described_paused"), CHANGE_PAUSE, CHANGE_ATTEMPT, AUDIT % ("replay", "{}"),
              AUDIT % ("requeue", '{"outbox": "hooks"}'), "SELECT payload FROM runner.event_outbox",
              *outboxes("letters", "runner")),
    RUNNER: (READ_ENTRY, READ_KEYS, MOVE, RECORD, DEDUCT, LOCK, SETTLE, READ_REFERENCE, APPEND % "k2", *INBOX,
             *unsigned("described_paused"), CHANGE_PAUSE, CHANGE_ATTEMPT, *outboxes("letters", "hooks"),
             "UPDATE runner.event_outbox SET payload = '[]'", "DELETE FROM runner.event_outbox",
             "SELECT runner.enqueue('t', 'k2', '{}')"),
    CONSUMER: (READ_ENTRY, READ_KEYS, MOVE, RECORD, DEDUCT, LOCK, SETTLE, READ_REFERENCE,
               *named("wallet", "payments"), *machines("payment"), *unsigned("inbox_paused", "inbox_rejected")),
    MONITOR: (READ_ENTRY, READ_KEYS, MOVE, RECORD, DEDUCT, LOCK, SETTLE, READ_REFERENCE, APPEND % "k2",
              "SELECT results FROM ferryman.inbox", "SELECT value FROM ferryman.inbox_rejected",
              "SELECT payload FROM payments.outbox", "DELETE FROM ferryman.inbox_rejected", PLACE_RECEIPT % "shop"),
    WALLET: (READ_ENTRY, READ_KEYS, MOVE, RECORD, SETTLE, READ_REFERENCE, "SELECT * FROM payments.requests",
             *named("payments", "shop"), *machines("payment", "order")),
    PAYMENTS: (READ_ENTRY, READ_KEYS, RECORD, DEDUCT, LOCK, READ_REFERENCE, "SELECT * FROM wallet.wallets",
               "UPDATE payments.requests SET amount = 1 WHERE state = 'DEDUCTING'",
               *named("wallet", "shop"), *machines("order")),
    API: (READ_ENTRY, READ_KEYS, MOVE, DEDUCT, LOCK, SETTLE, *INBOX),
    REPORTS: (READ_ENTRY, READ_KEYS, RECORD, DEDUCT, LOCK, SETTLE, READ_REFERENCE, *INBOX),
}  # fmt: skip

OPENED = """
GRANT ALL ON SCHEMA ferryman, payments, wallet, runner TO {0};
GRANT ALL ON ALL TABLES IN SCHEMA ferryman, payments, wallet, runner TO {0};
GRANT ALL ON ALL FUNCTIONS IN SCHEMA ferryman, payments, wallet, runner TO {0};
UPDATE ferryman.bound_name SET role = '{0}';
GRANT ferryman_consumer, ferryman_courier TO {0};
ALTER TABLE ferryman.outbox_audit DISABLE ROW LEVEL SECURITY;
DROP POLICY not_ended ON ferryman.outbox_attempt;
DROP POLICY not_tried ON ferryman.outbox_attempt;
ALTER TABLE ferryman.outbox_audit DISABLE TRIGGER signed;
ALTER TABLE ferryman.outbox_paused DISABLE TRIGGER signed;
ALTER TABLE ferryman.outbox_replay DISABLE TRIGGER signed;
ALTER TABLE ferryman.described_paused DISABLE TRIGGER signed;
ALTER TABLE ferryman.inbox_paused DISABLE TRIGGER signed;
ALTER TABLE ferryman.inbox_rejected DISABLE TRIGGER signed;
"""


@contextmanager
def logged_in(url: str, *roles: str) -> Iterator[Database]:
    """Connect with a login of these roles, and remove it at the end."""
    login = stack.login(url, f"test_{uuid4().hex[:8]}", *roles)
    with psycopg.connect(login) as connection:
        yield connection


def got_through(connection: Database, acts: Sequence[str]) -> list[str]:
    """Return those of the acts whose last statement had an effect, or read something; each is undone."""
    done = []
    for act in acts:
        try:
            cursor = connection.execute(act)
            while cursor.nextset():
                pass
            if cursor.rowcount > 0:
                done.append(act)
        except psycopg.errors.InsufficientPrivilege:
            pass
        connection.rollback()
    return done


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_do_what_its_process_does_not(ferryman_db: Database, ferryman_database_url: str, role: str) -> None:
    """N5: each act is refused, and gets through once everything is granted: it is the grant that forbids it."""
    ferryman_db.execute(PLANTED)
    acts = [*NOBODY, *FORBIDDEN[role]]
    with logged_in(ferryman_database_url, role) as connection:
        assert got_through(connection, acts) == []
        ferryman_db.execute(OPENED.format(connection.info.user))
        assert got_through(connection, acts) == acts


def test_a_migrated_database_lets_nobody_in_who_has_no_right_in_it(ferryman_postgres: str) -> None:
    """Roles are the server's: a login for one database must not get into another, unless it was let in."""
    names = [f"roles_{uuid4().hex[:12]}" for _ in range(2)]
    urls = [stack.new_database(ferryman_postgres, name) for name in names]
    stack.migrate(urls[1], ["engine", "wallet"])
    outsider, owner, wallet = (
        stack.login(urls[0], f"test_{uuid4().hex[:8]}", *roles) for roles in ((MONITOR,), (), (WALLET,))
    )
    with psycopg.connect(urls[0], autocommit=True) as db:
        user = sql.Identifier(str(conninfo.conninfo_to_dict(owner)["user"]))
        db.execute(sql.SQL("CREATE TABLE theirs (); GRANT SELECT ON theirs TO {}").format(user))
        stack.migrate(urls[0], ["engine", "payments"])
        assert chains.doors(db) == []
    for url, name, lets_in in (
        (outsider, names[0], True),
        (owner, names[0], True),
        (wallet, names[0], False),
        (wallet, names[1], True),
        (owner, names[1], False),
    ):
        assert connects(conninfo.make_conninfo(url, dbname=name)) is lets_in, (url, name)
    with psycopg.connect(outsider) as db:
        [(what, _)] = chains.doors(db)
        assert names[1] in what
    for name in names:
        stack.drop_database(ferryman_postgres, name)


def connects(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


NAMED = """
SELECT relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE relnamespace = 'ferryman'::regnamespace AND relkind = 'r' AND attname = 'who' ORDER BY relname
"""
COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
WHERE attrelid = 'ferryman.inbox_rejected'::regclass AND attnum > 0 AND attgenerated = '' AND attidentity = ''
"""
REJECT = """
INSERT INTO ferryman.inbox_rejected ({0})
SELECT {0} FROM jsonb_populate_record(NULL::ferryman.inbox_rejected, (
    SELECT to_jsonb(r) || '{{"offset": 1, "who": "bob"}}' FROM ferryman.inbox_rejected r WHERE consumer = 'shop'
))
"""


def test_an_act_is_signed_with_the_login_it_came_from(ferryman_db: Database, ferryman_database_url: str) -> None:
    """Whatever name a person gives, the database writes down whose login it was, in every table that has a name."""
    ferryman_db.execute(PLANTED)
    assert [table for (table,) in ferryman_db.execute(NAMED).fetchall()] == sorted(SIGN)
    with logged_in(ferryman_database_url, CONSUMER, RELAY) as connection:
        [(columns,)] = connection.execute(COLUMNS).fetchall()
        for table, act in [*SIGN.items(), ("inbox_rejected", REJECT.format(columns))]:
            connection.execute(act)
            rows = connection.execute(f"SELECT who FROM ferryman.{table} WHERE who LIKE 'bob%'").fetchall()
            assert rows == [(f"bob ({connection.info.user})",)], table
            connection.rollback()
