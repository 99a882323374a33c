"""`ferryman trace` of messages that no service of ours knows: from entry to receipt, and on to what was reported."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import Consumer, Done, FerrymanError, Message, Received, Refused, append
from ferryman.cli.trace import as_dict, print_story
from ferryman.cli.wiring import settings_class
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.model import Poison
from ferryman.consumer.transaction import BatchTransaction
from ferryman.consumer.wire import decode
from ferryman.evidence.sides import Sides
from ferryman.evidence.trace import follow, resolve, trace
from ferryman.evidence.way import Traced
from ferryman.services.payments.evidence.tracing import PaymentTracer
from support.pace import in_time
from support.town import Crossing, bare_crossing, crossing_of

GOLDEN = Path(__file__).parent / "golden" / "message.txt"
THERE = "FERRYMAN_DATABASE_URL=<the wallet's URL>"
billing = Consumer("billing", topics=["orders"], connection=psycopg.Connection)
parcels = Consumer(
    "parcels", topics=["orders"], connection=psycopg.Connection, id_from=("ce_source", "ce_id"), rereport=False
)
shipping = Consumer("shipping", topics=["bills"], connection=psycopg.Connection)


@billing.handles("order.placed")
def bill(_db: object, order: Received) -> Done | Refused:
    if order.data["amount"] < 0:
        return Refused("NEGATIVE")
    return Done(Message("order.billed", {"order": order.key}, key=order.key, topic="bills"))


@parcels.handles("order.placed")
def pack(_db: object, _order: Received) -> Done:
    return Done()


@shipping.handles("order.billed")
def ship(_db: object, _bill: Received) -> Done:
    return Done()


FILL = """
INSERT INTO ferryman.outbox (lane, id, topic, key, type, payload, created_at)
SELECT n % 8, gen_random_uuid(), 't', 'k', 'x', '\\x00', clock_timestamp() + n * interval '1 ms'
FROM generate_series(1, 100000) n
"""


@pytest.fixture
def crossing(ferryman_new_database: Callable[[], str]) -> Iterator[Crossing]:
    """Orders in one database, and their consumers on another."""
    with crossing_of(ferryman_new_database(), ferryman_new_database()) as made:
        yield made


def place(crossing: Crossing, amount: int = 5) -> UUID:
    identity = uuid4()
    with crossing.desk.db.transaction():
        append(crossing.desk.db, Message("order.placed", {"amount": amount}, key="o-7", topic="orders", id=identity))
    return identity


def owns(crossing: Crossing, name: str, topic: str) -> None:
    """Mark the consumer as one that has run: it writes that down when it is assigned a partition."""
    crossing.books.db.execute(
        "INSERT INTO ferryman.inbox_start (consumer, topic, partition, owned) VALUES (%s, %s, 0, true)", (name, topic)
    )


def traced(sides: Sides, identity: UUID) -> Traced:
    """With the case file of payments, as the command has it."""
    return trace(sides, identity, [PaymentTracer()])


def told(story: Traced) -> list[str]:
    return [f"{each.where} {each.what} {each.detail.get('type', '')}" for each in story.events]


def test_message_is_followed_from_its_entry_to_what_was_reported(
    crossing: Crossing, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = place(crossing)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    crossing.publish(crossing.books.db)
    owns(crossing, "shipping", "bills")
    crossing.handled(crossing.books.db, shipping, "bills")
    story = traced(crossing.sides, identity)
    assert (story.ending.now, story.ending.next, story.over) == ("HANDLED", None, True)
    said = as_dict(story)
    assert list(said) == ["id", "message", "events", "now", "why", "next", "missing"]
    assert said["message"] == {"type": "order.placed", "topic": "orders", "key": "o-7", "position": 1}
    assert json.dumps(said)
    print_story(story)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", capsys.readouterr().out)
    text = re.sub(r"(?m)^ *(·|[\d.,]+ m?s)", lambda found: "       ·" if found[1] == "·" else "  T", text)
    assert text == GOLDEN.read_text()


def test_each_stop_of_a_message_has_its_state_and_its_command(crossing: Crossing) -> None:
    identity = place(crossing)

    def ends() -> tuple[str, str | None]:
        ending = traced(crossing.sides, identity).ending
        return ending.now, ending.next

    assert ends() == ("PENDING", "ferryman run relay")
    crossing.publish(crossing.desk.db)
    assert ends() == ("PUBLISHED", None)
    owns(crossing, "billing", "orders")
    assert ends() == ("PUBLISHED", f"{THERE} ferryman run module:object")
    crossing.rejected(crossing.books.db, billing, "orders")
    now, following = ends()
    assert now == "REJECTED"
    assert "ferryman inbox requeue --id orders/0/0 --consumer billing" in (following or "")
    crossing.books.db.execute("DELETE FROM ferryman.inbox_rejected")
    lost = traced(crossing.sides, identity)
    assert lost.ending.next is None
    assert lost.ending.rest, "it does not go on by itself"
    assert "only its writer can send it anew" in lost.ending.why
    crossing.books.db.execute("DELETE FROM ferryman.inbox")
    crossing.handled(crossing.books.db, billing, "orders")
    assert ends() == ("HANDLED", f"{THERE} ferryman run relay"), "what it reported is not published"


def test_message_that_was_refused_or_failed_says_so(crossing: Crossing) -> None:
    refused = place(crossing, amount=-1)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    story = traced(crossing.sides, refused)
    assert "billing refused it" in story.ending.why
    assert story.events[-1].detail["reason"] == "NEGATIVE"
    failed = place(crossing)
    crossing.publish(crossing.desk.db, failing=lambda _: ("MSG_SIZE_TOO_LARGE", "too large"))
    ending = traced(crossing.sides, failed).ending
    assert ending.now == "FAILED"
    assert (ending.next or "").startswith("ferryman outbox replay --id ")


def test_report_position_and_place_lead_to_their_message(crossing: Crossing) -> None:
    identity = place(crossing)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    sides = crossing.sides
    assert resolve(sides, ("orders", 0, 0)) == identity
    with pytest.raises(FerrymanError, match="several messages"):
        resolve(sides, 1)  # each database has one
    row = crossing.books.db.execute("SELECT id FROM ferryman.outbox").fetchone()
    assert row is not None
    assert told(traced(sides, row[0])) == ["wallet appended order.billed", "wallet not published yet order.billed"]
    assert resolve(Sides({"wallet": sides["wallet"]}, sides.settings), 1) == row[0]


def test_database_without_our_services_tells_of_its_messages(ferryman_postgres: str) -> None:
    with bare_crossing(ferryman_postgres) as crossing:
        identity = place(crossing)
        assert told(traced(crossing.sides, identity)) == [
            "main appended order.placed",
            "main not published yet order.placed",
        ]
        for db in (crossing.desk.db, crossing.books.db):
            db.execute("SET ROLE ferryman_monitor")
        assert traced(crossing.sides, identity).missing == []
        with pytest.raises(FerrymanError, match="nobody knows"):
            traced(crossing.sides, uuid4())


def test_received_message_is_traced_at_once_in_a_long_journal(crossing: Crossing) -> None:
    """Its entry stands far behind the newest: it is looked for from its receipt on."""
    identity = place(crossing)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    crossing.desk.db.execute(FILL)
    began = time.monotonic()
    story = traced(crossing.sides, identity)
    seconds = time.monotonic() - began
    assert "main appended order.placed" in told(story)
    assert in_time(seconds, 2), f"{seconds:.2f} s: some tenths of a second on a quiet machine"


def test_consumer_that_is_gone_or_retired_is_not_waited_for(
    crossing: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka tells who is gone; to retire a consumer is to delete its group and its partitions."""
    identity = place(crossing, amount=-1)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    for name in ("billing", "amo"):
        owns(crossing, name, "orders")
    assert traced(crossing.sides, identity).ending.next == f"{THERE} ferryman run module:object"
    asked: list[set[tuple[str, str]]] = []

    def gone(_settings: object, wanted: set[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        asked.append(wanted)
        return frozenset(wanted)

    monkeypatch.setattr("ferryman.evidence.kafka.groups_gone", gone)
    ending = trace(crossing.sides, identity, ask=lambda _: {}).ending
    assert (ending.now, ending.next, asked) == ("HANDLED", None, [{("amo", "orders")}])
    assert "amo is not waited for" in ending.why
    crossing.books.db.execute("DELETE FROM ferryman.inbox_start WHERE consumer = 'amo'")
    retired = traced(crossing.sides, identity)
    assert (retired.ending.now, retired.ending.why, retired.over) == ("HANDLED", "billing refused it", True)


def test_types_of_the_newest_receipts_are_those_that_a_consumer_handles(crossing: Crossing) -> None:
    identity = place(crossing)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    [reader] = [each for each in follow(crossing.sides, identity).witnesses if each.consumer == "billing"]
    assert reader.types == frozenset(["order.placed"])


@pytest.mark.parametrize("amount", [5, -1], ids=["reported", "without a report"])
def test_entry_that_there_was_no_time_to_find_is_missing(
    crossing: Crossing, monkeypatch: pytest.MonkeyPatch, amount: int
) -> None:
    """A message that was told from its receipt alone looked as if nobody had sent it."""
    identity = place(crossing, amount)
    crossing.publish(crossing.desk.db)
    crossing.desk.db.execute(FILL.replace("clock_timestamp() + n * interval '1 ms'", "clock_timestamp()"))
    crossing.handled(crossing.books.db, billing, "orders")
    monkeypatch.setattr("ferryman.evidence.trace.JOURNAL_SECONDS", 0.0)
    story = traced(crossing.sides, identity)
    assert "main appended order.placed" not in told(story)
    assert [each for each in story.missing if each.startswith("all of the main's outbox")]
    assert traced(crossing.sides, place(crossing)).missing == []


@pytest.mark.parametrize("reject", [False, True], ids=["handled", "rejected"])
def test_message_is_found_by_the_id_that_its_writer_gave_it(crossing: Crossing, *, reject: bool) -> None:
    """The receipt of a consumer whose ids are derived from source and id has another one."""
    identity = place(crossing)
    crossing.publish(crossing.desk.db)
    [record] = crossing.topics["orders"]
    item = decode(record, "order.placed", parcels.id_from)
    assert item.id != identity
    if reject:
        item = Poison(record, item.id, item.type, item.hash, "BUG", "it broke")
    BatchTransaction(parcels, HandlerConnection(crossing.books.db), [item]).run()
    settings = settings_class().model_validate({"relay": {"ce_source": "/here"}})
    sides = replace(crossing.sides, settings=settings)
    story = traced(sides, identity)
    assert story.ending.now == ("REJECTED" if reject else "HANDLED")
    assert story.id == identity
    assert ("ferryman inbox requeue --id orders/0/0" in (story.ending.next or "")) == reject
    assert told(story)[0] == "main appended order.placed"
    assert traced(sides, item.id).ending.now == story.ending.now, "by the receipt's own id"
    crossing.desk.db.execute("DELETE FROM ferryman.outbox")
    assert traced(sides, identity).ending.now == story.ending.now, "the outbox has forgotten it"


def test_place_of_a_message_that_two_consumers_know_by_two_ids_is_one_message(crossing: Crossing) -> None:
    identity = place(crossing, amount=-1)
    crossing.publish(crossing.desk.db)
    crossing.handled(crossing.books.db, billing, "orders")
    item = decode(crossing.topics["orders"][0], "order.placed", parcels.id_from)
    BatchTransaction(parcels, HandlerConnection(crossing.books.db), [item]).run()
    settings = settings_class().model_validate({"relay": {"ce_source": "/here"}})
    sides = replace(crossing.sides, settings=settings)
    assert resolve(sides, ("orders", 0, 0)) == identity
    assert "billing refused it, and parcels handled it" in traced(sides, identity).ending.why
