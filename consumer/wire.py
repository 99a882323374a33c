"""Bytes and messages: records decoded, reports prepared, kept and restored, and dead letters written."""

import base64
import json
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ferryman.consumer.kafka.consumer_topics import dead_letter_topic
from ferryman.consumer.model import BY_ID, Item, Poison, Received, Record
from ferryman.message import JSON, Message, Stored, stored
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.kafka import headers_of
from ferryman.runtime.redaction import redact
from ferryman.runtime.uuids import derived
from ferryman.schemas import active, headers

if TYPE_CHECKING:
    from confluent_kafka import Message as KafkaMessage

UNREADABLE, NO_VALUE, BAD_KEY, BAD_HEADER, CONFLICT = "UNREADABLE", "NO_VALUE", "BAD_KEY", "BAD_HEADER", "CONFLICT"
DEAD_LETTER = "ferryman.dead-letter"

Base64Headers = list[list[str | None]]
"""Headers as JSON can hold them: each name with its value in base64."""
Decode = Callable[[Record, str, Sequence[str]], Item]

_OURS = UUID("6f1f1b7e-6b1c-5d0a-9a3e-0e5f8a1c2d47")
_HASH_BYTES = 16
_MOST_ERROR_CHARACTERS = 2000
_MOST_TYPE_CHARACTERS = 255  # the outbox takes no more; the header stays as long as it is
_MOST_KEY_BYTES = 1500
_MOST_PASSED_BYTES = 4000
_PASSED_ON = (headers.TRACEPARENT, headers.CORRELATION)
# What a dead letter leaves out until it fits: as little as possible. Without all of it, it has less than 1,000 bytes.
_LEFT_OUT = (
    (),
    ("headers_base64",),
    ("value_base64",),
    ("headers_base64", "value_base64"),
    ("headers_base64", "value_base64", "key_base64"),
    ("headers_base64", "value_base64", "key_base64", "error"),
    ("headers_base64", "value_base64", "key_base64", "error", "type"),
)
# Made once: `json.dumps` makes an encoder for each call whose options are not the defaults.
_as_json = json.JSONEncoder(separators=(",", ":")).encode


def record_of(message: "KafkaMessage") -> Record:
    """Return a message of Kafka's client as a record."""
    given, fault = [], None
    try:
        given = headers_of(message)
    except ValueError as error:
        fault = str(error)
    return Record(
        message.topic() or "", message.partition() or 0, message.offset() or 0, message.key(), message.value(), given,
        message.timestamp()[1], fault,
    )  # fmt: skip


def identity(record: Record, id_from: Sequence[str] = BY_ID) -> UUID:
    """Return the message's id: `ce_id` if it is a UUID and alone in `id_from`, else one derived from source and id.

    The id of a record without a `ce_id` is derived from its place and time: it is a duplicate of nothing but itself,
    also if its topic is made anew.
    """
    given = (record.header(headers.ID) or b"").decode("utf-8", "replace")
    if headers.SOURCE not in id_from:
        try:
            return UUID(given)
        except ValueError:
            pass
    source = (record.header(headers.SOURCE) or b"").decode("utf-8", "replace")
    place = f"{record.topic}/{record.partition}/{record.offset}/{record.timestamp_ms}"
    return derived(_OURS, f"{source}\n{given}" if given else place)


def type_of(record: Record) -> str:
    """Return `ce_type`, or an empty string if it is missing or not text."""
    return text_of(record.header(headers.TYPE)) or ""


def decode(record: Record, kind: str, id_from: Sequence[str] = BY_ID) -> Item:
    """Return the message, or why it is not one. Raise `Transient` or `Misconfigured` while the registry fails us."""
    if record.no_headers is not None:
        return poison_of(record, BAD_HEADER, record.no_headers, id_from)
    if record.value is None:
        return poison_of(record, NO_VALUE, "it has no value: a tombstone is not a message", id_from)
    key = "" if record.key is None else text_of(record.key)
    if key is None:
        return poison_of(record, BAD_KEY, "its key is not UTF-8 text, or holds a null byte", id_from)
    try:
        data = _data(record, kind, record.value)
    except (Transient, Misconfigured):
        raise
    except Exception as error:  # whatever a codec raises for bytes that it cannot read
        return poison_of(record, UNREADABLE, str(error), id_from)
    return Received(identity(record, id_from), kind, data, key, record, hash_of(record.value, record.key, kind))


def poison_of(record: Record, code: str, error: str, id_from: Sequence[str] = BY_ID) -> Poison:
    kind = type_of(record)[:_MOST_TYPE_CHARACTERS]
    hashed = hash_of(record.value, record.key, type_of(record))
    return Poison(record, identity(record, id_from), kind, hashed, code, storable(redact(error)))


def conflict_of(item: Item) -> Poison:
    """Return the poison for an item whose id belongs to a message with another type, key or payload."""
    if isinstance(item, Poison):
        return item._replace(code=CONFLICT)
    error = "another message with the same id came before, and had another type, key or payload"
    return Poison(item.record, item.id, item.type, item.hash, CONFLICT, error)


