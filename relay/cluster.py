"""The one Kafka cluster of a process, as its workers find it: which breakers are open, and why.

A destination that is down opens its breaker: entries wait and burn no attempt, readiness says why, and one probe at a
time finds its recovery.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from ferryman.relay import metrics
from ferryman.relay.topics import Topics
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.breaker import Breaker, State
from ferryman.runtime.errors import Unreachable

log = structlog.get_logger(__name__)

_PROBING = Backoff(base_seconds=0.5, cap_seconds=5)
CLUSTER = ""
"""The cluster's own name among the destinations: no topic has it."""


@dataclass(slots=True)
class Cluster:
    """Shared by all workers of a process. A destination is the cluster or one of its topics."""

    topics: Topics
    clock: Callable[[], float] = time.monotonic
    _breakers: dict[str, Breaker] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def blocked(self) -> dict[str, str]:
        """The topics whose breaker keeps them from being tried now, and why."""
        now = self.clock()
        with self._lock:
            return {
                name: breaker.reason for name, breaker in self._breakers.items() if name and not breaker.allows(now)
            }

    def suspects(self) -> frozenset[str]:
        """Topics that failed and were not seen to succeed since."""
        with self._lock:
            return frozenset(name for name in self._breakers if name)

    def why_not(self) -> str | None:
        """Why nothing at all can be published now; None when it can."""
        breaker = self._breakers.get(CLUSTER)
        return None if breaker is None else f"Kafka is away: {breaker.reason}"

    def error(self) -> Unreachable:
        """Why nothing can be published, for who does not wait."""
        return Unreachable(
            self.why_not() or "Kafka is away", setting="kafka.bootstrap_servers", remedy="start Kafka, then try again"
        )

    def probe(self, seconds: float) -> bool:
        """Whether the cluster may be published to; asks it when its breaker's wait is over."""
        with self._lock:
            breaker = self._breakers.get(CLUSTER)
            if breaker is None:
                return True
            if not breaker.allows(self.clock()):
                return False
            self._breakers[CLUSTER] = breaker.started()
        reason = self.topics.answers(seconds)
        if reason is None:
            self.succeeded(CLUSTER)
        else:
            self.failed(CLUSTER, reason)
        return reason is None

    def failed(self, destination: str, reason: str) -> None:
        with self._lock:
            before = self._breakers.get(destination, Breaker(probing=_PROBING))
            if before.state is State.OPEN and not before.allows(self.clock()):
                return  # another worker said so already
            self._breakers[destination] = before.failed(self.clock(), reason)
        metrics.BREAKER_OPEN.labels(_said(destination)).set(1)
        if destination:
            self.topics.forget(destination)
        if before.opened_at is None:
            log.warning("breaker opened", destination=_said(destination), reason=reason)

    def succeeded(self, destination: str) -> None:
        with self._lock:
            before = self._breakers.pop(destination, None)
        if before is not None:
            metrics.BREAKER_OPEN.labels(_said(destination)).set(0)
            log.info("breaker closed", destination=_said(destination),
                     outage_seconds=round(before.outage_seconds(self.clock()), 1))  # fmt: skip


def _said(destination: str) -> str:
    """As logs and metrics name it."""
    return destination or "kafka"
