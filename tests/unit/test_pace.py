"""Who finds little rests in proportion to what that took."""

from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.pace import rest_seconds


def test_a_rest_is_so_many_times_the_work() -> None:
    assert rest_seconds(0.002, 3) == 0.006


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0, 0.05))
def test_no_rest_is_shorter_than_asked_for_nor_longer_than_anyone_waits(
    worked: float, times: float, at_least: float
) -> None:
    assert at_least <= rest_seconds(worked, times, at_least) <= 0.05
