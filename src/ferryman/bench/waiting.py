"""Waiting for what must come: by polling, with a deadline and a name for what did not."""

import time
from collections.abc import Callable
from typing import TypeVar

from ferryman.runtime.errors import FerrymanError

T = TypeVar("T")


class NeverCame(FerrymanError):
    """What a measurement waited for did not come in time."""


def until(condition: Callable[[], T], what: str, seconds: float, *, every: float = 0.01) -> T:
    """The first value that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise NeverCame(f"no {what} within {seconds:.0f} s")
        time.sleep(every)
    return value


def pace(began: float, number: int, per_second: float) -> None:
    """Sleeps until it is the turn of this number; returns at once when that has passed."""
    left = began + number / per_second - time.monotonic()
    if left > 0:
        time.sleep(left)
