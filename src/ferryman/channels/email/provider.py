"""The interface of an e-mail provider, and what it answers when it is asked about an earlier attempt."""

from dataclasses import dataclass
from typing import Protocol

from ferryman.channels.email.mail import Letter
from ferryman.channels.outcome import Delivered, Outcome, Retry, Unavailable, Unknown

_MOST_REMEMBERED = 1024


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


class LoneFailures:
    """Tells an outage of the provider from a mail that fails alone, by what became of other mails in between.

    An outage uses up nobody's attempts, and a mail that the provider always fails at has to end one day. So a failure
    counts if, since the same mail failed before, other mails got through, and at least as many as failed.
    """

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        self._through = self._failed = 0
        self._before: dict[str, tuple[int, int]] = {}

    def got_through(self, key: str) -> None:
        """Remember that a mail got through."""
        self._through += 1
        self._before.pop(key, None)

    def counts(self, key: str) -> bool:
        """Note a failure of a mail that the provider may be the reason for. Return True if the mail may be it."""
        through, failed = self._before.pop(key, (self._through, self._failed))
        others_through, others_failed = self._through - through, self._failed - failed
        self._failed += 1
        self._before[key] = self._through, self._failed
        if len(self._before) > self._most:
            del self._before[next(iter(self._before))]
        return others_through >= max(1, others_failed)

    def judged(self, key: str, outcome: Outcome) -> Outcome:
        """Return what became of a mail whose provider was told of it: a failure of the provider, or of the mail."""
        if isinstance(outcome, Delivered):
            self.got_through(key)
        if not isinstance(outcome, Unavailable) or not self.counts(key):
            return outcome
        if outcome.in_doubt:
            return Unknown(outcome.error, outcome.code, outcome.excerpt)
        return Retry(outcome.error, outcome.code, outcome.after_seconds, outcome.excerpt)
