"""Who finds little rests in proportion to what that took."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.pace import Crowd, Pace, rest_seconds, stood_in_line


def test_a_rest_is_so_many_times_the_work() -> None:
    assert rest_seconds(0.002, 3) == 0.006


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0, 0.05))
def test_no_rest_is_shorter_than_asked_for_nor_longer_than_anyone_waits(
    worked: float, times: float, at_least: float
) -> None:
    assert at_least <= rest_seconds(worked, times, at_least) <= 0.05


def test_a_pace_rests_by_what_its_clock_says() -> None:
    times = iter([5.0, 5.004])
    pace = Pace(lambda: 3, at_least=0.001, clock=lambda: next(times))
    pace.began()
    assert round(pace.rest_seconds(), 6) == 0.012


@pytest.mark.parametrize(("idle", "share"), [(100, 0.0), (10, 0.0), (5, 0.5), (0, 1.0)])
def test_a_machine_is_crowded_as_far_as_less_than_a_tenth_of_it_is_idle(idle: int, share: float) -> None:
    times, counts = iter([0.0, 0.3, 0.4]), iter([(7, 1000), (7 + idle, 1100)])
    crowd = Crowd(lambda: next(counts), lambda: next(times))
    assert crowd.share() == share
    assert crowd.share() == share, "it looks at intervals"


def test_a_machine_that_does_not_count_has_room() -> None:
    times = iter([0.0, 0.3])
    assert Crowd(lambda: (0, 0), lambda: next(times)).share() == 0


def test_the_machine_tells_how_crowded_it_is() -> None:
    times = iter([0.0, 1.0])
    assert 0 <= Crowd(clock=lambda: next(times)).share() <= 1


def test_nobody_stands_in_line_for_a_processor_while_it_sleeps() -> None:
    before = stood_in_line()
    time.sleep(0.05)
    assert 0 <= stood_in_line() - before < 0.05
