"""A record that could not be handled, as a message of ours: an append of it can't be refused.

Key, value and headers are base64, since they may be anything. What makes it too large for the outbox is left out, and
stays in `ferryman.inbox_rejected`.
"""

import base64
import json
from hashlib import sha256
from typing import Any
from uuid import uuid5

from ferryman.consumer.model import Poison
from ferryman.consumer.retries import original
from ferryman.consumer.store.rejected import as_base64
from ferryman.message import JSON, Stored

TYPE = "ferryman.dead-letter"
SUFFIX = ".dlt"
_LONGEST_TOPIC = 249
_MOST_KEY_BYTES = 1500
# What is left out, until it fits: as little as that takes. Without any of it, it has less than a thousand bytes.
_LEFT_OUT = (
    (),
    ("headers_base64",),
    ("value_base64",),
    ("headers_base64", "value_base64"),
    ("headers_base64", "value_base64", "key_base64"),
    ("headers_base64", "value_base64", "key_base64", "error"),
    ("headers_base64", "value_base64", "key_base64", "error", "type"),
)


def topic_of(topic: str) -> str:
    """Where the letters of a topic go; a name that would be too long is cut, and told apart by a hash."""
    if len(topic) + len(SUFFIX) <= _LONGEST_TOPIC:
        return topic + SUFFIX
    mark = sha256(topic.encode()).hexdigest()[:16]
    return f"{topic[: _LONGEST_TOPIC - len(SUFFIX) - len(mark) - 1]}-{mark}{SUFFIX}"


def letter(consumer: str, poison: Poison, most_bytes: int) -> Stored:
    """With an id that follows from where the record stood: the same record gives the same letter."""
    record = poison.record
    body = {
        "consumer": consumer,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "id": str(poison.id),
        "type": poison.type,
        "code": poison.code,
        "error": poison.error,
        "key_base64": _base64(record.key and record.key[:_MOST_KEY_BYTES]),
        "value_base64": _base64(record.value),
        "value_bytes": None if record.value is None else len(record.value),
        "headers_base64": None if record.no_headers else as_base64(record.headers),
    }
    identity = uuid5(poison.id, f"{consumer}/{record.topic}/{record.partition}/{record.offset}")
    key = f"{record.topic}/{record.partition}"
    return Stored(
        topic_of(original(record.topic, consumer)), key, TYPE, _fitting(body, most_bytes), None, identity, None, JSON
    )


def _fitting(body: dict[str, Any], most_bytes: int) -> bytes:
    made = b""
    for left_out in _LEFT_OUT:
        made = json.dumps({**body, **dict.fromkeys(left_out)}).encode()
        if len(made) <= most_bytes:
            break
    return made


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
