"""One worker's turn: claim lanes, read new entries, publish them, settle, commit.

Any number of workers and replicas run the same turns, with no leader. A worker that dies frees its lanes with its
connection; what it published and did not settle is published again, with the same ids and bytes.
"""

import math
import random
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferryman.channels.outcome import Rejected, Retry, Unavailable, Unknown
from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster, Trial
from ferryman.relay.delivery import Delivery
from ferryman.relay.kafka import Publisher
from ferryman.relay.model import LANES, Claim, Due, Entry, Walk, lane_of, payload_of, position_of, topic_of, walks
from ferryman.relay.policy import PAUSED, after, retries_of
from ferryman.relay.store import claims, exceptions
from ferryman.relay.store.exceptions import ParkedTopic
from ferryman.relay.topics import Refusal
from ferryman.runtime.life import Before, no_hook
from ferryman.runtime.pace import Pace, waited
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_relay import Relay

_MOST_BYTES = 32 * 1024 * 1024
# Large entries of one read. Their payloads are loaded one by one, and a turn must be acknowledged within its deadline.
_MOST_LARGE = 32
# Rest for this multiple of the time that a read and its hand-over waited (decision 0015).
_RESTS, _LONGEST_REST_SECONDS = 4.0, 0.01
WHOLE_OUTBOX = ""
_OUTAGES_SECONDS = 1.0


