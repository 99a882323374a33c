"""One entry with all that is known about it."""

from dataclasses import dataclass
from typing import Any

from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.selection import Selection
from ferryman.relay.operator.story import Known, Story, tell
from ferryman.relay.store import acts, listing, standing
from ferryman.relay.store.listing import Listed

_MOST_ACTS = 500


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry, its headers and its story; its payload only when it was asked for."""

    entry: Listed
    headers: dict[str, Any]
    content_type: str | None
    story: Story
    payload: bytes | None


def look(desk: Desk, position: int, *, payload: bool = False) -> Seen | None:
    with desk.reading() as connection:
        found = listing.entries_at(connection, Selection().parameters(), [position], 1)
        facts = standing.facts(connection, position)
        if not found or facts is None:
            return None
        entry = found[0]
        known = Known(
            facts=facts,
            paused=standing.paused(connection),
            replay=acts.read_replay(connection, entry.replay) if entry.replay is not None else None,
            relays=standing.relays(connection),
            audit=standing.audit(connection, _MOST_ACTS),
        )
        raw = standing.payload(connection, position) if payload else None
    return Seen(entry, facts["headers"], facts["content_type"], tell(entry, known), raw)
