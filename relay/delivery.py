"""Publishes entries in order, and finds out what became of each: what failed for a reason of its own, and what only
stood near it.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from ferryman.relay import record
from ferryman.relay.cluster import CLUSTER, Cluster
from ferryman.relay.kafka import Cut, Publisher
from ferryman.relay.model import Entry, Place, lane_of, place_of
from ferryman.relay.policy import (
    Outcome,
    Rejected,
    Retry,
    TopicUnavailable,
    Unknown,
    Waits,
    is_consequence,
    judge,
    stored_error,
)
from ferryman.relay.topics import ClusterAwayError, TopicRefusedError

_MOST_ROUNDS = 4
_ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class Delivery:
    """What one tenure publishes. `outcomes` has what was not simply delivered, by position.

    `avoided` are topics that are not to be tried, with the reason; `parked` are the places whose entries wait, and grow
    as entries fail; topics in `unordered` let theirs pass.
    """

    publisher: Publisher
    cluster: Cluster
    seconds: float
    avoided: InitVar[Mapping[str, str]]
    parked_topics: Collection[tuple[int, str]] = ()
    unordered: Collection[str] = ()
    replay: int | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    parked: set[Place] = field(default_factory=set)
    _until: float = 0.0
    _sent: list[Sequence[Entry]] = field(default_factory=list)
    _refused: dict[str, TopicUnavailable] = field(default_factory=dict)
    _away: Unknown | None = None
    _comfortable: dict[str, int] = field(default_factory=dict)

    def __post_init__(self, avoided: Mapping[str, str]) -> None:
        self._until = time.monotonic() + self.seconds
        self._refused.update({topic: TopicUnavailable(reason) for topic, reason in avoided.items()})

    def send(self, entries: Sequence[Entry]) -> None:
        """Hands over what may be published; the rest has its outcome at once."""
        topics = {entry[2] for entry in entries}
        self._meet(topics)
        if self.parked or self.parked_topics or self._away or any(topic in self._refused for topic in topics):
            entries = [entry for entry in entries if not self._set_aside(entry)]
        if any(entry[5] is None or len(entry[5]) > self._comfortable[entry[2]] for entry in entries):
            entries = [entry for entry in entries if not self._too_large(entry)]
        if entries:
            self._hand_over(entries)

    def finish(self) -> None:
        """Waits for the acknowledgements, and finds the culprits when there are none."""
        for left in reversed(range(_MOST_ROUNDS)):
            cut = self.publisher.flush(self._until)
            sent, self._sent = self._sent, []
            if cut is None:
                self._acknowledged(sent)
                return
            self._until = time.monotonic() + self.seconds
            self._resolve(cut, sent, singly=not left)

    def _hand_over(self, entries: Sequence[Entry]) -> None:
        self._sent.append(entries)
        self.publisher.produce(entries, self._until, self.replay)

    def _acknowledged(self, sent: Sequence[Sequence[Entry]]) -> None:
        """A topic that was on probation is well again."""
        for topic in self.cluster.suspects():
            if any(entry[2] == topic for batch in sent for entry in batch):
                self.cluster.succeeded(topic)

    def _meet(self, topics: Iterable[str]) -> None:
        """Learns of topics before anything is produced to them."""
        for name in topics:
            if name in self._comfortable or name in self._refused:
                continue
            try:
                limit = self.cluster.topics.get(name).max_message_bytes
                self._comfortable[name] = limit - record.MOST_OVERHEAD_BYTES
                self._until = max(self._until, time.monotonic() + self.seconds)  # asking took its time
                self.publisher.limit_batches(limit)
            except TopicRefusedError as error:
                self._refuse(name, stored_error(str(error)))
            except ClusterAwayError as error:
                self._lose(stored_error(str(error)))
                self._comfortable[name] = 0

    def _set_aside(self, entry: Entry) -> bool:
        if self._away is not None:
            self.outcomes[entry[0]] = self._away
        elif entry[2] in self._refused:
            self.outcomes[entry[0]] = self._refused[entry[2]]
        elif place_of(entry) in self.parked or (lane_of(entry), entry[2]) in self.parked_topics:
            self.outcomes[entry[0]] = Waits()
        else:
            return False
        return True

    def _too_large(self, entry: Entry) -> bool:
        limit = self._comfortable[entry[2]] + record.MOST_OVERHEAD_BYTES
        size = self.publisher.size(entry)
        if size > limit:
            words = f"its record has {size} bytes, and topic {entry[2]} takes {limit} (max.message.bytes)"
            self.outcomes[entry[0]] = Rejected(words)
        return size > limit

    def _resolve(self, cut: Cut, sent: Sequence[Sequence[Entry]], *, singly: bool) -> None:
        """Culprits singly, in order; then all the others once more: singly too when it was cut short again and again.

        Every entry of a place of which one was not acknowledged counts: a duplicate more rather than one less.
        """
        everything = [entry for batch in sent for entry in batch]
        missing = [entry for entry in everything if cut.everything or place_of(entry) in cut.errors]
        if cut.timed_out:
            self._judge_silence(cut, missing, {entry[2] for entry in everything})
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
        """The places whose entries may be at fault themselves; topics and the cluster, if at fault, are left alone."""
        culprits = set()
        for place, (code, words) in cut.errors.items():
            match judge(code, words):
                case TopicUnavailable(error):
                    self._refuse(place[0], error)
                case Unknown(error) if not is_consequence(code):
                    self._lose(error)
                case Retry() | Rejected():
                    culprits.add(place)
                    self.cluster.topics.forget(place[0])  # it may take less than it did
                case Unknown():
                    pass
        return culprits

    def _send_singly(self, entry: Entry) -> None:
        """Alone, an error is its own: only now is an attempt charged."""
        if time.monotonic() > self._until:  # the others of a long line of culprits have their turn later
            self.outcomes[entry[0]] = Unknown("there was no time left to send it again")
            return
        until = time.monotonic() + self.seconds
        self.publisher.produce([entry], until, self.replay)
        cut = self.publisher.flush(until)
        if cut is None:
            return
        if cut.timed_out:
            self._judge_silence(cut, [entry], {entry[2]})
            return
        code, words = cut.errors.get(place_of(entry), ("_FATAL", cut.why))
        outcome = judge(code, cut.why if is_consequence(code) else words)
        match outcome:
            case TopicUnavailable(error):
                self._refuse(entry[2], error)
            case Unknown(error):
                self._lose(error)
            case Retry() if entry[2] not in self.unordered:
                self.parked.add(place_of(entry))
        self.outcomes[entry[0]] = outcome

    def _judge_silence(self, cut: Cut, missing: Sequence[Entry], topics: set[str]) -> None:
        """The deadline passed. Where several topics are all silent the cluster is at fault, else they are."""
        silent = {entry[2] for entry in missing}
        reason = self.cluster.topics.answers(_ANSWER_SECONDS)
        if reason is None and (silent != topics or len(topics) == 1):
            for topic in silent:
                self._refuse(topic, stored_error(f"topic {topic} acknowledges nothing: {cut.why}"))
        else:
            self._lose(stored_error(reason or cut.why))
        self._give_up(missing, cut.why)

    def _give_up(self, entries: Sequence[Entry], why: str) -> None:
        for entry in entries:
            if not self._set_aside(entry):
                self.outcomes[entry[0]] = Unknown(stored_error(why))

    def _refuse(self, topic: str, error: str) -> None:
        self._refused[topic] = TopicUnavailable(error)
        self.cluster.failed(topic, error)

    def _lose(self, error: str) -> None:
        self._away = Unknown(error)
        self.cluster.failed(CLUSTER, error)
