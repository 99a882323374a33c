"""Selects, lists, counts and finds entries, stride after stride: each in a short transaction, and within a time."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from ferryman.relay.store import claims, entry_views
from ferryman.relay.store.entry_views import END, ListedEntry
from ferryman.runtime.desk import Connection, Desk, Row, Selection
from ferryman.runtime.errors import FerrymanError

PENDING, PUBLISHED = "PENDING", "PUBLISHED"
EXCEPTIONS = ("RETRYING", "PARKED", "FAILED", "DISCARDED", "REPLAYING")
RETRYING, PARKED, FAILED, DISCARDED, REPLAYING = EXCEPTIONS
STATUSES = (PENDING, PUBLISHED, *EXCEPTIONS)

_CANDIDATES = 2_000
_FIRST_STRIDE, _LONGEST_STRIDE = 4_000, 400_000
_BRISK_SECONDS = 0.2

# Positions follow the time of appending, except for what a writer's clock or a long statement shifts.
_CLOCK_SLACK = timedelta(minutes=5)

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySelection(Selection):
    """The entries that meet all of these conditions."""

    positions: tuple[int, ...] | None = None
    key: str | None = None
    statuses: tuple[str, ...] | None = None

    @property
    def by_name(self) -> bool:
        """True if the entries can be found without going through the journal."""
        return self.positions is not None or (
            self.statuses is not None and (set(self.statuses) <= set(EXCEPTIONS) or set(self.statuses) == {PENDING})
        )

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "EntrySelection":
        values = {field.name: given.get(field.name) for field in fields(cls)}
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
            elif name in ("since", "until") and value is not None:
                values[name] = datetime.fromisoformat(value)
        return cls(**values)

    def of(self, statuses: tuple[str, ...] | None) -> "EntrySelection":
        """Return the same conditions for these statuses; None: for every status."""
        return replace(self, statuses=statuses)

    def covers(self, position: int, topic: str, key: str, type_: str, created_at: datetime) -> bool:
        """Return True if an entry is selected, whatever its status was then."""
        return (
            (self.positions is None or position in self.positions)
            and self.topic in (None, topic)
            and self.key in (None, key)
            and self.type in (None, type_)
            and (self.since is None or created_at >= self.since)
            and (self.until is None or created_at < self.until)
        )


ALL = EntrySelection()


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries ordered by position; `next` is where to continue, None when there are no more."""

    entries: Sequence[ListedEntry]
    next: int | None
    complete: bool


@dataclass(slots=True)
class EntryCount:
    """The number of entries by status, and the bytes of their payloads."""

    entries: Counter[str] = field(default_factory=Counter)
    payload_bytes: Counter[str] = field(default_factory=Counter)
    complete: bool = True


def hold(desk: Desk, connection: Connection, lanes: Iterable[int]) -> None:
    """Wait for these lanes, and keep them. A relay keeps its lanes for seconds while its broker is silent."""
    claims.hold(connection, list(set(lanes)), wait_seconds=3 * desk.limits.lock_timeout_seconds)


def page(desk: Desk, selection: EntrySelection, *, after: int, limit: int, seconds: float) -> EntryPage:
    """Return the first selected entries after a position."""
    until = time.monotonic() + seconds
    first, last = _bounds(desk, selection)
    found: list[ListedEntry] = []
    for listed, upto in strides(desk, selection, after=max(after, first), last=last, most=limit + 1):
        found += listed
        if len(found) > limit:
            return EntryPage(found[:limit], found[limit - 1].position, complete=True)
        if time.monotonic() > until:
            return EntryPage(found, upto, complete=False)
    return EntryPage(found, None, complete=True)


def strides(
    desk: Desk, selection: EntrySelection, *, after: int, last: int, most: int
) -> Iterator[tuple[list[ListedEntry], int]]:
    """Yield the selected entries after a position, up to `most` at a time, each time with the position reached."""

    def read(connection: Connection, meant: Row) -> tuple[list[ListedEntry], int]:
        listed = entry_views.entries(connection, meant, most)
        return listed, listed[-1].position if len(listed) == most else meant["upto"]

    return _walk(desk, selection, read, after=after, last=last, most=most)


def count(desk: Desk, selection: EntrySelection, *, seconds: float) -> EntryCount:
    """Count the selected entries by status, for at most so long."""
    until, total = time.monotonic() + seconds, EntryCount()

    def read(connection: Connection, meant: Row) -> tuple[entry_views.Counts, int]:
        return entry_views.counts(connection, meant), meant["upto"]

    for counts, _ in _walk(desk, selection, read, after=0, last=END, most=_CANDIDATES):
        for status, (entries, size) in counts.items():
            total.entries[status] += entries
            total.payload_bytes[status] += size
        if time.monotonic() > until:
            total.complete = False
            break
    return total


