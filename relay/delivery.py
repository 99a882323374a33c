"""Publishes entries in order, and finds out which failed for a reason of their own and which only stood near one."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain

from ferryman.channels.outcome import Rejected, Retry, Unavailable, Unknown
from ferryman.relay.cluster import Cluster
from ferryman.relay.kafka import MOST_OVERHEAD_BYTES, Cut, NoRecord, Publisher
from ferryman.relay.model import (
    Entry,
    Place,
    key_of,
    lane_of,
    place_of,
    position_of,
    topic_and_payload_of,
    topic_of,
)
from ferryman.relay.policy import Undelivered, Waits, is_consequence, judge
from ferryman.relay.topics import MOST_MET, Refusal
from ferryman.runtime.redaction import stored_error

_MOST_ROUNDS = 4
_ANSWER_SECONDS = 2.0
# Where nothing was acknowledged for so long, ask whether somebody is sick. A healthy leader answers this quickly.
_LOOK_SECONDS = 0.1
_LOOK_ANSWER_SECONDS = 0.15


@dataclass(slots=True)
class Delivery:
    """The entries that one tenure publishes. `outcomes` has those that were not simply delivered, by position.

    `avoided` are topics, or partitions, that must not be tried; `parked` are the places whose entries wait, and grow as
    entries fail; `allowed` has patterns of the topics that the source may publish to, or is None for all; topics in
    `unordered` let later entries of a failed key pass.
    """

    publisher: Publisher
    cluster: Cluster
    seconds: float
    avoided: Mapping[str, Refusal]
    parked_topics: Collection[tuple[int, str]] = ()
    allowed: Sequence[str] | None = None
    unordered: Collection[str] = ()
    outcomes: dict[int, Undelivered] = field(default_factory=dict)
    parked: set[Place] = field(default_factory=set)
    _until: float = field(init=False)
    _refused: dict[str, Refusal] = field(init=False)
    _forbidden: set[str] = field(default_factory=set)
    _sent: list[Sequence[Entry]] = field(default_factory=list)
    _replay: int | None = None
    _away: Unknown | None = None
    _comfortable: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds
        self._refused = dict(self.avoided)

    def portion(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the first entries, up to those of more topics than are met at once."""
        unmet = self.cluster.topics.unmet(set(map(topic_of, entries)) - self._comfortable.keys() - self._refused.keys())
        if len(unmet) <= MOST_MET:
            return entries
        met = set[str]()
        for number, topic in enumerate(map(topic_of, entries)):
            if topic in unmet and len(met := met | {topic}) > MOST_MET:
                return entries[:number]
        return entries

    def send(self, entries: Sequence[Entry], replay: int | None = None) -> None:
        """Hand over what may be published; the rest gets its outcome at once."""
        self._replay = replay
        topics = set(map(topic_of, entries))
        self._meet(topics)
        barred = self._refused.keys() | self._forbidden
        if self.parked or self.parked_topics or self._away or not barred.isdisjoint(topics):
            entries = [entry for entry in entries if not self._set_aside(entry)]
        comfortable = self._comfortable
        if any(body is None or len(body) > comfortable[topic] for topic, body in map(topic_and_payload_of, entries)):
            entries = [entry for entry in entries if not self._too_large(entry)]
        if entries:
            self._hand_over(entries)

    def finish(self) -> None:
        """Wait for the acknowledgements, and find the culprits when they do not come."""
        for left in reversed(range(_MOST_ROUNDS)):
            wait = _LOOK_SECONDS
            while time.monotonic() < self._until and self.publisher.is_silent(wait) and not self._look():
                wait *= 2
            cut = self.publisher.flush(self._until)
            sent, self._sent = self._sent, []
            if cut is None:
                self._acknowledged(sent)
                return
            self._until = time.monotonic() + self.seconds
            self._resolve(cut, sent, singly=not left)

    def _hand_over(self, entries: Sequence[Entry]) -> None:
        if unfit := self.publisher.produce(entries, self._until, self._replay):
            self.outcomes |= {position: Rejected(why) for position, why in unfit.items()}
            entries = [entry for entry in entries if position_of(entry) not in unfit]
        self._sent.append(entries)

    def _look(self) -> bool:
        """Give up what sick partitions hold, if any do: the lanes' other entries do not wait for the deadline."""
        sent = list(chain.from_iterable(self._sent))
        found = self.cluster.topics.refusals(set(map(topic_of, sent)), _LOOK_ANSWER_SECONDS)
        if isinstance(found, Unknown):
            return False
        at_fault = {topic for topic, key in map(place_of, sent) if topic in found and found[topic].covers(key)}
        for topic in at_fault:
            self._refuse(topic, found[topic])
        if at_fault:
            self.publisher.give_up(found[min(at_fault)].reason)
        return bool(at_fault)

    def _acknowledged(self, sent: Sequence[Sequence[Entry]]) -> None:
        """Close the breakers of topics that were on probation."""
        if refused := self.cluster.refused():
            places = map(place_of, chain.from_iterable(sent))
            for topic in {topic for topic, key in places if topic in refused and refused[topic].covers(key)}:
                self.cluster.succeeded(topic)

    def _meet(self, topics: Collection[str]) -> None:
        """Look topics up before anything is produced to them."""
        if self.allowed is not None:
            self._forbidden |= {name for name in topics if not any(fnmatchcase(name, each) for each in self.allowed)}
        refused, known = self._refused, self._comfortable
        new = [
            name
            for name in topics
            if name not in known and name not in self._forbidden and (name not in refused or refused[name].partitions)
        ]
        states = self.cluster.topics.meet(new) if new else {}
        if isinstance(states, Unknown):
            self._lose(states.error)
            states = {}
        for name, state in states.items():
            if state.refusal is not None:
                self._refuse(name, state.refusal)
            if state.limit:
                self.publisher.limit_batches(state.limit)
        known |= {name: states[name].limit - MOST_OVERHEAD_BYTES if name in states else 0 for name in new}
        if new:
            self._until = max(self._until, time.monotonic() + self.seconds)  # asking took its time

    def _set_aside(self, entry: Entry) -> bool:
        """Return True, with an outcome recorded, if the entry must not be sent."""
        topic, position = topic_of(entry), position_of(entry)
        if self._away is not None:
            self.outcomes[position] = self._away
        elif topic in self._forbidden:
            why = f"this source may not publish to the topic {topic} (relay.sources: topics)"
            self.outcomes[position] = Rejected(why)
        elif self._is_refused(entry):
            self.outcomes[position] = Unavailable(self._refused[topic].reason)
        elif place_of(entry) in self.parked or (lane_of(entry), topic) in self.parked_topics:
            self.outcomes[position] = Waits()
        else:
            return False
        return True

    def _is_refused(self, entry: Entry) -> bool:
        topic, key = place_of(entry)
        return topic in self._refused and self._refused[topic].covers(key)

    def _too_large(self, entry: Entry) -> bool:
        topic = topic_of(entry)
        limit = self._comfortable[topic] + MOST_OVERHEAD_BYTES
        try:
            size = self.publisher.size(entry)
        except NoRecord as why:
            self.outcomes[position_of(entry)] = Rejected(str(why))
            return True
        if size > limit:
            words = f"its record has {size} bytes, and topic {topic} takes {limit} (max.message.bytes)"
            self.outcomes[position_of(entry)] = Rejected(words)
        return size > limit

    def _resolve(self, cut: Cut, sent: Sequence[Sequence[Entry]], *, singly: bool) -> None:
        """Send culprits singly, in order, then all the others once more: singly too after several cuts.

        Every entry of a place with an unacknowledged entry is sent again: rather a duplicate than a loss.
        """
        everything = list(chain.from_iterable(sent))
        missing = [entry for entry in everything if cut.everything or place_of(entry) in cut.errors]
        if cut.timed_out:
            self._judge_silence(cut, missing, set(map(topic_of, everything)))
            return
        culprits = self._accuse(cut)
        for entry in missing:
            if (singly or place_of(entry) in culprits) and not self._set_aside(entry):
                self._send_singly(entry)
        if singly:
            return
        self._until = time.monotonic() + self.seconds
        rest = [entry for entry in missing if place_of(entry) not in culprits and not self._set_aside(entry)]
        if rest:
            self._hand_over(rest)

    def _accuse(self, cut: Cut) -> set[Place]:
        """Return the places whose entries may be at fault; avoid topics, or the cluster, that are at fault."""
        culprits = set()
        for place, (code, words) in cut.errors.items():
            match judge(code, words):
                case Unavailable(error):
                    self._refuse(place[0], Refusal(error))
                case Unknown(error) if not is_consequence(code):
                    self._lose(error)
                case Retry() | Rejected():
                    culprits.add(place)
                    self.cluster.topics.forget(place[0])  # it may take less than it did
                case Unknown():
                    pass
        return culprits

    def _send_singly(self, entry: Entry) -> None:
        """Send one entry alone: only then is an error its own, and an attempt charged."""
        topic, position = topic_of(entry), position_of(entry)
        if time.monotonic() > self._until:  # the others of a long line of culprits have their turn later
            self.outcomes[position] = Unknown("there was no time left to send it again")
            return
        until = time.monotonic() + self.seconds
        self.publisher.produce([entry], until, self._replay)
        cut = self.publisher.flush(until)
        if cut is None:
            return
        if cut.timed_out:
            self._judge_silence(cut, [entry], {topic})
            return
        code, words = cut.errors.get(place_of(entry), ("_FATAL", cut.why))
        outcome = judge(code, cut.why if is_consequence(code) else words)
        match outcome:
            case Unavailable(error):
                self._refuse(topic, Refusal(error))
            case Unknown(error):
                self._lose(error)
            case Retry() if topic not in self.unordered:
                self.parked.add(place_of(entry))
        self.outcomes[position] = outcome

    def _judge_silence(self, cut: Cut, missing: Sequence[Entry], topics: set[str]) -> None:
        """Decide who is silent: what was found sick, else the cluster, if several topics all are, else the partitions.

        Whatever else was in the producer is unknown.
        """
        if not any(map(self._is_refused, missing)):
            silent = set(map(topic_of, missing))
            reason = self.cluster.topics.answers(_ANSWER_SECONDS)
            if reason is None and (silent != topics or len(topics) == 1):
                for topic in silent:
                    keys = {key_of(entry) for entry in missing if topic_of(entry) == topic}
                    self._refuse(topic, self.cluster.topics.silence(topic, keys, cut.why))
            else:
                self._lose(stored_error(reason or cut.why))
        for entry in missing:
            if not self._set_aside(entry):
                self.outcomes[position_of(entry)] = Unknown(stored_error(cut.why))

    def _refuse(self, topic: str, refusal: Refusal) -> None:
        before = self._refused.get(topic)
        self._refused[topic] = before.joined(refusal) if before else refusal
        self.cluster.failed(topic, refusal)

    def _lose(self, error: str) -> None:
        self._away = Unknown(error)
        self.cluster.lost(error)
