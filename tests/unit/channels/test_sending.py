"""Many sends run at once; each ends once; nothing that a channel does stops the others."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman.channels.outcome import Code, Delivered, Outcome, Retry, Unknown
from ferryman.channels.sending import Item, Sending
from ferryman.runtime.errors import FerrymanError, Unreachable
from support.sending import Gated, collect, items

LONG = 30.0


class Answering:
    """A channel that does what the item says: an item is a function."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def open(self) -> None:
        """Nothing to make ready."""

    async def send(self, item: Callable[[], Any]) -> Outcome:
        found = item()
        outcome: Outcome = await found if asyncio.iscoroutine(found) else found
        return outcome

    async def close(self) -> None:
        self.closed.set()


@contextmanager
def gated(**settings: Any) -> Iterator[tuple[Gated, Sending]]:
    channel = Gated()
    sending = Sending(channel, **{"deadline_seconds": LONG, **settings})
    sending.open()
    try:
        yield channel, sending
    finally:
        channel.release([*range(200), "slow", "quick", "first", "second", "stuck"])
        sending.close()


def fail(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


async def for_ever() -> Outcome:
    await asyncio.Event().wait()
    return Delivered()


def test_batch_is_sent_at_once_and_every_item_ends_once() -> None:
    with gated(slots=64) as (channel, sending):
        sending.begin(items(range(64)))
        channel.wait_for_starts(64)
        channel.release(range(64))
        found = collect(sending, 64)
        assert all(found[each].outcome == Delivered(reference=str(each)) for each in range(64))
        assert channel.most_at_once == 64
        assert sending.ended(0) == []


def test_room_counts_what_is_in_flight_waits_or_is_not_collected() -> None:
    with gated(slots=2) as (channel, sending):
        assert sending.room() == 4
        sending.begin(items(range(3)))
        assert sending.room() == 1
        channel.release(range(3))
        channel.wait_for_starts(3)
        assert sending.room() == 1
        collect(sending, 3)
        assert sending.room() == 4


def test_nothing_waits_where_that_is_not_allowed() -> None:
    with gated(slots=3, waiting=False) as (_, sending):
        assert sending.room() == 3


def test_items_wait_for_a_free_slot_in_their_order() -> None:
    with gated(slots=2) as (channel, sending):
        sending.begin(items(range(4)))
        assert channel.wait_for_starts(2) == [0, 1]
        channel.release([1])
        assert channel.wait_for_starts(3) == [0, 1, 2]
        channel.release([0, 2, 3])
        collect(sending, 4)
        assert channel.most_at_once == 2


def test_slow_send_holds_its_slot_and_nothing_else() -> None:
    """N10."""
    with gated(slots=2) as (channel, sending):
        sending.begin(items(["slow"]))
        for batch in range(0, 60, 3):
            channel.release(range(batch, batch + 3))
            sending.begin(items(range(batch, batch + 3)))
            assert set(collect(sending, 3)) == set(range(batch, batch + 3))
        assert sending.room() == 3


def test_destination_has_at_most_its_slots_and_others_pass_it() -> None:
    """N10."""
    with gated(slots=4, each=2) as (channel, sending):
        sending.begin(items(range(6), "dead") + items(["quick"], "healthy"))
        assert channel.wait_for_starts(3) == [0, 1, "quick"]
        assert sending.busy() == {"dead": 6, "healthy": 1}
        channel.release(["quick"])
        assert set(collect(sending, 1)) == {"quick"}
        channel.release([1])
        assert set(collect(sending, 1)) == {1}
        assert channel.wait_for_starts(4) == [0, 1, "quick", 2]
        channel.release(range(6))
        collect(sending, 5)
        assert channel.started == [0, 1, "quick", *range(2, 6)]
        assert sending.busy() == {}


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), max_size=40),
    st.integers(1, 5), st.integers(1, 3),
)  # fmt: skip
def test_any_mix_of_destinations_is_sent_within_both_limits(
    plan: list[tuple[str | None, bool]], slots: int, each: int
) -> None:
    now: dict[str | None, int] = {}
    exceeded: list[object] = []

    def one(destination: str | None, yields: bool) -> Callable[[], Any]:
        async def send() -> Outcome:
            now[destination] = now.get(destination, 0) + 1
            if sum(now.values()) > slots or (destination is not None and now[destination] > each):
                exceeded.append(dict(now))
            if yields:
                await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(int))])
            now[destination] -= 1
            return Delivered()

        return send

    with Sending(Answering(), slots=slots, each=each, deadline_seconds=LONG) as sending:
        sending.begin([Item(n, one(*what), what[0]) for n, what in enumerate(plan)])
        collect(sending, len(plan))
    assert exceeded == []


