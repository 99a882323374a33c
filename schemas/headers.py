"""The headers of every record: CloudEvents 1.0 in binary mode, as Kafka's binding of it says, and two beside it."""

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

# Of what was requeued, in the topics of one consumer's own: where it came from, and what another writer's were.
REQUEUED_FROM = "x-requeued-from"
ORIGINAL = "x-original-"

CLOUDEVENTS = "1.0"
OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Header:
    """One of them, as its reader needs to know it. Its value is text in UTF-8."""

    name: str
    text: str
    when: str = "always"
    form: dict[str, Any] = field(default_factory=dict)
    """What JSON Schema says of the text."""


HEADERS = (
    Header(SPECVERSION, f"The version of CloudEvents: {CLOUDEVENTS}.", form={"const": CLOUDEVENTS}),
    Header(ID, "The message's id, a uuid. A duplicate has the same one.", form={"format": "uuid"}),
    Header(
        SOURCE,
        "The outbox it was written to: / and its database's name, unless its owner calls it otherwise.",
        form={"format": "uri-reference"},
    ),
    Header(TYPE, "The message's type: it says which schema is meant."),
    Header(TIME, "When it was written, RFC 3339 in UTC. It says nothing about order.", form={"format": "date-time"}),
    Header(CONTENT_TYPE, "The format of the value."),
    Header(TRACEPARENT, "The writer's trace, as W3C Trace Context says it.", "when the writer had one"),
    Header(REPLAY, "The number of the replay that published it once more.", "on replays", {"pattern": "^[0-9]+$"}),
)
