"""Lists and counts entries by position, stride after stride, each in a short transaction and within a time."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.selection import EXCEPTIONS, PENDING, Selection
from ferryman.relay.store import listing as store
from ferryman.relay.store.lanes import Connection
from ferryman.relay.store.listing import Listed

_END = 2**63 - 1
_CANDIDATES = 2_000
_FIRST_STRIDE, _LONGEST_STRIDE = 4_000, 400_000
_BRISK_SECONDS = 0.2

# Positions follow the time of appending, but for what a writer's clock or a long statement shifts.
_CLOCK_SLACK = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Stride:
    """All that is meant up to a position, from where the stride before it ended."""

    entries: Sequence[Listed]
    upto: int


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in the order of position; `next` is where to go on, None when nothing more is meant."""

    entries: Sequence[Listed]
    next: int | None
    complete: bool


@dataclass(slots=True)
class Count:
    """How many there are by status, as far as was looked."""

    entries: Counter[str] = field(default_factory=Counter)
    payload_bytes: Counter[str] = field(default_factory=Counter)
    upto: int = 0
    complete: bool = True

    def add(self, found: store.Counts) -> None:
        for status, (count, size) in found.items():
            self.entries[status] += count
            self.payload_bytes[status] += size


def page(desk: Desk, selection: Selection, *, after: int, limit: int, seconds: float) -> Page:
    """The first entries that are meant after a position."""
    until = time.monotonic() + seconds
    first, last = _bounds(desk, selection)
    found: list[Listed] = []
    for stride in strides(desk, selection, after=max(after, first), last=last, most=limit + 1):
        found += stride.entries
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].position, complete=True)
        if time.monotonic() > until:
            return Page(found, stride.upto, complete=False)
    return Page(found, None, complete=True)


def strides(desk: Desk, selection: Selection, *, after: int, last: int, most: int) -> Iterator[Stride]:
    """What is meant after a position, up to `most` at a time; ends when nothing more is there."""
    pace = _Pace()
    while True:
        with desk.reading() as connection:
            stride = _stride(connection, selection, after, last, most=most, pace=pace)
        if stride is None:
            return
        yield stride
        after = stride.upto


def count(desk: Desk, selection: Selection, *, seconds: float, last: int = _END) -> Count:
    """How many are meant, by status, in the time there is."""
    until, pace, total = time.monotonic() + seconds, _Pace(), Count()
    meant = selection.parameters()
    while True:
        with desk.reading() as connection:
            if by_name(selection):
                at, upto = _candidates(connection, selection, total.upto, last, _CANDIDATES)
                total.add(store.count_at(connection, meant, at))
            else:
                upto = pace.upto(connection, total.upto, last)
                if upto is not None:
                    with pace:
                        total.add(store.count_between(connection, meant, total.upto, upto))
        if upto is None:
            return total
        total.upto = upto
        if time.monotonic() > until:
            total.complete = False
            return total


def find(desk: Desk, ids: Sequence[UUID], *, since: datetime | None, seconds: float) -> tuple[list[int], int | None]:
    """The positions of these ids, newest first, and how far down was looked when the time was not enough for all.

    Ids have no index: it would cost every writer a quarter of its rate (tried), for what is asked a few times a day.
    """
    until, stride = time.monotonic() + seconds, _FIRST_STRIDE
    with desk.reading() as connection:
        upto = store.last_position(connection)
    lowest = at_time(desk, since - _CLOCK_SLACK) if since else 0
    found: list[int] = []
    while upto > lowest:
        with desk.reading() as connection:
            found += store.positions_of_ids(connection, ids, upto - stride, upto)
        upto -= stride
        stride = min(stride * 2, _LONGEST_STRIDE)
        if time.monotonic() > until:
            return found, max(upto, 0) or None
    return found, None


def at_time(desk: Desk, moment: datetime) -> int:
    """The position after which entries were appended at or after a moment, by bisection."""
    with desk.reading() as connection:
        low, high = (store.next_position(connection, 0) or 1) - 1, store.last_position(connection)
        while low < high:
            middle = (low + high + 1) // 2
            probe = store.when(connection, middle)
            if probe is not None and probe[1] < moment:
                low = probe[0]
            else:
                high = middle - 1
    return low


def by_name(selection: Selection) -> bool:
    """Whether the entries can be found without going through the journal."""
    statuses = selection.statuses
    return selection.positions is not None or (
        statuses is not None and (set(statuses) <= set(EXCEPTIONS) or set(statuses) == {PENDING})
    )


def _bounds(desk: Desk, selection: Selection) -> tuple[int, int]:
    """Positions that entries of these times are between."""
    if by_name(selection):
        return 0, _END
    first = at_time(desk, selection.since - _CLOCK_SLACK) if selection.since else 0
    last = at_time(desk, selection.until + _CLOCK_SLACK) if selection.until else _END
    return first, last


def _stride(
    connection: Connection, selection: Selection, after: int, last: int, *, most: int, pace: "_Pace"
) -> Stride | None:
    meant = selection.parameters()
    if by_name(selection):
        at, upto = _candidates(connection, selection, after, last, most)
        return None if upto is None else Stride(store.entries_at(connection, meant, at, len(at)), upto)
    to = pace.upto(connection, after, last)
    if to is None:
        return None
    with pace:
        entries = store.entries_between(connection, meant, after, to, most)
    if len(entries) < most:
        return Stride(entries, to)
    pace.shorten(entries[-1].position - after)
    return Stride(entries, entries[-1].position)


def _candidates(
    connection: Connection, selection: Selection, after: int, last: int, most: int
) -> tuple[list[int], int | None]:
    """Positions that may be meant, and where they end; no end, no more."""
    meant = selection.parameters()
    if selection.positions is not None:
        found = sorted(p for p in set(selection.positions) if after < p <= last)[:most]
    elif selection.statuses is not None and PENDING in selection.statuses:
        found = store.pending_after(connection, meant, after, last, most)
    else:
        found = store.exceptions_after(connection, meant, after, last, most)
    return found, found[-1] if found else None


@dataclass(slots=True)
class _Pace:
    """How far one statement goes: longer while it is brisk, and past what is not there."""

    stride: int = _FIRST_STRIDE
    began: float = 0.0

    def upto(self, connection: Connection, after: int, last: int) -> int | None:
        first = store.next_position(connection, after)
        return None if first is None or first > last else min(first - 1 + self.stride, last)

    def shorten(self, enough: int) -> None:
        """The next statement needs to go about as far as would have been enough for this one."""
        self.stride = max(2 * enough, _FIRST_STRIDE)

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        brisk = time.monotonic() - self.began < _BRISK_SECONDS
        self.stride = min(self.stride * 2, _LONGEST_STRIDE) if brisk else max(self.stride // 2, _FIRST_STRIDE)


def without_status(selection: Selection) -> Selection:
    return replace(selection, statuses=None)
