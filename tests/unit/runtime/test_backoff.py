"""The wait before the next attempt, as a formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.backoff import Backoff

attempts = st.integers(min_value=0, max_value=10**9)
dice = st.floats(min_value=0, max_value=1, exclude_max=True)


def test_the_wait_doubles_from_the_base_up_to_the_cap() -> None:
    backoff = Backoff(base_seconds=10, cap_seconds=100)
    assert [backoff.delay_seconds(n) for n in range(1, 7)] == [10, 20, 40, 80, 100, 100]


def test_offset_zero_is_the_formula_base_times_two_to_the_attempts() -> None:
    backoff = Backoff(base_seconds=10, cap_seconds=3600, offset=0)
    assert [backoff.delay_seconds(n) for n in (0, 1, 2)] == [10, 20, 40]


@given(attempts, dice, st.floats(min_value=0, max_value=1))
def test_the_wait_is_never_past_the_cap_and_jitter_only_shortens(n: int, roll: float, jitter: float) -> None:
    plain = Backoff(base_seconds=0.5, cap_seconds=300)
    shaken = Backoff(base_seconds=0.5, cap_seconds=300, jitter=jitter)
    assert 0 <= shaken.delay_seconds(n, dice=roll) <= plain.delay_seconds(n) <= 300


@given(attempts)
def test_the_same_failure_always_waits_the_same(n: int) -> None:
    assert Backoff().delay_seconds(n) == Backoff().delay_seconds(n)


@pytest.mark.parametrize("bad", [{"base_seconds": 0}, {"base_seconds": 5, "cap_seconds": 1}, {"jitter": 2}])
def test_a_backoff_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs 0 < base <= cap"):
        Backoff(**bad)  # type: ignore[arg-type]
