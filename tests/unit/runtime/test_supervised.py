"""The loop around every connection: which errors are retried, which end it, and which are bugs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable
from ferryman.runtime.supervised import supervise


class Script:
    """A connection that fails as it is told to, and the interruptions that were reported."""

    def __init__(
        self, connecting: list[Exception | None], serving: list[Exception | None], *, works: bool = True
    ) -> None:
        self.connecting, self.serving, self.works = connecting, serving, works
        self.stopping = threading.Event()
        self.said: list[tuple[type[FerrymanError], float]] = []
        self.opened = self.closed = 0

    @contextmanager
    def connect(self) -> Iterator[str]:
        if self.connecting and (error := self.connecting.pop(0)):
            raise error
        self.opened += 1
        try:
            yield "connection"
        finally:
            self.closed += 1

    def serve(self, connection: str, succeeded: Callable[[], None]) -> None:
        assert connection == "connection"
        if self.works:
            succeeded()
        if self.serving and (error := self.serving.pop(0)):
            raise error

    def interrupted(self, error: FerrymanError, seconds: float) -> None:
        self.said.append((type(error), seconds))

    def run(self, *, patient: bool = False) -> None:
        supervise(self.stopping, self.connect, self.serve, self.interrupted, patient=patient)


def test_transient_errors_are_retried_with_growing_waits() -> None:
    script = Script([Unreachable("away"), Transient("busy"), None], [None])
    script.run()
    assert script.said == [(Unreachable, 0.1), (Transient, 0.2)]


def test_waits_grow_while_connections_are_made_and_no_work_succeeds() -> None:
    """N12: a server that lets a relay in and refuses its writes is not asked ten times a second."""
    script = Script([], [*[Transient("disk full")] * 4, None], works=False)
    script.run()
    assert script.said == [(Transient, seconds) for seconds in (0.1, 0.2, 0.4, 0.8)]


def test_waits_start_anew_after_work_succeeded() -> None:
    script = Script([Unreachable("away"), None, None], [Transient("cut"), None])
    script.run()
    assert script.said == [(Unreachable, 0.1), (Transient, 0.1)]
    assert script.opened == script.closed == 2


def test_a_database_error_is_translated_before_it_is_judged() -> None:
    script = Script([psycopg.OperationalError("connection refused")], [])
    script.run()
    assert [kind for kind, _ in script.said] == [Unreachable]


def test_a_wrong_setting_ends_the_loop_before_the_first_success_only() -> None:
    with pytest.raises(Misconfigured):
        Script([Misconfigured("no such role")], []).run()
    later = Script([None, Misconfigured("no such role"), None], [Transient("cut"), None])
    later.run()
    assert [kind for kind, _ in later.said] == [Transient, Misconfigured]


def test_a_patient_loop_waits_for_a_wrong_setting() -> None:
    script = Script([Misconfigured("no such role"), None], [None])
    script.run(patient=True)
    assert [kind for kind, _ in script.said] == [Misconfigured]


@pytest.mark.parametrize("error", [KeyError("x"), Permanent("gone"), AssertionError()])
def test_anything_else_is_raised_and_never_retried(error: Exception) -> None:
    script = Script([], [error])
    with pytest.raises(type(error)):
        script.run(patient=True)
    assert script.said == []
    assert script.opened == script.closed == 1


def test_nothing_is_connected_once_it_should_stop() -> None:
    script = Script([], [])
    script.stopping.set()
    script.run()
    assert script.opened == 0


def test_it_stops_between_two_tries() -> None:
    script = Script([Unreachable("away")] * 9, [])
    stop: Callable[[FerrymanError, float], None] = lambda _error, _seconds: script.stopping.set()  # noqa: E731
    supervise(script.stopping, script.connect, script.serve, stop)
    assert len(script.connecting) == 8
