"""The interface of an e-mail provider, and what it answers when it is asked about an earlier attempt."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ferryman.channels.email.mail import Letter
from ferryman.channels.outcome import Outcome

_LATELY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """The provider has the mail."""

    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The provider does not have the mail."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The provider cannot say. With an outcome it cannot say *now*: that is then what became of this attempt."""

    later: Outcome | None = None


class Provider(Protocol):
    """A service that delivers mails. All methods run in one event loop; many sends run at once."""

    window_seconds: float
    """The time for which the provider knows a key, and never sends the same one twice. 0 if it knows none."""
    settling_seconds: float
    """The time after an attempt in which `find` may still miss the mail."""

    def can_find(self, reference: str | None) -> bool:
        """Return True if `find` may know the answer."""

    async def open(self) -> None:
        """Make ready. An error ends the start of the process."""

    async def close(self) -> None:
        """Give up what `open` made, after the last send."""

    async def send(self, letter: Letter) -> Outcome:
        """Send a letter once, within its time, and return what became of it."""

    async def find(self, letter: Letter, reference: str | None) -> Found | Absent | CannotTell:
        """Look an earlier attempt up, by the provider's name for it or by the letter's key."""


class GotThrough:
    """The time at which a mail last got through, which tells an outage from a mail that fails alone.

    An outage of the provider uses up nobody's attempts. If other mails get through while one has no answer, the reason
    may be that mail: its attempt counts, so that it ends one day and does not hold up the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: float | None = None

    def note(self) -> None:
        """Remember that a mail got through now."""
        self._at = self._clock()

    def lately(self) -> bool:
        """Return True if a mail got through in the last minute."""
        return self._at is not None and self._clock() - self._at < _LATELY_SECONDS
