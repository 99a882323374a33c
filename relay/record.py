"""An entry as a Kafka record: CloudEvents 1.0 in binary mode, its attributes as headers."""

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

from ferryman.relay.model import Entry

Headers: TypeAlias = list[tuple[str, str | bytes | None]]

OCTETS = "application/octet-stream"
REPLAY = "x-replay"

# A batch's and a record's own bytes, and those of each header, beside what they carry.
_RECORD_BYTES = 61 + 40
_HEADER_BYTES = 6

MOST_OVERHEAD_BYTES = 64_000
"""A record's key and headers never take more: the outbox bounds them."""


def headers(entry: Entry, source: str) -> Headers:
    """The attributes the relay sets, then the writer's own headers (`traceparent` among them)."""
    _, identity, _, _, kind, _, own, content_type, created_us, *_ = entry
    seconds, microseconds = divmod(created_us, 1_000_000)
    ours: Headers = [
        ("ce_specversion", "1.0"),
        ("ce_id", identity),
        ("ce_source", source),
        ("ce_type", kind),
        ("ce_time", f"{_second(seconds)}.{microseconds:06d}Z"),
        ("content-type", content_type or OCTETS),
    ]
    if own is not None:
        ours.extend(json.loads(own).items())
    return ours


def size(key: str, payload: bytes, headers: Headers) -> int:
    """The bytes it takes in a batch, before compression."""
    of_headers = sum(_bytes(name) + _bytes(value) + _HEADER_BYTES for name, value in headers)
    return len(payload) + _bytes(key) + of_headers + _RECORD_BYTES


def _bytes(text: str | bytes | None) -> int:
    return len(text.encode() if isinstance(text, str) else text or b"")


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
