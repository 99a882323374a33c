"""A circuit breaker as a value: each event gives the next breaker, and the caller brings the clock.

closed ──failures reach the threshold──▶ open ──its wait is over──▶ half-open (one probe)
  ▲                                       ▲                             │
  └──────────────── success ──────────────┼───────── failure ───────────┘
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from ferryman.runtime.backoff import Backoff


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """Keeps a destination that is down from being asked, and lets one probe at a time find its recovery."""

    threshold: int = 1
    probing: Backoff = field(default_factory=lambda: Backoff(base_seconds=0.5, cap_seconds=30))
    state: State = State.CLOSED
    failures: int = 0
    opened_at: float | None = None
    probe_at: float = 0.0
    reason: str = ""

    def allows(self, now: float) -> bool:
        """Whether a call may start; one that does while the breaker is open is its probe: say `started`."""
        return self.state is State.CLOSED or (self.state is State.OPEN and now >= self.probe_at)

    def started(self) -> "Breaker":
        return replace(self, state=State.HALF_OPEN) if self.state is State.OPEN else self

    def succeeded(self) -> "Breaker":
        return Breaker(threshold=self.threshold, probing=self.probing)

    def failed(self, now: float, reason: str) -> "Breaker":
        failures = self.failures + 1
        if self.state is State.CLOSED and failures < self.threshold:
            return replace(self, failures=failures, reason=reason)
        return replace(
            self,
            state=State.OPEN,
            failures=failures,
            opened_at=now if self.opened_at is None else self.opened_at,
            probe_at=now + self.probing.delay_seconds(failures - self.threshold + 1),
            reason=reason,
        )

    def outage_seconds(self, now: float) -> float:
        """For how long the destination has been away; 0 while it is not."""
        return 0.0 if self.opened_at is None else now - self.opened_at
