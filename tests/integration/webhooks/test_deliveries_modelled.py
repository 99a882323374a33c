"""Deliveries on real tables, driven at random: whatever comes in whatever order, the document's rules hold."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferryman import Received, use_schemas
from ferryman.schemas import active
from ferryman.services.webhooks.machine import FAILED, SUCCEEDED
from support.webhooking import Database, DeliveryDesk, publish, stray_reasons, subscribe, told

STEPS = ("event", "event", "due", "succeed", "fail", "fail", "deliver", "deliver", "lose", "repeat", "forge", "limit",
         "disable", "enable")  # fmt: skip

# Each query returns the deliveries that break a rule.
RULES = {
    "5.2: InProgress has exactly one job whose result is not applied": """
        SELECT s.id FROM webhooks.webhook_delivery_sagas s WHERE s.status = 'InProgress' AND 1 <> (
            SELECT count(*) FROM webhooks.webhook_delivery_jobs j
            WHERE j.saga_id = s.id AND j.attempt > s.attempt_count)
    """,
    "7.1: only InProgress has an active job, and one": """
        SELECT j.saga_id FROM webhooks.webhook_delivery_jobs j
        JOIN webhooks.webhook_delivery_sagas s ON s.id = j.saga_id
        WHERE j.status IN ('Pending', 'Leased')
        GROUP BY 1 HAVING count(*) > 1 OR min(s.status::text) <> 'InProgress'
    """,
    "6.4: each attempt that counts is a job that is over, once": """
        SELECT s.id FROM webhooks.webhook_delivery_sagas s WHERE s.attempt_count <> (
            SELECT count(*) FROM webhooks.webhook_delivery_jobs j WHERE j.saga_id = s.id
            AND j.attempt <= s.attempt_count AND j.status IN ('Completed', 'Failed'))
    """,
    "8.2: Completed by its last job, and only then": """
        SELECT s.id FROM webhooks.webhook_delivery_sagas s WHERE (s.status = 'Completed') <> EXISTS (
            SELECT FROM webhooks.webhook_delivery_jobs j WHERE j.saga_id = s.id AND j.status = 'Completed'
            AND j.attempt = s.attempt_count)
    """,
    "8.1: DeadLettered with its dead letter, and only then": """
        SELECT s.id FROM webhooks.webhook_delivery_sagas s LEFT JOIN webhooks.dead_letters d ON d.saga_id = s.id
        WHERE (s.status = 'DeadLettered') <> (d.id IS NOT NULL) OR d.attempts <> s.attempt_count
           OR d.error_code <> s.final_error_code
    """,
    "an event for each delivery that is over": """
        SELECT s.id FROM webhooks.webhook_delivery_sagas s WHERE (s.status IN ('Completed', 'DeadLettered'))::int <> (
            SELECT count(*) FROM ferryman.outbox o WHERE o.topic = 'webhooks.events' AND o.key = s.id::text)
    """,
}
BROKEN = " UNION ALL ".join(f"SELECT '{rule}', broken.* FROM ({query}) broken" for rule, query in RULES.items())


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


def active_ones(db: Database) -> list[int]:
    found = db.execute(
        "SELECT saga_id FROM webhooks.webhook_delivery_jobs WHERE status = 'Pending' ORDER BY saga_id"
    ).fetchall()
    return [saga for (saga,) in found]


def take(desk: DeliveryDesk, subscription: int, step: str, pick: int, results: list[Received]) -> None:
    """Take one step of a delivery or of its results; `pick` chooses among what there is."""
    asked = active_ones(desk.db)
    match step:
        case "due":
            desk.due()
        case "succeed" | "fail" if asked:
            results.append(desk.end(asked[pick % len(asked)], None if step == "succeed" else f"CODE_{pick}"))
        case "deliver" if results:
            desk.apply(results.pop(pick % len(results)))
        case "lose" if results:
            results.pop(pick % len(results))
        case "repeat" if results:
            desk.apply(*[results[pick % len(results)]] * 2)
        case "forge" if results:
            data = dict(results[pick % len(results)].data)
            kind = FAILED if "error_code" not in data else SUCCEEDED
            assert desk.apply(told(kind, {**data, "error_code": "FORGED"})) == ["FORGED"]
        case _:
            change(desk, subscription, step, pick)


def change(desk: DeliveryDesk, subscription: int, step: str, pick: int) -> None:
    """Record an event, or change the subscription."""
    update = f"UPDATE webhooks.subscriptions SET %s WHERE id = {subscription}"
    match step:
        case "event":
            publish(desk.db, event_type=str(subscription))
            desk.route()
        case "limit":
            desk.db.execute(update % f"max_retry_limit = {1 + pick % 3}")
        case "disable" | "enable":
            desk.db.execute(update % f"active = {step == 'enable'}")


@pytest.mark.prove
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), min_size=10, max_size=30))
def test_whatever_comes_in_whatever_order_the_rules_hold(desk: DeliveryDesk, steps: list[tuple[str, int]]) -> None:
    """N7, N8: and in the end, when everything is looked at again, every delivery is over."""
    row = desk.db.execute("SELECT coalesce(max(id), 0) + 1 FROM webhooks.subscriptions").fetchone()
    assert row is not None
    subscription = subscribe(desk.db, "https://a.example", str(row[0]), max_retry_limit=2)
    results: list[Received] = []
    for step, pick in steps:
        take(desk, subscription, step, pick, results)
        assert desk.db.execute(BROKEN).fetchall() == [], step
    while desk.due():
        for saga in active_ones(desk.db):
            desk.end(saga, "GONE")
    left = desk.db.execute(
        "SELECT count(*) FROM webhooks.webhook_delivery_sagas WHERE status NOT IN ('Completed', 'DeadLettered')"
    ).fetchone()
    assert left == (0,)
    assert {why for _, why in stray_reasons(desk.db)} <= {"LATE", "FORGED"}
