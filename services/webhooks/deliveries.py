"""Deliveries as a person looks at them: where each stands. Nothing is changed."""

from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.rows import class_row

Connection: TypeAlias = "psycopg.Connection[Any]"

_COLUMNS = """\
s.id, s.event_id, e.type AS event_type, s.subscription_id, s.status::text, s.attempt_count, s.next_attempt_at,
s.final_error_code, s.generation, s.requeued_from, s.created_at, s.updated_at"""

_FIND = f"""\
-- webhooks.find_delivery
SELECT {_COLUMNS} FROM webhooks.webhook_delivery_sagas s JOIN webhooks.events e ON e.id = s.event_id WHERE s.id = %(id)s
"""  # noqa: S608 - literals

_LIST = f"""\
-- webhooks.list_deliveries
SELECT {_COLUMNS} FROM webhooks.webhook_delivery_sagas s JOIN webhooks.events e ON e.id = s.event_id
WHERE s.id < %(behind)s
  AND (%(subscription_id)s::bigint IS NULL OR s.subscription_id = %(subscription_id)s)
  AND (%(event_id)s::bigint IS NULL OR s.event_id = %(event_id)s)
  AND (%(status)s::webhooks.delivery_status IS NULL OR s.status = %(status)s)
ORDER BY s.id DESC LIMIT %(most)s
"""  # noqa: S608 - literals


class DeliveryRow(NamedTuple):
    """A delivery as its table has it, with the type of its event."""

    id: int
    event_id: int
    event_type: str
    subscription_id: int
    status: str
    attempt_count: int
    next_attempt_at: datetime | None
    final_error_code: str | None
    generation: int
    requeued_from: int | None
    created_at: datetime
    updated_at: datetime


def find(db: Connection, delivery: int) -> DeliveryRow | None:
    """Return a delivery."""
    return db.cursor(row_factory=class_row(DeliveryRow)).execute(_FIND, {"id": delivery}).fetchone()


def listed(
    db: Connection,
    most: int,
    *,
    subscription_id: int | None = None,
    event_id: int | None = None,
    status: str | None = None,
    behind: int | None = None,
) -> list[DeliveryRow]:
    """Return deliveries, the newest first; `behind` is the id of the last one of the previous page."""
    values = {"subscription_id": subscription_id, "event_id": event_id, "status": status,
              "behind": behind or 2**63 - 1, "most": most}  # fmt: skip
    return db.cursor(row_factory=class_row(DeliveryRow)).execute(_LIST, values).fetchall()
