"""Messages, as their writer gives them and as they are stored."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

from ferryman.runtime.errors import Permanent
from ferryman.schemas import active

if TYPE_CHECKING:
    from ferryman.schemas.codec import Codecs

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its type, its data, and the key of its aggregate. Messages with the same key keep their order.

    Bytes are carried unchanged. Data of a type in the catalogue (`use_schemas`) is checked, and written to the type's
    own topic by its schema; any other data is written as JSON. All checks are made when the message is appended, so
    that a bad message fails its writer.
    """

    type: str
    data: Mapping[str, Any] | bytes
    key: str | UUID = field(kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
    id: UUID | None = field(default=None, kw_only=True)
    idempotency_key: str | UUID | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    content_type: str | None = field(default=None, kw_only=True)


def only_messages(reports: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return these reports, or raise the error where a handler made them."""
    for each in reports:
        if not isinstance(each, Message):
            raise TypeError(f"a report must be a ferryman.Message, not {type(each).__name__}")
    return reports


class Refused:
    """The message must never take effect; `reason` is a code, `reports` are the messages that tell of it."""

    __slots__ = ("reason", "reports")

    def __init__(self, reason: str, *reports: Message) -> None:
        self.reason = reason
        self.reports = only_messages(reports)

    def __repr__(self) -> str:
        return f"Refused({self.reason!r}, *{self.reports!r})"


class Stored(NamedTuple):
    """A message in the form the outbox takes: the parameters of `ferryman.outbox_append`, in their order."""

    topic: str
    key: str
    type: str
    payload: bytes
    headers: str | None
    id: UUID | None
    idempotency_key: str | None
    content_type: str | None

    def with_id(self, identity: UUID) -> "Stored":
        """Do the same as `_replace(id=identity)`, in a fourth of the time."""
        topic, key, kind, payload, headers, _, idempotency_key, content_type = self
        return Stored(topic, key, kind, payload, headers, identity, idempotency_key, content_type)


Encoded: TypeAlias = Stored


def encoded(message: Message) -> Encoded:
    """Return what `append` would store, after the same checks: for an outbox table of your own."""
    return stored(message)


def stored(message: Message) -> Stored:
    """Encode a message, or raise `Permanent` with what is wrong with it."""
    codecs = active.codecs()
    topic = codecs.topic_of(message.type, message.topic) if codecs else message.topic
    if topic is None:
        raise _refused(message, "it has no topic", "name one: Message(..., topic='orders')")
    key = str(message.key) if isinstance(message.key, UUID) else message.key
    texts: list[tuple[str, Any]] = [("topic", topic), ("key", key), ("type", message.type)]
    if message.content_type is not None:
        texts.append(("content_type", message.content_type))
    if (once := message.idempotency_key) is not None:
        once = str(once) if isinstance(once, UUID) else once
        texts.append(("idempotency_key", once))
    for name, value in message.headers.items():
        texts += [(f"header {name!r}", name), (f"header {name!r}", value)]
    for what, text in texts:
        if not isinstance(text, str) or "\0" in text:
            raise _not_text(message, what, text)
    payload, content_type = _payload(message, topic, codecs)
    return Stored(
        topic,
        key,
        message.type,
        payload,
        json.dumps(dict(message.headers)) if message.headers else None,
        None if message.id is None else _id(message),
        once,
        content_type,
    )


def _id(message: Message) -> UUID:
    """Return the message's id, which may be given as text."""
    given: Any = message.id
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (TypeError, ValueError, AttributeError) as error:
        what = str(error) if isinstance(given, str) else f"a {type(given).__name__}"
        raise _refused(message, f"its id is not a uuid: {what}", "give a uuid.UUID, or none") from error


def _payload(message: Message, topic: str, codecs: "Codecs | None") -> tuple[bytes, str | None]:
    """Return the payload and its content type: bytes unchanged, catalogued types by their schema, others as JSON."""
    if isinstance(message.data, bytes):
        return message.data, message.content_type
    if codecs and (encoded := codecs.encode(message.type, topic, message.data)):
        return encoded
    return _as_json(message, message.data), message.content_type or JSON


def _as_json(message: Message, data: Mapping[str, Any]) -> bytes:
    try:
        return _encode(data).encode()
    except (TypeError, ValueError) as error:
        raise _refused(message, f"its data is not JSON: {error}", "use text, numbers, lists, mappings") from error


def _simple(value: Any) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


# Created once: `json.dumps` creates an encoder for each call that does not use its defaults.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_simple).encode


def _not_text(message: Message, name: str, value: Any) -> Permanent:
    if isinstance(value, str):
        return _refused(message, f"its {name} holds a null byte", "PostgreSQL's text cannot hold one: remove it")
    return _refused(message, f"its {name} is not text but a {type(value).__name__}", "give it as text")


def _refused(message: Message, what: str, remedy: str) -> Permanent:
    return Permanent(f"the message {message.type!r} cannot be appended: {what}", remedy=remedy)
