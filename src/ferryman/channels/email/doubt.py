"""The decision about a mail that may have been sent already: pure, without a clock.

Send    send it: it was not sent, or the provider drops a second one
Risk    send it though it may arrive twice: the settings say so
Ask     ask the provider first
Wait    the provider does not have it, but may still get it: try later
Hold    nobody can tell, and it must not arrive twice: a person decides
"""

from dataclasses import dataclass
from typing import Literal

from ferryman.channels.model import Doubt


@dataclass(frozen=True, slots=True)
class Send:
    """Send the mail under its key."""


@dataclass(frozen=True, slots=True)
class Risk:
    """Send the mail, which may arrive twice."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the provider first."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Try again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave the mail to a person."""


def decide(
    window_seconds: float, can_find: bool, doubt: Doubt | None, in_doubt: Literal["hold", "resend"]
) -> Send | Risk | Ask | Hold:
    """Decide on a mail by how long the provider knows a key, whether it can be asked, and `email.in_doubt`."""
    if doubt is None:
        return Send()
    if can_find:
        return Ask()
    if max(doubt.age_seconds, 0.0) < window_seconds:  # the database's clock may go back
        return Send()
    return Risk() if in_doubt == "resend" else Hold()


def decide_absent(settling_seconds: float, doubt: Doubt) -> Send | Wait:
    """Decide on a mail that the provider does not have: a young attempt may still be on its way."""
    left = settling_seconds - doubt.age_seconds
    return Wait(left) if left > 0 else Send()
