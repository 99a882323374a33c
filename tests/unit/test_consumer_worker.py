"""What a worker does with a batch that fails: order within each partition holds, and nothing is passed over."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.consumer.api import Consumer
from ferryman.consumer.buffers import Buffer, Buffers
from ferryman.consumer.faults import HandlerFailed, NotNow, Undecided
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Done, Partition, Poison, Received, Record, Retry
from ferryman.consumer.policy import Policy
from ferryman.consumer.worker import Worker
from ferryman.runtime.errors import Transient
from ferryman.runtime.pace import Pace

OWN, LATER, PASSING, UNREADABLE = "own", "later", "passing", "unreadable"
NOTHING = cast(Any, type("Nothing", (), {"closed": False})())


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, b"k", b"{}", [("ce_type", b"t")], 0)


class Clock:
    """Each look at it takes a while: longer than any backoff, unless it is told otherwise."""

    def __init__(self, step: float = 7) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Silent:
    """A feed from which everything came at once."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.coming = list(records)
        self.committed: dict[Partition, int] = {}
        self.gathered: list[float] = []

    def take(self, most: int, seconds: float, gather_seconds: float) -> list[Record]:
        self.gathered.append(gather_seconds)
        came, self.coming = self.coming[:most], self.coming[most:]
        return came

    def commit(self, positions: dict[Partition, int], *, wait: bool = False) -> None:
        for place, position in positions.items():
            assert position > self.committed.get(place, 0)
            self.committed[place] = position

    def pause(self, partitions: Any) -> None: ...

    def resume(self, partitions: Any) -> None: ...


class Failing(Worker):
    """In place of a transaction: what fails, and how often, is given."""

    faults: dict[tuple[int, int], tuple[str, int]]
    handled: list[tuple[int, int]]
    rejected: set[tuple[int, int]]

    def _item(self, given: Record) -> Received | Poison | None:
        place = (given.partition, given.offset)
        if self._due(place, UNREADABLE):
            raise Undecided("the registry is away")
        return Received(cast(Any, place), "t", None, "k", given, b"")

    def _transact(
        self, connection: Any, face: Any, items: Sequence[Any], claimed: frozenset[Any] = frozenset()
    ) -> None:
        for item in items:
            place = (item.record.partition, item.record.offset)
            if isinstance(item, Poison):
                self.rejected.add(place)
            elif self._due(place, OWN):
                raise HandlerFailed("a bug")
            elif self._due(place, LATER):
                raise NotNow(Retry("later"))
            elif self._due(place, PASSING):
                raise Transient("a deadlock")
        self.handled += [(item.record.partition, item.record.offset) for item in items]

    def _due(self, place: tuple[int, int], kind: str) -> bool:
        fault, left = self.faults.get(place, ("", 0))
        if fault != kind or not left:
            return False
        self.faults[place] = (fault, left - 1)
        return True


def worker(records: Sequence[Record], faults: dict[tuple[int, int], tuple[str, int]], batch: int = 8) -> Failing:
    consumer = Consumer("c", ["t"])
    consumer.handles("t")(lambda _db, _message: Done())
    buffers = Buffers(1 << 30)
    buffers.own({each.place for each in records})
    made = Failing(
        consumer, cast(Feed, Silent(records)), Policy(batch=batch, retry_seconds=1e9), buffers, cast(Any, None),
        clock=Clock(),
    )  # fmt: skip
    made.faults, made.handled, made.rejected = faults, [], set()
    return made


PLACES = st.tuples(st.integers(0, 2), st.integers(0, 9))
FOR_EVER = 10_000
FAULTS = st.dictionaries(
    PLACES,
    st.one_of(
        st.tuples(st.sampled_from([OWN, LATER, PASSING, UNREADABLE]), st.integers(1, 6)), st.just((OWN, FOR_EVER))
    ),
    max_size=8,
)


@given(FAULTS, st.integers(1, 40), st.randoms(use_true_random=False))
def test_whatever_fails_however_often_each_partition_is_handled_whole_and_in_order(
    faults: dict[tuple[int, int], tuple[str, int]], batch: int, dice: Any
) -> None:
    """N4, N9, N10: though time passes faster than any wait."""
    lanes = [[record(partition, offset) for offset in range(10)] for partition in range(3)]
    records = [lane.pop(0) for lane in dice.sample([lane for lane in lanes for _ in lane], 30)]
    bugs = {place for place, (_, times) in faults.items() if times == FOR_EVER}
    one = worker(records, dict(faults), batch)
    for _ in range(2000):
        one.turn(NOTHING, NOTHING)
    assert Counter(one.handled) == Counter((each.partition, each.offset) for each in records)
    for partition in range(3):
        assert [offset for at, offset in one.handled if at == partition] == list(range(10))
    assert one.rejected <= bugs | {place for place, (kind, _) in faults.items() if kind == OWN}
    assert bugs <= one.rejected
    assert cast(Any, one.feed).committed == {("t", partition): 10 for partition in range(3)}


def test_what_was_passed_over_is_never_taken_for_handled() -> None:
    buffer = Buffer()
    first, second = record(0, 0), record(0, 1)
    buffer.add(first)
    buffer.add(second)
    with pytest.raises(AssertionError, match="before what stands in front"):
        buffer.finish(second)


def test_a_partition_with_much_to_do_does_not_starve_the_others() -> None:
    """N10."""
    records = [record(0, offset) for offset in range(100)] + [record(1, 0)]
    one = worker(records, {}, batch=10)
    one.buffers.add(records)
    cast(Any, one.feed).coming = []
    for _ in range(3):
        one.turn(NOTHING, NOTHING)
    assert (1, 0) in one.handled


def test_behind_a_portion_that_took_all_there_was_it_gathers() -> None:
    """While something waits it goes on at once."""
    records = [record(0, offset) for offset in range(6)]
    one = worker([], {}, batch=4)
    one.buffers.own({records[0].place})
    one.buffers.add(records)
    one.clock, one.pace = Clock(0.001), Pace(lambda: 3, clock=Clock(0.001))
    for _ in range(3):
        one.turn(NOTHING, NOTHING)
    assert cast(Any, one.feed).gathered == [0, 0, pytest.approx(0.002)]
