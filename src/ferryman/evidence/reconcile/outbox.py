"""What of an outbox is not published: found by its key where it failed or waits, else in what no relay has read."""

from datetime import datetime
from uuid import UUID

from ferryman.evidence.reconcile import store
from ferryman.evidence.reconcile.model import Entry
from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.store.listing import last_position
from ferryman.runtime.errors import FerrymanError
from ferryman.schemas import active


def unpublished(
    desk: Desk, keys: set[tuple[str, str]], ids: list[UUID], since: datetime, until: datetime | None
) -> dict[UUID, Entry]:
    """What has failed or waits; and what was not read of these times. An entry moves from the second to the first, so
    the second is read before.
    """
    after = listing.at_time(desk, since)
    upto = listing.at_time(desk, until) if until else None
    with desk.reading() as db:
        found = store.unread(db, ids, after, last_position(db) if upto is None else upto)
        return found | store.exceptions(db, keys, ids)


def topic_of(kind: str) -> str:
    codecs = active.codecs()
    found = codecs.topic_of(kind, None) if codecs else None
    if found is None:
        raise FerrymanError(f"the catalogue does not say where {kind} goes", remedy="name ours, or add it to yours")
    return found
