"""What a handler reports: appended with the effects, and kept to be reported again with the same ids and bytes."""

import base64
import json
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from ferryman.consumer.model import Received
from ferryman.message import Message, Stored, stored
from ferryman.runtime.uuids import derived
from ferryman.schemas import active

_TRACE = "traceparent"

# Made once: `json.dumps` makes an encoder for each call that is not of its defaults.
_as_json = json.JSONEncoder(separators=(",", ":")).encode


def prepared(consumer: str, message: Received, reports: Sequence[Message]) -> list[Stored]:
    """With ids that follow from the message's, and its trace where they have none of their own."""
    trace = message.traceparent if reports else None
    made = []
    for number, report in enumerate(reports):
        if trace and _TRACE not in report.headers:
            report = replace(report, headers={**report.headers, _TRACE: trace})  # noqa: PLW2901
        if report.topic is None and not _catalogued(report):
            report = replace(report, topic=f"{consumer}.results")  # noqa: PLW2901
        entry = stored(report)
        made.append(entry if entry.id else entry.with_id(derived(message.id, f"{consumer}/{number}")))
    return made


def _catalogued(report: Message) -> bool:
    """Whether the catalogue says where it goes; else it goes to the consumer's own topic."""
    codecs = active.codecs()
    return codecs is not None and report.type in codecs.catalogue.types


def kept(reports: Sequence[Stored]) -> str | None:
    """In a form that outlives the outbox's retention."""
    if not reports:
        return None
    return _as_json(
        [
            [topic, key, kind, b2a_base64(payload, newline=False).decode(), headers, str(identity), content_type]
            for topic, key, kind, payload, headers, identity, _, content_type in reports
        ]
    )


def again(kept_results: str | None) -> list[Stored]:
    """Without its idempotency key, which would swallow it."""
    return [
        Stored(topic, key, kind, base64.b64decode(payload), headers, UUID(identity), None, content_type)
        for topic, key, kind, payload, headers, identity, content_type in json.loads(kept_results or "[]")
    ]
