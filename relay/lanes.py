"""One worker's turn: claim lanes, read what came, publish it, settle, commit.

Any number of workers and replicas run the same turns, with no leader. A worker that dies frees its lanes with its
session; what it published and did not settle is published again, with the same ids and bytes.
"""

import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.delivery import Delivery
from ferryman.relay.kafka import Publisher
from ferryman.relay.model import LANES, Claim, Entry, Walk, Window, walks
from ferryman.relay.policy import PAUSED, Rejected, Retries, Retry, Unknown
from ferryman.relay.settling import Settled, settle_exceptions, settle_walks
from ferryman.relay.store import exceptions, lanes, reading
from ferryman.runtime.pace import Crowd, Pace

_MOST_BYTES = 32 * 1024 * 1024
# Of one read: their payloads are not read with them, and what one turn sends must be acknowledged within its deadline.
_MOST_LARGE = 32
_LONG_WAY = 10_000
# Decision 0015: where there is room, what comes is not to wait; where there is none, portions cost what others need.
_RESTS, _RESTS_IN_A_CROWD = 2.0, 8.0
WHOLE_OUTBOX = ""


@dataclass(frozen=True, slots=True)
class Tenure:
    """How much of the journal one claim may take, and for how long."""

    batch_entries: int = 1000
    seconds: float = 0.05
    pause_seconds: float = 0.002
    deadline_seconds: float = 10.0
    statement_seconds: float = 30.0
    retries: Retries = field(default_factory=Retries)
    unordered: frozenset[str] = frozenset()
    max_outage_seconds: float | None = None

    @property
    def idle_seconds(self) -> float:
        """The server ends a claim whose worker says nothing for longer than its deadlines can take."""
        return 6 * self.deadline_seconds + 10


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did: in which lanes, and how many entries had which end."""

    lanes: frozenset[int] = frozenset()
    published: int = 0
    failed: int = 0
    unknown: int = 0
    retried: bool = False
    rest_seconds: float = 0.0
    """How long to wait before the next: less came than could have."""

    @property
    def quiet(self) -> bool:
        """Nothing was there to do."""
        return not (self.published or self.failed or self.unknown or self.retried)


class LaneWorker:
    """Takes turns on one connection, which is not in autocommit mode."""

    def __init__(
        self,
        connection: lanes.Connection,
        publisher: Publisher,
        cluster: Cluster,
        tenure: Tenure | None = None,
        *,
        stopping: threading.Event | None = None,
        source: str = "",
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._cluster = cluster
        self._tenure = tenure or Tenure()
        self._crowd = Crowd()
        self._pace = Pace(self._rests, self._tenure.pause_seconds)
        self._stopping = stopping or threading.Event()
        self._source = source
        self._preferred = random.sample(range(LANES), LANES)
        self._most = LANES // 2
        self._counted_at = 0.0
        self._in_line = False
        self._retried = False
        self._was_busy = False

    def run_once(self) -> Turn:
        """One turn. What fails is tried again in turns of its own, so that the others' numbers come after it.

        A window's horizon is the number of the transaction that writes it, and must be taken after the window: so a
        turn that writes exceptions first reads no windows.
        """
        with self._connection.transaction():
            claim = self._claim()
            if not claim.cursors or WHOLE_OUTBOX in claim.paused:
                return Turn()
            avoided = dict.fromkeys(claim.paused, PAUSED) | self._cluster.blocked()
            freed = {place for place in claim.parked_topics if place[1] not in avoided}
            self._retried = not self._retried and (claim.due or bool(freed))
            return self._retry(claim, avoided, freed) if self._retried else self._walk(claim, avoided)

    def _claim(self) -> Claim:
        """At most its share of the lanes, so that others find some: first those that it left unfinished."""
        tenure, began = self._tenure, time.monotonic()
        if self._was_busy and began - self._counted_at > 1:
            self._most = math.ceil(LANES / max(2, lanes.count_workers(self._connection)))
            self._counted_at = began
        if self._in_line and not lanes.queue(self._connection, self._preferred[0], wait_seconds=2 * tenure.seconds):
            return Claim()
        claim = lanes.claim(
            self._connection, self._preferred, self._most,
            idle_seconds=tenure.idle_seconds, statement_seconds=tenure.statement_seconds,
        )  # fmt: skip
        self._in_line = not claim.cursors
        metrics.CLAIM_SECONDS.labels(self._source).observe(time.monotonic() - began)
        return claim

    def _walk(self, claim: Claim, avoided: Mapping[str, str]) -> Turn:
        """Reads and hands over until the tenure ends; then waits for the acknowledgements once, and settles."""
        delivery = self._delivery(claim, avoided)
        under_way = walks(claim.cursors)
        until = time.monotonic() + self._tenure.seconds
        self._publisher.bytes_sent = 0
        while True:
            self._pace.began()
            counts = self._step(under_way, claim, delivery)
            full = max(counts) >= self._tenure.batch_entries
            rest = 0.0 if full else self._pace.rest_seconds()
            if self._must_end(until) or (not any(counts) and not any(walk.moved for walk in under_way)):
                break
            if rest:
                self._publisher.rest(rest)
        self._prefer(under_way)
        self._finish(delivery)
        unknown = {position for position, outcome in delivery.outcomes.items() if isinstance(outcome, Unknown)}
        for walk in under_way if unknown else ():
            walk.stop_before(unknown)
        most = self._tenure.batch_entries
        settled = settle_walks(self._connection, under_way, delivery, self._tenure.retries, most)
        return replace(self._count(claim, delivery, settled), rest_seconds=rest)

    def _step(self, under_way: Sequence[Walk], claim: Claim, delivery: Delivery) -> list[int]:
        """One batch of each walk; those that need a new target share it."""
        counts, shared = [], None
        for walk in under_way:
            most, needed = self._tenure.batch_entries, walk.target is None
            found, target = reading.read(self._connection, walk, most, shared)
            shared = target if needed else shared
            entries = _portion(found)
            if entries and claim.parked_keys:
                delivery.parked |= exceptions.parked(self._connection, entries)
            if entries:
                delivery.send(entries)
                metrics.BATCH_ENTRIES.labels(self._source).observe(len(entries))
            self._take(walk, entries, target, more=len(found) == most or len(entries) < len(found))
            counts.append(len(entries))
        return counts

    def _rests(self) -> float:
        return _RESTS + (_RESTS_IN_A_CROWD - _RESTS) * self._crowd.share()

    @staticmethod
    def _take(walk: Walk, entries: Sequence[Entry], target: Window, *, more: bool) -> None:
        if not entries and walk.target is None and target.position_at - walk.done.position_at > _LONG_WAY:
            walk.skip_to(target)  # what is not committed yet need not be looked through again and again
        else:
            walk.take(entries, target, more=more)

    def _must_end(self, until: float) -> bool:
        return (
            time.monotonic() > until
            or self._stopping.is_set()
            or self._publisher.cut_short
            or self._publisher.bytes_sent > _MOST_BYTES
        )

    def _retry(self, claim: Claim, avoided: Mapping[str, str], freed: set[tuple[int, str]]) -> Turn:
        """What is due, and what waits for a topic that may be tried again."""
        most, on_probation, overdue = self._tenure.batch_entries, self._on_probation(freed), list[str]()
        if self._tenure.max_outage_seconds is not None:
            age = self._tenure.max_outage_seconds
            overdue = exceptions.fail_outages(self._connection, on_probation, age, most)
        for topics, count in ((freed - on_probation, most), (on_probation, 1)):
            exceptions.release_topics(self._connection, topics, count)
        found = exceptions.read_due(self._connection, claim.lanes, most)
        due = found[: len(_portion([each.entry for each in found]))]
        delivery = self._delivery(claim, avoided)
        delivery.parked_topics = ()
        for replay in {each.replay for each in due}:
            delivery.replay = replay
            delivery.send([each.entry for each in due if each.replay == replay])
            self._finish(delivery)
        settled = settle_exceptions(self._connection, due, delivery, self._tenure.retries, most)
        return self._count(claim, delivery, settled, overdue=overdue, retried=bool(due))

    def _on_probation(self, freed: set[tuple[int, str]]) -> set[tuple[int, str]]:
        """Of a topic that was refused, one entry is tried first."""
        suspects = self._cluster.suspects()
        return {place for place in freed if place[1] in suspects}

    def _delivery(self, claim: Claim, avoided: Mapping[str, str]) -> Delivery:
        return Delivery(
            publisher=self._publisher,
            cluster=self._cluster,
            seconds=self._tenure.deadline_seconds,
            avoided=avoided,
            parked_topics=claim.parked_topics,
            unordered=self._tenure.unordered,
        )

    def _finish(self, delivery: Delivery) -> None:
        began = time.monotonic()
        delivery.finish()
        metrics.PUBLISH_SECONDS.labels(self._source).observe(time.monotonic() - began)

    def _count(
        self, claim: Claim, delivery: Delivery, settled: Settled, *, overdue: Sequence[str] = (), retried: bool = False
    ) -> Turn:
        outcomes, tried = delivery.outcomes, settled.entries
        delivered = [entry for entry in tried if entry[0] not in outcomes] if outcomes else tried
        self._was_busy = bool(delivered)
        metrics.published(self._source, delivered)
        metrics.outcomes(self._source, [(entry[2], outcomes[entry[0]]) for entry in tried if entry[0] in outcomes])
        metrics.dead(self._source, [*(entry.topic for entry in settled.dead), *overdue])
        return Turn(
            lanes=frozenset(claim.lanes),
            published=len(delivered),
            failed=sum(isinstance(outcome, Retry | Rejected) for outcome in outcomes.values()) + len(overdue),
            unknown=sum(isinstance(outcome, Unknown) for outcome in outcomes.values()),
            retried=retried,
        )

    def _prefer(self, under_way: Sequence[Walk]) -> None:
        """Next time: what is unfinished, then the lanes it has not looked at for longest."""
        first = [lane for walk in under_way if walk.target is not None for lane in walk.lanes]
        last = [lane for walk in under_way for lane in walk.lanes if lane not in first]
        self._preferred = [*first, *(lane for lane in self._preferred if lane not in {*first, *last}), *last]


def _portion(entries: Sequence[Entry]) -> Sequence[Entry]:
    """As many as are sent at once: all of them, but for many large ones."""
    large = [n for n, entry in enumerate(entries) if entry[5] is None]
    return entries if len(large) <= _MOST_LARGE else entries[: large[_MOST_LARGE]]
