"""Webhooks in processes of their own, each under its role alone, and the receiver that judges."""

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman import Received
from ferryman.consumer.model import Record
from ferryman.consumer.wire import hash_of
from ferryman.runtime.settings import Settings
from ferryman.saga.engine import SagaEngine
from ferryman.services.webhooks.machine import FAILED, SUCCEEDED, WebhookDelivery, result_id
from ferryman.services.webhooks.orchestrator import deliveries, routing
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings
from ferryman.services.webhooks.worker import webhook_id
from ferryman.testing import stack
from ferryman.testing.receiver import ReceivedRequest, Receiver
from support.launch import KillAt, Launched, Launcher
from support.published import PAYLOAD, poll_until
from support.topics import create

Database = psycopg.Connection[tuple[Any, ...]]

BODY = f'{{"text": "{PAYLOAD}"}}'.encode()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ORCHESTRATOR, WORKER = "ferryman_saga_orchestrator", "ferryman_webhook_worker"
WRITER, MANAGER = "ferryman_event_writer", "ferryman_subscription_manager"
OPERATOR, MONITOR = "ferryman_dead_letter_operator", "ferryman_monitor"
ROLES = {
    "relay": "ferryman_relay", "webhooks": ORCHESTRATOR, "webhook-worker": WORKER, "webhook-endpoints": MANAGER,
    "webhook-events": WRITER,
}  # fmt: skip
"""The role of each process."""


def subscribe(db: Database, endpoint: str, *event_types: str, **more: Any) -> int:
    """Add a subscription with a secret. Return its id."""
    names = ["endpoint", "event_types", *more]
    values = [endpoint, list(event_types or ("order.paid",)), *more.values()]
    row = db.execute(
        f"INSERT INTO webhooks.subscriptions ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) "
        "RETURNING id", values,
    ).fetchone()  # fmt: skip
    assert row is not None
    db.execute("INSERT INTO webhooks.subscription_secrets (subscription_id, secret) VALUES (%s, %s)", (row[0], SECRET))
    return int(row[0])


def publish(db: Database, payload: bytes = BODY, event_type: str = "order.paid") -> int:
    """Record an event. Return its id."""
    row = db.execute(
        "INSERT INTO webhooks.events (type, payload) VALUES (%s, %s) RETURNING id", (event_type, payload)
    ).fetchone()
    assert row is not None
    return int(row[0])


@dataclass
class Webhooking:
    """A database, Kafka with our topics, the processes, and a receiver."""

    ferryman: Launcher
    kafka: str
    db: Database
    receiver: Receiver
    logins: Mapping[str, str]
    running: dict[str, Launched] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *names: str, kill_at: KillAt | None = None) -> None:
        for called in names:
            name = called.partition(" ")[0]
            given = {
                "FERRYMAN_DATABASE_URL": self.logins[name],
                "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
                "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "2000",
                "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
                "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]',
                "FERRYMAN_WEBHOOKS__BASE_SECONDS": "0.05",
                **self.env,
            }
            self.running[called] = self.ferryman.start("run", name, env=given, kill_at=kill_at)

    def await_kill(self, name: str) -> None:
        assert self.running.pop(name).wait() == -signal.SIGKILL

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def expire(self) -> None:
        """Set each lease back by an hour."""
        self.db.execute(
            "UPDATE webhooks.webhook_delivery_jobs SET leased_at = leased_at - interval '1 h' WHERE status = 'Leased'"
        )

    def stop(self) -> None:
        """Stop every process with SIGTERM, and assert that each exits 0 and told no payload and no secret."""
        for each in self.running.values():
            poll_until(lambda: '"started"' in each.stderr, "start")  # noqa: B023 - called before the next
            each.send(signal.SIGTERM)
        for each in self.running.values():
            assert each.wait() == 0, each.transcript()
            for secret in (PAYLOAD, SECRET):
                assert secret not in each.transcript()  # N14
        self.running.clear()

    def states(self, subscription: int) -> Counter[str]:
        """Count the deliveries to a subscription by their state."""
        rows = self.db.execute(
            "SELECT status::text FROM webhooks.webhook_delivery_sagas WHERE subscription_id = %s", (subscription,)
        ).fetchall()
        return Counter(status for (status,) in rows)

    def until(self, subscription: int, seconds: float = 30, **wanted: int) -> None:
        poll_until(lambda: self.states(subscription) == wanted, f"{wanted}", seconds)

    def jobs_over(self, subscription: int) -> int:
        """Count the jobs of a subscription that are over."""
        row = self.db.execute(
            "SELECT count(*) FROM webhooks.webhook_delivery_jobs "
            "WHERE subscription_id = %s AND status IN ('Completed', 'Failed')", (subscription,),
        ).fetchone()  # fmt: skip
        assert row is not None
        return int(row[0])

    def received(self, event: int, subscription: int) -> list[ReceivedRequest]:
        """Return the requests about an event and a subscription."""
        row = self.db.execute(
            "SELECT (extract(epoch FROM created_at) * 1000000)::bigint FROM webhooks.events WHERE id = %s", (event,)
        ).fetchone()
        assert row is not None
        wanted = webhook_id(event, row[0], subscription)
        return [each for each in self.receiver.requests if each.headers["webhook-id"] == wanted]


