"""Who finds little rests in proportion to what that took."""

import time

from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.pace import Pace, rest_seconds, stood_in_line


def test_a_rest_is_so_many_times_the_work() -> None:
    assert rest_seconds(0.002, 3) == 0.006


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0, 0.05))
def test_no_rest_is_shorter_than_asked_for_nor_longer_than_anyone_waits(
    worked: float, times: float, at_least: float
) -> None:
    assert at_least <= rest_seconds(worked, times, at_least) <= 0.05


def test_a_pace_rests_by_what_its_clock_says() -> None:
    times = iter([5.0, 5.004])
    pace = Pace(3, at_least=0.001, clock=lambda: next(times))
    pace.began()
    assert round(pace.rest_seconds(), 6) == 0.012


def test_nobody_stands_in_line_for_a_processor_while_it_sleeps() -> None:
    before = stood_in_line()
    time.sleep(0.05)
    assert 0 <= stood_in_line() - before < 0.05
