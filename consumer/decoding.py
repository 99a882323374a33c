"""A record becomes a message, or is poison: what keeps it from being one is said in a code and in words."""

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any
from uuid import UUID

from ferryman.consumer.model import Poison, Received, Record
from ferryman.runtime.errors import Transient
from ferryman.runtime.redaction import redact
from ferryman.runtime.uuids import derived, parsed
from ferryman.schemas import active, headers

_OURS = UUID("6f1f1b7e-6b1c-5d0a-9a3e-0e5f8a1c2d47")
_HASH_BYTES = 16
_MOST_WORDS = 2000
MOST_TYPE_CHARACTERS = 255
"""As the outbox has it; the header stays as long as it is."""

UNREADABLE, NO_VALUE, BAD_KEY, BAD_HEADER = "UNREADABLE", "NO_VALUE", "BAD_KEY", "BAD_HEADER"
JSON = "application/json"


def hash_of(value: bytes | None) -> bytes:
    return blake2b(value or b"", digest_size=_HASH_BYTES).digest()


def identity(record: Record) -> UUID:
    """The message's id: `ce_id` where it is a uuid, else one that follows from `ce_source` and `ce_id`.

    A record without either is known by where it stands: it is then a duplicate of nothing but itself.
    """
    given = (record.header(headers.ID) or b"").decode("utf-8", "replace")
    try:
        return parsed(given)
    except ValueError:
        source = (record.header(headers.SOURCE) or b"").decode("utf-8", "replace")
        return derived(_OURS, f"{source}\n{given}" if given else f"{record.topic}/{record.partition}/{record.offset}")


def type_of(record: Record) -> str:
    """`ce_type`, empty where there is none or it is no text."""
    return _text(record.header(headers.TYPE)) or ""


def poison_of(record: Record, code: str, why: str) -> Poison:
    kind = type_of(record)[:MOST_TYPE_CHARACTERS]
    return Poison(record, identity(record), kind, hash_of(record.value), code, sayable(redact(why)))


def sayable(words: str) -> str:
    """In a form that PostgreSQL's text can hold: JSON may have put anything into an error."""
    return words[:_MOST_WORDS].replace("\0", "").encode("utf-8", "replace").decode()


def decode(record: Record, kind: str) -> Received | Poison:
    """Raises `Transient` where the schema's registry is away: then it waits."""
    if record.no_headers is not None:
        return poison_of(record, BAD_HEADER, record.no_headers)
    if record.value is None:
        return poison_of(record, NO_VALUE, "it has no value: a tombstone is no message")
    key = "" if record.key is None else _text(record.key)
    if key is None:
        return poison_of(record, BAD_KEY, "its key is no text in UTF-8, or holds a null byte")
    try:
        data = _data(record, kind, record.value)
    except Transient:
        raise
    except Exception as error:  # whatever a codec says of bytes that it cannot read
        return poison_of(record, UNREADABLE, str(error))
    return Received(identity(record), kind, data, key, record, hash_of(record.value))


def _data(record: Record, kind: str, value: bytes) -> Any:
    codecs = active.codecs()
    codec = codecs.of(kind) if codecs else None
    if codec is not None:
        from ferryman.schemas.codec import At

        return codec.decode(value, At(record.topic, record.partition, record.offset))
    return json.loads(value) if _content_type(record) == JSON else value


def _content_type(record: Record) -> str:
    said = record.header(headers.CONTENT_TYPE) or b""
    return said.decode("utf-8", "replace").partition(";")[0].strip().lower()


def _text(raw: bytes | None) -> str | None:
    try:
        text = (raw or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


Decode = Callable[[Record, str], Received | Poison]