@pytest.mark.parametrize(
    "error", [ValueError("password=geheim"), KeyError("x"), SystemExit(3), asyncio.CancelledError()]
)
def test_bug_of_a_channel_is_a_retry_of_its_item_and_is_logged(error: BaseException) -> None:
    with structlog.testing.capture_logs() as logs, Sending(Answering(), deadline_seconds=LONG, name="shop") as sending:
        sending.begin([Item("bug", fail(error)), Item("well", Delivered)])
        found = collect(sending, 2)
        kind = type(error).__name__
        outcome = found["bug"].outcome
        assert isinstance(outcome, Retry)
        assert outcome.code is Code.CHANNEL_BUG
        assert outcome.error.startswith(f"the channel raised {kind}")
        assert found["well"].outcome == Delivered()
        sending.begin([Item("later", Delivered)])
        assert collect(sending, 1)["later"].outcome == Delivered()
    [logged] = logs
    assert (logged["channel"], logged["row"]) == ("shop", "bug")
    assert "geheim" not in str(logged)
    assert isinstance(error, asyncio.CancelledError) or "raise_it" in str(logged["where"])
    assert isinstance(error, asyncio.CancelledError) or "test_sending.py:" in str(logged["error"])


@pytest.mark.parametrize("answer", [None, "delivered", 200, Delivered])
def test_answer_that_is_not_an_outcome_is_a_bug(answer: object) -> None:
    with Sending(Answering(), deadline_seconds=LONG) as sending:
        sending.begin([Item("x", lambda: answer)])
        outcome = collect(sending, 1)["x"].outcome
        assert isinstance(outcome, Retry)
        assert outcome.code is Code.CHANNEL_BUG
        assert ("None" if answer is None else type(answer).__name__) in outcome.error


def test_send_without_an_outcome_is_cancelled_at_its_deadline() -> None:
    with Sending(Answering(), slots=1, deadline_seconds=0.2) as sending:
        sending.begin([Item("stuck", for_ever), Item("next", Delivered)])
        found = collect(sending, 2)
        assert isinstance(found["stuck"].outcome, Unknown)
        assert found["stuck"].outcome.code == Code.DEADLINE_PASSED
        assert 0.2 <= found["stuck"].seconds < 5
        assert found["next"].outcome == Delivered()


def test_deadline_of_each_send_counts_from_its_own_start() -> None:
    with Sending(Answering(), slots=1, deadline_seconds=0.3) as sending:
        began = time.monotonic()
        sending.begin([Item("first", for_ever), Item("second", for_ever)])
        found = collect(sending, 2)
        assert time.monotonic() - began >= 0.6
        assert all(isinstance(each.outcome, Unknown) for each in found.values())
        assert found["second"].seconds < 0.55


def test_later_send_in_flight_has_a_later_deadline() -> None:
    with Sending(Answering(), slots=2, deadline_seconds=0.5) as sending:
        sending.begin([Item("first", for_ever)])
        assert sending.ended(0.2) == []
        sending.begin([Item("second", for_ever)])
        found = collect(sending, 2)
        assert all(isinstance(each.outcome, Unknown) for each in found.values())
        assert found["second"].seconds >= 0.5


def test_send_that_resists_its_cancellation_keeps_its_slot_and_ends_once() -> None:
    resisting: dict[str, asyncio.Event] = {}
    loops: list[asyncio.AbstractEventLoop] = []

    async def resist() -> Outcome:
        resisting["over"] = asyncio.Event()
        loops.append(asyncio.get_running_loop())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await resisting["over"].wait()
        return Delivered()

    with Sending(Answering(), slots=1, deadline_seconds=0.2) as sending:
        sending.begin([Item("stuck", resist)])
        assert isinstance(collect(sending, 1)["stuck"].outcome, Unknown)
        sending.begin([Item("next", Delivered)])
        assert sending.ended(0.1) == []
        loops[0].call_soon_threadsafe(resisting["over"].set)
        assert collect(sending, 1)["next"].outcome == Delivered()


def test_item_behind_its_destination_goes_before_those_that_came_later() -> None:
    with gated(slots=2, each=1) as (channel, sending):
        sending.begin([*items(range(2), "a"), *items(["first"], "b"), *items(["second"], "c")])
        assert channel.wait_for_starts(2) == [0, "first"]
        channel.release([0])
        assert channel.wait_for_starts(3) == [0, "first", 1]
        assert channel.started == [0, "first", 1]


def test_channel_is_closed_although_a_send_resists_its_cancellation() -> None:
    over = threading.Event()

    async def resist() -> Outcome:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.wrap_future(never)
        return Delivered()

    never: Future[None] = Future()
    channel = Answering()
    sending = Sending(channel, deadline_seconds=0.2)
    sending.open()
    sending.begin([Item("stuck", resist)])
    closing = threading.Thread(target=sending.close)
    closing.start()
    assert channel.closed.wait(4)
    over.set()
    never.cancel()
    closing.join(10)
    assert not closing.is_alive()


def test_waiting_items_can_be_taken_back_and_those_in_flight_end() -> None:
    with gated(slots=2, each=1) as (channel, sending):
        sending.begin([*items(range(3), "a"), *items(["first"], "b"), *items(["second"], "b")])
        assert channel.wait_for_starts(2) == [0, "first"]
        assert {item.key for item in sending.recall()} == {1, 2, "second"}
        assert sending.busy() == {"a": 1, "b": 1}
        assert sending.room() == 2
        channel.release([0, "first"])
        assert set(collect(sending, 2)) == {0, "first"}
        assert channel.started == [0, "first"]
        assert sending.recall() == []


