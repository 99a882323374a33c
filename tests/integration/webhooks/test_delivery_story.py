"""`ferryman trace` of an event, a delivery, a job or a message of webhooks: the story, its end, what to run next."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import FerrymanError, Message, append
from ferryman.cli.trace import as_dict, print_story
from ferryman.cli.wiring import settings_class, with_outboxes
from ferryman.evidence.sides import MAIN, Side, Sides
from ferryman.evidence.trace import Subject, trace
from ferryman.evidence.way import Traced
from ferryman.services.webhooks.delivery_story import TRACER
from ferryman.services.webhooks.machine import event_id, result_id
from ferryman.testing import stack
from support.town import Crossing, crossing_of
from support.webhooking import MONITOR, Database, DeliveryDesk, publish, subscribe

GOLDEN = Path(__file__).parent / "golden" / "delivery.txt"


@dataclass
class Hooks(Crossing):
    """Deliveries in a database, with the real relay's turns and the real consumer's batches between their messages."""

    monitor: Database = field(kw_only=True)

    @property
    def deliveries(self) -> DeliveryDesk:
        return DeliveryDesk(self.desk.db)

    @property
    def sides(self) -> Sides:
        """The database as a monitor sees it."""
        settings = with_outboxes(settings_class()())
        return Sides({MAIN: Side(self.monitor, settings.database, MAIN)}, settings)

    def ends(self, saga: int, code: str | None = None, *, applied: bool = True) -> UUID:
        """End the job of a delivery as the worker does, with the result in its outbox. Return the result's id."""
        db, desk = self.desk.db, self.deliveries
        with db.transaction():
            result = desk.end(saga, code)
            [(created_us, identity)] = db.execute(
                "SELECT (extract(epoch FROM created_at) * 1000000)::bigint, id FROM webhooks.webhook_delivery_jobs "
                "WHERE saga_id = %s ORDER BY id DESC LIMIT 1", (saga,),
            ).fetchall()  # fmt: skip
            told = result_id(identity, created_us)
            append(db, Message(result.type, result.data, key=result.key, id=told))
        if applied:
            self.applies()
        return told

    def applies(self) -> None:
        self.publish(self.desk.db)
        [consumer] = self.deliveries.engine.saga.consumers()
        self.handled(self.desk.db, consumer, "webhooks.results")
        self.topics.clear()
        self.publish(self.desk.db)

    def told(self, kind: str, key: int) -> Traced:
        return trace(self.sides, Subject(kind, key), [TRACER])

    def ending(self, saga: int) -> tuple[str, str | None]:
        told = self.told("delivery", saga).ending
        return told.now, told.next


@pytest.fixture
def hooks(ferryman_database_url: str) -> Iterator[Hooks]:
    login = stack.login(ferryman_database_url, f"m_{uuid4().hex[:8]}", MONITOR)
    with (
        crossing_of(ferryman_database_url, ferryman_database_url) as made,
        psycopg.connect(login, autocommit=True, prepare_threshold=None) as monitor,
    ):
        yield Hooks(made.desk, made.books, monitor=monitor)


def text_of(story: Traced, capsys: pytest.CaptureFixture[str]) -> str:
    print_story(story)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", capsys.readouterr().out)
    return re.sub(r"(?m)^ *(·|[\d.,]+ m?s)", lambda found: "       ·" if found[1] == "·" else "  T", text)


