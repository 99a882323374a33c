"""Webhooks: routing, results, due deliveries, the way from an event to its receiver, and a dead endpoint's neighbour.

Rates of the orchestrator are measured in this process, beside bare psycopg loops that write the same rows from memory.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg

from ferryman.bench import goals, journal, meters, programs, sinks
from ferryman.bench.goals import Figure
from ferryman.bench.meters import Connection, MeasurementFailed
from ferryman.bench.sagas import BATCH, compared, due_figure, rate_figure
from ferryman.bench.servers import Bench, ratio
from ferryman.consumer.model import Received, Record
from ferryman.message import Message
from ferryman.outbox import append_many
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.services.webhooks.machine import FAILED, SUCCEEDED
from ferryman.services.webhooks.orchestrator import deliveries, routing
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings
from ferryman.services.webhooks.worker import webhook_id

_PER_EVENT = 1000
_ENDPOINTS = 64
_ALLOWED = {"FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]'}

_EVENTS = """\
-- bench.events
INSERT INTO webhooks.events (type, payload)
SELECT %(type)s, convert_to(jsonb_build_object('order', n, 'note', repeat('x', 150))::text, 'UTF8')
FROM generate_series(1, %(many)s::bigint) n
"""
_SUBSCRIPTIONS = """\
-- bench.subscriptions
WITH s AS (
    INSERT INTO webhooks.subscriptions (endpoint, event_types)
    SELECT %(endpoint)s || n, ARRAY[%(type)s::text] FROM generate_series(1, %(many)s::bigint) n RETURNING id
), k AS (
    INSERT INTO webhooks.subscription_secrets (subscription_id, secret)
    SELECT id, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw' FROM s
) SELECT min(id) FROM s
"""
# The columns, the checks and the document's indexes; neither foreign keys nor guards.
_BARE = """\
-- bench.bare_deliveries
CREATE SCHEMA bench;
CREATE TABLE bench.deliveries (LIKE webhooks.webhook_delivery_sagas
    INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY);
ALTER TABLE bench.deliveries ADD PRIMARY KEY (id), ADD UNIQUE (event_id, subscription_id, generation);
CREATE INDEX ON bench.deliveries (event_id, subscription_id);
CREATE INDEX ON bench.deliveries (status);
CREATE INDEX ON bench.deliveries (status, next_attempt_at)
"""
_BARE_ROUTE = """\
-- bench.bare_route
INSERT INTO bench.deliveries (event_id, subscription_id, next_attempt_at)
SELECT %(event)s, id, clock_timestamp() FROM webhooks.subscriptions
"""
# Of deliveries whose job is over: every second succeeded.
_MADE = """\
-- bench.made_deliveries
WITH made AS (
    INSERT INTO {table} (event_id, subscription_id, next_attempt_at)
    SELECT e.id, s.id, now() + interval '1 h' FROM webhooks.events e CROSS JOIN webhooks.subscriptions s
    WHERE e.id BETWEEN %(first)s AND %(last)s RETURNING id, event_id, subscription_id
){jobs} SELECT count(*) FROM made
"""
_WITH_JOBS = """\
, jobs AS (INSERT INTO webhooks.webhook_delivery_jobs (saga_id, event_id, subscription_id, attempt, status)
SELECT id, event_id, subscription_id, 1, CASE id %% 2 WHEN 0 THEN 'Completed' ELSE 'Failed' END FROM made)"""
_BEGIN = "-- bench.begin_deliveries\nUPDATE {table} SET status = 'InProgress' WHERE status = 'Pending'"
_ANSWERED = """\
-- bench.answered_jobs
SELECT id, saga_id, event_id, subscription_id, status FROM webhooks.webhook_delivery_jobs ORDER BY saga_id
"""
_BARE_IDS = "-- bench.bare_ids\nSELECT id, event_id, subscription_id FROM bench.deliveries ORDER BY id"
_BARE_UPDATE = """\
-- bench.update_deliveries
UPDATE bench.deliveries s SET status = n.status::webhooks.delivery_status, attempt_count = 1, final_error_code = n.code,
    next_attempt_at = clock_timestamp() + make_interval(secs => n.waits), updated_at = clock_timestamp()
FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::float8[]) n (id, status, code, waits) WHERE s.id = n.id
"""
_WAIT = _MADE.format(table="webhooks.webhook_delivery_sagas", jobs="")
_MAKE_DUE = """\
-- bench.due_deliveries
WITH e AS (INSERT INTO webhooks.events (type, payload) VALUES ('due', '') RETURNING id)
INSERT INTO webhooks.webhook_delivery_sagas (event_id, subscription_id, next_attempt_at)
SELECT e.id, s.id, now() - interval '1 s' FROM e, (SELECT id FROM webhooks.subscriptions ORDER BY id LIMIT %s) s
"""
_VACUUM = "-- bench.vacuum_webhooks\nVACUUM (ANALYZE)"
_JOBS = """\
-- bench.jobs_of_endpoint
INSERT INTO webhooks.webhook_delivery_jobs (saga_id, event_id, subscription_id, attempt)
SELECT -n, 1, %(subscription)s, 1 FROM generate_series(1, %(many)s::bigint) n
"""
_JOB = """\
-- bench.job_of_endpoint
WITH e AS (INSERT INTO webhooks.events (type, payload) VALUES ('one', '{}') RETURNING id, created_at)
INSERT INTO webhooks.webhook_delivery_jobs (saga_id, event_id, subscription_id, attempt)
SELECT e.id, e.id, %(subscription)s, 1 FROM e
RETURNING event_id, (SELECT (extract(epoch FROM created_at) * 1000000)::bigint FROM e)
"""
_UNSENT = """\
-- bench.unsent_jobs
SELECT count(*) FROM webhooks.webhook_delivery_jobs
WHERE subscription_id = %(subscription)s AND status IN ('Pending', 'Leased')
"""
_ALL_SENT = """\
-- bench.all_sent
SELECT NOT EXISTS (SELECT FROM webhooks.unrouted)
   AND NOT EXISTS (SELECT FROM webhooks.webhook_delivery_sagas WHERE status = 'Pending')
   AND NOT EXISTS (SELECT FROM webhooks.webhook_delivery_jobs WHERE status = 'Pending')
   AND NOT EXISTS (SELECT FROM webhooks.webhook_delivery_jobs WHERE status = 'Leased')
