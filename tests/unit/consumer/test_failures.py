"""Messages whose handling fails: how long each is tried, who waits meanwhile, and how batches are taken apart."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman.consumer.api import Consumer
from ferryman.consumer.failures import HandlerFailed, NotThere, SessionLost, TookTooLong
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Done, Partition, Poison, Received, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.transaction import TURN_SECONDS, Transactions, next_size
from ferryman.runtime.errors import Transient
from ferryman.runtime.settings import ConsumerSettings

NOTHING = cast(Any, SimpleNamespace(connection=SimpleNamespace(closed=False)))


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, b"k", b"{}", [("ce_type", b"t")], 0)


class Waiting:
    """A feed without records: time passes while it is polled."""

    def __init__(self, clock: "Slow") -> None:
        self.clock = clock

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        self.clock.now += seconds
        return []

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None: ...

    def hold(self, partitions: Any) -> None: ...

    def seek(self, offsets: Any) -> None: ...


class Slow:
    """A clock that only moves when something takes time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


LOCK_SECONDS = 5.0
Place = tuple[int, int]


@dataclass(slots=True)
class Failing(Transactions):
    """Transactions in which a message's row may be locked, or in which sessions end."""

    locked: Place | None = None
    """Each transaction with this message fails when the lock timeout has passed."""
    what: list[Exception] = field(default_factory=list)
    ends: Callable[[list[Place]], bool] = lambda _places: False
    """Say of each transaction if it loses its session; each turn has a new connection."""
    error: Exception = field(default_factory=lambda: SessionLost("terminating connection"))
    lost: int = 0
    comparing_seconds: float = 0.0
    done: dict[Place, float] = field(default_factory=dict)
    rejected: dict[Place, tuple[str, float]] = field(default_factory=dict)

    def run(self, lent: Any, items: Sequence[Any], claimed: frozenset[Any], reached: Any) -> bool:
        places = [(item.record.partition, item.record.offset) for item in items]
        if isinstance(items[0], Poison):
            self.rejected[places[0]] = items[0].code, self.clock()
        else:
            self.fail(places)
        self.done |= dict.fromkeys(places, self.clock())
        return True

    def works(self, lent: Any, item: Received) -> bool:
        began = self.clock()
        try:
            self.fail([(item.record.partition, item.record.offset)])
        finally:
            self.comparing_seconds += self.clock() - began
        return True

    def fail(self, places: list[Place]) -> None:
        clock = cast(Slow, self.clock)
        if self.ends(places):
            clock.now += 0.1
            self.lost += 1
            raise self.error.with_traceback(None)
        if self.locked in places:
            clock.now += LOCK_SECONDS
            raise self.what.pop(0) if self.what else Transient("a lock timeout")


def decode(given: Record, _kind: str, _id_from: Sequence[str]) -> Received:
    return Received(cast(Any, (given.partition, given.offset)), "t", None, "k", given, b"")


@dataclass
class Running:
    """A loop, its clock and its transactions."""

    clock: Slow
    made: Failing
    loop: ConsumerLoop

    def turn(self, *, paused: bool = False) -> None:
        try:
            self.loop.turn(NOTHING, paused=paused)
        except SessionLost:
            self.clock.now += 0.1
            self.loop.partitions.forgive()

    def until(self, seconds: float = 2000.0) -> Failing:
        while self.loop.partitions.fed() and self.clock.now < seconds:
            self.turn()
        return self.made


def running(lengths: Sequence[int], batch: int = 500, **failing: Any) -> Running:
    """Return a loop over partitions of these lengths, with the default settings."""
    clock, consumer, settings = Slow(), Consumer("c", ["t"]), ConsumerSettings(batch_messages=batch)
    consumer.handles("t")(lambda _db, _message: Done())
    partitions = Partitions("c", 1 << 30, batch)
    partitions.by_place |= {("t", partition): PartitionBuffer() for partition in range(len(lengths))}
    for partition, length in enumerate(lengths):
        partitions.add(record(partition, offset) for offset in range(length))
    made = Failing(consumer, batch, cast(Any, None), clock=clock, **failing)
    return Running(clock, made, ConsumerLoop(consumer, Waiting(clock), settings, partitions, made, decode, clock=clock))