def _walk(
    desk: Desk, selection: EntrySelection, read: Callable[[Connection, Row], tuple[Read, int]], *,
    after: int, last: int, most: int,
) -> Iterator[tuple[Read, int]]:  # fmt: skip
    """Read stride after stride until there are no more entries; each `read` says which position it came to.

    A stride is longer while statements are quick, and over gaps between positions. One that came to its limit makes the
    next one go about as far as it needed to.
    """
    stride, meant = _FIRST_STRIDE, selection.parameters()
    while True:
        with desk.reading() as connection:
            at, upto = _reach(connection, selection, after, last, most=most, stride=stride)
            if upto is None:
                return
            began = time.monotonic()
            found, reached = read(connection, meant | {"at": at, "after": after, "upto": upto})
        if reached < upto:
            stride = max(2 * (reached - after), _FIRST_STRIDE)
        elif time.monotonic() - began < _BRISK_SECONDS:
            stride = min(stride * 2, _LONGEST_STRIDE)
        else:
            stride = max(stride // 2, _FIRST_STRIDE)
        yield found, reached
        after = reached


def _reach(
    connection: Connection, selection: EntrySelection, after: int, last: int, *, most: int, stride: int
) -> tuple[list[int] | None, int | None]:
    """Return the positions that may be selected (None: any) up to a position; that is None if there are no more."""
    if not selection.by_name:
        first = entry_views.first_from(connection, after + 1)
        return None, min(first[0] - 1 + stride, last) if first and first[0] <= last else None
    if selection.positions is not None:
        at = sorted(p for p in set(selection.positions) if after < p <= last)[:most]
    else:
        meant = selection.parameters() | {"after": after, "upto": last, "most": most}
        at = entry_views.candidates(connection, meant, pending=PENDING in (selection.statuses or ()))
    return at, at[-1] if at else None


def _bounds(desk: Desk, selection: EntrySelection) -> tuple[int, int]:
    """Return the positions between which entries of these times are."""
    if selection.by_name:
        return 0, END
    first = at_time(desk, selection.since - _CLOCK_SLACK) if selection.since else 0
    last = at_time(desk, selection.until + _CLOCK_SLACK) if selection.until else END
    return first, last


def find(desk: Desk, ids: Sequence[UUID], *, since: datetime | None, seconds: float) -> tuple[list[int], int | None]:
    """Return the positions of these ids, newest first; and, if the time was not enough, how far down the search came.

    Ids have no index: it would cost every writer a quarter of its rate (tried), for a few searches a day.
    """
    until, stride = time.monotonic() + seconds, _FIRST_STRIDE
    with desk.reading() as connection:
        upto = entry_views.last_position(connection)
    lowest = at_time(desk, since - _CLOCK_SLACK) if since else 0
    found: list[int] = []
    while upto > lowest:
        with desk.reading() as connection:
            found += entry_views.positions_of_ids(connection, ids, upto - stride, upto)
        upto -= stride
        stride = min(stride * 2, _LONGEST_STRIDE)
        if time.monotonic() > until:
            return found, max(upto, 0) or None
    return found, None


def at_time(desk: Desk, moment: datetime) -> int:
    """Find by bisection the position after which entries were appended at or after a moment."""
    with desk.reading() as connection:
        first = entry_views.first_from(connection, 1)
        low, high = first[0] - 1 if first else 0, entry_views.last_position(connection)
        while low < high:
            middle = (low + high + 1) // 2
            probe = entry_views.first_from(connection, middle)
            if probe is not None and probe[1] < moment:
                low = probe[0]
            else:
                high = middle - 1
    return low


def positions_of(desk: Desk, references: Sequence[UUID | int], *, seconds: float) -> tuple[int, ...]:
    """Return the positions of entries that are named by id or position; refuse names that do not exist."""
    positions = {each for each in references if isinstance(each, int)}
    if ids := [each for each in references if isinstance(each, UUID)]:
        found, unseen = find(desk, ids, since=None, seconds=seconds)
        positions.update(found)
        if unseen is not None:
            raise FerrymanError(
                f"{seconds:.0f} s were not enough to look through the whole outbox for ids",
                remedy="name the positions instead: `ferryman outbox list` shows them",
            )
    with desk.reading() as connection:
        listed = at_positions(connection, sorted(positions))
    there = {name for each in listed for name in (each.position, each.id)}
    if missing := [str(each) for each in references if each not in there]:
        raise FerrymanError(
            f"the outbox has no entry {', '.join(missing)}",
            remedy="correct it; entries past the retention are gone for good",
        )
    return tuple(entry.position for entry in listed)


def at_positions(connection: Connection, positions: Sequence[int]) -> list[ListedEntry]:
    """Return the entries at these positions, whatever their status."""
    return entry_views.entries(
        connection, ALL.parameters() | {"at": positions, "after": 0, "upto": END}, len(positions)
    )
