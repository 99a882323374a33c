"""Finds a payment's entries in a journal that has no index on ids or keys: by when they must have been appended.

Positions follow time, so a moment is found by bisection, and only what stands around it is read. That costs writers
nothing, and a trace some milliseconds, however much is retained.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ferryman.evidence.trace import store
from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.selection import Selection
from ferryman.relay.store import listing as entries
from ferryman.relay.store.listing import Listed

# First close around each moment; wider only while something is missing that must be there: a long transaction, another
# server's clock, a clock that was set.
_SLACKS = tuple(timedelta(seconds=seconds) for seconds in (0.25, 2.0, 20.0))
_SWEEP_SECONDS = 0.1
_STRIDE = 20_000
_LONGEST_STRIDE = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for, around which moments, and which of it must be there."""

    ids: Collection[UUID]
    key: str
    types: Sequence[str]
    moments: Sequence[datetime]
    must: frozenset[UUID] = frozenset()

    def parameters(self) -> dict[str, Any]:
        return {"ids": list(self.ids), "key": self.key, "types": list(self.types)}


def find(desk: Desk, wanted: Wanted, seconds: float) -> list[Listed]:
    """What is there of it, in order; so long is looked for what must be there. A little more time goes to what may
    follow the first: results that were reported again, and attempts that nobody has answered.
    """
    search = _Search(desk, wanted, time.monotonic() + seconds)
    for slack in _SLACKS:
        for since, to in merged((each - slack, each + slack) for each in wanted.moments):
            search.between(listing.at_time(desk, since), listing.at_time(desk, to))
        if search.complete or search.over:
            break
    if wanted.moments:
        search.until = time.monotonic() + _SWEEP_SECONDS
        search.between(listing.at_time(desk, min(wanted.moments) - _SLACKS[0]), None)
    return [search.found[position] for position in sorted(search.found)]


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Without what they have in common."""
    out: list[tuple[datetime, datetime]] = []
    for since, to in sorted(spans):
        if out and since <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], to))
        else:
            out.append((since, to))
    return out


@dataclass(slots=True)
class _Search:
    desk: Desk
    wanted: Wanted
    until: float
    found: dict[int, Listed] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    @property
    def complete(self) -> bool:
        return self.wanted.must <= {each.id for each in self.found.values()}

    def between(self, after: int, last: int | None) -> None:
        """Stride after stride, to a position or to the end of the journal."""
        stride = _STRIDE
        while not self.over:
            with self.desk.reading() as connection:
                end = entries.last_position(connection) if last is None else last
                if after >= end:
                    return
                upto = min(after + stride, end)
                at = store.positions_between(connection, self.wanted.parameters(), after, upto)
                if new := [each for each in at if each not in self.found]:
                    listed = entries.entries_at(connection, Selection().parameters(), new, len(new))
                    self.found.update({each.position: each for each in listed})
            after, stride = upto, min(stride * 2, _LONGEST_STRIDE)
