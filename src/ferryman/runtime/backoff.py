"""Exponential backoff: a pure function, without a clock or randomness of its own."""

from dataclasses import dataclass

_LARGEST_POWER = 62  # 2 ** 62 seconds is above every cap; larger powers would overflow a float


@dataclass(frozen=True, slots=True)
class Backoff:
    """A wait of `min(cap, base * 2 ** (attempts - offset))`.

    With offset 1 the first failure waits `base`; offset 0 gives `base * 2 ** attempts`.
    """

    base_seconds: float = 1.0
    cap_seconds: float = 3600.0
    offset: int = 1
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.base_seconds <= self.cap_seconds and 0 <= self.jitter <= 1):
            raise ValueError(f"a backoff needs 0 < base <= cap and a jitter from 0 to 1, not {self}")

    def delay_seconds(self, attempts: int, *, dice: float = 0.0) -> float:
        """Return the wait after this many failed attempts. `dice` in [0, 1) takes up to `jitter` off it."""
        power = min(max(attempts - self.offset, 0), _LARGEST_POWER)
        return min(self.cap_seconds, self.base_seconds * 2.0**power) * (1 - self.jitter * dice)
