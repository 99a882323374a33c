"""Gives entries up: they are never published, and what waited behind them goes on."""

from dataclasses import dataclass, replace

from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.listing import without_status
from ferryman.relay.operator.selection import FAILED, PARKED, RETRYING, Selection
from ferryman.relay.store import acts, exceptions, lanes, listing
from ferryman.runtime.desk import Act, audit

DISCARDABLE = (RETRYING, PARKED, FAILED)
CHUNK = 5_000
_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a discard would do, up to the last position there is; `others` are those that it would leave."""

    by_status: dict[str, int]
    others: dict[str, int]
    keys: int
    last: int

    @property
    def entries(self) -> int:
        return sum(self.by_status.values())


@dataclass(slots=True)
class Progress:
    """How far a discard is."""

    entries: int = 0
    keys_released: int = 0


def plan(desk: Desk, selection: Selection) -> Plan:
    statuses = selection.statuses or DISCARDABLE
    with desk.reading() as connection:
        last = listing.last_position(connection)
        by_status = acts.count_discardable(connection, selection.parameters(), statuses, last)
        keys = acts.keys_of_discardable(connection, selection.parameters(), statuses, last)
        others: dict[str, int] = {}
        if selection.positions is not None:
            found = listing.count_at(connection, without_status(selection).parameters(), selection.positions)
            others = {status: count for status, (count, _) in found.items() if status not in statuses}
    return Plan(by_status, others, keys, last)


def discard(desk: Desk, selection: Selection, act: Act, *, last: int, progress: Progress) -> None:
    """Discards what is meant up to a position.

    From the last to the first, because the first of a parked key holds back the others: none of those that are meant
    is let go by another's going.
    """
    statuses = selection.statuses or DISCARDABLE
    said = replace(selection, statuses=statuses).as_json()
    before = _END
    while True:
        with desk.reading() as connection:
            found = acts.discardable(connection, selection.parameters(), statuses, before=before, last=last, most=CHUNK)
        if not found:
            return
        before = found[-1][0]
        with desk.acting() as connection:
            lanes.hold(connection, list({lane for _, lane in found}), wait_seconds=desk.lane_wait_seconds)
            discarded = acts.discard(connection, [position for position, _ in found], statuses)
            parked = acts.parked_of(connection, sorted(set(discarded)))
            exceptions.release_keys(connection, parked, 1)
            if discarded:
                audit(connection, "discard", act, said=said, entries=len(discarded))
        progress.entries += len(discarded)
        progress.keys_released += len(parked)
