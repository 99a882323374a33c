"""Recording events: once for each pair of type and idempotency key, in the writer's own transaction."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import psycopg

from ferryman import FerrymanError, Permanent

_ENQUEUE = "-- runner.enqueue\nSELECT runner.enqueue(%s, %s, %s::jsonb)"
_ANOTHER = "RN001"


class AnotherEvent(Permanent):
    """An event with the same type and idempotency key, and another payload, is recorded."""


def enqueue(db: "psycopg.Connection[Any]", event_type: str, idempotency_key: str, payload: Mapping[str, Any]) -> UUID:
    """Record an event, and return its id: that of the first one, if it is recorded already.

    From SQLAlchemy or Django, call the SQL function `runner.enqueue(event_type, idempotency_key, payload)`.
    """
    try:
        row = db.execute(_ENQUEUE, (event_type, idempotency_key, json.dumps(payload))).fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _ANOTHER:
            raise AnotherEvent(
                f"the event {event_type} with the idempotency key {idempotency_key} is recorded with another payload",
                remedy="give each event a key of its own",
            ) from error
        raise
    if row is None:
        raise FerrymanError("runner.enqueue returned nothing")
    event: UUID = row[0]
    return event
