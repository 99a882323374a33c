"""A mail that may have been sent: when it is sent again, when somebody is asked, and when it is held."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.channels.email.doubt import Ask, Hold, Risk, Send, Wait, decide, decide_absent
from ferryman.channels.model import Doubt

HOUR = 3600.0
WINDOWS = (0.0, 23 * HOUR, math.inf)


@pytest.mark.parametrize(("window", "can_find", "setting"), [*product(WINDOWS, (True, False), ("hold", "resend"))])
def test_mail_without_doubt_is_sent(window: float, can_find: bool, setting: str) -> None:
    assert decide(window, can_find, None, setting) == Send()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "can_find", "age", "setting", "step"),
    [
        # Who can be asked is asked, whatever else is known.
        *[(w, True, a, s, Ask()) for w, a, s in product(WINDOWS, (0.0, 30 * HOUR), ("hold", "resend"))],
        # Inside the window, the same key is not sent twice.
        *[(w, False, 0.0, s, Send()) for w, s in product(WINDOWS[1:], ("hold", "resend"))],
        (23 * HOUR, False, 23 * HOUR - 1, "hold", Send()),
        # Outside it, the settings decide.
        (23 * HOUR, False, 23 * HOUR, "hold", Hold()), (23 * HOUR, False, 23 * HOUR, "resend", Risk()),
        (0.0, False, 0.0, "hold", Hold()), (0.0, False, 0.0, "resend", Risk()),
        # The database's clock went back.
        (0.0, False, -HOUR, "hold", Hold()), (0.0, False, -HOUR, "resend", Risk()),
        (23 * HOUR, False, -HOUR, "hold", Send()),
    ],
)  # fmt: skip
def test_mail_in_doubt(window: float, can_find: bool, age: float, setting: str, step: object) -> None:
    assert decide(window, can_find, Doubt(age), setting) == step  # type: ignore[arg-type]


AGES = st.floats(0, 1e9)


@given(window=AGES, age=AGES, can_find=st.booleans(), reference=st.none() | st.text())
def test_mail_in_doubt_is_sent_by_hold_only_inside_the_window(
    window: float, age: float, can_find: bool, reference: str | None
) -> None:
    """N3: nothing but the settings may send a mail twice."""
    step = decide(window, can_find, Doubt(age, reference), "hold")
    assert step == (Ask() if can_find else Send() if age < window else Hold())


@given(window=AGES, older=AGES, younger=AGES)
def test_held_mail_is_held_however_much_time_passes(window: float, older: float, younger: float) -> None:
    young, old = sorted((older, younger))
    if decide(window, False, Doubt(young), "hold") == Hold():
        assert decide(window, False, Doubt(old), "hold") == Hold()


@given(settling=AGES, age=AGES)
def test_absent_mail_is_sent_after_the_settling_time(settling: float, age: float) -> None:
    step = decide_absent(settling, Doubt(age))
    assert step == Send() if age >= settling else step == Wait(settling - age)