@pytest.mark.parametrize("at", [0, 250, 499])
def test_a_lock_is_waited_for_equally_long_wherever_its_message_is_in_the_batch(at: int) -> None:
    """N8: neither the messages in front of it nor the search for it change its time."""
    one = running([500], locked=(0, at)).until()
    assert len(one.done) == 500
    [(place, (code, when))] = one.rejected.items()
    assert (place, code) == ((0, at), "TIMED_OUT")
    found = 12 * LOCK_SECONDS
    assert 300 < when < 300 + found + 20


def test_a_lock_that_one_message_waits_for_does_not_hold_up_its_neighbours() -> None:
    """N10: other partitions wait for one try, and the messages in front of it until it is found."""
    one = running([300, 200], locked=(0, 250)).until()
    assert max(when for (partition, _), when in one.done.items() if partition == 1) < 3 * LOCK_SECONDS
    assert max(when for (_, offset), when in one.done.items() if offset < 250) < 15 * LOCK_SECONDS


def test_deadlocks_are_not_counted_as_tries_of_the_handler() -> None:
    """N8: transient failures are bounded by time, and bugs by their number."""
    passing = [Transient("a deadlock") for _ in range(5)]
    one = running([1], locked=(0, 0), what=[*passing, HandlerFailed("once"), HandlerFailed("twice")]).until(100)
    assert not one.rejected
    bugs = [HandlerFailed("a bug")] * 3
    assert running([1], locked=(0, 0), what=[*passing, *bugs]).until().rejected[0, 0][0] == "BUG"


@pytest.mark.parametrize("how", ["paused", "interrupted"])
def test_time_in_which_nothing_is_tried_is_not_counted(how: str) -> None:
    """N8: an outage or a pause costs no message its verdict."""
    one = running([1], locked=(0, 0))
    one.until(60)
    if how == "paused":
        one.turn(paused=True)
    else:
        one.loop.partitions.forgive()
    resumed = one.clock.now = 5000.0
    assert not one.until(resumed + 250).rejected
    code, when = one.until(6000).rejected[0, 0]
    assert code == "TIMED_OUT"
    assert resumed + 300 < when < resumed + 340


@pytest.mark.parametrize("at", [0, 250, 499])
def test_a_message_that_ends_its_session_is_found_and_rejected_after_its_time(at: int) -> None:
    """N10, N11: though each loss looks as if the database had been away."""
    one = running([500, 100], ends=lambda places: (0, at) in places).until()
    assert len(one.done) == 600
    [(place, (code, when))] = one.rejected.items()
    assert (place, code) == ((0, at), "TIMED_OUT")
    assert 300 < when < 330
    assert max(when for (partition, _), when in one.done.items() if partition == 1) < 3


def test_a_batch_that_outlasts_its_session_is_taken_apart_until_it_does_not() -> None:
    """A timeout of the server or of a pooler is no message's fault, and the next batches are smaller too."""
    one = running([2000], ends=lambda places: len(places) > 100).until()
    assert len(one.done) == 2000
    assert not one.rejected
    assert one.lost < 20


def test_a_batch_that_takes_too_long_is_halved_at_once() -> None:
    """Each try takes the whole deadline, and holds up everything."""
    tried: list[int] = []

    def too_long(places: list[Place]) -> bool:
        tried.append(len(places))
        return len(places) > 200

    one = running([500], ends=too_long, error=TookTooLong("consumer.deadline_seconds")).until()
    assert tried[:3] == [500, 250, 125]
    assert len(one.done) == 500


