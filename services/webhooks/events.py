"""Events: each is recorded once, from SQL, HTTP or Kafka; the orchestrator routes them to subscriptions."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import psycopg

from ferryman import Consumer, Done, Misconfigured, Permanent, Received
from ferryman.services.webhooks.webhooks_settings import MAX_PAYLOAD_BYTES, WebhooksSettings

Connection: TypeAlias = "psycopg.Connection[Any]"

INTAKE = "webhook-events"
JSON, BYTES = "application/json", "application/octet-stream"
_WORD = r"[!#$&^_.+0-9A-Za-z-]+"
CONTENT_TYPE = rf"{_WORD}/{_WORD}(;[ -~]*)?"
"""The pattern of a content type: it becomes a header of the request."""

_RECORD = """\
-- webhooks.record_event
INSERT INTO webhooks.events (type, payload, content_type, idempotency_key, request_hash)
VALUES (%(type)s, %(payload)s, %(content_type)s, %(key)s, %(hash)s)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id, created_at
"""

_KNOWN = """\
-- webhooks.known_event
SELECT id, created_at, request_hash FROM webhooks.events WHERE idempotency_key = %(key)s
"""


class InvalidEvent(Permanent):
    """An event that cannot be recorded or sent. The message shows nothing of its payload."""


class PayloadTooLarge(InvalidEvent):
    """A payload over the limit."""


class KeyReused(Permanent):
    """An idempotency key that another request had."""


@dataclass(frozen=True, slots=True)
class EventInput:
    """An event to record. With a key, the same event is recorded once, however often it is given."""

    type: str
    payload: bytes
    content_type: str = JSON
    key: str | None = None

    @property
    def hash(self) -> bytes | None:
        """A hash that tells a repeated request from another one; None without a key."""
        if self.key is None:
            return None
        return request_hash([self.type, self.content_type, hashlib.sha256(self.payload).hexdigest()])


class RecordedEvent(NamedTuple):
    """An event that is recorded. `new` is False if it was recorded before, under its key."""

    id: int
    created_at: datetime
    new: bool


def record_event(db: Connection, event: EventInput, max_bytes: int = MAX_PAYLOAD_BYTES) -> RecordedEvent:
    """Record an event in the caller's transaction. Raise `InvalidEvent`, or `KeyReused` if its key is another's."""
    _check(event, max_bytes)
    values = {"type": event.type, "payload": event.payload, "content_type": event.content_type, "key": event.key,
              "hash": event.hash}  # fmt: skip
    if row := db.execute(_RECORD, values).fetchone():
        return RecordedEvent(row[0], row[1], new=True)
    known = db.execute(_KNOWN, values).fetchone()
    assert known is not None
    if known[2] != event.hash:
        raise KeyReused(f"the event {known[0]} was recorded with this idempotency key, and is another one")
    return RecordedEvent(known[0], known[1], new=False)


def request_hash(request: Any) -> bytes:
    """Return the hash by which a repeated request is told from another one with its key."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()


def webhook_events(settings: Any) -> Consumer:
    """Return the consumer that records messages from Kafka as events, each once."""
    given: WebhooksSettings = settings.section(WebhooksSettings)
    _need("event_topics", given.event_topics, "the topics that it reads")
    _need("event_types", given.event_types, "the types that it records: others on these topics are not for webhooks")
    consumer = Consumer(INTAKE, given.event_topics, connection=psycopg.Connection)
    consumer.handles(*dict.fromkeys(given.event_types))(record_message)
    return consumer


def record_message(db: Connection, message: Received) -> Done:
    """Record a message as an event, with its id as the key: once, also when its receipt is forgotten."""
    payload, content_type = _content(message)
    record_event(db, EventInput(message.type, payload, content_type, str(message.id)))
    return Done()


def _check(event: EventInput, max_bytes: int) -> None:
    if not 1 <= len(event.type) <= 255 or "\0" in event.type:
        raise InvalidEvent("the type of an event must have 1 to 255 characters, and no NUL")
    if not _is_content_type(event.content_type):
        raise InvalidEvent("the content type of an event is not valid: write it as application/json")
    if len(event.payload) > max_bytes:
        raise PayloadTooLarge(f"the payload has {len(event.payload)} bytes, and {max_bytes} are allowed")


def _is_content_type(text: str) -> bool:
    return len(text) <= 255 and re.fullmatch(CONTENT_TYPE, text) is not None


def _content(message: Received) -> tuple[bytes, str]:
    """Return the bytes that endpoints get, and their type: as they came, or as JSON if they had a schema."""
    raw, said = message.record.value or b"", message.headers.get("content-type", "")
    in_json = said.partition(";")[0].strip().lower() == JSON
    if in_json or isinstance(message.data, bytes):
        return raw, said if _is_content_type(said) else JSON if in_json else BYTES
    return json.dumps(message.data, default=_plain, ensure_ascii=False, separators=(",", ":")).encode(), JSON


def _plain(value: Any) -> str:
    """Return a value of a schema as JSON has it: times in UTC, bytes in base64, anything else as its text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _need(name: str, given: Sequence[str], what: str) -> None:
    if not given:
        raise Misconfigured(f"{INTAKE} has nothing to record", setting=f"webhooks.{name}", remedy=f"name {what}")
