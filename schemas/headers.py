"""The headers of every record: CloudEvents 1.0 in binary mode, by its Kafka binding, and two more."""

from dataclasses import dataclass, field
from typing import Any

SPECVERSION = "ce_specversion"
ID = "ce_id"
SOURCE = "ce_source"
TYPE = "ce_type"
TIME = "ce_time"
CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"
REPLAY = "x-replay"
CORRELATION = "ce_correlationid"
"""An extension of CloudEvents: the question that a message asks or answers. Consumers hand it on."""

# Only on requeued messages, in a consumer's own topics: the original place, and the headers of another writer.
REQUEUED_FROM = "x-requeued-from"
ORIGINAL = "x-original-"

CLOUDEVENTS = "1.0"
OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Header:
    """A header, for the docs of its readers. Its value is text in UTF-8."""

    name: str
    text: str
    when: str = "always"
    form: dict[str, Any] = field(default_factory=dict)
    """The JSON Schema of the text."""


HEADERS = (
    Header(SPECVERSION, f"The version of CloudEvents: {CLOUDEVENTS}.", form={"const": CLOUDEVENTS}),
    Header(ID, "The message's id, a uuid. A duplicate has the same id.", form={"format": "uuid"}),
    Header(
        SOURCE,
        "The outbox it was written to: / and the database's name, unless its owner chose another name.",
        form={"format": "uri-reference"},
    ),
    Header(TYPE, "The message's type; each type has a schema."),
    Header(TIME, "The time of writing, RFC 3339 in UTC. It says nothing about order.", form={"format": "date-time"}),
    Header(CONTENT_TYPE, "The format of the value."),
    Header(TRACEPARENT, "The writer's trace context, in the W3C format.", "if the writer had one"),
    Header(REPLAY, "The number of the replay that published it again.", "on replays", {"pattern": "^[0-9]+$"}),
)
