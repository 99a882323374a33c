"""The webhooks demo: one endpoint is well, one heals, one dies into the dead letters; processes are killed meanwhile.

The receiver judges: it counts the requests that it accepted, by event and endpoint.
"""

import json
import os
import shlex
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from ferryman.demo.stage import DemoStage, until
from ferryman.migrations.chains import ENGINE
from ferryman.schemas import OURS
from ferryman.schemas.catalogue import load
from ferryman.schemas.cluster_topics import ClusterTopics
from ferryman.testing import places, stack
from ferryman.testing.parts import Reach
from ferryman.testing.process import Process
from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver

EVENTS = 40
ENDPOINTS = ("well", "heals", "dies")
ROLES = {
    "relay": "ferryman_relay", "webhooks": "ferryman_saga_orchestrator", "webhook-worker": "ferryman_webhook_worker",
    "events": "ferryman_event_writer", "endpoints": "ferryman_subscription_manager",
    "operator": "ferryman_dead_letter_operator", "monitor": "ferryman_monitor",
}  # fmt: skip
"""The role of each process, and of each person."""
_SECRET = "whsec_bm90IGEgc2VjcmV0IGF0IGFsbA=="  # noqa: S105 - of a receiver that is gone after the demo
_FAILURES, _LIMIT = 2, 3
_KILL_WORKER_AT, _KILL_ORCHESTRATOR_AT = 20, 60
_DEAD_SECONDS = 0.7
_EVERY_SECONDS = 0.1

_SUBSCRIBE = """\
-- demo.subscribe
WITH s AS (
    INSERT INTO webhooks.subscriptions (endpoint, event_types, max_retry_limit)
    VALUES (%(endpoint)s, '{order.paid}', %(limit)s) RETURNING id
)
INSERT INTO webhooks.subscription_secrets (subscription_id, secret) SELECT id, %(secret)s FROM s
"""
_RECORD = "-- demo.record\nINSERT INTO webhooks.events (type, payload) VALUES ('order.paid', %s)"
_STATUSES = """\
-- demo.deliveries
SELECT status::text, count(*) FROM webhooks.webhook_delivery_sagas GROUP BY status
"""
_DEAD = "-- demo.dead\nSELECT saga_id FROM webhooks.dead_letters ORDER BY id"
_REQUEUED = "-- demo.requeued\nSELECT count(*) FROM webhooks.dead_letters WHERE requeued_as IS NOT NULL"
# The lease of a killed worker ends by itself after a minute.
_EXPIRE = """\
-- demo.expire
UPDATE webhooks.webhook_delivery_jobs SET leased_at = leased_at - interval '1 h' WHERE status = 'Leased'
"""

