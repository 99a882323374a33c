"""The topics as the cluster describes them: what each takes, and which of their partitions take nothing now."""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from ferryman.channels.outcome import Unknown
from ferryman.runtime import kafka
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.redaction import stored_error
from ferryman.runtime.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

BROKERS_OWN_LIMIT = 1_048_588
"""The largest message of a broker on which nobody set `max.message.bytes`: for clusters that do not say."""

MOST_MET = 500
"""The most topics that are met at once. Writers may name thousands that do not exist."""

_FRESH_SECONDS = 300.0
# Some clusters do not answer requests for configurations.
_CONFIGS_SECONDS = 2.0
# More topics than these are asked for with all others, in one request.
_MOST_BY_NAME = 10
# What leads to the same partition as in librdkafka; keys are never null.
_PARTITIONERS = {"murmur2_random", "murmur2"}


def partition_of(key: str, partitions: int) -> int:
    """Return the partition that the producer chooses for a key: murmur2, as Java clients do."""
    data, mix, mask = key.encode(), 0x5BD1E995, 0xFFFFFFFF
    whole = len(data) & ~3
    found = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * mix & mask
        found = (found * mix & mask) ^ ((word ^ word >> 24) * mix & mask)
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * mix & mask
    found = (found ^ found >> 13) * mix & mask
    return ((found ^ found >> 15) & 0x7FFFFFFF) % partitions


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a topic takes nothing for now: all of it, or only these of its partitions."""

    reason: str
    partitions: frozenset[int] = frozenset()
    of: int = 0

    def covers(self, key: str) -> bool:
        """Return True if records with this key are refused."""
        return not self.partitions or partition_of(key, self.of) in self.partitions

    def joined(self, other: "Refusal") -> "Refusal":
        """Return a refusal of whatever either refuses. The number of partitions stays as it was first seen."""
        if not (self.partitions and other.partitions):
            return other if self.partitions else self
        return Refusal(other.reason, self.partitions | other.partitions, self.of)


class TopicState(NamedTuple):
    """A topic as the cluster described it: the largest record that it takes, and the leader of each partition."""

    limit: int = 0
    leaders: Mapping[int, int] = {}
    of: int = 0
    refusal: Refusal | None = None

    def without(self, reason: str, partitions: Iterable[int]) -> Refusal:
        """Return a refusal of these partitions."""
        return Refusal(reason, frozenset(partitions), self.of)


@dataclass(slots=True)
class _Configuration:
    limit: int
    in_sync: int
    refusal: Refusal | None
    at: float


class TopicDirectory:
    """The topics of the cluster: asked for once, and again when the answer is old or was proven wrong."""

    def __init__(self, settings: Kafka, compacted: Collection[str] = ()) -> None:
        self._settings = settings
        self._compacted = frozenset(compacted)
        self._by_partition = settings.properties.get("partitioner", "murmur2") in _PARTITIONERS
        self._configurations: dict[str, _Configuration] = {}
        self._states: dict[str, tuple[TopicState, float]] = {}
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._has_configs = True
        self._heard = kafka.Hearing()

    def meet(self, names: Collection[str]) -> Mapping[str, TopicState] | Unknown:
        """Return the state of each topic; ask the cluster for those that are not known."""
        stale = time.monotonic() - _FRESH_SECONDS
        known = {name: found[0] for name in names if (found := self._states.get(name)) and found[1] > stale}
        if len(known) == len(names):
            return known
        asked = self._ask([name for name in names if name not in known], self._settings.timeout_seconds)
        return asked if isinstance(asked, Unknown) else {**known, **asked[0]}

    def unmet(self, names: Collection[str]) -> set[str]:
        """Return the topics that nothing is known of."""
        return {name for name in names if name not in self._states}

    def forget(self, name: str) -> None:
        self._states.pop(name, None)
        self._configurations.pop(name, None)

    def answers(self, seconds: float) -> str | None:
        """Ask the cluster for a sign of life. Return None when it gives one, else the reason in words."""
        try:
            self.cluster_id(seconds)
        except FerrymanError as error:
            return str(error)
        return None

    def cluster_id(self, seconds: float) -> str:
        """Return the id of the cluster, empty if it has none."""
        try:
            found: Any = self._admin().list_topics(topic=kafka.NO_TOPIC, timeout=seconds)
            return found.cluster_id or ""
        except KafkaException as error:
            raise self._heard.translate(error, self._admin()) from error

    def refusals(self, names: Collection[str], seconds: float) -> Mapping[str, Refusal] | Unknown:
        """Ask which of the topics take nothing, or which of their partitions: nothing is sent to find out.

        A partition takes nothing without a leader, with too few replicas in sync, and if its leader does not answer a
        question while other brokers do.
        """
        asked = self._ask(names, seconds)
        if isinstance(asked, Unknown):
            return asked
        states, brokers = asked
        one_of_each = {
            broker: TopicPartition(name, number)
            for name, state in states.items()
            for number, broker in state.leaders.items()
        }
        silent = self._silent(one_of_each, seconds) if len(brokers) > 1 else set()
        found = {}
        for name, state in states.items():
            refusal = state.refusal
            away = {number for number, broker in state.leaders.items() if broker in silent < brokers}
            if away and (refusal is None or refusal.partitions):
                words = f"the brokers of {_numbered(name, away)} do not answer"
                led = self._refusal(words, state, away)
                refusal = refusal.joined(led) if refusal else led
            if refusal:
                found[name] = refusal
        return found

    def silence(self, name: str, keys: Iterable[str], why: str) -> Refusal:
        """Return the refusal of the partitions that acknowledged nothing of these keys."""
        state = self._states.get(name, (TopicState(), 0.0))[0]
        silent = {partition_of(key, state.of) for key in keys} if state.of else set()
        return self._refusal(f"topic {name} acknowledges nothing: {why}", state, silent)

    def _refusal(self, reason: str, state: TopicState, partitions: Iterable[int]) -> Refusal:
        reason = stored_error(reason)
        return state.without(reason, partitions) if self._by_partition else Refusal(reason)

    def _ask(self, names: Collection[str], seconds: float) -> tuple[dict[str, TopicState], set[int]] | Unknown:
        """Ask for these topics. Return their states, and the brokers of the cluster."""
        brokers, states = set[int](), dict[str, TopicState]()
        try:
            described = dict[str, Any]()
            for asked in names if len(names) <= _MOST_BY_NAME else [None]:
                metadata = self._admin().list_topics(topic=asked, timeout=seconds)
                described |= metadata.topics
                brokers |= metadata.brokers.keys()
        except KafkaException as error:
            return Unknown(stored_error(str(self._heard.translate(error, self._admin()))))
        self._configure([name for name in names if (found := described.get(name)) and not found.error])
        for name in names:
            states[name] = state = self._state(name, described.get(name))
            if state.of:
                self._states[name] = state, time.monotonic()
            else:
                self.forget(name)
        return states, brokers

    def _state(self, name: str, found: Any) -> TopicState:
        if found is None:
            return TopicState(refusal=Refusal(f"Kafka does not know the topic {name}"))
        if found.error is not None:
            return TopicState(refusal=Refusal(stored_error(str(kafka.translate(found.error)))))
        configuration = self._configurations[name]
        leaders = {
            each.id: each.leader
            for each in found.partitions.values()
            if each.leader >= 0 and len(each.isrs) >= configuration.in_sync
        }
        state = TopicState(configuration.limit, leaders, len(found.partitions), configuration.refusal)
        if configuration.refusal is None and len(leaders) < state.of:
            sick = found.partitions.keys() - leaders.keys()
            words = f"{_numbered(name, sick)} have no leader, or fewer replicas in sync than min.insync.replicas"
            state = state._replace(refusal=self._refusal(words, state, sick))
        return state

    def _silent(self, places: Mapping[int, TopicPartition], seconds: float) -> set[int]:
        """Ask each leader for the end of one of its partitions. Return the brokers that do not answer in time."""
        from confluent_kafka.admin import OffsetSpec

        newest: Any = OffsetSpec
        admin, silent = self._admin(), set[int]()
        asked = {
            broker: admin.list_offsets({place: newest.latest()}, request_timeout=seconds)[place]
            for broker, place in places.items()
        }
        for broker, answer in asked.items():
            try:
                offset = kafka.answered(answer, seconds).offset
            except KafkaException:
                offset = -1
            if offset < 0:  # what was not answered in time has no offset, and no error either
                silent.add(broker)
        return silent

    def _configure(self, names: Collection[str]) -> None:
        """Ask for configurations that are not known. A cluster may give none: then the broker refuses large records."""
        stale = time.monotonic() - _FRESH_SECONDS
        unknown = [name for name in names if self._configurations.get(name, _NEVER).at < stale]
        given: Mapping[str, Mapping[str, str]] = {}
        if self._has_configs and unknown:
            try:
                given, refused = kafka.topic_settings(self._admin(), unknown, _CONFIGS_SECONDS)
            except KafkaException:
                refused = {}
            codes = {error.args[0].name() for error in refused.values()}
            self._has_configs = not codes & {"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"}
        for name in unknown:
            found, refusal = given.get(name, {}), None
            if "compact" in found.get("cleanup.policy", "") and name not in self._compacted:
                refusal = Refusal(
                    f"topic {name} is compacted: a late duplicate would overwrite a newer value. Remedy: set its "
                    "cleanup.policy to delete, or name it in relay.compacted_topics if its readers can bear that"
                )
            limit, in_sync = found.get("max.message.bytes", BROKERS_OWN_LIMIT), found.get("min.insync.replicas", 0)
            at = time.monotonic() if refusal is None else float("-inf")  # it is asked again when it was mended
            self._configurations[name] = _Configuration(int(limit), int(in_sync), refusal, at)

    def _admin(self) -> "AdminClient":
        with self._lock:
            if self._client is None:
                self._client = kafka.admin(self._settings, "relay", error_cb=self._heard)
            return self._client


_NEVER = _Configuration(0, 0, None, float("-inf"))


def _numbered(name: str, partitions: Collection[int]) -> str:
    return f"partitions {', '.join(map(str, sorted(partitions)))} of topic {name}"
