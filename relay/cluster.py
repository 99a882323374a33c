"""The one Kafka cluster of a process as its workers find it: what it takes now, and which breakers are open.

A destination that is down opens its breaker: entries wait and keep their attempts. Whether a topic may be well again is
asked beside the workers, and sends nothing; then one entry is tried, by one worker, in one lane.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import structlog

from ferryman.channels.outcome import Unknown
from ferryman.relay import metrics
from ferryman.relay.topics import MOST_MET, Refusal, TopicDirectory
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.breaker import Breaker, BreakerState
from ferryman.runtime.errors import Unreachable

log = structlog.get_logger(__name__)

_PROBING = Backoff(base_seconds=0.5, cap_seconds=3)
CLUSTER = ""
"""The cluster's own name among the destinations: no topic has it."""

_EXAMINE_SECONDS = 1.0
# The first trial of a topic has this long, and each that gets no answer lets the next have twice as long.
_TRIAL_SECONDS = 1.0
# A topic that no entry was seen to wait for at so many looks is forgotten: the next entry asks anew.
_LOOK_SECONDS = 5.0
_MOST_LOOKS = 4


@dataclass(slots=True)
class SickTopic:
    """A topic that refuses entries, with a lane of each source in which some wait."""

    refusal: Refusal
    breaker: Breaker
    lanes: dict[str, int] = field(default_factory=dict)
    trials: int = 0
    unwanted: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """Topics that may be well again, and a lane in which their entries wait: one entry of each is sent."""

    lane: int
    topics: frozenset[str]
    seconds: float


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="topics", daemon=True).start()


