"""Section 9 and 4.2 of the document: PostgreSQL refuses each role what its process must not do."""

from collections.abc import Sequence
from uuid import uuid4

import psycopg
import pytest

from ferryman.services.webhooks.dead_letters import jobs_of
from ferryman.services.webhooks.deliveries import listed
from ferryman.services.webhooks.subscriptions import SubscriptionRules, change, rotate_secret
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings
from ferryman.testing import stack
from support.webhooking import MANAGER, MONITOR, OPERATOR, ORCHESTRATOR, WORKER, WRITER, Database, publish, subscribe

SAGA, JOB = "webhooks.webhook_delivery_sagas", "webhooks.webhook_delivery_jobs"
MOVE_SAGA = f"UPDATE {SAGA} SET status = 'InProgress'"
MAKE_SAGA = f"INSERT INTO {SAGA} (event_id, subscription_id, next_attempt_at) VALUES (1, 1, now())"
REQUEUE = (
    f"INSERT INTO {SAGA} (event_id, subscription_id, generation, requeued_from, next_attempt_at) "
    "VALUES (1, 1, 1, 1, now())"
)
CALL_REQUEUE, CALL_DISCARD = (f"SELECT webhooks.{act}('{{1}}', 'ann', 'r')" for act in ("requeue", "discard"))
DELETE_SAGA = f"DELETE FROM {SAGA}"
MAKE_JOB = f"INSERT INTO {JOB} (saga_id, event_id, subscription_id, attempt) VALUES (1, 1, 1, 1)"
END_JOB = f"UPDATE {JOB} SET status = 'Completed'"
DELETE_JOB = f"DELETE FROM {JOB}"
CHANGE_EVENT, DELETE_EVENT = "UPDATE webhooks.events SET type = 'x'", "DELETE FROM webhooks.events"
MAKE_EVENT = "INSERT INTO webhooks.events (type, payload) VALUES ('t', '')"
MAKE_TEST = "INSERT INTO webhooks.events (type, payload, only_for) VALUES ('t', '', 1)"
SEND_TEST = "SELECT webhooks.send_test(1)"
READ_KEYS = "SELECT idempotency_key FROM webhooks.events"
READ_PAYLOAD = "SELECT payload FROM webhooks.events"
CHANGE_SUBSCRIPTION, DELETE_SUBSCRIPTION = (
    "UPDATE webhooks.subscriptions SET active = false",
    "DELETE FROM webhooks.subscriptions",
)
READ_SECRET, MAKE_SECRET = (
    "SELECT secret FROM webhooks.subscription_secrets",
    "INSERT INTO webhooks.subscription_secrets (subscription_id, secret) VALUES (1, repeat('x', 24))",
)
MAKE_LETTER = (
    "INSERT INTO webhooks.dead_letters (saga_id, event_id, subscription_id, attempts, error_code) "
    "VALUES (1, 1, 1, 1, 'GONE')"
)
CHANGE_LETTER = "UPDATE webhooks.dead_letters SET attempts = 2"
QUEUE = "INSERT INTO webhooks.unrouted VALUES (1)"
ARCHIVE = "SELECT webhooks.archive(now(), 'ann', 'r')"
FORGE_ATTEMPT = (
    "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) "
    "VALUES ('webhook-worker', '1', now(), 'delivered')"
)
PAUSE_ORCHESTRATOR = "INSERT INTO ferryman.inbox_paused (consumer, who, reason) VALUES ('webhooks', 'ann', 'r')"
EVERY = (DELETE_SAGA, DELETE_JOB, CHANGE_EVENT, DELETE_EVENT, DELETE_SUBSCRIPTION, CHANGE_LETTER, QUEUE, ARCHIVE)
"""The acts that no process may do."""