def test_a_message_that_takes_too_long_is_not_a_bug_of_its_handler() -> None:
    """N8: the server may be slow, so it is bounded by time, like other transient failures."""
    error = TookTooLong("consumer.deadline_seconds")
    [(_, (code, when))] = running([3], ends=lambda places: (0, 1) in places, error=error).until().rejected.items()
    assert code == "TIMED_OUT"
    assert when > 300


@pytest.mark.parametrize("error", [Transient("a lock timeout"), NotThere("no such table")])
@pytest.mark.parametrize("lengths", [[50, 50, 50], [50], [1, 1]])
def test_what_every_message_fails_of_is_waited_for(error: Exception, lengths: list[int]) -> None:
    """N8, N11: a table under DDL, a full disk, or a migration that is to come costs no message its verdict."""
    one = running(lengths, error=error)
    one.made.ends = lambda _places: one.clock.now < 5000
    one.until(5000)
    assert not one.made.done
    assert "every message that waits fails alike" in str(one.loop.partitions.problem)
    one.until(5100)
    assert len(one.made.done) == sum(lengths)
    assert not one.made.rejected
    assert one.loop.partitions.problem is None


def test_time_in_which_every_message_fails_is_not_counted() -> None:
    """N8: a lock that is left after it gets the whole time again."""
    stuck = (0, 0)
    one = running([5, 5], error=Transient("a lock"))
    one.made.ends = lambda places: one.clock.now < 5000 or stuck in places
    [(place, (code, when))] = one.until(9000).rejected.items()
    assert (place, code) == (stuck, "TIMED_OUT")
    assert when > 5250


@pytest.mark.parametrize(("error", "code"), [(Transient("a lock"), "TIMED_OUT"), (NotThere("no operator"), "BUG")])
def test_messages_that_fail_alike_amid_others_that_work_are_rejected(error: Exception, code: str) -> None:
    """N10: though they are in front of every partition, many in a row."""
    bad = {(partition, offset) for partition in range(3) for offset in (*range(5), 20)}
    one = running([50, 50, 50], ends=lambda places: bool(bad & set(places)), error=error).until(1e5)
    assert {place: code for place, (code, _) in one.rejected.items()} == dict.fromkeys(bad, code)
    assert len(one.done) == 150


def test_good_messages_that_come_later_tell_within_seconds_whose_fault_it_is() -> None:
    """N10: when all in front failed alike, nothing that waited could tell."""
    bad = {(partition, 0) for partition in range(3)}
    one = running([1, 1, 1], ends=lambda places: bool(bad & set(places)), error=NotThere("no operator"))
    one.until(500)
    assert not one.made.rejected
    assert "every message that waits fails alike" in str(one.loop.partitions.problem)
    one.loop.partitions.add(record(partition, 1) for partition in range(3))
    one.until(510)
    assert one.made.rejected.keys() == bad
    assert len(one.made.done) == 6
    assert one.loop.partitions.problem is None


def flood(bad: int, good: int, **failing: Any) -> Running:
    """Return a loop over three partitions, each with so many bad messages and good ones behind them."""
    return running([bad + good] * 3, error=NotThere("no operator"), **failing)


def test_only_the_first_messages_of_a_flood_wait_between_their_tries() -> None:
    """N10: an hour of waits would keep the good ones behind them."""
    one = flood(30, 5, ends=lambda places: any(offset < 30 for _, offset in places))
    one.until(200)
    assert len(one.made.rejected) == 90
    assert len(one.made.done) == 105
    waited = one.clock.now - 0.1 * one.made.lost
    assert waited < 15


def test_a_few_good_messages_amid_a_flood_tell_for_all_in_front_of_them() -> None:
    """N10: one that worked is remembered, since the next comparison would hardly meet it."""
    one = running([60] * 3, ends=lambda places: any(offset not in (30, 31) for _, offset in places))
    one.made.error = NotThere("no operator")
    one.until(200)
    assert {(partition, offset) for partition in range(3) for offset in range(30)} <= one.made.rejected.keys()


