"""A rejected record as a message for the outbox, the same one to its consumer; or why it cannot be one.

The relay publishes an entry's id as `ce_id`. A rejected record's id is the one that its receipt has, whoever made it:
what comes back is known by it, also where it followed from a foreign `ce_source` and `ce_id`.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ferryman.consumer.decoding import BAD_HEADER
from ferryman.consumer.retries import retry_topic
from ferryman.consumer.store.acts import Headers, Rejected
from ferryman.message import Stored
from ferryman.schemas import headers as names

CONFLICT = "CONFLICT"

# The relay sets these itself. Where they were another's, a handler that needs them finds them under other names.
_RELAYS_OWN = (names.ID, names.TYPE, names.SOURCE, names.SPECVERSION, names.TIME, names.CONTENT_TYPE)
_KEPT = (names.ID, names.SOURCE, names.TIME)


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be published once more."""

    why: str


def message(record: Rejected, value: bytes) -> Stored | Refused:
    """All but what the outbox itself looks at: sizes and lengths."""
    if record.code == CONFLICT:
        return Refused("another message has its id: it has no receipt of its own that could be reopened")
    if record.code == BAD_HEADER:
        return Refused("its headers could not be read, so nobody has them: it would not be the same message")
    if record.value_bytes is None:
        return Refused("it has no value: a tombstone is no message")
    key = _text(record.key or b"")
    if key is None:
        return Refused("its key is no text in UTF-8, or holds a null byte: the outbox cannot hold it")
    given = decoded(record.headers)
    texts = {name: _text(raw or b"") for name, raw in given}
    if unfit := sorted(name for name, text in texts.items() if text is None and name not in _RELAYS_OWN):
        return Refused(f"its header {unfit[0]} is no text in UTF-8, or holds a null byte: the outbox cannot hold it")
    headers = _headers(record, {name: text for name, text in texts.items() if text is not None})
    topic = retry_topic(record.topic, record.consumer)
    content_type = next((_text(raw or b"") for name, raw in given if name == names.CONTENT_TYPE), None)
    kind = texts.get(names.TYPE) or record.type  # a long one stands in its header alone
    return Stored(topic, key, kind, value, json.dumps(headers), record.id, None, content_type)


def _headers(record: Rejected, texts: dict[str, str]) -> dict[str, str]:
    """A header without a value becomes an empty one, which a handler cannot tell from it."""
    own = {name: text for name, text in texts.items() if name not in _RELAYS_OWN}
    kept = {names.ORIGINAL + name: texts[name] for name in _KEPT if texts.get(name)}
    if kept.get(names.ORIGINAL + names.ID) == str(record.id):
        del kept[names.ORIGINAL + names.ID]
    if names.REQUEUED_FROM in own:  # requeued before: what stands there is the first's
        kept = {}
    return {**kept, names.REQUEUED_FROM: str(record), **own}


def decoded(headers: Headers) -> Sequence[tuple[str, bytes | None]]:
    """As Kafka had them."""
    return [(name or "", None if value is None else base64.b64decode(value)) for name, value in headers]


def _text(raw: bytes) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