@dataclass(slots=True)
class Cluster:
    """The destinations of all workers of a process: the cluster itself, and each of its topics."""

    topics: TopicDirectory
    clock: Callable[[], float] = time.monotonic
    beside: Callable[[Callable[[], None]], None] = _in_thread
    """Runs what must not hold up a worker."""
    _breaker: Breaker | None = None
    _sick: dict[str, SickTopic] = field(default_factory=dict)
    _examining: bool = False
    _trying: bool = False
    _look_at: float = 0.0
    _bug: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def why_not(self) -> str | None:
        """Return why nothing at all can be published now; None when something can."""
        breaker = self._breaker
        return None if breaker is None else f"Kafka is away: {breaker.reason}"

    def error(self) -> Unreachable:
        """Return the error for callers that do not wait for Kafka to come back."""
        return Unreachable(
            self.why_not() or "Kafka is away", setting="kafka.bootstrap_servers", remedy="start Kafka, then try again"
        )

    def probe(self, seconds: float) -> bool:
        """Return True if the cluster may be published to; ask it when its breaker's wait is over."""
        with self._lock:
            if self._breaker is None:
                return True
            if not self._breaker.allows(self.clock()):
                return False
            self._breaker = self._breaker.started()
        reason: str | None = "it could not be asked"
        try:
            reason = self.topics.answers(seconds)
        finally:
            self.found() if reason is None else self.lost(reason)
        return reason is None

    def lost(self, reason: str) -> None:
        """Open the cluster's breaker, or keep it open for longer."""
        with self._lock:
            before = self._breaker or Breaker(probing=_PROBING)
            if before.state is BreakerState.OPEN and not before.allows(self.clock()):
                return  # another worker reported it already
            self._breaker = before.failed(self.clock(), reason)
        _opened(CLUSTER, reason, before)

    def found(self) -> None:
        """Close the cluster's breaker."""
        with self._lock:
            before, self._breaker = self._breaker, None
        self._closed(CLUSTER, before)

    # --- topics

    def refused(self) -> dict[str, Refusal]:
        """Return what must not be published to, except in a trial."""
        with self._lock:
            return {name: sick.refusal for name, sick in self._sick.items()}

    def shut(self) -> set[str]:
        """Return the topics that are known to be sick. Others that refused may be well by now."""
        with self._lock:
            return {name for name, sick in self._sick.items() if sick.breaker.state is BreakerState.OPEN}

    def want(self, source: str, parked: Iterable[tuple[int, str]]) -> None:
        """Note in which lanes of a source entries wait for topics."""
        with self._lock:
            for lane, topic in parked:
                if sick := self._sick.get(topic):
                    sick.unwanted, sick.lanes[source] = 0, lane

    def examine(self) -> None:
        """Let topics be examined whose wait is over, a bounded portion at a time, beside the caller."""
        now = self.clock()
        with self._lock:
            if self._bug is not None:
                raise self._bug
            if not self._sick or self._examining:
                return
            forgotten = self._unwanted(now)
            due = list(islice((name for name, sick in self._sick.items() if _is_due(sick.breaker, now)), MOST_MET))
            self._examining = bool(due)
        for name in forgotten:
            self.succeeded(name)
        if due:
            self.beside(lambda: self._examine(due))

    def _unwanted(self, now: float) -> list[str]:
        if now < self._look_at:
            return []
        self._look_at = now + _LOOK_SECONDS
        for sick in self._sick.values():
            sick.unwanted += 1
        return [name for name, sick in self._sick.items() if sick.unwanted > _MOST_LOOKS]

    def _examine(self, names: list[str]) -> None:
        try:
            found = self.topics.refusals(names, _EXAMINE_SECONDS)
            now = self.clock()
            with self._lock:
                for name in names:
                    if (sick := self._sick.get(name)) is None:
                        continue
                    refusal = Refusal(found.error) if isinstance(found, Unknown) else found.get(name)
                    if refusal is None:
                        sick.breaker = sick.breaker.started()
                    else:
                        sick.breaker = sick.breaker.failed(now, refusal.reason)
                        sick.refusal = sick.refusal if isinstance(found, Unknown) else refusal
        except BaseException as error:
            self._bug = error
        finally:
            self._examining = False

    @contextmanager
    def trial(self, source: str) -> Iterator[Trial | None]:
        """Give the topics of one lane that may be well again: to one worker of the process at a time."""
        given = self._take_trial(source)
        try:
            yield given
        finally:
            if given is not None:
                self._trying = False

    def _take_trial(self, source: str) -> Trial | None:
        with self._lock:
            if not self._sick or self._trying:
                return None
            ready = {
                name: sick
                for name, sick in self._sick.items()
                if sick.breaker.state is BreakerState.HALF_OPEN and source in sick.lanes
            }
            if not ready:
                return None
            lane = next(iter(ready.values())).lanes[source]
            there = ((name, sick) for name, sick in ready.items() if sick.lanes[source] == lane)
            together = dict(islice(there, MOST_MET))
            for sick in together.values():
                del sick.lanes[source]  # until they are seen to wait again
            self._trying = True
            seconds = _TRIAL_SECONDS * 2 ** min(10, max(sick.trials for sick in together.values()))
            return Trial(lane, frozenset(together), seconds)

    def failed(self, topic: str, refusal: Refusal) -> None:
        """Open the topic's breaker, or keep it open for longer."""
        now = self.clock()
        with self._lock:
            sick = self._sick.get(topic)
            if sick is None:
                sick = self._sick[topic] = SickTopic(refusal, Breaker(probing=_PROBING))
            before = sick.breaker
            sick.refusal = refusal if before.opened_at is None else sick.refusal.joined(refusal)
            if before.state is BreakerState.OPEN and not before.allows(now):
                return  # another worker reported it already
            sick.trials += before.state is BreakerState.HALF_OPEN
            sick.breaker = before.failed(now, refusal.reason)
        _opened(topic, refusal.reason, before)

    def succeeded(self, topic: str) -> None:
        """Close the topic's breaker."""
        with self._lock:
            before = self._sick.pop(topic, None)
        self._closed(topic, before.breaker if before else None)

    def _closed(self, destination: str, before: Breaker | None) -> None:
        if before is not None:
            shown, seconds = metrics.breaker(destination, is_open=False), before.outage_seconds(self.clock())
            if shown != metrics.OTHERS:
                log.info("breaker closed", destination=shown, outage_seconds=round(seconds, 1))


def _opened(destination: str, reason: str, before: Breaker) -> None:
    if before.opened_at is None:
        shown = metrics.breaker(destination, is_open=True)
        if shown != metrics.OTHERS:
            log.warning("breaker opened", destination=shown, reason=reason)


def _is_due(breaker: Breaker, now: float) -> bool:
    return breaker.state is BreakerState.OPEN and breaker.allows(now)
