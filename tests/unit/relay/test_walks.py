"""Walks from window to window: exactly the kept entries are settled, and the next read continues there."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ferryman.relay.model import LANES, SEGMENTS, Cursor, Entry, Walk, Window, walks

NOTHING = (0,) * SEGMENTS


def window(number: int, position_at: int) -> Window:
    return Window(snapshot=f"window {number}", position_at=position_at, horizon=str(number), id=number)


def cursors(lanes: range, done: Window, target: Window | None = None, position: int = 0) -> list[Cursor]:
    return [Cursor(lane, 4, done, target, position, NOTHING) for lane in lanes]


@dataclass(frozen=True)
class Journal:
    """Entries by position, each with the number of the first window that sees it."""

    seen_from: list[int]
    windows: list[Window]

    def entry(self, position: int) -> Entry:
        return Entry(position, "", "", "", "", b"", None, None, 0, position % SEGMENTS * LANES + position % LANES)

    def read(self, walk: Walk, most: int, target: int) -> tuple[list[Entry], Window]:
        """Read as `store.claims` does, over windows that are numbers."""
        done, goal = self.number(walk.done), self.number(walk.target or self.windows[target])
        found = [
            self.entry(position)
            for position, seen in enumerate(self.seen_from, start=1)
            if done < seen <= goal and position > walk.position and position % LANES in walk.lanes
        ]
        return found[:most], walk.target or self.windows[target]

    def number(self, one: Window) -> int:
        return self.windows.index(one)


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    count = draw(st.integers(1, 5))
    seen = draw(st.lists(st.integers(1, count), max_size=60))
    return Journal(seen, [window(n, draw(st.integers(0, len(seen)))) for n in range(count + 1)])


def go(journal: Journal, walk: Walk, mosts: list[int]) -> list[int]:
    """Read up to the last window. Return the positions in the order in which they came."""
    came: list[int] = []
    target = journal.number(walk.done) + 1
    for most in [*mosts, *[1000] * len(journal.windows)]:
        if target == len(journal.windows) and walk.target is None:
            break
        entries, goal = journal.read(walk, most, min(target, len(journal.windows) - 1))
        walk.take(entries, goal, more=len(entries) == most)
        came += [each.position for each in entries]
        if walk.target is None:
            target = journal.number(goal) + 1
    return came


def settled(walk: Walk) -> Counter[tuple[int, int]]:
    return Counter(
        {(segment, cursor.lane): n for cursor in walk.new_cursors() for segment, n in enumerate(cursor.settled) if n}
    )


@given(journals(), st.lists(st.integers(1, 7), max_size=30))
def test_walk_meets_every_entry_of_its_lanes_once_and_settles_as_many(journal: Journal, mosts: list[int]) -> None:
    walk = Walk(cursors(range(3), journal.windows[0]), journal.windows[0], None, 0)
    came = go(journal, walk, mosts)
    mine = [position for position in range(1, len(journal.seen_from) + 1) if position % LANES < 3]
    assert sorted(came) == mine
    assert settled(walk) == Counter((position % SEGMENTS, position % LANES) for position in mine)


@given(journals(), st.lists(st.integers(1, 7), max_size=30), st.data())
def test_stopping_before_a_position_keeps_the_prefix_and_reading_on_gives_the_rest(
    journal: Journal, mosts: list[int], data: st.DataObject
) -> None:
    """N1, and no duplicate either: the new cursor is all that decides."""
    walk = Walk(cursors(range(LANES), journal.windows[0]), journal.windows[0], None, 0)
    came = go(journal, walk, mosts)
    unsettled = data.draw(st.sets(st.sampled_from(came)) if came else st.just(set[int]()))
    walk.stop_before(unsettled)
    kept = next((n for n, position in enumerate(came) if position in unsettled), len(came))
    assert [entry.position for step in walk.steps for entry in step.entries] == came[:kept]
    assert settled(walk) == Counter((position % SEGMENTS, position % LANES) for position in came[:kept])
    onward = walks(walk.new_cursors())
    assert len(onward) == 1
    assert sorted(go(journal, onward[0], mosts)) == sorted(came[kept:])


@given(journals(), st.lists(st.integers(1, 3), max_size=30))
def test_stopping_before_nothing_changes_nothing(journal: Journal, mosts: list[int]) -> None:
    walk = Walk(cursors(range(2), journal.windows[0]), journal.windows[0], None, 0)
    go(journal, walk, mosts)
    before = walk.new_cursors()
    walk.stop_before({10_000})
    assert walk.new_cursors() == before


def test_walk_that_found_nothing_new_did_not_move() -> None:
    walk = Walk(cursors(range(2), window(1, 5)), window(1, 5), None, 0)
    walk.take([], window(2, 5), more=False)
    assert not walk.moved
    assert walk.done == window(1, 5)


def test_walk_that_skips_ahead_settles_nothing() -> None:
    walk = Walk(cursors(range(2), window(1, 5)), window(1, 5), None, 0)
    walk.take([], window(2, 50_000), more=False)
    assert walk.moved
    assert [(each.done, each.settled, each.generation) for each in walk.new_cursors()] == [
        (window(2, 50_000), NOTHING, 5)
    ] * 2


def test_lanes_at_the_same_place_walk_together() -> None:
    here, there = cursors(range(3), window(1, 5)), cursors(range(3, 5), window(1, 5), window(2, 9), 7)
    together = walks([here[0], there[0], *here[1:], there[1]])
    assert [(walk.lanes, walk.target, walk.position) for walk in together] == [
        ([0, 1, 2], None, 0),
        ([3, 4], window(2, 9), 7),
    ]
