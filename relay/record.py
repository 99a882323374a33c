"""An entry as a Kafka record: CloudEvents 1.0 in binary mode, its attributes as headers."""

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

from ferryman.relay.model import Entry
from ferryman.schemas import headers as names

Header: TypeAlias = tuple[str, str | bytes | None]
Headers: TypeAlias = list[Header]

OCTETS = names.OCTETS
REPLAY = names.REPLAY

# A batch's and a record's own bytes, and those of each header, beside what they carry.
_RECORD_BYTES = 61 + 40
_HEADER_BYTES = 6

MOST_OVERHEAD_BYTES = 64_000
"""A record's key and headers never take more: the outbox bounds them."""


def headers(entry: Entry, source: str) -> Headers:
    """The attributes the relay sets, then the writer's own headers (`traceparent` among them)."""
    _, identity, _, _, kind, _, own, content_type, created_us, _ = entry
    version, origin, of_type, of_content = _shared(source, kind, content_type)
    at = "%s.%06dZ" % (_second(created_us // 1_000_000), created_us % 1_000_000)  # noqa: UP031 - an f-string takes longer
    ours: Headers = [version, (names.ID, identity), origin, of_type, (names.TIME, at), of_content]
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
def _shared(source: str, kind: str, content_type: str | None) -> tuple[Header, Header, Header, Header]:
    """The headers that many entries have in common."""
    return (
        (names.SPECVERSION, names.CLOUDEVENTS),
        (names.SOURCE, source),
        (names.TYPE, kind),
        (names.CONTENT_TYPE, content_type or OCTETS),
    )


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
