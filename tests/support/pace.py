"""Bounds in seconds that also hold on a machine that is slow, or busy with other things."""

import time

_STEPS = 5_000_000
_USUAL_SECONDS = 0.15
"""The time that the steps take on the machine on which the bounds of the tests were chosen."""


def in_time(seconds: float, limit: float) -> bool:
    """Return True if something took less than the limit, or less than it may take at the pace of this machine."""
    return seconds < limit or seconds < limit * slowness()


def slowness() -> float:
    """Return how many times longer than usual a calculation takes now."""
    began, found = time.monotonic(), 0
    for step in range(_STEPS):
        found ^= step
    return (time.monotonic() - began) / _USUAL_SECONDS
