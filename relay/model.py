"""The relay's values: entries, windows, cursors, and walks from window to window."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

LANES = 8
SEGMENTS = 8
# So many uncommitted entries need not be looked through again and again.
_LONG_WAY = 10_000

STEPS = (
    # a turn over new entries
    "claim", "read", "hand over", "advance", "acknowledge", "settle", "write windows", "write cursors", "commit",
    "report",
    # a turn over failed and replayed entries
    "retry", "settle retries", "commit retries",
    # the ring
    "rotate", "commit rotation", "lock segment", "compare", "truncate", "commit truncation",
    # a described table
    "claim rows", "send rows", "settle rows",
)  # fmt: skip


Place = tuple[str, str]
"""A topic and a key: entries of one place keep their order."""


class Entry(NamedTuple):
    """A row of the journal, in the order of the columns that `store.claims` reads.

    Where there are many, a plain tuple stands for it: take its columns with the getters below. A large payload is not
    read with the others: it is None here and is read when it is published.
    """

    position: int
    id: str
    topic: str
    key: str
    type: str
    payload: bytes | None
    headers: str | None
    content_type: str | None
    created_us: int
    slot: int

    @property
    def segment(self) -> int:
        return self.slot // LANES

    @property
    def lane(self) -> int:
        return lane_of(self)


def _column(*names: str) -> Any:
    return itemgetter(*map(Entry._fields.index, names))


position_of: Callable[[Entry], int] = _column("position")
topic_of: Callable[[Entry], str] = _column("topic")
key_of: Callable[[Entry], str] = _column("key")
place_of: Callable[[Entry], Place] = _column("topic", "key")
topic_and_payload_of: Callable[[Entry], tuple[str, bytes | None]] = _column("topic", "payload")
payload_of: Callable[[Entry], bytes | None] = _column("payload")
created_us_of: Callable[[Entry], int] = _column("created_us")
slot_of: Callable[[Entry], int] = _column("slot")


def lane_of(entry: Entry) -> int:
    return slot_of(entry) % LANES


class Due(NamedTuple):
    """An entry that is tried again, or published once more for a replay."""

    entry: Entry
    attempts: int
    replay: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """The state of one snapshot: everything that was visible in it.

    No entry that took its position up to `position_at` belongs to a transaction with a number from `horizon` on. A
    window has no id and no horizon until it is written.
    """

    snapshot: str
    position_at: int
    horizon: str | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The point that a lane was read to: all of `done`, and of `target` everything up to `position`."""

    lane: int
    generation: int
    done: Window
    target: Window | None
    position: int
    settled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The lanes that one worker holds until its transaction ends, and what it must respect in them."""

    cursors: Sequence[Cursor] = ()
    due: bool = False
    parked_keys: bool = False
    parked_topics: frozenset[tuple[int, str]] = frozenset()
    paused: frozenset[str] = frozenset()

    @property
    def lanes(self) -> list[int]:
        return [cursor.lane for cursor in self.cursors]


@dataclass(frozen=True, slots=True)
class Step:
    """The entries of one read, and where its walk stood before."""

    done: Window
    position: int
    target: Window
    entries: Sequence[Entry]


@dataclass(slots=True)
class Walk:
    """Lanes at the same place, read together while they are claimed.

    A walk goes from `done` to `target` by position: first what was late at `done`, then what came after it; then from
    there to the next target.
    """

    cursors: Sequence[Cursor]
    done: Window
    target: Window | None
    position: int
    steps: list[Step] = field(default_factory=list)

    @property
    def lanes(self) -> list[int]:
        return [cursor.lane for cursor in self.cursors]

    @property
    def moved(self) -> bool:
        return bool(self.steps)

    def take(self, entries: Sequence[Entry], target: Window, *, more: bool) -> None:
        """Advance over these entries; without `more`, the target is reached."""
        if not entries and self.target is None and target.position_at - self.done.position_at <= _LONG_WAY:
            return  # nothing new: `done` may stay where it is
        self.steps.append(Step(self.done, self.position, target, entries))
        if more:
            self.target, self.position = target, position_of(entries[-1])
        else:
            self.done, self.target, self.position = target, None, 0

    def stop_before(self, unsettled: Collection[int]) -> None:
        """Go back to the last entry before the first of these positions."""
        for n, step in enumerate(self.steps):
            for kept, entry in enumerate(step.entries):
                if position_of(entry) in unsettled:
                    before = step.entries[:kept]
                    self.done, self.target = step.done, step.target
                    self.position = position_of(before[-1]) if before else step.position
                    self.steps[n:] = [Step(step.done, step.position, step.target, before)]
                    return

    def new_cursors(self) -> list[Cursor]:
        """Return where each lane stands now, one generation on."""
        counts: Counter[int] = Counter()
        for step in self.steps:
            counts.update(map(slot_of, step.entries))
        return [
            Cursor(
                lane=cursor.lane,
                generation=cursor.generation + 1,
                done=self.done,
                target=self.target,
                position=self.position,
                settled=tuple(n + counts[segment * LANES + cursor.lane] for segment, n in enumerate(cursor.settled)),
            )
            for cursor in self.cursors
        ]


def walks(cursors: Sequence[Cursor]) -> list[Walk]:
    """Group the lanes by where they stand."""
    places: dict[tuple[Window, Window | None, int], list[Cursor]] = {}
    for cursor in cursors:
        places.setdefault((cursor.done, cursor.target, cursor.position), []).append(cursor)
    return [Walk(group, *place) for place, group in places.items()]