Connection = psycopg.Connection[Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PostingOutcome:
    """The deliveries at the end: in the database, and as the receiver has them."""

    parts: tuple[str, ...]
    ready_seconds: float
    events: int
    deliveries: dict[str, int]
    dead_letters: int
    requeued: int
    killed: dict[str, int]
    requests: int
    accepted: int
    missing: int
    """Events that an endpoint never accepted."""
    again: int
    """Requests that it accepted although it had the event: at least once is the promise."""
    of_rolled_back: int
    ids_too_many: int
    """Values of `webhook-id` beyond one for each event and endpoint, or shared by several."""

    @property
    def good(self) -> bool:
        """True if each endpoint has each event, always under one id, and the deliveries say so."""
        ended = {"Completed": len(ENDPOINTS) * self.events, "DeadLettered": self.events}
        wrong = self.missing + self.of_rolled_back + self.ids_too_many
        return self.deliveries == ended and self.dead_letters == self.requeued == self.events and not wrong

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        return {"verdict": "ok" if self.good else "wrong", **asdict(self)}


class ReceiverJudge:
    """The receiver's answers, and its count of what it accepted."""

    def __init__(self) -> None:
        self.mended = False
        self.requests = 0
        self.at_request: Callable[[int], None] = lambda _: None
        self.accepted: Counter[tuple[str, int]] = Counter()
        """By endpoint and event."""
        self._ids: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def answer(self, request: ReceivedRequest) -> Answer:
        endpoint, order = request.path.strip("/"), int(json.loads(request.body)["order"])
        with self._lock:
            self.requests += 1
            number = self.requests
            self._ids[endpoint, order][request.headers["webhook-id"]] += 1
            tried = self._ids[endpoint, order].total()
            good = endpoint == "well" or (self.mended if endpoint == "dies" else tried > _FAILURES)
            self.accepted[endpoint, order] += good
        self.at_request(number)
        return Answer(204 if good else 503)

    def count(self) -> dict[str, int]:
        """Return what it received, as the outcome names it."""
        wanted = {(endpoint, order) for endpoint in ENDPOINTS for order in range(EVENTS)}
        accepted = {pair: many for pair, many in self.accepted.items() if many}
        ids = [identity for each in self._ids.values() for identity in each]
        return {
            "requests": self.requests,
            "accepted": sum(accepted.values()),
            "missing": len(wanted - accepted.keys()),
            "again": sum(accepted.values()) - len(accepted),
            "of_rolled_back": len(self._ids.keys() - wanted),
            "ids_too_many": len(ids) - len(self._ids) + len(ids) - len(set(ids)),
        }


def run(reach: Reach, inherited: Mapping[str, str], tell: Tell) -> PostingOutcome:
    """Run the demo on servers of its own, and tell each step."""
    began = time.monotonic()
    folder = places.scratch("demo")
    try:
        with stack.open_stack(reach=reach, registry_too=False, owners=(ENGINE, "webhooks")) as parts:
            logins = {name: stack.login(parts.database_url, name, role) for name, role in ROLES.items()}
            topics, catalogue = ClusterTopics(parts.settings.kafka), load(OURS)
            topics.apply(catalogue, topics.differences(catalogue), replication=1)
            ready_seconds = time.monotonic() - began
            climbs = tuple(map(str, parts.climbs))
            tell("\n".join([*climbs, f"PostgreSQL and Kafka are ready after {ready_seconds:.1f} s\n"]))
            acts = DemoStage(
                folder, inherited, KAFKA__BOOTSTRAP_SERVERS=parts.kafka.url, KAFKA__SESSION_TIMEOUT_MS="1500",
                KAFKA__HEARTBEAT_INTERVAL_MS="300", HTTP__ALLOW='["127.0.0.0/8"]', WEBHOOKS__BASE_SECONDS="0.3",
            )  # fmt: skip
            judge = ReceiverJudge()
            with Receiver(judge.answer) as receiver, psycopg.connect(parts.database_url, autocommit=True) as db:
                play = _Play(db, logins, acts, judge, tell)
                try:
                    requeued, dead = play.through(receiver.url)
                finally:
                    play.end()
            return PostingOutcome(
                climbs,
                round(ready_seconds, 2),
                EVENTS,
                play.statuses,
                dead,
                requeued,
                dict(play.killed),
                **judge.count(),
            )
    finally:
        places.discard(folder)


class _Play:
    """The processes and persons of the demo, each with a login and a role of its own."""

    def __init__(
        self, db: Connection, logins: Mapping[str, str], acts: DemoStage, judge: ReceiverJudge, tell: Tell
    ) -> None:
        self._db, self._logins, self._acts, self._judge, self._tell = db, logins, acts, judge, tell
        self._processes = {
            name: self._process(name, "run", name) for name in ("relay", "webhooks", "webhook-worker")
        }  # fmt: skip
        self.killed: Counter[str] = Counter()
        self.statuses: dict[str, int] = {}

    def _process(self, name: str, *arguments: str) -> Process:
        return self._acts.process(
            name, *arguments, DATABASE_URL=self._logins[name], CONSUMER__INSTANCE_ID=f"demo-{name}"
        )  # fmt: skip

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()

    def through(self, url: str) -> tuple[int, int]:
        """Play the acts. Return how many dead letters were requeued, and how many there were."""
        with psycopg.connect(self._logins["endpoints"], autocommit=True) as manager:
            for name in ENDPOINTS:
                manager.execute(_SUBSCRIBE, {"endpoint": f"{url}/{name}", "limit": _LIMIT, "secret": _SECRET})
        self._judge.at_request = self._kill_worker
        for process in self._processes.values():
            process.launch()
        self._record()
        self._tell(f"{EVENTS} events are recorded for {len(ENDPOINTS)} endpoints each; as many were rolled back")
        self._tell(f"one is well, one fails {_FAILURES} times with each event and heals, and one always fails")
        self._survive()
        self._await(Completed=2 * EVENTS, DeadLettered=EVENTS)
        self._tell(f"two endpoints have every event; {EVENTS} deliveries to the third are dead letters, such as this:")
        dead = [saga for (saga,) in self._db.execute(_DEAD).fetchall()]
        told = self._acts.output("trace", f"delivery:{dead[0]}", DATABASE_URL=self._logins["monitor"])
        self._tell(f"\n$ ferryman trace delivery:{dead[0]}\n{told}\n")
        self._judge.mended = True
        asked = "dead-letters", "requeue", "--code", "SERVER_FAILED", "--yes", "--reason", "it is up again"
        said = self._acts.output(*asked, DATABASE_URL=self._logins["operator"])
        self._tell(f"the third endpoint is mended\n\n$ ferryman {shlex.join(asked)}\n{said}\n")
        self._await(Completed=3 * EVENTS, DeadLettered=EVENTS)
        [(requeued,)] = self._db.execute(_REQUEUED).fetchall()
        return requeued, len(dead)

    def _record(self) -> None:
        """Record events while deliveries are under way, and as many that are rolled back."""
        with psycopg.connect(self._logins["events"]) as writer:
            for order in range(EVENTS):
                writer.execute(_RECORD, (json.dumps({"order": order}).encode(),))
                writer.commit()
                writer.execute(_RECORD, (json.dumps({"order": EVENTS + order}).encode(),))
                writer.rollback()
                time.sleep(_EVERY_SECONDS)

    def _kill_worker(self, number: int) -> None:
        """Kill the worker between its request and the answer."""
        if number == _KILL_WORKER_AT:
            self._kill("webhook-worker")

    def _kill(self, name: str) -> None:
        pid = self._processes[name].pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self.killed[name] += 1

    def _survive(self) -> None:
        """Start again what was killed, and kill the orchestrator while results come."""
        worker, orchestrator = self._processes["webhook-worker"], self._processes["webhooks"]
        until(lambda: worker.pid is None, "the worker's end")
        self._tell(f"the worker was killed with -9 inside request {_KILL_WORKER_AT}, before it could record the answer")
        time.sleep(_DEAD_SECONDS)
        self._db.execute(_EXPIRE)
        worker.launch()
        until(lambda: self._judge.requests >= _KILL_ORCHESTRATOR_AT, "more requests")
        self._kill("webhooks")
        until(lambda: orchestrator.pid is None, "the orchestrator's end")
        self._tell(f"the orchestrator was killed with -9 after request {_KILL_ORCHESTRATOR_AT}; both are started again")
        time.sleep(_DEAD_SECONDS)
        orchestrator.launch()

    def _await(self, **wanted: int) -> None:
        def there() -> bool:
            self.statuses = dict(self._db.execute(_STATUSES).fetchall())
            return self.statuses == wanted

        until(there, " and ".join(f"{many} {status}" for status, many in wanted.items()))
