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
_NEAR = 1_000


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


@dataclass(frozen=True, slots=True)
class Found:
    """What is there of it, in order. Not `whole` when the time was over before all that must be there was found."""

    entries: Sequence[Listed]
    whole: bool


def find(desk: Desk, wanted: Wanted, seconds: float) -> Found:
    """What stands around each moment, however slow the database answers; after so long a reading, what must be there is
    looked for no further. A little more time goes to what may follow the first: results that were reported again, and
    attempts that nobody has answered.
    """
    search, whole = _Search(desk, wanted, seconds), False
    for slack in _SLACKS:
        spans = merged((each - slack, each + slack) for each in wanted.moments)
        read = [search.between(after := listing.at_time(desk, since), _behind(desk, after, to)) for since, to in spans]
        whole = all(read) and slack == _SLACKS[-1]
        if search.complete or search.over:
            break
    if wanted.moments:
        search.left = _SWEEP_SECONDS
        search.between(listing.at_time(desk, min(wanted.moments) - _SLACKS[0]), None)
    return Found([search.found[position] for position in sorted(search.found)], whole or search.complete)


def _behind(desk: Desk, after: int, moment: datetime) -> int:
    """A position with all before it that was appended up to a moment: found in few steps, and a little too far."""
    reach = _NEAR
    with desk.reading() as connection:
        last = entries.last_position(connection)
        while after + reach < last and (probe := entries.when(connection, after + reach)) and probe[1] <= moment:
            reach *= 2
    return min(after + reach, last)


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
    left: float
    """Seconds of reading: how long it takes to find where to read is not counted."""
    found: dict[int, Listed] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.left <= 0

    @property
    def complete(self) -> bool:
        return self.wanted.must <= {each.id for each in self.found.values()}

    def between(self, after: int, last: int | None) -> bool:
        """Stride after stride, to a position or to the end of the journal, and whether it came there in time. The first
        stride is made in any case.
        """
        stride = _STRIDE
        while True:
            began = time.monotonic()
            with self.desk.reading() as connection:
                end = entries.last_position(connection) if last is None else last
                if after >= end:
                    return True
                upto = min(after + stride, end)
                at = store.positions_between(connection, self.wanted.parameters(), after, upto)
                if new := [each for each in at if each not in self.found]:
                    listed = entries.entries_at(connection, Selection().parameters(), new, len(new))
                    self.found.update({each.position: each for each in listed})
            self.left -= time.monotonic() - began
            if upto >= end or self.over:
                return upto >= end
            after, stride = upto, min(stride * 2, _LONGEST_STRIDE)
