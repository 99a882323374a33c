"""A circuit breaker as a value: each event gives the next breaker, and the caller brings the clock.

closed ──failure──▶ open ──its wait is over──▶ half-open (one probe)
                     ▲                             │
                     └───────── failure ───────────┘

A success closes it: the caller begins with a new breaker.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from ferryman.runtime.backoff import Backoff


class BreakerState(Enum):
    """The three states of a breaker, as drawn above."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker that keeps a destination from being called while it is down; one probe at a time finds its recovery."""

    probing: Backoff = field(default_factory=lambda: Backoff(base_seconds=0.5, cap_seconds=30))
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    opened_at: float | None = None
    probe_at: float = 0.0
    reason: str = ""

    def allows(self, now: float) -> bool:
        """Return True if a call may start. While the breaker is open, that call is its probe: call `started`."""
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.OPEN and now >= self.probe_at)

    def started(self) -> "Breaker":
        return replace(self, state=BreakerState.HALF_OPEN) if self.state is BreakerState.OPEN else self

    def failed(self, now: float, reason: str) -> "Breaker":
        failures = self.failures + 1
        return replace(
            self,
            state=BreakerState.OPEN,
            failures=failures,
            opened_at=now if self.opened_at is None else self.opened_at,
            probe_at=now + self.probing.delay_seconds(failures),
            reason=reason,
        )

    def outage_seconds(self, now: float) -> float:
        """Return how long the destination has been away; 0 while it is not."""
        return 0.0 if self.opened_at is None else now - self.opened_at
