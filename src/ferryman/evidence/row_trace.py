"""`ferryman trace` of a row that leaves by a channel, by its id or by the id of what it is about."""

from collections.abc import Iterator
from uuid import UUID

from ferryman.evidence.journey import Event
from ferryman.evidence.sides import Side, Sides
from ferryman.evidence.way import Ending, Traced
from ferryman.relay.admin import described_rows, row_story
from ferryman.relay.admin.described_rows import DELIVERED, DISCARDED, RowDesk, archive_of, ids_of
from ferryman.relay.admin.row_story import RowFacts
from ferryman.relay.described.layout import look
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings_outbox import Outbox

_HOLD_UUIDS = ("uuid", "text", "character")
_FACTS = ("id", "type", "status", "state", "attempts", "next_attempt_at", "error", "created_at", "done_at", "reference")


def row_told(sides: Sides, identity: UUID, looked: list[str]) -> Traced | None:
    """Tell the story of a row of an outbox. Add what was searched, and what could not be, to `looked`.

    Rows that go to Kafka are messages, and told as these.
    """
    for name, outbox in sides.settings.outbox.items():
        for side in sides.each if outbox.channel != "kafka" else ():
            try:
                if look(side.connection, outbox) is None:
                    continue
                told = _told(sides, side, described_rows.open_rows(side, name, name, outbox, only_looks=True), identity)
            except FerrymanError as error:
                looked.append(f"the outbox {name}, which this login could not search: {error}")
                continue
            if told is not None:
                return told
            looked.append(f"the outbox {name}")
    return None


def row_in(side: Side, name: str, outbox: Outbox, identity: str) -> tuple[list[Event], Ending]:
    """Return what happened to a row of a described outbox, and why it is where it is."""
    return _story(row_story.look(described_rows.open_rows(side, name, name, outbox, only_looks=True), identity), side)


def _story(known: RowFacts, side: Side) -> tuple[list[Event], Ending]:
    row, story = known.row, row_story.explain(known)
    ending = Ending(row["status"], story.reason.partition(": ")[2], story.next, side.name)
    return sorted(_events(known, side.name), key=lambda each: (each.at is None, each.at)), ending


def _told(sides: Sides, side: Side, rows: RowDesk, identity: UUID) -> Traced | None:
    found = _found(rows, str(identity))
    if not found:
        return None
    known = row_story.look(rows, found[0])
    row, (events, ending) = known.row, _story(known, side)
    others = [f"also about it: {', '.join(found[1:])}"] if found[1:] else []
    facts = {"outbox": rows.name, "archive": known.archive, **{each: row[each] for each in _FACTS}}
    headline = [f"row {row['id']}", f"of {rows.outbox.table}", *others]
    over = row["state"] in (DELIVERED, DISCARDED)
    return Traced(identity, "row", facts, headline, events, ending, sides.missing, over)


def _found(rows: RowDesk, identity: str) -> list[str]:
    """Return the row with this id, or else the rows about what has it: those in the outbox before archived ones."""
    places = [rows, archive] if (archive := archive_of(rows)) else [rows]
    types = rows.layout.types
    for role in (each for each in ("id", "subject") if types.get(each, "").startswith(_HOLD_UUIDS)):
        if found := [each for place in places for each in ids_of(place, role, identity)]:
            return list(dict.fromkeys(found))
    return []


def _events(known: RowFacts, where: str) -> Iterator[Event]:
    row = known.row
    yield Event(row["created_at"], where, "recorded", {"type": row["type"] or ""})
    for each in known.history:
        said = {name: each[name] for name in ("code", "error", "reference") if each[name]}
        at, bad = each["ended_at"] or each["began_at"], each["outcome"] not in ("begun", "delivered", "resolved")
        yield Event(at, where, each["outcome"], said, bad=bad)
    for act in known.acts:
        yield Event(act["at"], where, act["act"], {"by": act["who"], "reason": act["reason"]})
    if row["done_at"] and not any(each["outcome"] == "delivered" for each in known.history):
        yield Event(row["done_at"], where, "delivered")
