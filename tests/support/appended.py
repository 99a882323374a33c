"""Messages of a catalogue in an outbox, and the records that a reader of the topic should find."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

import psycopg

from ferryman.schemas import json_form
from ferryman.schemas.catalogue import Type
from ferryman.schemas.codec import Codec
from ferryman.schemas.registry import SchemaSource
from ferryman.schemas.registry.confluent import ConfluentRegistry

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN_HEADERS = {"traceparent": TRACE, "naïve": "grüß", "empty": ""}
_APPEND = """
    SELECT ferryman.outbox_append(topic => %s, key => %s, type => %s, payload => %s, headers => %s, content_type => %s)
"""
_STORED = "SELECT id::text, created_at FROM ferryman.outbox WHERE id = %s"


@dataclass
class Appended:
    """An outbox, and the messages appended to it, each in its own transaction."""

    db: psycopg.Connection[tuple[Any, ...]]
    topic: str
    registry: SchemaSource
    expected: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The topic, the key, all headers, and the data as JSON, by id."""
    payloads: dict[str, bytes] = field(default_factory=dict)

    def sample(self, kind: Type, sample: Mapping[str, Any], *, key: str) -> None:
        """Append a sample of the type, in the type's own format. A registry that is not the catalogue learns of it."""
        if isinstance(self.registry, ConfluentRegistry):
            self.registry.register(kind.subject, kind.text)
        data = json_form.from_json(kind.schema, sample)
        payload = Codec(kind, self.registry).encode(data)
        self.append(kind.name, payload, json_form.to_json(kind.schema, data), key=key, content_type=kind.content_type)

    def append(self, kind: str, payload: bytes, data: Any, *, key: str = "k", content_type: str | None = None) -> None:
        values = (self.topic, key, kind, payload, json.dumps(OWN_HEADERS), content_type)
        entry = self.db.execute(_APPEND, values).fetchone()
        identity, at = self.db.execute(_STORED, entry).fetchone() or ("", None)
        assert at is not None
        headers = {
            "ce_specversion": "1.0",
            "ce_id": identity,
            "ce_source": f"/{self.db.info.dbname}",
            "ce_type": kind,
            "ce_time": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "content-type": content_type or "application/octet-stream",
        }
        self.payloads[identity] = payload
        self.expected[identity] = {"topic": self.topic, "key": key, "headers": headers | OWN_HEADERS, "data": data}
