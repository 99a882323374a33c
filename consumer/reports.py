"""What a handler reports: appended with the effects, and kept to be reported again with the same ids and bytes."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid5

from ferryman.consumer.model import Received
from ferryman.message import Message, Stored, stored

_TRACE = "traceparent"


def prepared(consumer: str, message: Received, reports: Sequence[Message]) -> list[Stored]:
    """With ids that follow from the message's, and its trace where they have none of their own."""
    made = []
    for number, report in enumerate(reports):
        headers = report.headers
        if message.traceparent and _TRACE not in headers:
            headers = {**headers, _TRACE: message.traceparent}
        given = report.id or uuid5(message.id, f"{consumer}/{number}")
        made.append(stored(replace(report, id=given, headers=headers)))
    return made


def kept(reports: Sequence[Stored]) -> str | None:
    """In a form that outlives the outbox's retention."""
    if not reports:
        return None
    return json.dumps(
        [
            [each.topic, each.key, each.type, base64.b64encode(each.payload).decode(), each.headers, str(each.id),
             each.content_type]
            for each in reports
        ],
        separators=(",", ":"),
    )  # fmt: skip


def again(kept_results: str | None) -> list[Stored]:
    """Without its idempotency key, which would swallow it."""
    return [
        Stored(topic, key, kind, base64.b64decode(payload), headers, UUID(identity), None, content_type)
        for topic, key, kind, payload, headers, identity, content_type in json.loads(kept_results or "[]")
    ]