@dataclass(frozen=True)
class WebhookPlace:
    """A database and a broker with the topics of the catalogue. Results of other databases would be strays here."""

    kafka: str
    url: str
    logins: Mapping[str, str]

    @contextmanager
    def open(self, ferryman: Launcher) -> Iterator[Webhooking]:
        with psycopg.connect(self.url, autocommit=True) as db, Receiver() as receiver:
            yield Webhooking(ferryman, self.kafka, db, receiver, self.logins)


def new_place(kafka: str, postgres: str) -> WebhookPlace:
    for topic in ("webhooks.results", "webhooks.events"):
        create(kafka, topic, partitions=3)
    url = stack.new_database(postgres, f"webhooks_{uuid4().hex[:10]}")
    stack.migrate(url, ["engine", "webhooks"])
    return WebhookPlace(kafka, url, {name: stack.login(url, name, role) for name, role in ROLES.items()})


@dataclass
class DeliveryDesk:
    """The orchestrator in this process, and jobs that are ended as the worker ends them: without HTTP and Kafka."""

    db: Database
    settings: WebhooksSettings = field(default_factory=WebhooksSettings)

    @cached_property
    def engine(self) -> SagaEngine[WebhookDelivery]:
        return deliveries(self.settings).engine

    def route(self) -> bool:
        return routing(self.settings).run_once(self.db, Settings())

    def routed(self, subscription: int | None = None, **more: Any) -> int:
        """Make a delivery with its first job. Return its id."""
        made = subscription or subscribe(self.db, "https://example.com/hooks", **more)
        [(wanted,)] = self.db.execute("SELECT event_types[1] FROM webhooks.subscriptions WHERE id = %s", (made,))
        event = publish(self.db, event_type=wanted)
        self.route()
        self.due()
        row = self.db.execute(
            "SELECT id FROM webhooks.webhook_delivery_sagas WHERE (event_id, subscription_id) = (%s, %s)", (event, made)
        ).fetchone()
        assert row is not None
        return int(row[0])

    def due(self, *, hastened: bool = True) -> int:
        """Move what is due, or everything that is not over."""
        if hastened:
            self.engine.store.hasten(self.db)
        with self.db.transaction():
            return len(self.engine.due(self.db))

    def end(self, saga: int, code: str | None = None, *, ago: float = 0, **changed: Any) -> Received:
        """End the active job of a delivery, with a failure if there is a code. Return its result."""
        row = self.db.execute(
            "UPDATE webhooks.webhook_delivery_jobs SET status = %s, error = %s, leased_at = t.ended, "
            "completed_at = CASE WHEN %s THEN t.ended END "
            "FROM (SELECT clock_timestamp() - make_interval(secs => %s) AS ended) t "
            "WHERE saga_id = %s AND status IN ('Pending', 'Leased') RETURNING id, facts",
            ("Failed" if code else "Completed", code, code is None, ago, saga),
        ).fetchone()
        assert row is not None
        if code:
            self.db.execute(
                "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome, code) "
                "VALUES ('webhook-worker', %s, clock_timestamp(), 'failed', %s)", (str(row[0]), code),
            )  # fmt: skip
        more = {"error_code": code, "http_status": None} if code else {"http_status": 204}
        data = {**json.loads(row[1]), "job_id": row[0], "duration_ms": 1, "finished_at": datetime.now(UTC), **more}
        return told(FAILED if code else SUCCEEDED, {**data, **changed})

    def apply(self, *results: Received) -> list[str]:
        """Apply results as the consumer does. Return their outcomes."""
        with self.db.transaction():
            return [getattr(each, "reason", "applied") for each in self.engine.apply(self.db, results)]

    def stands(self, saga: int) -> tuple[str, int, str | None]:
        """Return the state, the count of attempts and the code of a delivery."""
        row = self.db.execute(
            "SELECT status::text, attempt_count, final_error_code FROM webhooks.webhook_delivery_sagas WHERE id = %s",
            (saga,),
        ).fetchone()
        assert row is not None
        return row

    def jobs(self, saga: int) -> list[tuple[int, str]]:
        """Return (attempt, status) of each job."""
        return self.db.execute(
            "SELECT attempt, status FROM webhooks.webhook_delivery_jobs WHERE saga_id = %s ORDER BY attempt", (saga,)
        ).fetchall()


def told(kind: str, data: Mapping[str, Any], *, id: UUID | None = None) -> Received:
    """Return a result as a handler gets it."""
    key = str(data["saga_id"])
    record = Record("webhooks.results", 0, 0, key.encode(), b"", [], 0)
    return Received(id or result_id(data["job_id"], 0), kind, dict(data), key, record, hash_of(repr(data).encode()))


def stray_reasons(db: Database) -> list[tuple[int, str]]:
    """Return (delivery, reason) of each stray."""
    return db.execute("SELECT saga_number, why FROM ferryman.saga_stray ORDER BY came_at").fetchall()


def waits_for_a_lock(db: Database) -> bool:
    row = db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return row is not None and row[0] > 0
