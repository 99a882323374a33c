"""How everything stands, as `ferryman outbox stats` prints it."""

from typing import Any

from ferryman.relay.operator.desk import Desk
from ferryman.relay.store import standing as store


def gather(desk: Desk) -> dict[str, Any]:
    with desk.reading() as connection:
        topics = store.topics(connection)
        ages = [each["oldest_age_seconds"] for each in topics if each["oldest_age_seconds"] is not None]
        return {
            "topics": topics,
            "pending": sum(each["pending"] for each in topics),
            "oldest_age_seconds": max(ages, default=None),
            "retrying": sum(each["retrying"] for each in topics),
            "parked": sum(each["parked"] for each in topics),
            "failed": sum(each["failed"] for each in topics),
            "paused": store.paused(connection),
            "parked_topics": store.parked_topics(connection),
            "segments": store.segments(connection),
            "lanes": store.lanes(connection),
            "replays": store.replays(connection),
        }