def test_close_lets_sends_in_flight_end_and_drops_what_waits() -> None:
    """N16."""
    channel = Gated()
    sending = Sending(channel, slots=2, deadline_seconds=LONG)
    sending.open()
    sending.begin(items(range(4)))
    channel.wait_for_starts(2)
    closing = threading.Thread(target=sending.close)
    closing.start()
    channel.release(range(4))
    closing.join(10)
    assert not closing.is_alive()
    assert {each.key for each in sending.ended(0)} == {0, 1}
    assert channel.started == [0, 1]
    assert channel.closed


def test_close_waits_no_longer_than_the_deadline() -> None:
    channel = Answering()
    sending = Sending(channel, deadline_seconds=0.2)
    sending.open()
    sending.begin([Item("stuck", for_ever)])
    began = time.monotonic()
    sending.close()
    assert time.monotonic() - began < 5
    assert [type(each.outcome) for each in sending.ended(0)] == [Unknown]
    assert channel.closed.is_set()


def test_nothing_is_begun_before_open_or_after_close() -> None:
    sending = Sending(Answering())
    assert sending.why_not() is not None
    with pytest.raises(FerrymanError):
        sending.begin([Item("x", Delivered)])
    sending.open()
    assert sending.why_not() is None
    sending.close()
    with pytest.raises(FerrymanError):
        sending.begin([Item("x", Delivered)])
    assert sending.ended(LONG) == []
    assert sending.recall() == []
    sending.close()


def test_error_of_open_is_raised_where_it_was_opened() -> None:
    class Broken(Answering):
        async def open(self) -> None:
            raise FerrymanError("no such thing")

    with pytest.raises(FerrymanError, match="no such thing"):
        Sending(Broken()).open()


def test_channel_whose_open_failed_is_opened_again() -> None:
    class Late(Answering):
        failures = 1

        async def open(self) -> None:
            if self.failures:
                self.failures -= 1
                raise Unreachable("not yet")

    sending = Sending(Late(), deadline_seconds=LONG)
    with pytest.raises(Unreachable):
        sending.open()
    sending._thread.join(LONG)
    with sending:
        sending.begin([Item(1, Delivered)])
        assert collect(sending, 1)[1].outcome == Delivered()


@pytest.mark.parametrize(
    ("given_outcome", "stored"),
    [
        (Retry("bad \0 text", excerpt="\0x"), Retry("bad text", excerpt="x")),
        (Delivered("\ud800", "\ud800"), Delivered("?", "?")),
        (Retry(cast("str", ValueError())), Retry("ValueError")),
        (Retry("late", after_seconds=cast("float", "12")), Retry("late", after_seconds=12.0)),
        (Retry("late", after_seconds=cast("float", "soon")), Retry("the channel raised ValueError", Code.CHANNEL_BUG)),
        (Retry("late", after_seconds=float("nan")), Retry("the channel raised ValueError", Code.CHANNEL_BUG)),
    ],
)
def test_outcome_is_made_storable_or_is_the_channels_bug(given_outcome: Outcome, stored: Outcome) -> None:
    """N10: the database would refuse it, and with it all outcomes that are settled together."""
    with Sending(Answering(), deadline_seconds=LONG) as sending:
        sending.begin([Item(1, lambda: given_outcome)])
        assert collect(sending, 1)[1].outcome == stored


def test_ended_returns_at_once_if_nothing_is_held() -> None:
    with Sending(Answering()) as sending:
        began = time.monotonic()
        assert sending.ended(LONG) == []
        assert time.monotonic() - began < LONG / 2


def test_ended_waits_no_longer_than_it_was_told() -> None:
    with gated(slots=1) as (channel, sending):
        sending.begin(items(["slow"]))
        channel.wait_for_starts(1)
        began = time.monotonic()
        assert sending.ended(0.2) == []
        assert 0.2 <= time.monotonic() - began < 5


def test_ended_wakes_for_the_first_outcome() -> None:
    with gated(slots=2) as (channel, sending):
        sending.begin(items(["slow", "quick"]))
        channel.wait_for_starts(2)
        threading.Timer(0.05, channel.release, [["quick"]]).start()
        assert [each.key for each in sending.ended(LONG)] == ["quick"]


def test_error_at_the_close_of_a_channel_is_logged() -> None:
    class Breaking(Answering):
        async def close(self) -> None:
            raise ValueError

    with structlog.testing.capture_logs() as logs, Sending(Breaking()) as sending:
        sending.begin([Item("x", Delivered)])
        collect(sending, 1)
    assert [each["error"] for each in logs] == ["ValueError"]


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"each": 0}, {"deadline_seconds": 0}])
def test_limits_must_be_positive(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Sending(Answering(), **wrong)
