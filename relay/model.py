"""The relay's values: windows, cursors, entries."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LANES = 8
SEGMENTS = 8


class Entry(NamedTuple):
    """A row of the journal, in the order of the columns that `store` reads."""

    position: int
    id: str
    topic: str
    key: str
    type: str
    payload: bytes
    headers: str | None
    content_type: str | None
    created_us: int
    segment: int
    lane: int


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


@dataclass(slots=True)
class Walk:
    """Lanes that are at the same place and are read together, while they are claimed.

    A step goes from `done` to `target` by position: first what was late at `done`, then what came after it.
    """

    cursors: Sequence[Cursor]
    done: Window
    target: Window | None
    position: int
    moved: bool = False
    settled: dict[int, Counter[int]] = field(default_factory=dict)

    @property
    def lanes(self) -> list[int]:
        return [cursor.lane for cursor in self.cursors]

    def advance(self, entries: Sequence[Entry], target: Window, *, more: bool) -> None:
        """These entries are settled; when there are no more, the step is done."""
        for *_, segment, lane in entries:
            self.settled.setdefault(lane, Counter())[segment] += 1
        self.moved = True
        if more:
            self.target, self.position = target, entries[-1][0]
        else:
            self.done, self.target, self.position = target, None, 0

    def new_cursors(self) -> list[Cursor]:
        """Where each lane stands now, one generation on."""
        return [
            Cursor(
                lane=cursor.lane,
                generation=cursor.generation + 1,
                done=self.done,
                target=self.target,
                position=self.position,
                settled=tuple(
                    count + self.settled.get(cursor.lane, Counter())[segment]
                    for segment, count in enumerate(cursor.settled)
                ),
            )
            for cursor in self.cursors
        ]


def walks(cursors: Sequence[Cursor]) -> list[Walk]:
    """The lanes, grouped by where they stand."""
    places: dict[tuple[Window, Window | None, int], list[Cursor]] = {}
    for cursor in cursors:
        places.setdefault((cursor.done, cursor.target, cursor.position), []).append(cursor)
    return [Walk(group, *place) for place, group in places.items()]
