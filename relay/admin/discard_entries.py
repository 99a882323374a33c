"""Discards entries: they are never published, and the entries that waited behind them continue."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ferryman.relay.admin import entries
from ferryman.relay.admin.entries import FAILED, PARKED, RETRYING, EntrySelection
from ferryman.relay.store import entry_views, exceptions, operator_acts
from ferryman.runtime.desk import Act, Desk, audit

DISCARDABLE = (RETRYING, PARKED, FAILED)
CHUNK = 5_000


@dataclass(frozen=True, slots=True)
class DiscardPlan:
    """The entries that a discard would change, up to the last position; `others` are those that it would leave."""

    by_status: dict[str, int]
    others: dict[str, int]
    keys: int
    last: int

    @property
    def entries(self) -> int:
        return sum(self.by_status.values())


def plan(desk: Desk, selection: EntrySelection) -> DiscardPlan:
    """Count the entries that would be discarded, and those among named ones that cannot be."""
    statuses = selection.statuses or DISCARDABLE
    with desk.reading() as connection:
        last = entry_views.last_position(connection)
        by_status, keys = operator_acts.count_discardable(connection, selection.of(statuses).parameters(), last)
    named = entries.count(desk, selection.of(None), seconds=math.inf).entries if selection.positions else {}
    return DiscardPlan(by_status, {status: n for status, n in named.items() if status not in statuses}, keys, last)


def discard(desk: Desk, selection: EntrySelection, act: Act, *, last: int) -> Iterator[tuple[int, int]]:
    """Discard the selected entries up to a position. Yield how many, and how many parked keys continue, by chunk.

    From the last to the first, because the first entry of a parked key holds back the others: no selected entry is
    released by the discard of another.
    """
    statuses, before = selection.statuses or DISCARDABLE, entry_views.END
    meant = selection.of(statuses)
    while True:
        with desk.reading() as connection:
            found = operator_acts.discardable(connection, meant.parameters(), before=before, last=last, most=CHUNK)
        if not found:
            return
        before, _ = found[-1]
        with desk.acting() as connection:
            entries.hold(desk, connection, (lane for _, lane in found))
            discarded, parked = operator_acts.discard(connection, [position for position, _ in found], statuses)
            exceptions.release_keys(connection, parked, 1)
            if discarded:
                audit(connection, "discard", act, said=meant.as_json(), entries=discarded)
        yield discarded, len(parked)
