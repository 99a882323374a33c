"""The worker alone, under its role: what it sends of jobs, and what it reports of them. No Kafka is needed."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.testing import stack
from ferryman.testing.receiver import Answer, Receiver
from support.launch import Launched, Launcher
from support.published import poll_until
from support.webhooking import MONITOR, WORKER, Database, DeliveryDesk, publish, subscribe


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


@pytest.fixture
def environment(ferryman_database_url: str) -> dict[str, str]:
    login = stack.login(ferryman_database_url, f"worker_{uuid4().hex[:8]}", WORKER)
    return {"FERRYMAN_DATABASE_URL": login, "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]'}


def drained(ferryman: Launcher, environment: dict[str, str]) -> Launched:
    ran = ferryman.run("drain", "webhook-worker", "--json", env=environment)
    assert ran.wait() == 0, ran.transcript()
    return ran


def results(db: Database) -> dict[int, dict[str, Any]]:
    """Return what the worker appended, by the delivery."""
    codecs = active.codecs()
    assert codecs is not None
    found = {}
    for kind, payload in db.execute("SELECT type, payload FROM ferryman.outbox WHERE topic = 'webhooks.results'"):
        codec = codecs.of(kind)
        assert codec is not None
        data = codec.decode(bytes(payload))
        found[data["saga_id"]] = {"type": kind, **data}
    return found


def test_each_end_of_a_job_is_reported_with_its_status_and_its_code(
    ferryman: Launcher, environment: dict[str, str], desk: DeliveryDesk, receiver: Receiver
) -> None:
    """Payloads are bytes: a broken one arrives as it is. A job that cannot be sent fails for its own reason."""
    receiver.answer = lambda request: Answer(int(request.path[1:]), headers={"Location": "http://10.0.0.1/"})
    sagas = {
        status: desk.routed(subscribe(desk.db, f"{receiver.url}/{status}", str(status)))
        for status in (204, 503, 400, 410, 302)
    }
    closed, mute, refused = (
        desk.routed(subscribe(desk.db, url, name))
        for name, url in (("closed", receiver.url), ("mute", receiver.url), ("refused", "http://127.0.0.1:1/"))
    )
    of = "SELECT subscription_id FROM webhooks.webhook_delivery_sagas WHERE id = %s"
    desk.db.execute(f"UPDATE webhooks.subscriptions SET active = false WHERE id = ({of})", (closed,))
    desk.db.execute(f"DELETE FROM webhooks.subscription_secrets WHERE subscription_id = ({of})", (mute,))
    subscribe(desk.db, f"{receiver.url}/200", "raw")
    broken = b"\xff\x00{"
    publish(desk.db, broken, "raw")
    desk.route()
    desk.due(hastened=False)
    drained(ferryman, environment)
    told = results(desk.db)
    assert [(told[sagas[status]]["http_status"], told[sagas[status]].get("error_code")) for status in sagas] == [
        (204, None), (503, "SERVER_FAILED"), (400, "REFUSED"), (410, "GONE"), (302, "REDIRECTED"),
    ]  # fmt: skip
    codes = {each: told[each]["error_code"] for each in (closed, mute, refused)}
    assert codes == {closed: "SUBSCRIPTION_DISABLED", mute: "SECRET_MISSING", refused: "CONNECTION_FAILED"}
    assert [each.body for each in receiver.requests if each.path == "/200"] == [broken]
    assert {each["attempt"] for each in told.values()} == {1}
    assert dict(desk.jobs(sagas[204])) == {1: "Completed"}


def test_a_job_that_was_lost_three_times_is_failed_with_its_result(
    ferryman: Launcher, environment: dict[str, str], desk: DeliveryDesk, receiver: Receiver
) -> None:
    """N8: and one that was lost once is sent again."""
    lost, again = (desk.routed(subscribe(desk.db, f"{receiver.url}/{name}", name)) for name in ("lost", "again"))
    for saga, claims in ((lost, 3), (again, 1)):
        desk.db.execute(
            "UPDATE webhooks.webhook_delivery_jobs SET status = 'Leased', claims = %s, "
            "leased_at = now() - interval '1 h' WHERE saga_id = %s", (claims, saga),
        )  # fmt: skip
    drained(ferryman, environment)
    told = results(desk.db)
    assert told[lost]["error_code"] == "WORKER_LOST"
    assert told[again]["http_status"] == 200
    assert [each.path for each in receiver.requests] == ["/again"]


def test_an_endpoint_that_asks_for_time_and_a_paused_one_hold_up_no_other(
    ferryman: Launcher, environment: dict[str, str], desk: DeliveryDesk, receiver: Receiver
) -> None:
    """N10: their jobs wait as Pending, with no attempt more."""
    receiver.answer = lambda request: Answer(429 if request.path == "/busy" else 200, headers={"Retry-After": "600"})
    busy, paused = subscribe(desk.db, f"{receiver.url}/busy"), subscribe(desk.db, f"{receiver.url}/paused", paused=True)
    publish(desk.db)
    desk.route()
    desk.due(hastened=False)
    running = ferryman.start("run", "webhook-worker", env=environment)
    running.until(lambda: f'"more": ["{busy}"]' in running.stderr, "closed endpoint")
    publish(desk.db)
    desk.route()
    desk.due(hastened=False)
    good = desk.routed(subscribe(desk.db, f"{receiver.url}/good", "good"))
    poll_until(lambda: desk.jobs(good) == [(1, "Completed")], "delivery to another endpoint")
    statuses = desk.db.execute(
        "SELECT subscription_id, status, count(*) FROM webhooks.webhook_delivery_jobs WHERE subscription_id = ANY (%s) "
        "GROUP BY 1, 2 ORDER BY 1, 2", ([busy, paused],),
    ).fetchall()  # fmt: skip
    assert statuses == [(busy, "Failed", 1), (busy, "Pending", 1), (paused, "Pending", 2)]
    desk.db.execute("UPDATE webhooks.subscriptions SET paused = false")
    poll_until(lambda: sum(each.path == "/paused" for each in receiver.requests) == 2, "the paused ones")
    assert [each.path for each in receiver.requests].count("/busy") == 1


def test_an_operator_sees_a_delivery_and_its_job(
    ferryman: Launcher, environment: dict[str, str], desk: DeliveryDesk, ferryman_database_url: str
) -> None:
    """N13: by the commands that there are for every saga and every outbox, under the monitor's role."""
    saga = desk.routed(subscribe(desk.db, "http://127.0.0.1:1/"))
    drained(ferryman, environment)
    monitor = {"FERRYMAN_DATABASE_URL": stack.login(ferryman_database_url, f"m_{uuid4().hex[:8]}", MONITOR)}
    shown = ferryman.run("saga", "show", "webhooks", str(saga), "--json", env=monitor)
    assert shown.json["row"]["state"] == "InProgress", shown.transcript()
    row = ferryman.run("outbox", "show", "--outbox", "webhook-worker", "1", "--json", env=monitor)
    assert [each["code"] for each in row.json["history"]] == ["CONNECTION_FAILED"], row.transcript()
    drawn = ferryman.run("saga", "draw", "webhooks", env=monitor)
    assert "PendingRetry --> DeadLettered" in drawn.stdout


def test_delivery_that_a_person_would_move_names_what_to_do_instead(
    ferryman: Launcher, ferryman_database_url: str, desk: DeliveryDesk
) -> None:
    """A move by hand makes neither the job nor the dead letter of a delivery."""
    saga = desk.routed()
    environment = {"FERRYMAN_DATABASE_URL": ferryman_database_url}
    act = ("--id", str(saga), "--to", "PendingRetry", "--yes", "--reason", "hurry")
    moved = ferryman.run("saga", "move", "webhooks", *act, env=environment)
    assert moved.wait() == 1, moved.transcript()
    assert "ferryman dead-letters requeue" in moved.stderr
    assert desk.stands(saga)[0] == "InProgress"
    shown = ferryman.run("saga", "show", "webhooks", str(saga), env=environment)
    assert shown.wait() == 0, shown.transcript()
    assert "ferryman dead-letters requeue" in shown.stdout
    assert "saga move" not in shown.stdout
