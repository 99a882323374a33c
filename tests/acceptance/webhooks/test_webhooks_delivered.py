"""Webhooks from an event to the receiver and back, through every process, each under its role alone."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from standardwebhooks import Webhook

from ferryman.services.webhooks.subscriptions import send_test
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from ferryman.testing.receiver import Answer
from support.launch import KillAt, Launcher
from support.published import poll_until, read_topic
from support.topics import create
from support.webhooking import BODY, SECRET, Webhooking, WebhookPlace, new_place, publish, subscribe

DISABLED = b"webhook.subscription-disabled"
# Topics and groups have the names that they have everywhere: on a broker of its own.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]


@pytest.fixture(scope="module")
def place(ferryman_postgres: str) -> Iterator[WebhookPlace]:
    kafka = started(LocalKafka())
    yield new_place(kafka.url, ferryman_postgres)
    kafka.close()


@pytest.fixture
def webhooks(ferryman: Launcher, place: WebhookPlace) -> Iterator[Webhooking]:
    with place.open(ferryman) as made:
        yield made


def test_an_event_reaches_its_subscribers_and_its_deliveries_complete(webhooks: Webhooking) -> None:
    """From SQL to a saga, a job, a signed POST, a result, Completed; one endpoint heals after two failures."""
    answers = iter([Answer(503), Answer(500), Answer(200)])
    webhooks.receiver.answer = lambda request: next(answers) if request.path == "/heals" else Answer(204)
    good, healing = (subscribe(webhooks.db, webhooks.receiver.url + path) for path in ("/good", "/heals"))
    other = subscribe(webhooks.db, webhooks.receiver.url + "/other", "order.refunded")
    webhooks.start("relay", "webhooks", "webhook-worker")
    event = publish(webhooks.db)
    webhooks.until(good, Completed=1)
    webhooks.until(healing, Completed=1)
    assert webhooks.states(other) == {}
    [request] = webhooks.received(event, good)
    assert request.body == BODY
    Webhook(SECRET).verify(request.body, dict(request.headers))
    assert len(webhooks.received(event, healing)) == 3
    row = webhooks.db.execute(
        "SELECT attempt_count, final_error_code FROM webhooks.webhook_delivery_sagas WHERE subscription_id = %s",
        (healing,),
    ).fetchone()
    assert row == (3, "SERVER_FAILED")
    poll_until(lambda: len(read_topic(webhooks.kafka, "webhooks.events")) == 2, "events of the deliveries")
    webhooks.stop()


def test_messages_of_kafka_are_events_and_tests_reach_one_endpoint(webhooks: Webhooking) -> None:
    """N5: a message is one event, although its process is killed before the commit and the record comes twice."""
    paid, other = (
        subscribe(webhooks.db, f"{webhooks.receiver.url}/{kind}", kind) for kind in ("kafka.paid", "kafka.other")
    )
    topic, message = create(webhooks.kafka), str(uuid4())
    webhooks.env = {
        "FERRYMAN_WEBHOOKS__EVENT_TOPICS": f'["{topic}"]', "FERRYMAN_WEBHOOKS__EVENT_TYPES": '["kafka.paid"]'
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": webhooks.kafka})
    for kind, identity in (("kafka.paid", message), ("kafka.other", str(uuid4())), ("kafka.paid", message)):
        said: dict[str, str | bytes | None] = {"ce_id": identity, "ce_type": kind, "content-type": "application/json"}
        producer.produce(topic, BODY, "o1", headers=said)
    producer.flush()
    webhooks.start("webhook-events", kill_at=KillAt("ferryman.services.webhooks.events:record_message", "after"))
    webhooks.await_kill("webhook-events")
    webhooks.start("relay", "webhooks", "webhook-worker", "webhook-events")
    webhooks.until(paid, Completed=1)
    with webhooks.db.transaction():
        test = send_test(webhooks.db, other)
    assert test is not None
    webhooks.until(other, Completed=1)
    [(event,)] = webhooks.db.execute("SELECT id FROM webhooks.events WHERE idempotency_key = %s", (message,)).fetchall()
    [request] = webhooks.received(event, paid)
    assert (request.body, request.headers["content-type"]) == (BODY, "application/json")
    [tested] = webhooks.received(test, other)
    Webhook(SECRET).verify(tested.body, dict(tested.headers))
    assert (webhooks.states(paid), webhooks.states(other)) == ({"Completed": 1}, {"Completed": 1})
    webhooks.stop()


def test_deliveries_survive_every_process_killed_at_each_step(webhooks: Webhooking) -> None:
    """N1, N3: kill -9 of the worker between POST and settle, of the orchestrator before its commits, of two at once.

    The receiver counts: every event at least once, always with the same id and bytes.
    """
    subscription = subscribe(webhooks.db, webhooks.receiver.url + "/kept", "kept")
    events = [publish(webhooks.db, event_type="kept") for _ in range(20)]
    webhooks.start("relay")
    for kill_at in (
        KillAt("ferryman.runtime.chore:Chore.run_once", "after"),
        KillAt("ferryman.saga.engine:SagaEngine.move_due", "after"),
    ):
        webhooks.start("webhooks", kill_at=kill_at)
        webhooks.await_kill("webhooks")
    webhooks.start("webhooks")
    webhooks.start("webhook-worker", kill_at=KillAt.before_step("courier", "settle rows", 2))
    webhooks.await_kill("webhook-worker")
    webhooks.kill("webhooks")
    webhooks.expire()
    webhooks.start("webhook-worker")
    webhooks.start("webhooks", kill_at=KillAt("ferryman.saga.engine:SagaEngine.apply", "after"))
    webhooks.await_kill("webhooks")
    webhooks.start("webhooks", "webhooks 2", "webhook-worker 2")
    webhooks.until(subscription, Completed=len(events))
    counts = [len(webhooks.received(event, subscription)) for event in events]
    assert min(counts) >= 1
    assert sum(counts) > len(events), "nothing was sent twice: no kill came between a POST and its settle"
    bodies = {each.body for event in events for each in webhooks.received(event, subscription)}
    assert bodies == {BODY}
    attempts = webhooks.db.execute(
        "SELECT DISTINCT attempt_count FROM webhooks.webhook_delivery_sagas WHERE subscription_id = %s", (subscription,)
    ).fetchall()
    assert attempts == [(1,)]
    webhooks.stop()


def test_a_result_that_was_lost_is_healed_from_the_row_of_its_job(webhooks: Webhooking) -> None:
    """N11: no restart, and no hand edit of the delivery. While a result waits to be published, it is not lost."""
    webhooks.db.execute("DELETE FROM ferryman.outbox")  # no relay runs: what another test left would stop the time
    subscription = subscribe(webhooks.db, webhooks.receiver.url + "/lost", "lost")
    webhooks.env["FERRYMAN_WEBHOOKS__ANSWER_SECONDS"] = "1"
    webhooks.start("webhooks", "webhook-worker")
    publish(webhooks.db, event_type="lost")
    poll_until(lambda: webhooks.jobs_over(subscription) == 1, "the end of the job")
    webhooks.db.execute("DELETE FROM ferryman.outbox")
    webhooks.until(subscription, Completed=1)
    assert len(webhooks.receiver.requests) == 1
    webhooks.stop()


def messages_about(webhooks: Webhooking, subscription: int) -> set[str]:
    """Return the ids of the messages that tell that it was disabled."""
    events = read_topic(webhooks.kafka, "webhooks.events")
    return {each.id for each in events if dict(each.headers)["ce_type"] == DISABLED and each.key == str(subscription)}


def test_an_endpoint_that_is_gone_is_disabled_once_whatever_dies(webhooks: Webhooking) -> None:
    """N1, N6: killed before and after its commit. Its open deliveries end, and another endpoint gets its events."""
    webhooks.receiver.answer = lambda request: Answer(410 if request.path == "/gone" else 204)
    gone, good = (subscribe(webhooks.db, webhooks.receiver.url + path, "gone") for path in ("/gone", "/good"))
    webhooks.start("relay", "webhooks", "webhook-worker")
    for kill_at in (
        KillAt("ferryman.consumer.store.receipts:record", "after"),
        KillAt("ferryman.consumer.transaction:BatchTransaction.run", "after"),
    ):
        webhooks.start("webhook-endpoints", kill_at=kill_at)
        publish(webhooks.db, event_type="gone")
        webhooks.await_kill("webhook-endpoints")
    webhooks.start("webhook-endpoints", "webhook-endpoints 2")
    webhooks.until(gone, DeadLettered=2)
    webhooks.until(good, Completed=2)
    rows = webhooks.db.execute(
        "SELECT active, disabled_reason FROM webhooks.subscriptions WHERE id = ANY (%s) ORDER BY id", ([gone, good],)
    ).fetchall()
    assert rows == [(False, "GONE"), (True, None)]
    told = poll_until(lambda: messages_about(webhooks, gone), "the message")
    assert len(told) == 1
    webhooks.stop()
