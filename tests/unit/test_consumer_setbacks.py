"""What becomes of messages whose handling fails: how long each is tried, who waits meanwhile, and in what parts."""

import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman.consumer.api import Consumer
from ferryman.consumer.buffers import Buffer, Buffers
from ferryman.consumer.faults import HandlerFailed, SessionLost, TookTooLong
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Done, Partition, Poison, Received, Record
from ferryman.consumer.policy import Policy, next_size
from ferryman.consumer.worker import Worker
from ferryman.runtime.errors import Transient

NOTHING = cast(Any, type("Nothing", (), {"closed": False})())


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, b"k", b"{}", [("ce_type", b"t")], 0)


class Waiting:
    """A feed that has nothing: time passes while it is asked."""

    def __init__(self, clock: "Slow") -> None:
        self.clock = clock

    def take(self, most: int, seconds: float, gather_seconds: float) -> list[Record]:
        self.clock.now += seconds
        return []

    def commit(self, positions: dict[Partition, int], *, wait: bool = False) -> None: ...

    def pause(self, partitions: Any) -> None: ...

    def resume(self, partitions: Any) -> None: ...


class Slow:
    """It stands still, but for what takes time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


LOCK_SECONDS = 5.0


class Locked(Worker):
    """One message's row is locked: each transaction with it fails when the lock timeout has passed."""

    at: tuple[int, int]
    what: list[Exception]
    done: dict[tuple[int, int], float]
    rejected: dict[tuple[int, int], tuple[str, float]]

    def _item(self, given: Record) -> Received | Poison | None:
        return Received(cast(Any, (given.partition, given.offset)), "t", None, "k", given, b"")

    def _transact(
        self, connection: Any, face: Any, items: Sequence[Any], claimed: frozenset[Any] = frozenset()
    ) -> None:
        clock = cast(Slow, self.clock)
        places = [(item.record.partition, item.record.offset) for item in items]
        if isinstance(items[0], Poison):
            self.rejected[places[0]] = items[0].code, clock.now
        elif self.at in places:
            clock.now += LOCK_SECONDS
            raise self.what.pop(0) if self.what else Transient("a lock timeout")
        self.done |= dict.fromkeys(places, clock.now)


def locked(
    at: tuple[int, int], lengths: Sequence[int], what: Sequence[Exception] = (), kind: type[Locked] = Locked
) -> Locked:
    """500 messages are one batch; the policy is that of the settings."""
    clock, consumer, buffers = Slow(), Consumer("c", ["t"]), Buffers(1 << 30)
    consumer.handles("t")(lambda _db, _message: Done())
    buffers.own({("t", partition) for partition in range(len(lengths))})
    made = kind(consumer, cast(Feed, Waiting(clock)), Policy(), buffers, cast(Any, None), clock=clock)
    for partition, length in enumerate(lengths):
        buffers.add(record(partition, offset) for offset in range(length))
    made.at, made.what, made.done, made.rejected = at, list(what), {}, {}
    return made


def turns(one: Locked, until: float = 2000.0) -> Locked:
    clock = cast(Slow, one.clock)
    while any(each.waiting for each in one.buffers.by_place.values()) and clock.now < until:
        one.turn(NOTHING, NOTHING)
    return one


@pytest.mark.parametrize("at", [0, 250, 499])
def test_a_lock_is_waited_for_as_long_as_is_said_wherever_its_message_stands_in_the_batch(at: int) -> None:
    """N8: what is handled before it does not give it more time, nor what is tried to find it take it away."""
    one = turns(locked((0, at), [500]))
    assert len(one.done) == 500
    [(place, (code, when))] = one.rejected.items()
    assert (place, code) == ((0, at), "TIMED_OUT")
    found = 12 * LOCK_SECONDS
    assert 300 < when < 300 + found + 20


def test_a_lock_that_one_message_waits_for_does_not_hold_up_its_neighbours() -> None:
    """N10: in other partitions for one try, and in front of it until it is found."""
    one = turns(locked((0, 250), [300, 200]))
    assert max(when for (partition, _), when in one.done.items() if partition == 1) < 3 * LOCK_SECONDS
    assert max(when for (_, offset), when in one.done.items() if offset < 250) < 15 * LOCK_SECONDS


def test_deadlocks_are_not_counted_as_tries_of_its_handler() -> None:
    """N8: what passes is bounded by time, and bugs by their number."""
    passing = [Transient("a deadlock") for _ in range(5)]
    one = turns(locked((0, 0), [1], [*passing, HandlerFailed("once"), HandlerFailed("twice")]), until=100)
    assert not one.rejected
    assert turns(locked((0, 0), [1], [*passing, *[HandlerFailed("a bug")] * 3])).rejected[0, 0][0] == "BUG"