def hash_of(value: bytes | None, key: bytes | None = None, kind: str = "") -> bytes:
    """Return what a duplicate has in common with its message, beside the id."""
    head = kind.encode("utf-8", "replace"), key or b""
    hashed = blake2b(b"%d %d " % (len(head[0]), len(head[1])), digest_size=_HASH_BYTES)
    for each in (*head, value or b""):
        hashed.update(each)
    return hashed.digest()


def storable(words: str) -> str:
    """Return an error in a form that PostgreSQL's text can hold: JSON may have put anything into it."""
    return words[:_MOST_ERROR_CHARACTERS].replace("\0", "").encode("utf-8", "replace").decode()


def text_of(raw: bytes | None) -> str | None:
    """Return the text, or None if PostgreSQL's text could not hold it."""
    try:
        text = (raw or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _data(record: Record, kind: str, value: bytes) -> Any:
    codecs = active.codecs()
    codec = codecs.of(kind) if codecs else None
    if codec is not None:
        from ferryman.schemas.codec import At

        return codec.decode(value, At(record.topic, record.partition, record.offset))
    given = (record.header(headers.CONTENT_TYPE) or b"").decode("utf-8", "replace")
    return json.loads(value) if given.partition(";")[0].strip().lower() == JSON else value


def prepared_reports(consumer: str, message: Received, reports: Sequence[Message]) -> list[Stored]:
    """Return a handler's reports as the outbox takes them, with ids derived from the message's.

    The trace and the correlation of the message are handed on with reports that have none of their own.
    """
    passed = _passed_on(message.record) if reports else None
    codecs = active.codecs()
    catalogued = codecs.catalogue.types if codecs else {}
    made = []
    for number, report in enumerate(reports):
        if passed:
            report = replace(report, headers={**passed, **report.headers})  # noqa: PLW2901
        if report.topic is None and report.type not in catalogued:
            report = replace(report, topic=f"{consumer}.results")  # noqa: PLW2901
        entry = stored(report)
        made.append(entry if entry.id else entry.with_id(derived(message.id, f"{consumer}/{number}")))
    return made


def _passed_on(record: Record) -> dict[str, str]:
    found = dict(record.headers)
    texts = {name: text_of(value[:_MOST_PASSED_BYTES]) for name in _PASSED_ON if (value := found.get(name))}
    return {name: text for name, text in texts.items() if text}


def kept_reports(reports: Sequence[Stored]) -> str | None:
    """Return reports as the receipt keeps them: the outbox may forget its entries sooner."""
    if not reports:
        return None
    return _as_json(
        [
            [topic, key, kind, b2a_base64(payload, newline=False).decode(), texts, str(identity), content_type]
            for topic, key, kind, payload, texts, identity, _, content_type in reports
        ]
    )


def restored_reports(kept: str | None) -> list[Stored]:
    """Return the reports of a receipt, to be reported again. An idempotency key would swallow them: it is left out."""
    return [
        Stored(topic, key, kind, base64.b64decode(payload), texts, UUID(identity), None, content_type)
        for topic, key, kind, payload, texts, identity, content_type in json.loads(kept or "[]")
    ]


def dead_letter(consumer: str, poison: Poison, most_bytes: int) -> Stored:
    """Return the message about a rejected record, such that the outbox never refuses it.

    Key, value and headers are in base64, since they may be anything. What makes the letter too large is left out, and
    stays in `ferryman.inbox_rejected`. Its id is derived from the message's, and the record's place
    and bytes: a record has one letter, also if its topic is made anew.
    """
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
        "headers_base64": None if record.no_headers else headers_to_base64(record.headers),
    }
    place = f"{record.topic}/{record.partition}/{record.offset}"
    id_ = derived(poison.id, f"{consumer}/{place}/{poison.hash.hex()}")
    topic, key = dead_letter_topic(record.topic, consumer), f"{record.topic}/{record.partition}"
    return Stored(topic, key, DEAD_LETTER, _fitting(body, most_bytes), None, id_, None, JSON)


def _fitting(body: dict[str, Any], most_bytes: int) -> bytes:
    made = b""
    for left_out in _LEFT_OUT:
        made = json.dumps({**body, **dict.fromkeys(left_out)}).encode()
        if len(made) <= most_bytes:
            break
    return made


def headers_to_base64(given: Sequence[tuple[str, bytes | None]]) -> Base64Headers:
    """Return headers as JSON. Their names are text in Kafka's protocol, but may hold what PostgreSQL's text cannot."""
    return [[name.replace("\0", "\ufffd"), _base64(value)] for name, value in given]


def headers_from_base64(kept: Base64Headers) -> list[tuple[str, bytes | None]]:
    """Return headers as Kafka had them."""
    return [(name or "", None if value is None else base64.b64decode(value)) for name, value in kept]


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
