"""The service loop: a signal drains, the deadline is kept, a second signal stops at once (N16)."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest

from ferryman.runtime.errors import Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.service import serve
from ferryman.runtime.settings import Health, ServiceSettings, Settings

SETTINGS = Settings(health=Health(enabled=False), service=ServiceSettings(drain_seconds=5))


class Worker:
    """A service that runs a function."""

    def __init__(self, body: Callable[[Life], None], name: str = "worker") -> None:
        self.name = name
        self._body = body

    def run(self, life: Life) -> None:
        self._body(life)


def signalled(life: Life, sign: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), sign)
    life.wait(10)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_work_in_flight_finish_and_exits_0(sign: signal.Signals) -> None:
    done = threading.Event()

    def body(life: Life) -> None:
        signalled(life, sign)
        done.set()

    assert serve([Worker(body)], SETTINGS) == 0
    assert done.is_set()


def test_a_signal_that_another_thread_receives_is_heard() -> None:
    """Linux does that rarely; the main thread's wait for a lock is not interrupted then."""
    began = time.monotonic()

    def body(life: Life) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        time.sleep(0.3)  # then the main thread waits
        signalled(life)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of this thread, and of those that it starts
    try:
        assert serve([Worker(body)], SETTINGS) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert time.monotonic() - began < 5


def test_work_that_outlasts_the_deadline_is_cut_off_with_exit_1() -> None:
    codes: list[int] = []
    release = threading.Event()

    def body(life: Life) -> None:
        signalled(life)
        release.wait(10)

    settings = Settings(health=Health(enabled=False), service=ServiceSettings(drain_seconds=0.1))
    began = time.monotonic()
    assert serve([Worker(body)], settings, stop_at_once=codes.append) == 1
    release.set()
    assert codes == [1]
    assert time.monotonic() - began < 5


def test_a_second_signal_stops_at_once_with_130() -> None:
    codes: list[int] = []
    both_sent = threading.Event()

    def body(life: Life) -> None:
        signalled(life)
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not codes and time.monotonic() < deadline:
            time.sleep(0.01)
        both_sent.set()

    serve([Worker(body)], SETTINGS, stop_at_once=codes.append)
    assert both_sent.is_set()
    assert codes == [130]


def test_an_error_in_one_service_drains_the_others_and_is_raised() -> None:
    drained = threading.Event()

    def broken(_life: Life) -> None:
        raise Unreachable("no database")

    def steady(life: Life) -> None:
        life.wait(10)
        drained.set()

    with pytest.raises(Unreachable, match="no database"):
        serve([Worker(broken, "broken"), Worker(steady, "steady")], SETTINGS)
    assert drained.is_set()


def test_a_bug_is_logged_with_its_place_and_without_values(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_life: Life) -> None:
        raise ValueError("geheim")

    with pytest.raises(ValueError, match="geheim"):
        serve([Worker(broken)], SETTINGS)
    said = capsys.readouterr().out
    assert "failed" in said
    assert re.search(r"test_service\.py:\d+ broken", said)
    assert "geheim" not in said


def test_the_handlers_before_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    serve([Worker(signalled)], SETTINGS)
    assert signal.getsignal(signal.SIGTERM) is before