def test_what_every_message_fails_of_is_waited_for_in_a_flood_too() -> None:
    """N8: each message of a known kind is compared with one that worked before, and that fails now."""
    one = flood(20, 5, ends=lambda places: any(offset < 20 for _, offset in places))
    while len(one.made.rejected) < 20 and one.clock.now < 500:
        one.turn()
    bad, began, so_far, tries = one.made.ends, one.clock.now, len(one.made.rejected), one.made.lost
    one.made.ends = lambda _places: True
    one.until(began + 500)
    assert len(one.made.rejected) == so_far >= 20
    assert one.made.lost - tries < 1000
    assert "every message that waits fails alike" in str(one.loop.partitions.problem)
    one.made.ends = bad
    one.until(began + 1000)
    assert len(one.made.rejected) == 60


def test_slow_comparisons_leave_most_of_the_time_to_others() -> None:
    """N10: each takes as long as a lock timeout."""
    one = running([5, 5], error=Transient("a lock"))

    def locks(_places: list[Place]) -> bool:
        one.clock.now += LOCK_SECONDS
        return True

    one.made.ends = locks
    one.until(400)
    assert one.loop.partitions.problem
    before = one.made.comparing_seconds
    one.until(1400)
    assert 0 < one.made.comparing_seconds - before < 200


def test_the_last_message_of_one_partition_is_rejected_when_its_time_is_over() -> None:
    """N8: nothing is left to compare it with."""
    one = running([5, 0], ends=lambda places: (0, 4) in places, error=Transient("a lock")).until()
    assert one.rejected.keys() == {(0, 4)}


def test_a_message_alone_has_the_whole_time_for_what_is_not_there() -> None:
    """N8, N10: code may run ahead of its migration while little comes; its tries are over long before."""
    one = running([1], error=NotThere("no such table"))
    one.made.ends = lambda _: one.clock.now < 100
    assert not one.until(200).rejected
    assert one.made.done.keys() == {(0, 0)}
    for_ever = running([1], ends=lambda _: True, error=NotThere("no such table")).until(5000)
    [(code, when)] = for_ever.rejected.values()
    assert code == "BUG"
    assert 300 < when < 320


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(0.1, 0.6))
def test_sessions_that_are_ended_from_outside_cost_no_message_its_verdict(seed: int, often: float) -> None:
    """N8: a failover that flaps, or somebody who ends all sessions again and again, for longer than any retry lasts."""
    dice = random.Random(seed)
    one = running([15, 15, 15], 5, ends=lambda _: dice.random() < often).until()
    assert not one.rejected
    assert len(one.done) == 45


def test_batches_shrink_while_they_take_long_and_grow_again() -> None:
    """A long transaction keeps the process from polling, from its health check and from its end."""
    most = 500
    sizes = [most]
    for _ in range(12):
        seconds = 0.04 * min(sizes[-1], most)
        sizes.append(next_size(sizes[-1], most, sizes[-1], seconds))
    assert 0.04 * sizes[-1] <= TURN_SECONDS
    assert sizes[-1] > 50
    for _ in range(10):
        sizes.append(next_size(sizes[-1], most, sizes[-1], 0.01))
    assert sizes[-1] == most
    assert next_size(1, most, 1, 100.0) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.data())
def test_a_batch_that_is_taken_apart_is_handled_part_by_part_whatever_fails(gaps: list[int], data: Any) -> None:
    """N9: offsets have gaps, and a part ends where another begins."""
    buffer, offset = PartitionBuffer(), 0
    for gap in gaps:
        offset += gap
        buffer.add(record(0, offset))
    bad = {each.offset for each in buffer.waiting if data.draw(st.booleans())}
    done: list[int] = []
    for _ in range(2000):
        if not buffer.waiting:
            break
        part = buffer.next(500)
        assert part
        if len(part) > 1 and bad & {each.offset for each in part}:
            buffer.take_apart(part, halve=True)
            continue
        done += [each.offset for each in part]
        for each in part:
            buffer.finish(each)
    assert done == sorted(done)
    assert len(done) == len(gaps)
    assert not buffer.ends
