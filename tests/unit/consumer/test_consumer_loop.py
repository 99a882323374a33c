"""The loop around batches that fail: the order in each partition holds, and nothing is skipped."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.consumer.api import Consumer
from ferryman.consumer.failures import HandlerFailed, NotNow
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import BY_SOURCE_AND_ID, Done, Partition, Poison, Received, Record, Retry
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.transaction import Transactions
from ferryman.consumer.wire import identity
from ferryman.runtime.errors import Transient
from ferryman.runtime.pace import Pace
from ferryman.runtime.settings import ConsumerSettings

OWN, LATER, PASSING, UNREADABLE = "own", "later", "passing", "unreadable"
NOTHING = cast(Any, SimpleNamespace(connection=SimpleNamespace(closed=False)))


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, b"k", b"{}", [("ce_type", b"t")], 0)


class Clock:
    """A clock on which every reading takes a while: longer than any backoff, unless told otherwise."""

    def __init__(self, step: float = 7) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Silent:
    """A feed that gives everything at once."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.coming = list(records)
        self.committed: dict[Partition, int] = {}
        self.gathered: list[float] = []

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        self.gathered.append(gather_seconds)
        came, self.coming = self.coming[:most], self.coming[most:]
        return came

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None:
        for place, position in positions.items():
            assert position > self.committed.get(place, 0)
            self.committed[place] = position

    def hold(self, partitions: Any) -> None: ...

    def seek(self, offsets: Any) -> None: ...


@dataclass(slots=True)
class Faulty(Transactions):
    """Transactions and a decoder that fail in given ways, a given number of times per place."""

    faults: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    handled: list[tuple[int, int]] = field(default_factory=list)
    rejected: set[tuple[int, int]] = field(default_factory=set)

    def decode(self, given: Record, _kind: str, _id_from: Sequence[str]) -> Received:
        place = (given.partition, given.offset)
        if self._due(place, UNREADABLE):
            raise Transient("the registry is away")
        return Received(cast(Any, place), "t", None, "k", given, b"")

    def run(self, lent: Any, items: Sequence[Any], claimed: frozenset[Any], reached: Any) -> bool:
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
        return True

    def _due(self, place: tuple[int, int], kind: str) -> bool:
        fault, left = self.faults.get(place, ("", 0))
        if fault != kind or not left:
            return False
        self.faults[place] = (fault, left - 1)
        return True


@dataclass
class Running:
    """A loop with its feed and its transactions."""

    feed: Silent
    made: Faulty
    loop: ConsumerLoop

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.turn(NOTHING)


def running(
    records: Sequence[Record],
    faults: dict[tuple[int, int], tuple[str, int]],
    batch: int = 8,
    waiting: Sequence[Record] = (),
    **more: Any,
) -> Running:
    consumer, feed = Consumer("c", ["t"]), Silent(records)
    settings = ConsumerSettings(batch_messages=batch, retry_seconds=1e9)
    consumer.handles("t")(lambda _db, _message: Done())
    partitions = Partitions("c", 1 << 30, batch)
    partitions.by_place |= {each.place: PartitionBuffer() for each in (*records, *waiting)}
    partitions.add(waiting)
    made = Faulty(consumer, batch, cast(Any, None), faults=faults)
    loop = ConsumerLoop(consumer, feed, settings, partitions, made, made.decode, **{"clock": Clock(), **more})
    return Running(feed, made, loop)


@pytest.mark.parametrize("kind", ["t", "unknown"])
def test_source_belongs_to_an_id_but_for_requeued_messages(kind: str) -> None:
    """N1, N6: requeued messages have the id of their receipt, and the source of our own relay."""
    consumer = Consumer("c", ["t"], unknown="reject", id_from=BY_SOURCE_AND_ID)
    consumer.handles("t")(lambda _db, _message: Done())
    loop = ConsumerLoop(consumer, Silent([]), ConsumerSettings(), Partitions("c", 1, 1), cast(Any, None))
    own = [("ce_type", kind.encode()), ("ce_id", b"0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11")]
    shop, other = (record(0, 0)._replace(headers=[*own, ("ce_source", each)]) for each in (b"/shop", b"/other"))
    ids = [cast(Any, loop.item(each)).id for each in (shop, other)]
    assert ids == [identity(shop, BY_SOURCE_AND_ID), identity(other, BY_SOURCE_AND_ID)]
    headers: list[tuple[str, bytes | None]] = [*own[:1], ("ce_id", str(ids[0]).encode()), ("ce_source", b"/wallet")]
    requeued = record(0, 0)._replace(topic="t.retry.c", headers=headers)
    assert cast(Any, loop.item(requeued)).id == ids[0]


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
def test_each_partition_is_handled_whole_and_in_order_whatever_fails(
    faults: dict[tuple[int, int], tuple[str, int]], batch: int, dice: Any
) -> None:
    """N4, N9, N10: though time passes faster than any wait."""
    lanes = [[record(partition, offset) for offset in range(10)] for partition in range(3)]
    records = [lane.pop(0) for lane in dice.sample([lane for lane in lanes for _ in lane], 30)]
    bugs = {place for place, (_, times) in faults.items() if times == FOR_EVER}
    one = running(records, dict(faults), batch)
    one.turn(2000)
    assert Counter(one.made.handled) == Counter((each.partition, each.offset) for each in records)
    for partition in range(3):
        assert [offset for at, offset in one.made.handled if at == partition] == list(range(10))
    assert one.made.rejected <= bugs | {place for place, (kind, _) in faults.items() if kind == OWN}
    assert bugs <= one.made.rejected
    assert one.feed.committed == {("t", partition): 10 for partition in range(3)}


def test_a_record_that_was_skipped_is_never_taken_for_handled() -> None:
    buffer = PartitionBuffer()
    first, second = record(0, 0), record(0, 1)
    buffer.add(first)
    buffer.add(second)
    with pytest.raises(AssertionError, match="before the record in front of it"):
        buffer.finish(second)


def test_a_partition_with_much_to_do_does_not_starve_the_others() -> None:
    """N10."""
    one = running([], {}, batch=10, waiting=[record(0, offset) for offset in range(100)] + [record(1, 0)])
    one.turn(3)
    assert (1, 0) in one.made.handled


def test_the_loop_gathers_records_only_after_it_handled_all_there_were() -> None:
    """While something waits it goes on at once."""
    clock, pace = Clock(0.001), Pace(3, 0.05, Clock(0.001))
    one = running([], {}, batch=4, waiting=[record(0, offset) for offset in range(6)], clock=clock, pace=pace)
    one.turn(3)
    assert one.feed.gathered == [0, 0, pytest.approx(0.002)]
