"""Small portions are followed by a rest in proportion to their cost."""

import time

from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.pace import Pace, stood_in_line, waited


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0, 0.01))
def test_no_rest_is_shorter_than_asked_for_nor_longer_than_anyone_waits(
    worked: float, times: float, at_least: float
) -> None:
    clock = iter([0.0, worked])
    pace = Pace(times, 0.01, lambda: next(clock), at_least)
    pace.began()
    assert at_least <= pace.rest_seconds() <= 0.01


def test_a_rest_is_so_many_times_what_the_clock_says_the_work_took() -> None:
    clock = iter([5.0, 5.002])
    pace = Pace(3, 0.01, lambda: next(clock), at_least=0.001)
    pace.began()
    assert round(pace.rest_seconds(), 6) == 0.006


def test_a_thread_that_sleeps_waits_and_stands_in_no_line() -> None:
    in_line, before, computed = stood_in_line(), waited(), time.thread_time()
    time.sleep(0.05)
    assert 0 <= stood_in_line() - in_line < 0.05
    assert waited() - before > 0.04
    assert time.thread_time() - computed < 0.04
