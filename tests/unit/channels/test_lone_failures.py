"""A failure of the provider counts for a mail that fails alone, and for none in an outage (N8)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.channels.email.provider import LoneFailures
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown

KEYS = st.sampled_from("abc")


def test_first_failure_never_counts() -> None:
    lone = LoneFailures()
    lone.got_through("other")
    assert not lone.counts("poison")


def test_failure_counts_once_other_mails_got_through_since_the_one_before() -> None:
    lone = LoneFailures()
    assert [lone.counts("poison"), lone.counts("poison")] == [False, False]
    lone.got_through("other")
    assert [lone.counts("poison"), lone.counts("poison")] == [True, False]


def test_failure_counts_only_if_no_more_mails_failed_than_got_through() -> None:
    """A server that takes a few mails and refuses the rest for now is no reason to give any of them up."""
    lone = LoneFailures()
    lone.counts("first")
    for refused in "xyz":
        lone.counts(refused)
    lone.got_through("other")
    assert not lone.counts("first")


def test_two_mails_that_fail_alone_both_end() -> None:
    lone = LoneFailures()
    counted = dict.fromkeys(("one", "two"), 0)
    for number in range(12):
        for poison in counted:
            counted[poison] += lone.counts(poison)
        lone.got_through(f"other {number}")
    assert min(counted.values()) >= 5


@given(st.lists(KEYS))
def test_outage_counts_for_nobody_however_long_it_is(keys: list[str]) -> None:
    lone = LoneFailures()
    lone.got_through("before")
    assert not any(lone.counts(key) for key in keys)


@given(st.lists(st.integers(0, 50)))
def test_bounded_number_of_mails_is_remembered(keys: list[int]) -> None:
    """N12."""
    lone = LoneFailures(most=10)
    for key in keys:
        lone.counts(str(key))
    assert len(lone._before) <= 10


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Unavailable("x", Code.SERVER_BUSY, 7.0, "y"), Retry("x", Code.SERVER_BUSY, 7.0, "y")),
        (Unavailable("x", Code.SERVER_FAILED, in_doubt=True), Unknown("x", Code.SERVER_FAILED)),
        *[(same, same) for same in (Retry("x"), Rejected("x"), Unknown("x"), Held("x"))],
    ],
)
def test_failure_that_counts_keeps_its_doubt_and_its_wait(outcome: Outcome, counted: Outcome) -> None:
    lone = LoneFailures()
    assert lone.judged("poison", outcome) == outcome
    lone.judged("other", Delivered())
    assert lone.judged("poison", outcome) == counted
