"""Records that could not be handled: kept as Kafka had them."""

import base64
import json
from typing import Any

from ferryman.consumer.model import Poison
from ferryman.consumer.store.receipts import Connection

# What a person decided is past when it is rejected anew; but a discarded conflict stays so when it comes again. A topic
# that was made anew has other records at the same places.
_KEEP = """\
-- consumer.keep_rejected
WITH kept AS (
    INSERT INTO ferryman.inbox_rejected AS r
        (consumer, topic, partition, "offset", id, type, key, value, headers, code, error)
    VALUES (%(consumer)s, %(topic)s, %(partition)s, %(at)s, %(id)s, %(type)s, %(key)b, %(value)b, %(headers)s, %(code)s,
            %(error)s)
    ON CONFLICT (consumer, topic, partition, "offset") DO UPDATE
    SET id = excluded.id, type = excluded.type, key = excluded.key, value = excluded.value, headers = excluded.headers,
        status = 'REJECTED', code = excluded.code, error = excluded.error, rejected_at = excluded.rejected_at,
        changed_at = NULL, who = NULL, reason = NULL
    WHERE NOT (r.status = 'DISCARDED' AND excluded.code = 'CONFLICT' AND r.id = excluded.id)
)
SELECT s.max_payload_bytes FROM ferryman.outbox_state s
"""


def keep(connection: Connection, consumer: str, poison: Poison) -> int:
    """How large a letter about it may be."""
    record = poison.record
    values: dict[str, Any] = {
        "consumer": consumer, "topic": record.topic, "partition": record.partition, "at": record.offset,
        "id": poison.id, "type": poison.type, "key": record.key, "value": record.value,
        "headers": json.dumps(as_base64(record.headers)), "code": poison.code, "error": poison.error,
    }  # fmt: skip
    row = connection.execute(_KEEP, values).fetchone()
    return int(row[0]) if row else 0


def as_base64(headers: list[tuple[str, bytes | None]]) -> list[list[str | None]]:
    """Header names are text by Kafka's protocol, but may hold what PostgreSQL's text cannot."""
    return [
        [name.replace("\0", "�"), None if value is None else base64.b64encode(value).decode()]
        for name, value in headers
    ]