FORBIDDEN: dict[str, Sequence[str]] = {
    ORCHESTRATOR: (
        MAKE_EVENT, SEND_TEST, READ_KEYS, READ_PAYLOAD, CHANGE_SUBSCRIPTION, READ_SECRET, MAKE_SECRET, END_JOB,
        FORGE_ATTEMPT,
        f"UPDATE {SAGA} SET event_id = 2", f"UPDATE {JOB} SET leased_at = now()",
        REQUEUE, CALL_REQUEUE, CALL_DISCARD,
    ),
    WORKER: (SEND_TEST, MOVE_SAGA, MAKE_SAGA, f"SELECT FROM {SAGA}", MAKE_JOB, MAKE_EVENT, CHANGE_SUBSCRIPTION,
             MAKE_SECRET, MAKE_LETTER, CALL_REQUEUE, CALL_DISCARD, f"UPDATE {JOB} SET saga_id = 2",
             f"UPDATE {JOB} SET attempt = 2"),
    OPERATOR: (SEND_TEST, READ_KEYS, MOVE_SAGA, MAKE_SAGA, REQUEUE, MAKE_JOB, END_JOB, MAKE_EVENT, READ_PAYLOAD,
               CHANGE_SUBSCRIPTION, READ_SECRET, MAKE_LETTER, FORGE_ATTEMPT),
    MANAGER: (CALL_REQUEUE, CALL_DISCARD, MOVE_SAGA, MAKE_SAGA, MAKE_JOB, END_JOB, MAKE_EVENT, MAKE_TEST, READ_PAYLOAD,
              READ_KEYS, MAKE_LETTER, "UPDATE webhooks.subscriptions SET enabled_at = now()",
              f"SELECT error FROM {JOB}", f"SELECT FROM {SAGA}",
              "UPDATE webhooks.subscription_secrets SET secret = repeat('x', 24)",
              FORGE_ATTEMPT, PAUSE_ORCHESTRATOR),
    WRITER: (SEND_TEST, MAKE_TEST, f"SELECT FROM {SAGA}", "SELECT FROM ferryman.outbox_attempt", CALL_REQUEUE,
             CALL_DISCARD, MOVE_SAGA, MAKE_SAGA, MAKE_JOB, END_JOB, READ_PAYLOAD, CHANGE_SUBSCRIPTION, READ_SECRET,
             MAKE_LETTER, PAUSE_ORCHESTRATOR, "SELECT FROM webhooks.subscriptions"),
    MONITOR: (SEND_TEST, READ_KEYS, CALL_REQUEUE, CALL_DISCARD, MOVE_SAGA, MAKE_SAGA, MAKE_JOB, END_JOB, MAKE_EVENT,
              READ_PAYLOAD, CHANGE_SUBSCRIPTION, READ_SECRET, MAKE_LETTER,
              "SELECT endpoint FROM webhooks.subscriptions"),
}  # fmt: skip


def test_rules_4_2_and_9_each_forbidden_act_is_refused(ferryman_db: Database, ferryman_database_url: str) -> None:
    """Each is tried by a login with the role alone."""
    subscribe(ferryman_db, "https://example.com/hooks")
    publish(ferryman_db)
    for role, acts in FORBIDDEN.items():
        with psycopg.connect(stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", role)) as db:
            for act in (*EVERY, *acts):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    db.execute(act)
                db.rollback()


def test_operator_sees_no_attempts_of_other_outboxes(ferryman_db: Database, ferryman_database_url: str) -> None:
    for outbox in ("webhook-worker", "memos"):
        ferryman_db.execute(
            "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) "
            "VALUES (%s, '1', now(), 'delivered')", (outbox,),
        )  # fmt: skip
    with psycopg.connect(stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", OPERATOR)) as db:
        assert (listed(db, 10), jobs_of(db, 1)) == ([], [])
        assert db.execute("SELECT outbox FROM ferryman.outbox_attempt").fetchall() == [("webhook-worker",)]


def test_an_event_writer_and_a_subscription_manager_do_their_work(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    with psycopg.connect(stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", MANAGER)) as db:
        wanted = subscribe(db, "https://example.com/hooks")
        db.execute(SEND_TEST)
        assert change(db, wanted, {"paused": True}, SubscriptionRules(WebhooksSettings()))
        assert rotate_secret(db, wanted)
    ferryman_db.execute("DELETE FROM webhooks.unrouted")
    with psycopg.connect(stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", WRITER)) as db:
        event = publish(db)
    assert ferryman_db.execute("SELECT event_id FROM webhooks.unrouted").fetchall() == [(event,)]
