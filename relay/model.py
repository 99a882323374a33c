"""The relay's values: entries, windows, cursors, and walks from window to window."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

LANES = 8
SEGMENTS = 8

Place = tuple[str, str]
"""A topic and a key in it: what keeps its order."""


class Entry(NamedTuple):
    """A row of the journal, in the order of the columns that `store.reading` reads.

    Where there are many, a plain tuple stands for it: take its columns by number, and name them only when few are left.
    A large payload is not read with the others: it is None here, and read when it is published.
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


place_of: Callable[[Entry], Place] = itemgetter(2, 3)
slot_of: Callable[[Entry], int] = itemgetter(9)


def lane_of(entry: Entry) -> int:
    return slot_of(entry) % LANES


class Due(NamedTuple):
    """An entry that is tried again, or published once more for a replay."""

    entry: Entry
    attempts: int
    replay: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """What had become visible when it was taken: everything in the snapshot.

    No entry that took its position up to `position_at` is of a transaction with a number from `horizon` on. A window
    has no id and no horizon until it is written.
    """

    snapshot: str
    position_at: int
    horizon: str | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a lane is: all of `done`, and of `target` what stands up to `position`."""

    lane: int
    generation: int
    done: Window
    target: Window | None
    position: int
    settled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The lanes that one worker holds until its transaction ends, and what it has to mind in them."""

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
    """What one read gave, and where its walk stood before."""

    done: Window
    position: int
    target: Window
    entries: Sequence[Entry]


@dataclass(slots=True)
class Walk:
    """Lanes that are at the same place and are read together, while they are claimed.

    It goes from `done` to `target` by position: first what was late at `done`, then what came after it; then from
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
        """These entries were read; when there are no more, the way to this target is done."""
        if not entries and self.target is None:
            return  # nothing new: `done` may stay where it is
        self.steps.append(Step(self.done, self.position, target, entries))
        if more:
            self.target, self.position = target, entries[-1][0]
        else:
            self.done, self.target, self.position = target, None, 0

    def skip_to(self, target: Window) -> None:
        """Nothing was found up to here: the next read need not look again."""
        self.steps.append(Step(self.done, self.position, target, ()))
        self.done, self.target, self.position = target, None, 0

    def stop_before(self, unsettled: Collection[int]) -> None:
        """Goes back to the last entry before the first of these positions."""
        for n, step in enumerate(self.steps):
            for kept, entry in enumerate(step.entries):
                if entry[0] in unsettled:
                    before = step.entries[:kept]
                    self.done, self.target = step.done, step.target
                    self.position = before[-1][0] if before else step.position
                    self.steps[n:] = [Step(step.done, step.position, step.target, before)]
                    return

    def new_cursors(self) -> list[Cursor]:
        """Where each lane stands now, one generation on."""
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
    """The lanes, grouped by where they stand."""
    places: dict[tuple[Window, Window | None, int], list[Cursor]] = {}
    for cursor in cursors:
        places.setdefault((cursor.done, cursor.target, cursor.position), []).append(cursor)
    return [Walk(group, *place) for place, group in places.items()]
