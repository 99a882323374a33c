"""Messages of Kafka become events: each once, with the bytes that endpoints get."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import Message, Misconfigured, Received
from ferryman.cli.wiring import settings_class
from ferryman.consumer.model import Record
from ferryman.consumer.wire import decode
from ferryman.services.webhooks.events import (
    InvalidEvent,
    KeyReused,
    PayloadTooLarge,
    record_message,
    webhook_events,
)
from ferryman.testing import prove, stack
from support.webhooking import WRITER, Database, DeliveryDesk, subscribe

GIVEN = {"event_topics": ["orders"], "event_types": ["order.paid", "order.sent"]}


def consumer(**webhooks: Any) -> Any:
    return webhook_events(settings_class().model_validate({"webhooks": {**GIVEN, **webhooks}}))


def message(value: bytes, content_type: str | None = None, *, id: UUID | None = None) -> Received:
    headers: list[tuple[str, bytes | None]] = [("ce_id", str(id or uuid4()).encode())]
    if content_type is not None:
        headers.append(("content-type", content_type.encode()))
    found = decode(Record("orders", 0, 7, b"o1", value, headers, 0), "order.paid")
    assert isinstance(found, Received)
    return found


def stored(db: Database) -> list[tuple[bytes, str]]:
    return db.execute("SELECT payload, content_type FROM webhooks.events ORDER BY id").fetchall()


def test_message_is_recorded_once_wherever_the_process_dies(ferryman_db: Database) -> None:
    prove(
        consumer(), Message("order.paid", {"order": 7}, key="o1"), db=ferryman_db,
        invariant=lambda db: db.execute("SELECT type, payload FROM webhooks.events").fetchall()
        == [("order.paid", b'{"order":7}')],
    )  # fmt: skip


def test_message_is_recorded_by_the_event_writers_role(ferryman_db: Database, ferryman_database_url: str) -> None:
    known = message(b"{}", "application/json")
    with psycopg.connect(stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", WRITER)) as db:
        record_message(db, known)
        record_message(db, known)
    desk = DeliveryDesk(ferryman_db)
    subscribe(ferryman_db, "https://a.example", "order.paid")
    desk.route()
    assert ferryman_db.execute("SELECT count(*) FROM webhooks.webhook_delivery_sagas").fetchone() == (1,)


def test_endpoint_gets_the_bytes_that_came(ferryman_db: Database) -> None:
    given = [
        (b'{ "a": 1.0 }', "application/json; charset=utf-8"), (b'"text"', "Application/JSON"), (b"\xff", "image/png"),
        (b"\xff", None), (b"\xff", "no type"), (b"{}", "application/json;\r\nX: y"),
    ]  # fmt: skip
    for value, content_type in given:
        record_message(ferryman_db, message(value, content_type))
    assert stored(ferryman_db) == [
        *given[:3], (b"\xff", "application/octet-stream"), (b"\xff", "application/octet-stream"),
        (b"{}", "application/json"),
    ]  # fmt: skip


def test_data_of_a_schema_is_sent_as_json(ferryman_db: Database) -> None:
    data = {
        "id": UUID(int=7), "at": datetime(2026, 5, 4, 12, 30, tzinfo=UTC), "amount": Decimal("1.50"), "raw": b"\xff",
        "name": "grüße", "none": None, "list": [1, True],
    }  # fmt: skip
    found = message(b"\0avro", "application/avro")
    record_message(ferryman_db, Received(found.id, found.type, data, found.key, found.record, found.hash))
    [(payload, content_type)] = stored(ferryman_db)
    assert payload.decode() == (
        '{"id":"00000000-0000-0000-0000-000000000007","at":"2026-05-04T12:30:00Z","amount":"1.50","raw":"/w==",'
        '"name":"grüße","none":null,"list":[1,true]}'
    )
    assert content_type == "application/json"


def test_message_that_cannot_be_an_event_fails_with_words(ferryman_db: Database) -> None:
    """The consumer rejects it then, keeps its record, and writes a dead letter. What it says shows no payload."""
    with pytest.raises(PayloadTooLarge, match="1048577 bytes"):
        record_message(ferryman_db, message(b"x" * ((1 << 20) + 1)))
    known = message(b"one")
    record_message(ferryman_db, known)
    with pytest.raises(KeyReused, match="another one"):
        record_message(ferryman_db, message(b"two", id=known.id))
    found = message(b"")
    with pytest.raises(InvalidEvent, match="type"):
        record_message(ferryman_db, Received(found.id, "x" * 256, b"", "", found.record, found.hash))
    assert stored(ferryman_db) == [(b"one", "application/octet-stream")]


@pytest.mark.parametrize("name", ["event_topics", "event_types"])
def test_consumer_without_topics_or_types_names_the_setting(name: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        consumer(**{name: []})
    assert refused.value.setting == f"webhooks.{name}"


def test_types_that_are_not_named_are_left_alone() -> None:
    made = consumer(event_types=["order.paid", "order.paid"])
    assert (made.name, made.topics, list(made.handlers), made.unknown) == (
        "webhook-events", ("orders",), ["order.paid"], "ignore",
    )  # fmt: skip
