"""How a consumer goes about it: how much at once, how often again, how long."""

from dataclasses import dataclass, field

from ferryman.consumer.store.receipts import DEFAULT_LIMITS, Limits
from ferryman.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings as the loop takes them."""

    batch: int = 500
    poll_seconds: float = 0.1
    tries: int = 3
    kills: int = 3
    retry_seconds: float = 300.0
    deadline_seconds: float = 30.0
    most_bytes: int = 64 * 1024 * 1024
    backoff: Backoff = field(default_factory=lambda: Backoff(base_seconds=0.2, cap_seconds=10))
    limits: Limits = DEFAULT_LIMITS
    rests: float = 3.0
    """Behind a portion that took all there was, it rests so many times as long as that took."""
