"""The durable dispatcher by the real command line: its acceptance criteria, each a test."""

import json
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.services.runner.events import enqueue
from ferryman.testing.receiver import Answer, Receiver
from support.launch import Launcher
from support.published import poll_until

Environment = dict[str, str]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def environment(ferryman_database_url: str, receiver: Receiver) -> Environment:
    return {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_RUNNER__URL": receiver.url + "/events",
        "FERRYMAN_RUNNER__SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "FERRYMAN_RUNNER__BASE_SECONDS": "0.05",
        "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]',
    }


def drained(ferryman: Launcher, environment: Environment) -> dict[str, int]:
    done = ferryman.start("drain", "runner", "--json", env=environment)
    assert done.wait() == 0, done.transcript()
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def statuses(db: Connection) -> Counter[str]:
    return Counter(status for (status,) in db.execute("SELECT status FROM runner.event_outbox").fetchall())


def test_successfully_delivered_events_are_marked_delivered_with_timestamp(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    event = enqueue(ferryman_db, "file.uploaded", "file-1", {"file": 1})
    counts = drained(ferryman, environment)
    assert (counts["published"], counts["failed"], counts["waiting"]) == (1, 0, 0)
    [request] = receiver.requests
    assert json.loads(request.body) == {"event_id": str(event), "event_type": "file.uploaded", "payload": {"file": 1}}
    assert request.headers["webhook-id"] == str(event)
    [row] = ferryman_db.execute(
        "SELECT status, attempt_count, delivered_at IS NOT NULL, last_error FROM runner.event_outbox"
    ).fetchall()
    assert row == ("DELIVERED", 0, True, None)


def test_runner_downtime_does_not_lose_events(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    """N1: events stay in the outbox, and are retried."""
    receiver.answer = lambda _: Answer(503)
    events = {str(enqueue(ferryman_db, "file.uploaded", f"file-{n}", {"file": n})) for n in range(5)}
    assert drained(ferryman, environment)["waiting"] == 5
    assert statuses(ferryman_db) == {"FAILED": 5}
    receiver.answer = lambda _: Answer(200)
    running = ferryman.start("run", "runner", env=environment)
    running.until(lambda: statuses(ferryman_db) == {"DELIVERED": 5}, "delivery")
    assert {json.loads(each.body)["event_id"] for each in receiver.requests} == events
    running.send(signal.SIGTERM)
    assert running.wait() == 0, running.transcript()


def test_concurrent_dispatchers_do_not_double_send_the_same_event(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    running = [ferryman.start("run", "runner", env=environment) for _ in range(2)]
    poll_until(lambda: all('"started"' in each.stderr for each in running), "start of both")
    events = [str(enqueue(ferryman_db, "file.uploaded", f"file-{n}", {})) for n in range(200)]
    poll_until(lambda: statuses(ferryman_db) == {"DELIVERED": 200}, "delivery")
    assert Counter(each.headers["webhook-id"] for each in receiver.requests) == Counter(events)
    for each in running:
        each.send(signal.SIGTERM)
        assert each.wait() == 0, each.transcript()


def test_an_event_of_a_killed_dispatcher_is_sent_again_with_the_same_id_and_bytes(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    """N1, N3: kill -9 after the runner got the event, and before it is marked."""
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    first = ferryman.start("run", "runner", env=environment)

    def kill(_: object) -> Answer:
        first.kill()
        return Answer(200)

    receiver.answer = kill
    poll_until(lambda: not first.alive, "kill")
    receiver.answer = lambda _: Answer(200)
    ferryman_db.execute("UPDATE runner.event_outbox SET claimed_at = claimed_at - interval '1 h'")
    running = ferryman.start("run", "runner", env=environment)
    running.until(lambda: statuses(ferryman_db) == {"DELIVERED": 1}, "delivery")
    assert len(receiver.requests) == 2
    assert len({(each.headers["webhook-id"], each.body) for each in receiver.requests}) == 1


def test_the_endpoint_and_its_secret_are_settings(ferryman: Launcher, environment: Environment) -> None:
    for missing in ("URL", "SECRET"):
        without = {name: value for name, value in environment.items() if name != f"FERRYMAN_RUNNER__{missing}"}
        refused = ferryman.start("run", "runner", env=without)
        assert refused.wait() == 3
        assert f"runner.{missing.lower()}" in refused.stderr