@pytest.mark.parametrize("how", ["paused", "interrupted"])
def test_time_in_which_nothing_is_tried_is_not_counted(how: str) -> None:
    """N8: an outage or a pause costs no message its verdict."""
    one = turns(locked((0, 0), [1]), until=60)
    if how == "paused":
        one.paused = True
        one.turn(NOTHING, NOTHING)
        one.paused = False
    else:
        one.buffers.forgive()
    resumed = cast(Slow, one.clock).now = 5000.0
    turns(one, until=resumed + 250)
    assert not one.rejected
    code, when = turns(one, until=6000).rejected[0, 0]
    assert code == "TIMED_OUT"
    assert resumed + 300 < when < resumed + 340


class Cut(Locked):
    """Transactions whose sessions end: the connection is a new one in each turn, and what failed is forgiven then."""

    ends: Callable[[list[tuple[int, int]]], bool]
    error: Exception = SessionLost("terminating connection")
    lost: int = 0

    def _transact(
        self, connection: Any, face: Any, items: Sequence[Any], claimed: frozenset[Any] = frozenset()
    ) -> None:
        places = [(item.record.partition, item.record.offset) for item in items]
        if not isinstance(items[0], Poison) and self.ends(places):
            cast(Slow, self.clock).now += 0.1
            self.lost += 1
            raise self.error
        super()._transact(connection, face, items, claimed)

    def turn(self, connection: Any, face: Any) -> int:
        try:
            return super().turn(connection, face)
        except SessionLost:
            cast(Slow, self.clock).now += 0.1
            self.buffers.forgive()
            return 0


def cut(lengths: Sequence[int], ends: Callable[[list[tuple[int, int]]], bool]) -> Cut:
    made = locked((-1, -1), lengths, kind=Cut)
    assert isinstance(made, Cut)
    made.ends = ends
    return made


@pytest.mark.parametrize("at", [0, 250, 499])
def test_a_message_that_ends_its_session_is_found_and_rejected_when_its_time_is_over(at: int) -> None:
    """N10, N11: though each loss looks as if the database had been away."""
    one = turns(cut([500, 100], lambda places: (0, at) in places))
    assert len(one.done) == 600
    [(place, (code, when))] = one.rejected.items()
    assert (place, code) == ((0, at), "TIMED_OUT")
    assert 300 < when < 330
    assert max(when for (partition, _), when in one.done.items() if partition == 1) < 3


def test_a_batch_that_takes_longer_than_its_session_may_is_taken_apart_until_it_does_not() -> None:
    """A timeout of the server or of a pooler: no message of it is to blame, and the next batches are smaller too."""
    one = cut([2000], lambda places: len(places) > 100)
    turns(one)
    assert len(one.done) == 2000
    assert not one.rejected
    assert one.lost < 20


def test_a_batch_that_takes_too_long_is_halved_at_once() -> None:
    """Each try takes the whole deadline, and holds up everything."""
    tried: list[int] = []

    def too_long(places: list[tuple[int, int]]) -> bool:
        tried.append(len(places))
        return len(places) > 200

    one = cut([500], too_long)
    one.error = TookTooLong("consumer.deadline_seconds")
    turns(one)
    assert tried[:3] == [500, 250, 125]
    assert len(one.done) == 500


def test_a_message_that_takes_too_long_is_no_bug_of_its_handler() -> None:
    """N8: the server may be slow; it is bounded by time, as what else passes is."""
    one = cut([3], lambda places: (0, 1) in places)
    one.error = TookTooLong("consumer.deadline_seconds")
    [(_, (code, when))] = turns(one).rejected.items()
    assert code == "TIMED_OUT"
    assert when > 300


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(0.1, 0.6))
def test_sessions_that_are_ended_from_outside_cost_no_message_its_verdict(seed: int, often: float) -> None:
    """N8: a failover that flaps, or somebody who ends all of them again and again, for longer than is ever retried."""
    dice = random.Random(seed)
    one = cut([15, 15, 15], lambda _: dice.random() < often)
    one.policy = Policy(batch=5)
    turns(one)
    assert not one.rejected
    assert len(one.done) == 45


def test_portions_shrink_while_they_take_long_and_grow_again() -> None:
    """A transaction that takes long keeps the process from its poll, its health and its end."""
    policy = Policy()
    sizes = [policy.batch]
    for _ in range(12):
        seconds = 0.04 * min(sizes[-1], policy.batch)
        sizes.append(next_size(sizes[-1], policy, sizes[-1], seconds))
    assert 0.04 * sizes[-1] <= policy.turn_seconds
    assert sizes[-1] > 50
    for _ in range(10):
        sizes.append(next_size(sizes[-1], policy, sizes[-1], 0.01))
    assert sizes[-1] == policy.batch
    assert next_size(1, policy, 1, 100.0) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.data())
def test_what_is_taken_apart_is_handled_part_by_part_whatever_fails(gaps: list[int], data: Any) -> None:
    """N9: offsets have gaps, and a part ends where another begins."""
    buffer, offset = Buffer(), 0
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
