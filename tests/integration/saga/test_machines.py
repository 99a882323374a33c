"""N7: for every machine, the database itself allows its transitions and refuses all others."""

import re
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferryman.runtime.system import load
from ferryman.saga.answers import Key
from ferryman.saga.guards import check
from ferryman.saga.machine import Machine
from ferryman.services import systems
from ferryman.testing import stack
from support.deliveries import DELIVERY, JOB, TABLES

Database = psycopg.Connection[tuple[Any, ...]]

# How a row of each machine's table begins.
BEGIN = {
    "payment": "INSERT INTO payments.requests (uuid, wallet_id, amount, currency, due_at) "
    "VALUES (%s, gen_random_uuid(), 1, 'EUR', now())",
    "delivery": "INSERT INTO hooks.webhook_delivery_sagas (id, next_attempt_at) VALUES (%s, now())",
    "webhook_delivery": "WITH e AS (INSERT INTO webhooks.events (type, payload) VALUES ('t', '') RETURNING id), s AS ("
    "INSERT INTO webhooks.subscriptions (endpoint, event_types) VALUES ('https://a.example', '{t}') RETURNING id) "
    "INSERT INTO webhooks.webhook_delivery_sagas (id, event_id, subscription_id, next_attempt_at) "
    "VALUES (%s, (SELECT id FROM e), (SELECT id FROM s), now())",
    "review_job": "INSERT INTO reviews.jobs (id, idempotency_key, changelist_id, review_version, due_at) "
    "VALUES (%s, gen_random_uuid(), gen_random_uuid(), 1, now())",
    "delivery_job": "INSERT INTO hooks.webhook_delivery_jobs (id, next_attempt_at) VALUES (%s, now())",
}
NUMBERS = count(1)
OURS = [load(each) for system in systems() for each in system.machines]


@pytest.fixture(params=(*OURS, DELIVERY, JOB), ids=lambda each: each.name, scope="module")
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.param
    return found


@pytest.fixture(scope="module")
def db(machine: Machine, ferryman_postgres: str) -> Iterator[Database]:
    name = f"ferryman_machine_{machine.name}_{uuid4().hex[:12]}"
    url = stack.new_database(ferryman_postgres, name)
    stack.migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        if machine in (DELIVERY, JOB):
            connection.execute(TABLES)
        yield connection
    stack.drop_database(ferryman_postgres, name)


def new_key(machine: Machine) -> Key:
    return uuid4() if machine.key_type == "uuid" else next(NUMBERS)


def begun(db: Database, machine: Machine) -> Key:
    key = new_key(machine)
    db.execute(BEGIN[machine.name], (key,))
    return key


def go(db: Database, machine: Machine, key: Key, state: str) -> bool:
    """Return True if the database allows the change."""
    ours, due = machine.columns, "NULL" if state in machine.terminals else "now()"
    try:
        with db.transaction():
            db.execute(
                f"UPDATE {machine.table} SET {ours.state} = %s, {ours.due_at} = {due} WHERE {machine.key} = %s",
                (state, key),
            )
    except psycopg.errors.IntegrityError:
        return False
    return True


def path(machine: Machine, state: str) -> list[str]:
    """Return the shortest path to a state."""
    ways = deque([[machine.initial]])
    while ways:
        way = ways.popleft()
        if way[-1] == state:
            return way[1:]
        ways.extend([*way, to] for to in machine.states[way[-1]].to if to not in way)
    raise AssertionError(f"no way leads to {state}")


def test_each_way_is_allowed_and_nothing_else_is(db: Database, machine: Machine) -> None:
    for old in machine.states:
        for new in machine.states:
            key = begun(db, machine)
            assert all(go(db, machine, key, each) for each in path(machine, old))
            assert go(db, machine, key, new) == machine.may(old, new), (old, new)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_database_agrees_with_the_model(db: Database, machine: Machine, data: st.DataObject) -> None:
    key, state = begun(db, machine), machine.initial
    for new in data.draw(st.lists(st.sampled_from(list(machine.states)), max_size=12)):
        assert go(db, machine, key, new) == machine.may(state, new)
        state = new if machine.may(state, new) else state
        row = db.execute(
            f"SELECT {machine.columns.state} FROM {machine.table} WHERE {machine.key} = %s", (key,)
        ).fetchone()
        assert row == (state,)


def test_migrated_table_fits_its_machine(db: Database, machine: Machine) -> None:
    check(db, machine)


def test_a_row_begins_in_the_first_state_and_keeps_its_key(db: Database, machine: Machine) -> None:
    key, ours = begun(db, machine), machine.columns
    other = next(state for state in machine.states if state != machine.initial)
    for forbidden in (
        BEGIN[machine.name]
        .replace(f"{ours.due_at})", f"{ours.due_at}, {ours.state})")
        .replace("now())", f"now(), '{other}')"),
        f"UPDATE {machine.table} SET {machine.key} = %s",
        f"DELETE FROM {machine.table} WHERE {machine.key} <> %s OR true",
    ):
        with pytest.raises(psycopg.errors.IntegrityError):
            db.execute(forbidden, (new_key(machine),))
    with pytest.raises(psycopg.errors.IntegrityError):
        db.execute(f"TRUNCATE {machine.table} CASCADE")
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute(f"UPDATE {machine.table} SET {ours.due_at} = NULL WHERE {machine.key} = %s", (key,))


def test_finished_rows_are_found_by_an_index_that_has_no_others(db: Database, machine: Machine) -> None:
    """N12: an archive reads what it takes, however many rows there are; a row enters the index when it is over."""
    ours, over = machine.columns, ", ".join(f"'{each}'" for each in machine.terminals)
    with db.transaction(force_rollback=True):
        db.execute("SET LOCAL enable_seqscan = off")
        plan = db.execute(
            f"EXPLAIN SELECT {machine.key} FROM {machine.table} WHERE {ours.state} IN ({over}) "
            f"AND {ours.changed_at} < now() ORDER BY {ours.changed_at} LIMIT 10 FOR UPDATE SKIP LOCKED"
        ).fetchall()
    assert f"Index Scan using {machine.name}_over" in str(plan)
    assert "Sort" not in str(plan)
    predicate = db.execute(
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = %s::regclass",
        (f"{machine.schema}.{machine.name}_over",),
    ).fetchone()
    assert set(re.findall(r"'(\w+)'", str(predicate))) == set(machine.terminals)


def test_finished_rows_are_archived_and_the_audit_remains(db: Database, machine: Machine) -> None:
    over, open_ = begun(db, machine), begun(db, machine)
    assert all(go(db, machine, over, each) for each in path(machine, machine.terminals[0]))
    archive = f"{machine.schema}.{machine.archive}"
    given_out = db.execute(f"SELECT {archive}(now() + '1 hour', 'ada', 'tidying', 1000000)").fetchall()
    keys = {str(row[0][machine.key]) for row in given_out}
    assert str(over) in keys
    assert str(open_) not in keys
    left = db.execute(
        f"SELECT count(*) FROM {machine.table} WHERE {machine.columns.state} = ANY (%s)", (list(machine.terminals),)
    )
    assert left.fetchone() == (0,)
    audit = db.execute(
        "SELECT who, act, reason, entries FROM ferryman.outbox_audit ORDER BY at DESC LIMIT 1"
    ).fetchone()
    assert audit == ("ada", "archive", "tidying", len(keys))
    with pytest.raises(psycopg.errors.IntegrityError):
        db.execute(f"DELETE FROM {machine.table}")