"""
_ALL_OVER = """\
-- bench.all_over
SELECT NOT EXISTS (SELECT FROM webhooks.webhook_delivery_sagas WHERE status = 'InProgress')
"""


class BareResult(NamedTuple):
    """The values that the bare loop writes of a result, made before the clock starts."""

    id: int
    status: str
    code: str | None
    waits: float | None
    message: Message | None


@contextmanager
def _database(bench: Bench) -> Iterator[Connection]:
    """Give an autocommit connection to a database with a bare table beside that of the deliveries."""
    active.codecs() or active.use_schemas()
    with bench.database() as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(_BARE)
        yield db


def route_rate(bench: Bench) -> Iterator[Figure]:
    """Measure an event to 100,000 subscriptions beside a bare INSERT … SELECT of the same rows."""
    many, chore = max(1000, bench.scale.entries // 10), routing(WebhooksSettings())
    with _database(bench) as db:
        _subscribed(db, "http://a.example/", many)
        db.execute(_VACUUM)
        journal.checkpoint(db)

        def seconds(work: Callable[[], object]) -> float:
            db.execute(_EVENTS, {"type": "t", "many": 1})
            began = time.perf_counter()
            work()
            return time.perf_counter() - began

        def bare() -> None:
            [event] = meters.row(db, "-- bench.newest_event\nDELETE FROM webhooks.unrouted RETURNING event_id")
            if db.execute(_BARE_ROUTE, {"event": event}).rowcount != many:
                raise MeasurementFailed(f"the bare INSERT wrote other than {many} rows")

        ours = partial(seconds, lambda: chore.run_once(db, Settings()))
        took, others = bench.compared(ours=ours, bare=partial(seconds, bare))
    yield goals.WEBHOOK_ROUTING.figure(
        ratio(took["ours"], took["bare"]), ours_seconds=took["ours"], bare_seconds=took["bare"], subscriptions=many,
        cores_of_others=others,
    )  # fmt: skip


def apply_rate(bench: Bench) -> Iterator[Figure]:
    """Measure results, every second a failure, beside a bare loop that does the same updates from memory."""
    engine = deliveries(WebhooksSettings()).engine

    def ours(db: Connection) -> None:
        engine.apply(db, results.pop())

    def bare(db: Connection) -> None:
        batch = from_memory.pop()
        db.execute(_BARE_UPDATE, tuple(map(list, zip(*(each[:4] for each in batch), strict=True))))
        append_many(db, [each.message for each in batch if each.message])

    with _database(bench) as db:
        events = bench.scale.rounds * 3 * max(2, bench.scale.commands // 10 // BATCH) + 10
        _subscribed(db, "http://a.example/", BATCH)
        db.execute(_EVENTS, {"type": "t", "many": events})
        for table, jobs in (("webhooks.webhook_delivery_sagas", _WITH_JOBS), ("bench.deliveries", "")):
            db.execute(_MADE.format(table=table, jobs=jobs), {"first": 1, "last": events})
            db.execute(_BEGIN.format(table=table).encode())
        results = _batches([_result(*row) for row in db.execute(_ANSWERED).fetchall()])
        from_memory = _batches([_bare(*row) for row in db.execute(_BARE_IDS).fetchall()])
        db.execute(_VACUUM)
        journal.checkpoint(db)
        db.autocommit = False
        gc.collect()
        gc.freeze()  # as every service does: what the bench keeps in memory is no part of the work
        rates, others = compared(bench, db, ours, bare)
        gc.unfreeze()
    yield rate_figure(goals.WEBHOOK_APPLY_RATE, rates, others)


def due_latency(bench: Bench) -> Iterator[Figure]:
    """Measure a batch of deliveries that are due, where a million others wait, and where a thousand do."""
    engine = deliveries(WebhooksSettings()).engine

    @contextmanager
    def waiting(many: int) -> Iterator[Connection]:
        with _database(bench) as db:
            _subscribed(db, "http://a.example/", _PER_EVENT)
            db.execute(_EVENTS, {"type": "t", "many": (events := many // _PER_EVENT)})
            db.execute(_WAIT, {"first": 1, "last": events})
            db.execute(_VACUUM)
            journal.checkpoint(db)
            db.autocommit = False
            yield db

    yield due_figure(bench, goals.WEBHOOK_DUE, waiting, _MAKE_DUE, lambda db: engine.due(db, BATCH))


def event_rate(bench: Bench) -> Iterator[Figure]:
    """Measure from the COMMIT of events until every job is Completed, beside the bare session.

    Relay, orchestrator and worker run: results go through Kafka meanwhile, and end the deliveries.
    """
    rows = max(1, bench.scale.commands // 10 // _ENDPOINTS) * _ENDPOINTS
    bench.create_topics("webhooks.results", "webhooks.events")
    with (
        bench.database() as url, psycopg.connect(url, autocommit=True) as db,
        sinks.hooks(bench, sinks.TO_ONE) as (bare_url, bare_db), sinks.receiver(bench, timed=False) as server,
        ExitStack() as running,
    ):  # fmt: skip
        sinks.load(bare_db, rows)
        _subscribed(db, server.url(sinks.SLOW_MS), _ENDPOINTS)
        for name in ("relay", "webhooks", "webhook-worker"):
            running.enter_context(programs.service(bench, name, url, **_ALLOWED))

        def ours() -> float:
            db.execute(_VACUUM)  # as autovacuum does: plans for empty tables read all of full ones
            journal.checkpoint(db)
            began = time.monotonic()
            db.execute(_EVENTS, {"type": "t", "many": rows // _ENDPOINTS})
            meters.until(lambda: meters.row(db, _ALL_SENT)[0], "end of all jobs", sinks.patience(rows))
            took = time.monotonic() - began
            meters.until(lambda: meters.row(db, _ALL_OVER)[0], "end of all deliveries", sinks.patience(rows))
            return rows / took

        ours()  # for the statistics
        bare = partial(sinks.bare_rate, bench, bare_url, server.url(sinks.SLOW_MS), rows)
        rates, others = bench.compared(ours=ours, bare=bare)
        [sent] = meters.row(db, "-- bench.delivered\nSELECT count(*) FROM webhooks.webhook_delivery_sagas")
    if sent % rows:
        raise MeasurementFailed(f"{sent} deliveries were made, in rounds of {rows}")
    yield goals.WEBHOOK_RATE.figure(
        ratio(rates["ours"], rates["bare"]), ours_per_second=rates["ours"], bare_per_second=rates["bare"], rows=rows,
        endpoints=_ENDPOINTS, in_flight=sinks.SLOTS, answer_ms=sinks.SLOW_MS, cores_of_others=others,
    )  # fmt: skip


def neighbour_latency(bench: Bench) -> Iterator[Figure]:
    """Measure an endpoint's p99 beside a dead one with a million jobs, and without them, in turns."""
    yield sinks.beside_sick(bench, goals.WEBHOOK_HEALTHY_P99, partial(_delays_ms, bench), bench.scale.entries)