def idle_seconds(settings: Relay) -> float:
    """Return the silence after which the server ends a claim: longer than the deadlines of a turn can take."""
    return 6 * settings.deadline_seconds + 10


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one turn: its lanes, and how many entries ended how."""

    lanes: frozenset[int] = frozenset()
    published: int = 0
    failed: int = 0
    unknown: int = 0
    retried: bool = False
    rest_seconds: float = 0.0
    """The wait before the next turn, because less came than could have."""

    @property
    def quiet(self) -> bool:
        """True if there was nothing to do."""
        return not (self.published or self.failed or self.unknown or self.retried)


@dataclass(slots=True)
class LaneWorker:
    """A worker that takes turns on one connection; each turn is one transaction."""

    connection: Connection
    publisher: Publisher
    cluster: Cluster
    settings: Relay
    stopping: threading.Event
    source: str
    before: Before = no_hook
    _pace: Pace = field(init=False)
    _preferred: list[int] = field(default_factory=lambda: random.sample(range(LANES), LANES))
    _most: int = LANES // 2
    _counted_at: float = 0.0
    _in_line: bool = False
    _retried: bool = False
    _was_busy: bool = False
    _outages_at: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pace = Pace(_RESTS, _LONGEST_REST_SECONDS, waited, self.settings.pause_seconds)

    def run_once(self) -> Turn:
        """Take one turn. Failed entries are tried again in turns of their own.

        A window's horizon is the number of the transaction that writes it, and must be taken after the window: a turn
        that writes exceptions first may read no windows, and a turn that reads takes its number after the last read.
        """
        self.publisher.open()
        self.cluster.examine()
        with self.cluster.trial(self.source) as trial, self.connection.transaction():
            self.before("claim")
            claim = self._claim(trial)
            if not claim.cursors or WHOLE_OUTBOX in claim.paused:
                return Turn()
            avoided = self.cluster.refused() | {topic: Refusal(PAUSED) for topic in claim.paused}
            if trial and claim.lanes == [trial.lane]:
                return self._try(claim, avoided, trial)
            self.cluster.want(self.source, {place for place in claim.parked_topics if place[1] not in claim.paused})
            freed = {place for place in claim.parked_topics if place[1] not in avoided}
            overdue = self._overdue(claim)
            self._retried = not self._retried and (claim.due or bool(freed or overdue))
            return self._retry(claim, avoided, freed, overdue) if self._retried else self._walk(claim, avoided)

    def _claim(self, trial: Trial | None) -> Claim:
        """Claim a trial's lane alone, or at most a fair share of the lanes, those that were left unfinished first."""
        began, waits, idle = time.monotonic(), 2 * self.settings.tenure_seconds, idle_seconds(self.settings)
        if trial is not None:
            claim = claims.claim(self.connection, [trial.lane], 1, idle_seconds=idle)
            if claim.cursors:
                return claim
        if self._was_busy and began - self._counted_at > 1:
            self._most = math.ceil(LANES / max(2, claims.count_workers(self.connection)))
            self._counted_at = began
        if self._in_line and not claims.queue(self.connection, self._preferred[0], wait_seconds=waits):
            return Claim()
        claim = claims.claim(self.connection, self._preferred, self._most, idle_seconds=idle)
        self._in_line = not claim.cursors
        metrics.CLAIM_SECONDS.labels(self.source).observe(time.monotonic() - began)
        return claim

    # --- new entries

    def _walk(self, claim: Claim, avoided: Mapping[str, Refusal]) -> Turn:
        """Read and hand over until the tenure ends; then wait for the acknowledgements once, and settle."""
        passing = {
            (lane, topic) for lane, topic in claim.parked_topics if topic in avoided and avoided[topic].partitions
        }
        delivery = self._delivery(avoided, claim.parked_topics - passing)
        under_way = walks(claim.cursors)
        until, sent_before = time.monotonic() + self.settings.tenure_seconds, self.publisher.bytes_sent
        while True:
            self._pace.began()
            counts = self._step(under_way, claim, delivery, passing)
            full = max(counts) >= self.settings.batch_entries
            rest = 0.0 if full else self._pace.rest_seconds()
            if self._must_end(until, sent_before) or not (any(counts) or any(walk.moved for walk in under_way)):
                break
            if rest:
                self.publisher.rest(rest)
        self._prefer(under_way)
        if any(walk.moved for walk in under_way):
            claims.take_number(self.connection)  # the acknowledgements may take long
        self._finish(delivery)
        unknown = {position for position, outcome in delivery.outcomes.items() if isinstance(outcome, Unknown)}
        for walk in under_way if unknown else ():
            walk.stop_before(unknown)
        settled, dead = self._settle_walks(under_way, delivery)
        return replace(self._count(claim, delivery, settled, dead), rest_seconds=rest)

    def _step(
        self, under_way: Sequence[Walk], claim: Claim, delivery: Delivery, passing: Collection[ParkedTopic]
    ) -> list[int]:
        """Send one batch of each walk; walks that need a new target share it.

        Of topics that are `passing` only some partitions are sick: there an entry waits only behind one of its key.
        """
        counts, shared = [], None
        for walk in under_way:
            most, needed = self.settings.batch_entries, walk.target is None
            self.before("read")
            found, target = claims.read(self.connection, walk, most, shared)
            shared = target if needed else shared
            entries = delivery.portion(_portion(found))
            if entries and claim.parked_keys:
                delivery.parked |= exceptions.parked(self.connection, entries)
            if passing:
                behind = [entry for entry in entries if (lane_of(entry), topic_of(entry)) in passing]
                delivery.parked |= exceptions.waiting(self.connection, behind)
            if entries:
                self.before("hand over")
                delivery.send(entries)
                self.before("advance")
                metrics.BATCH_ENTRIES.labels(self.source).observe(len(entries))
            walk.take(entries, target, more=len(found) == most or len(entries) < len(found))
            counts.append(len(entries))
        return counts

    def _must_end(self, until: float, sent_before: int) -> bool:
        return (
            time.monotonic() > until
            or self.stopping.is_set()
            or self.publisher.cut_short
            or self.publisher.bytes_sent - sent_before > _MOST_BYTES
        )

    def _settle_walks(self, under_way: Sequence[Walk], delivery: Delivery) -> tuple[list[Entry], list[Entry]]:
        """Move the cursors past every entry that has an outcome. Return these entries, and those that are FAILED."""
        moved = [walk for walk in under_way if walk.moved]
        if not moved:
            return [], []
        self.before("settle")
        entries = [entry for walk in moved for step in walk.steps for entry in step.entries]
        dead: list[Entry] = []
        if outcomes := delivery.outcomes:
            dead = self._record(
                [Due(Entry(*each), 0, None) for each in entries if position_of(each) in outcomes], delivery
            )
            self._release(dead)
        claims.settle(self.connection, [cursor for walk in moved for cursor in walk.new_cursors()], self.before)
        self.before("commit")
        return entries, dead

    def _prefer(self, under_way: Sequence[Walk]) -> None:
        """Prefer unfinished lanes next time, then those that were not looked at for longest."""
        first = [lane for walk in under_way if walk.target is not None for lane in walk.lanes]
        last = [lane for walk in under_way for lane in walk.lanes if lane not in first]
        self._preferred = [*first, *(lane for lane in self._preferred if lane not in {*first, *last}), *last]

    # --- entries that failed, waited or are replayed

    def _retry(
        self, claim: Claim, avoided: Mapping[str, Refusal], freed: set[ParkedTopic], overdue: set[ParkedTopic]
    ) -> Turn:
        """Try the entries that are due, and those whose topic takes entries again; fail those that waited too long."""
        self.before("retry")
        most, failed = self.settings.batch_entries, list[str]()
        if overdue and (age := self.settings.max_outage_seconds) is not None:
            failed = exceptions.fail_outages(self.connection, overdue, age, most)
        exceptions.release_waiting(self.connection, freed, most)
        exceptions.free_topics(self.connection, freed)
        found = exceptions.read_due(self.connection, claim.lanes, most)
        due = found[: len(_portion([each.entry for each in found]))]
        return self._resend(claim, self._delivery(avoided, frozenset()), due, failed)

    def _try(self, claim: Claim, avoided: Mapping[str, Refusal], trial: Trial) -> Turn:
        """Try one entry of each topic that may be well again. Nothing else waits for what becomes of it."""
        self.before("retry")
        topics = trial.topics - claim.paused
        places = {(lane, topic) for lane, topic in claim.parked_topics if topic in topics}
        exceptions.release_waiting(self.connection, places, 1)
        found = exceptions.read_due(self.connection, claim.lanes, self.settings.batch_entries)
        firsts = {each.entry.topic: each for each in reversed(found) if each.entry.topic in topics}
        exceptions.free_topics(self.connection, {place for place in places if place[1] not in firsts})
        open_to_it = {topic: refusal for topic, refusal in avoided.items() if topic not in topics}
        delivery = self._delivery(open_to_it, frozenset(), min(trial.seconds, self.settings.deadline_seconds))
        return self._resend(claim, delivery, list(firsts.values()))

    def _overdue(self, claim: Claim) -> set[ParkedTopic]:
        """Return where entries may have waited for too long: topics found sick, now and then in each lane."""
        shut = self.cluster.shut() if self.settings.max_outage_seconds is not None and claim.parked_topics else set()
        now = self.cluster.clock()
        found = {
            (lane, topic)
            for lane, topic in claim.parked_topics
            if topic in shut and topic not in claim.paused and self._outages_at.get(lane, 0.0) <= now
        }
        self._outages_at |= {lane: now + _OUTAGES_SECONDS for lane, _ in found}
        return found

    def _resend(self, claim: Claim, delivery: Delivery, due: Sequence[Due], failed: Sequence[str] = ()) -> Turn:
        for replay in {each.replay for each in due}:
            delivery.send([each.entry for each in due if each.replay == replay], replay)
            self._finish(delivery)
        dead = self._settle_retries(due, delivery)
        tried = [each.entry for each in due]
        return self._count(claim, delivery, tried, dead, overdue=failed, retried=bool(due))

    def _settle_retries(self, tried: Sequence[Due], delivery: Delivery) -> list[Entry]:
        """Forget the exceptions of published entries, record the others, and release what waited behind them.

        Return the entries that are FAILED now.
        """
        self.before("settle retries")
        done = [each.entry for each in tried if each.entry.position not in delivery.outcomes]
        exceptions.published(self.connection, done)
        dead = self._record([each for each in tried if each.entry.position in delivery.outcomes], delivery)
        self._release([*done, *dead])
        self.before("commit retries")
        return dead

    # --- both

    def _delivery(
        self, avoided: Mapping[str, Refusal], parked_topics: frozenset[ParkedTopic], seconds: float | None = None
    ) -> Delivery:
        return Delivery(
            publisher=self.publisher,
            cluster=self.cluster,
            seconds=seconds or self.settings.deadline_seconds,
            avoided=avoided,
            parked_topics=parked_topics,
            allowed=self.settings.topics_of(self.source),
            unordered=self.settings.unordered_topics,
        )

    def _finish(self, delivery: Delivery) -> None:
        self.before("acknowledge")
        began = time.monotonic()
        delivery.finish()
        metrics.PUBLISH_SECONDS.labels(self.source).observe(time.monotonic() - began)

    def _record(self, failing: Sequence[Due], delivery: Delivery) -> list[Entry]:
        """Record the failing entries. Return those that are FAILED now: their keys need not wait for them."""
        outcomes, retries = delivery.outcomes, retries_of(self.settings.retry)
        states = {
            each.entry: state
            for each in failing
            if (state := after(outcomes[each.entry.position], each.attempts, retries, dice=random.random()))
        }
        exceptions.record(self.connection, states)
        topics = {
            (entry.lane, entry.topic): outcome.error
            for entry in states
            if isinstance(outcome := outcomes[entry.position], Unavailable)
        }
        exceptions.park_topics(self.connection, topics)
        heads = [entry for entry in states if isinstance(outcomes[entry.position], Retry)]
        exceptions.park_keys(self.connection, [entry for entry in heads if entry.topic not in delivery.unordered])
        return [entry for entry, state in states.items() if state.status == "FAILED"]

    def _release(self, finished: Sequence[Entry]) -> None:
        keys = {(entry.lane, entry.topic, entry.key) for entry in finished}
        exceptions.release_keys(self.connection, keys, self.settings.batch_entries)

    def _count(
        self, claim: Claim, delivery: Delivery, tried: Sequence[Entry], dead: Sequence[Entry], *,
        overdue: Sequence[str] = (), retried: bool = False,
    ) -> Turn:  # fmt: skip
        """Count the entries that were tried; `overdue` are the topics of entries that waited for too long."""
        outcomes = delivery.outcomes
        delivered = [entry for entry in tried if position_of(entry) not in outcomes] if outcomes else tried
        self._was_busy = bool(delivered)
        metrics.published(self.source, delivered)
        undelivered = [entry for entry in tried if position_of(entry) in outcomes] if outcomes else ()
        metrics.outcomes(self.source, [(topic_of(entry), outcomes[position_of(entry)]) for entry in undelivered])
        metrics.dead(self.source, [*(entry.topic for entry in dead), *overdue])
        return Turn(
            lanes=frozenset(claim.lanes),
            published=len(delivered),
            failed=sum(isinstance(outcome, Retry | Rejected) for outcome in outcomes.values()) + len(overdue),
            unknown=sum(isinstance(outcome, Unknown) for outcome in outcomes.values()),
            retried=retried,
        )


def _portion(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return as many entries as are sent at once: all of them, unless many are large."""
    large = [n for n, payload in enumerate(map(payload_of, entries)) if payload is None]
    return entries if len(large) <= _MOST_LARGE else entries[: large[_MOST_LARGE]]
