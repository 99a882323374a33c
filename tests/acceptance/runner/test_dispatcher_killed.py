"""Dispatchers that are killed, stopped or ended at any moment lose no event, and double only what was in doubt."""

import json
import signal
import threading
from typing import NamedTuple

import pytest

from ferryman.testing.receiver import Answer, ReceivedRequest
from support.dispatching import Dispatch
from support.launch import KillAt
from support.published import poll_until


class Point(NamedTuple):
    """The occurrence of a step before which a dispatcher dies, and whether events must come again; None: they may."""

    nth: int
    doubles: bool | None


POINTS = {
    "send rows": Point(1, doubles=False),  # claimed, and nothing sent
    "settle rows": Point(1, doubles=True),  # answered, and nothing marked
    "commit rows": Point(1, doubles=True),  # marked, and not committed
    "claim rows": Point(10, doubles=None),  # all is settled, unless the receiver was slow
}


@pytest.mark.parametrize("step", POINTS)
def test_dispatcher_killed_before_a_step_loses_and_alters_nothing(dispatch: Dispatch, step: str) -> None:
    """N1, N3, N11."""
    nth, doubles = POINTS[step]
    dispatch.write(20)
    assert dispatch.start(KillAt.before_step("courier", step, nth)).wait() == -9
    in_doubt = dispatch.in_doubt()
    dispatch.expire()
    heir = dispatch.start()
    dispatch.await_delivery(heir)
    dispatch.stop(heir)
    assert dispatch.doubled() <= in_doubt
    assert doubles is None or bool(dispatch.doubled()) is doubles
    assert dispatch.miscounted() == []


def test_dispatcher_killed_while_it_sends_loses_and_alters_nothing(dispatch: Dispatch) -> None:
    """N1, N3: the receiver may have handled what it never answered."""
    killed = threading.Event()
    dispatch.write(20)
    victim = dispatch.start()
    dispatch.receiver.answer = lambda _: Answer(200 if killed.wait(10) else 500)
    dispatch.await_requests(20)
    victim.kill()
    killed.set()
    dispatch.expire()
    heir = dispatch.start()
    dispatch.await_delivery(heir)
    dispatch.stop(heir)
    assert dispatch.doubled() == set(dispatch.events)
    assert dispatch.miscounted() == []


@pytest.mark.parametrize("status", [500, 200])
def test_stopped_dispatcher_takes_nothing_back_from_its_heir(dispatch: Dispatch, status: int) -> None:
    """N3, N8: a failure needs its lease; a success counts whoever reports it, and the heir's changes nothing."""
    dispatch.write(1)
    heirs_answer = threading.Event()
    first, second = dispatch.start(), None

    def answer(_: ReceivedRequest) -> Answer:
        if len(dispatch.receiver.requests) == 1:
            first.send(signal.SIGSTOP)
            poll_until(lambda: "T" in state(first.pid), "stopped dispatcher")
            return Answer(status)
        return Answer(200 if heirs_answer.wait(20) else 500)

    dispatch.receiver.answer = answer
    dispatch.await_requests(1)
    poll_until(lambda: "T" in state(first.pid), "stopped dispatcher")
    dispatch.expire()
    second = dispatch.start()
    dispatch.await_requests(2)
    first.send(signal.SIGCONT)
    if status == 500:
        first.until(lambda: '"lease lost"' in first.stderr, "late failure")
        assert dispatch.statuses() == {"SENDING": 1}
    else:
        dispatch.await_delivery(first)
    before = dispatch.db.execute("SELECT delivered_at FROM runner.event_outbox").fetchone()
    heirs_answer.set()
    dispatch.await_delivery(second)
    if status == 200:
        second.until(lambda: '"lease lost"' in second.stderr, "late success")
        assert dispatch.db.execute("SELECT delivered_at FROM runner.event_outbox").fetchone() == before
    dispatch.stop(first, second)
    assert len(dispatch.receiver.requests) == 2
    assert dispatch.doubled() == set(dispatch.events)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_sigterm_settles_what_is_in_flight_and_releases_the_rest(dispatch: Dispatch) -> None:
    """N16: nothing is sent twice because of a rolling update, and no attempt is charged."""
    go_on = threading.Event()
    dispatch.receiver.answer = lambda _: Answer(200 if go_on.wait(10) else 500)
    dispatch.write(150)
    ending = dispatch.start()
    dispatch.await_requests(64)
    ending.send(signal.SIGTERM)
    poll_until(lambda: dispatch.statuses() == {"SENDING": 64, "PENDING": 86}, "release")
    go_on.set()
    assert ending.wait() == 0, ending.transcript()
    assert dispatch.statuses() == {"DELIVERED": 64, "PENDING": 86}
    heir = dispatch.start()
    dispatch.await_delivery(heir)
    dispatch.stop(heir)
    assert dispatch.doubled() == set()
    assert dispatch.db.execute("SELECT sum(attempt_count) FROM runner.event_outbox").fetchone() == (0,)


def test_second_signal_ends_at_once_and_the_event_comes_again(dispatch: Dispatch) -> None:
    """N1, N16."""
    silent = threading.Event()
    dispatch.receiver.answer = lambda _: Answer(200 if silent.wait(10) else 500)
    dispatch.write(1)
    hasty = dispatch.start()
    dispatch.await_requests(1)
    hasty.send(signal.SIGTERM)
    hasty.until(lambda: '"draining"' in hasty.stderr, "first signal")
    hasty.send(signal.SIGTERM)
    assert hasty.wait() == 130
    silent.set()
    dispatch.expire()
    heir = dispatch.start()
    dispatch.await_delivery(heir)
    dispatch.stop(heir)
    assert dispatch.doubled() == {json.loads(dispatch.receiver.requests[0].body)["event_id"]}