def _delays_ms(bench: Bench, sick_jobs: int) -> list[float]:
    """Return how long after its COMMIT each job of the healthy endpoint arrived."""
    with (
        bench.database() as url, psycopg.connect(url, autocommit=True) as db,
        sinks.receiver(bench, timed=True) as server,
    ):  # fmt: skip
        healthy, dead = (_subscribed(db, server.url(each), 1) for each in (0, sinks.SICK_MS))
        db.execute(_EVENTS, {"type": "none", "many": 1})
        db.execute(_JOBS, {"subscription": dead, "many": sick_jobs})
        db.execute(_VACUUM)
        journal.checkpoint(db)

        def write() -> str:
            event, created_us = meters.row(db, _JOB, {"subscription": healthy})
            return webhook_id(event, created_us, healthy)

        unsent = partial(meters.row, db, _UNSENT, {"subscription": healthy})
        with programs.service(bench, "webhook-worker", url, **_ALLOWED):
            return sinks.arrivals_ms(bench, server, write, unsent)


def _subscribed(db: Connection, endpoint: str, many: int) -> int:
    """Add so many subscriptions, each with an endpoint of its own. Return the id of the first."""
    return int(meters.row(db, _SUBSCRIPTIONS, {"endpoint": f"{endpoint}?", "type": "t", "many": many})[0])


def _result(job: int, saga: int, event: int, subscription: int, status: str) -> Received:
    data: dict[str, Any] = {
        "saga_id": saga, "event_id": event, "subscription_id": subscription, "attempt": 1, "job_id": job,
        "http_status": 204, "duration_ms": 20, "finished_at": datetime.now(UTC), "error_code": "SERVER_FAILED",
    }  # fmt: skip
    record = Record("webhooks.results", 0, 0, b"", b"", [], 0)
    return Received(uuid4(), SUCCEEDED if status == "Completed" else FAILED, data, str(saga), record, b"")


def _bare(saga: int, event: int, subscription: int) -> BareResult:
    if saga % 2:
        return BareResult(saga, "PendingRetry", "SERVER_FAILED", 10.0, None)
    said = {"saga_id": saga, "event_id": event, "subscription_id": subscription, "attempts": 1,
            "delivered_at": datetime.now(UTC)}  # fmt: skip
    return BareResult(saga, "Completed", None, None, Message("webhook.delivered", said, key=str(saga)))


def _batches(each: list[Any]) -> list[list[Any]]:
    return [each[first : first + BATCH] for first in range(0, len(each), BATCH)]
