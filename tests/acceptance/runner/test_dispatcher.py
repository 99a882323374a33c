"""The durable dispatcher by the real command line: its acceptance criteria, each a test."""

import json
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from standardwebhooks.webhooks import Webhook

from ferryman.runtime.postgres import Connection
from ferryman.services.runner.events import enqueue
from ferryman.testing.receiver import Answer, Receiver
from support.launch import Launcher
from support.operating import Operator
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


def test_concurrent_dispatcher_workers_do_not_double_send_the_same_event(
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


def test_an_operator_sees_why_an_event_waits_and_what_to_type_next(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    """N13: after a failing endpoint, by the commands that each answer names."""
    receiver.answer = lambda _: Answer(500, body=b"the disk is full")
    event = str(enqueue(ferryman_db, "file.uploaded", "file-1", {"secret": "plan"}))
    environment["FERRYMAN_RUNNER__BASE_SECONDS"] = "600"
    drained(ferryman, environment)

    operator = Operator(ferryman, **environment)
    shown = operator.run(f"outbox show --outbox runner {event}").stdout
    for expected in (
        "FAILED",
        "1 attempt",
        "is tried again at",
        "SERVER_FAILED",
        "the disk is full",
        "ferryman run runner",
    ):
        assert expected in shown
    assert "plan" not in shown
    [row] = operator.run("outbox list --outbox runner --status FAILED --json").json["rows"]
    assert (row["id"], row["state"], row["type"]) == (event, "retrying", "file.uploaded")
    operator.run(f"outbox discard --outbox runner {event} --yes --reason no", exit_code=1)
    operator.run("outbox check runner")

    running = operator.start("run runner")
    running.until(lambda: '"started"' in running.stderr, "start")
    told = operator.run(f"outbox show --outbox runner {event} --json").json
    assert told["next"] == f"wait, or send it now: ferryman outbox replay --outbox runner {event}"
    operator.run("pause --outbox runner --reason upgrade")
    running.until(lambda: '"paused"' in running.stderr, "pause")
    receiver.answer = lambda _: Answer(200)
    operator.run(f"outbox replay --outbox runner {event} --yes --reason emptied")
    assert "ferryman resume --outbox runner" in operator.run(f"outbox show --outbox runner {event}").stdout
    operator.run("resume --outbox runner")
    running.until(lambda: statuses(ferryman_db) == {"DELIVERED": 1}, "delivery")
    found = operator.run(f"outbox show --outbox runner {event} --json").json
    assert [each["outcome"] for each in found["history"]] == ["failed", "delivered"]
    assert {act["act"] for act in found["audit"]} == {"pause", "replay", "resume"}
    running.send(signal.SIGTERM)
    assert running.wait() == 0, running.transcript()


def waits_after_failures(
    ferryman: Launcher, environment: Environment, db: Connection, failures: int, **settings: str
) -> list[float]:
    """Return the wait that is recorded after each of an event's first failures; no wait is waited for."""
    changed = {f"FERRYMAN_RUNNER__{name.upper()}": value for name, value in settings.items()}
    waits: list[float] = []
    for number in range(1, failures + 1):
        assert drained(ferryman, environment | changed)["failed"] == 1
        [(status, count, wait)] = db.execute(
            "SELECT status, attempt_count, extract(epoch FROM next_attempt_at - updated_at)::float8 "
            "FROM runner.event_outbox"
        ).fetchall()
        assert (status, count) == ("FAILED", number)
        waits.append(round(wait, 2))
        db.execute("UPDATE runner.event_outbox SET next_attempt_at = clock_timestamp()")
    return waits


def test_failed_events_are_retried_with_exponential_backoff(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    """The wait is base * 2 ** attempt_count, with the count after the failure: an outage and a refusal count alike."""
    statuses = iter((503, 404, 500))
    receiver.answer = lambda _: Answer(next(statuses))
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    assert waits_after_failures(ferryman, environment, ferryman_db, 3, base_seconds="100") == [200, 400, 800]
    assert len({(each.headers["webhook-id"], each.body) for each in receiver.requests}) == 1


def test_backoff_delay_is_capped_at_configurable_maximum(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Answer(503)
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    waits = waits_after_failures(ferryman, environment, ferryman_db, 2, base_seconds="100", cap_seconds="300")
    assert waits == [200, 300]


def test_runner_endpoint_url_and_auth_secret_are_configurable_via_settings(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, receiver: Receiver
) -> None:
    moved = {"FERRYMAN_RUNNER__URL": receiver.url + "/moved", "FERRYMAN_RUNNER__SECRET": "whsec_bmV3"}
    bearer = {"FERRYMAN_RUNNER__AUTH": "bearer", "FERRYMAN_RUNNER__SECRET": "token"}
    for number, settings in enumerate((environment, environment | moved, environment | bearer)):
        enqueue(ferryman_db, "file.uploaded", f"file-{number}", {})
        assert drained(ferryman, settings)["published"] == 1
    first, second, third = receiver.requests
    assert (first.path, second.path, third.path) == ("/events", "/moved", "/events")
    assert Webhook(environment["FERRYMAN_RUNNER__SECRET"]).verify(first.body, dict(first.headers))
    assert Webhook("whsec_bmV3").verify(second.body, dict(second.headers))
    assert third.headers["authorization"] == "Bearer token"
    assert "webhook-signature" not in third.headers


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("url", None), ("secret", None), ("url", "runner.example"), ("url", "http://user:geheim@runner.example/"),
        ("secret", "whsec_geheim!"), ("secret", ""),
    ],
)  # fmt: skip
def test_without_a_good_endpoint_and_a_good_secret_nothing_starts(
    ferryman: Launcher, environment: Environment, setting: str, value: str | None
) -> None:
    name = f"FERRYMAN_RUNNER__{setting.upper()}"
    changed = {each: text for each, text in environment.items() if each != name}
    refused = ferryman.run("run", "runner", env=changed | ({} if value is None else {name: value}))
    assert refused.wait() == 3
    assert f"[setting runner.{setting}, or {name}]" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "geheim" not in refused.stderr