def test_delivery_is_told_from_its_event_to_its_requeue_and_its_end(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever of it is named: the event, either delivery, a job, a result, or the event about its end."""
    saga = hooks.deliveries.routed(max_retry_limit=2)
    hooks.ends(saga, "TIMED_OUT")
    hooks.deliveries.due()
    failed = hooks.ends(saga, "GONE")
    [(again,)] = hooks.desk.db.execute("SELECT webhooks.requeue(%s, 'ann', 'it is up')", ([saga],)).fetchall()
    hooks.deliveries.due()
    done = hooks.ends(again)
    story = hooks.told("delivery", again)
    assert text_of(story, capsys) == GOLDEN.read_text()
    assert json.dumps(as_dict(story), default=str)
    same = [hooks.told("delivery", saga), hooks.told("event", 1), hooks.told("job", 2)]
    same += [trace(hooks.sides, each, [TRACER]) for each in (failed, done, event_id("webhook.dead-lettered", saga))]
    for other in same:
        assert other.id == again
        assert [each.what for each in other.events] == [each.what for each in story.events]


def test_each_stop_of_a_delivery_has_its_command(hooks: Hooks) -> None:
    """Whoever it waits for is named, by the command that starts it; a retry is waited for."""
    db, desk = hooks.desk.db, hooks.deliveries
    subscription = subscribe(db, "https://a.example", max_retry_limit=2)
    event = hooks.told("event", publish(db)).ending
    assert (event.now, event.next) == ("UNROUTED", "ferryman run webhooks")
    desk.route()
    assert hooks.ending(1) == ("Pending", None)
    db.execute("UPDATE webhooks.webhook_delivery_sagas SET next_attempt_at = now() - interval '1 min'")
    assert hooks.ending(1) == ("Pending", "ferryman run webhooks")
    desk.due()
    assert hooks.ending(1) == ("InProgress", "ferryman run webhook-worker")
    db.execute("UPDATE webhooks.subscriptions SET paused = true")
    assert hooks.ending(1) == ("InProgress", None)
    assert f"subscription {subscription} is paused" in hooks.told("job", 1).ending.why
    hooks.ends(1, "TIMED_OUT", applied=False)
    assert hooks.ending(1) == ("InProgress", "ferryman run relay")
    hooks.publish(db)
    assert hooks.ending(1) == ("InProgress", "ferryman run webhooks")
    hooks.applies()
    assert hooks.ending(1) == ("PendingRetry", None)
    assert "its rule for timeouts decides" in hooks.told("delivery", 1).ending.why
    desk.due()
    hooks.ends(1, "GONE")
    assert hooks.ending(1) == (
        "DeadLettered",
        "ferryman dead-letters requeue --id 1 --yes --reason 'trace delivery:1'",
    )
    db.execute("UPDATE webhooks.subscriptions SET active = false")
    disabled = hooks.told("delivery", 1).ending
    assert (disabled.next, disabled.rest.endswith("is disabled")) == (None, True)


def test_event_of_several_subscriptions_names_the_delivery_to_look_at(hooks: Hooks) -> None:
    first, second, _ = (subscribe(hooks.desk.db, "https://a.example", max_retry_limit=1) for _ in range(3))
    event = publish(hooks.desk.db)
    hooks.deliveries.route()
    hooks.deliveries.due()
    hooks.ends(first)
    story = hooks.told("event", event)
    assert (story.ending.now, story.ending.why) == ("ROUTED", "its deliveries are 1 Completed, 2 InProgress")
    assert story.ending.next == f"ferryman trace delivery:{second}"
    hooks.ends(3, "GONE")
    assert hooks.told("event", event).ending.next == "ferryman trace delivery:3"
    unwanted = hooks.told("event", publish(hooks.desk.db, event_type="nobody.wants"))
    assert unwanted.ending.now == "UNROUTED"
    hooks.deliveries.route()
    assert hooks.told("event", 2).over


def test_result_that_was_not_believed_is_told_with_its_reason(hooks: Hooks) -> None:
    saga, db = hooks.deliveries.routed(), hooks.desk.db
    known = hooks.deliveries.end(saga)
    forged = Message("webhook.attempt-failed", {**known.data, "error_code": "GONE"}, key=known.key, id=uuid4())
    with db.transaction():
        append(db, forged)
    hooks.applies()
    assert forged.id
    story = trace(hooks.sides, forged.id, [TRACER])
    assert story.id == saga
    assert [each.detail["type"] for each in story.events if each.what == "applied to nothing: FORGED"] == [forged.type]


def test_number_is_a_position_first_and_a_kind_is_certain(hooks: Hooks) -> None:
    saga = hooks.deliveries.routed()
    assert (trace(hooks.sides, saga, [TRACER]).kind, hooks.told("job", 1).id) == ("delivery", saga)
    hooks.ends(saga)
    for kind in ("event", "delivery", "job", "order"):
        with pytest.raises(FerrymanError, match=f"nobody knows {kind}:99"):
            hooks.told(kind, 99)
