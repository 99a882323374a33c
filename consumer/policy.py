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
    backoff: Backoff = field(default_factory=lambda: Backoff(base_seconds=0.2, cap_seconds=10))
    limits: Limits = DEFAULT_LIMITS
    turn_seconds: float = 5.0
    """A transaction that takes longer is followed by smaller ones: Kafka is polled in between, and SIGTERM heard."""


def next_size(size: int, policy: Policy, messages: int, seconds: float) -> int:
    """How many messages at once, when so many took so long: half as many where that was too long, then more again."""
    if seconds > policy.turn_seconds:
        return max(1, min(size, messages) // 2)
    return min(policy.batch, 2 * size) if seconds < policy.turn_seconds / 4 else size
