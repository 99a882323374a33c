"""Rule 10.1: no statement of the orchestrator scans a table, however many deliveries there are."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from ferryman import use_schemas
from ferryman.relay.described.couriers import courier_service
from ferryman.relay.described.table import claim_values
from ferryman.relay.described.way_out import Room
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.services.webhooks.orchestrator import COMPLETE, MEASURE, PENDING, ROUTE, beginning
from ferryman.services.webhooks.worker import worker
from support.webhooking import Database, DeliveryDesk, publish, subscribe

LARGE = """
INSERT INTO webhooks.events (type, payload) SELECT 't', '' FROM generate_series(1, 1000);
INSERT INTO webhooks.subscriptions (endpoint, event_types)
SELECT 'https://a.example', '{t}' FROM generate_series(1, %(rows)s / 1000);
INSERT INTO webhooks.webhook_delivery_sagas (event_id, subscription_id, next_attempt_at)
SELECT e.id, s.id, now() + interval '1 h' FROM webhooks.events e, webhooks.subscriptions s WHERE s.id > 1;
INSERT INTO webhooks.webhook_delivery_jobs (saga_id, event_id, subscription_id, attempt)
SELECT id, event_id, subscription_id, 1 FROM webhooks.webhook_delivery_sagas;
INSERT INTO webhooks.dead_letters (saga_id, event_id, subscription_id, attempts, error_code, requeued_as)
SELECT id, event_id, subscription_id, 1, 'GONE', id FROM webhooks.webhook_delivery_sagas;
UPDATE webhooks.webhook_delivery_sagas SET status = 'InProgress' WHERE id % 2 = 0;
UPDATE webhooks.webhook_delivery_sagas SET status = 'Completed', next_attempt_at = NULL WHERE id % 4 = 0;
VACUUM ANALYZE
"""

JOBS = """
INSERT INTO webhooks.webhook_delivery_jobs (saga_id, event_id, subscription_id, attempt, status)
SELECT n, 1, %(subscription)s, 1, %(status)s FROM generate_series(%(first)s::bigint, %(last)s) n
"""


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


def plan(db: Database, statement: str, values: dict[str, Any]) -> str:
    with db.transaction(force_rollback=True):
        return "\n".join(line for (line,) in db.execute(f"EXPLAIN (ANALYZE) {statement}", values).fetchall())


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.prove)])
def test_rule_10_1_transitions_and_queries_by_time_scan_no_table(desk: DeliveryDesk, rows: int) -> None:
    db, store = desk.db, desk.engine.store
    subscribe(db, "https://a.example", "u")
    for statement in LARGE.split(";"):
        db.execute(statement, {"rows": rows} if "%(" in statement else None)
    due = "UPDATE webhooks.webhook_delivery_sagas SET next_attempt_at = now() WHERE id <= %s AND status <> 'Completed'"
    db.execute(due, (rows // 100,))
    db.execute("INSERT INTO webhooks.events (type, payload) VALUES ('u', '')")
    named = {"machine": desk.engine.machine.name, "most": 500}
    timed = {name: plan(db, getattr(store, name), named) for name in ("_due", "_next_due", "_overdue", "_count")}
    for name, said in timed.items():
        assert re.search(r"(on|using) idx_saga_status_retry", said), (name, said)
    limits = {"limit": 8, "base": 1.0, "cap": 2.0, "ids": list(range(1, 51)), "subscriptions": [2] * 50}
    others = {
        "lock": plan(db, store._lock, {"keys": list(range(1, 51))}),
        "route": plan(db, ROUTE.replace("%", "%%"), {}),
        "complete": plan(db, COMPLETE, limits),
    }
    others["pending"] = plan(db, PENDING, {"most": 500})
    measured = plan(db, MEASURE, {})
    assert "dead_letters_waiting" in measured, measured
    for name, said in (timed | others | {"measure": measured}).items():
        assert not re.search(r"Seq Scan on (webhook_|events)", said), (name, said)


def test_claim_reads_few_jobs_after_statistics_of_a_quiet_time(desk: DeliveryDesk, ferryman_database_url: str) -> None:
    """N10: to the planner no job is pending then, so any index of the pending ones seems as good."""
    for n in range(1, 3):
        subscribe(desk.db, f"https://{n}.example")
    desk.db.execute(JOBS, {"first": 1, "last": 3000, "subscription": 1, "status": "Completed"})
    desk.db.execute("VACUUM ANALYZE webhooks.webhook_delivery_jobs")
    desk.db.execute(JOBS, {"first": 3001, "last": 6000, "subscription": 1, "status": "Pending"})
    desk.db.execute(JOBS, {"first": 6001, "last": 6001, "subscription": 2, "status": "Pending"})
    service = courier_service(worker(Settings()), Settings(database_url=SecretStr(ferryman_database_url)))
    with service.opened() as table:
        said = plan(desk.db, table.statements["claim_fair"].decode(), claim_values(Room(16, each=8)))
    claimed, *read = [int(rows) for rows in re.findall(r"actual time=\S+ rows=(\d+)", said)]
    assert claimed == 9
    assert max(read) <= 16, said


def test_a_delivery_is_of_an_event_and_the_event_stays(desk: DeliveryDesk) -> None:
    """Triggers do what a foreign key would: one that looks at each row takes most of the time of routing."""
    saga = desk.routed()
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="event that does not exist"):
        desk.db.execute(
            "INSERT INTO webhooks.webhook_delivery_sagas (event_id, subscription_id, next_attempt_at) "
            "SELECT n, 1, now() FROM generate_series(2, 3) n"
        )
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="the event 1 has deliveries"):
        desk.db.execute("DELETE FROM webhooks.events")
    desk.apply(desk.end(saga))
    desk.db.execute("SELECT webhooks.archive(now() + '1 s', 'ada', 'tidying')")
    assert desk.db.execute("DELETE FROM webhooks.events").rowcount == 1
    assert publish(desk.db) == 2


def test_rule_7_2_first_jobs_are_made_at_once_though_time_stands_still(desk: DeliveryDesk) -> None:
    """In portions; and one that cannot be moved stops no other."""
    db, chore = desk.db, beginning(desk.settings)
    for _ in range(3):
        subscribe(db, "https://a.example")
    publish(db)
    desk.route()
    db.execute(
        "INSERT INTO ferryman.saga_clock (machine, heard_at) VALUES ('webhook_delivery', now() - interval '1 h')"
    )
    assert desk.due(hastened=False) == 0
    job = "INSERT INTO webhooks.webhook_delivery_jobs (saga_id, attempt, event_id, subscription_id) VALUES (1, 1, 1, 1)"
    db.execute(job)
    assert chore.run_once(db, Settings()) is False
    assert desk.stands(2) == ("Pending", 0, None)
    db.execute("UPDATE webhooks.webhook_delivery_sagas SET next_attempt_at = now() + interval '1 min' WHERE id = 1")
    assert chore.run_once(db, Settings()) is False
    assert [desk.stands(each)[0] for each in (1, 2, 3)] == ["Pending", "InProgress", "InProgress"]
    assert desk.jobs(2) == [(1, "Pending")]
