"""The offsets at which a group starts where it has committed none, and those at which partitions end.

The database may know better where a group that has read a partition goes on: its offsets may have expired.
"""

import time
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ferryman.consumer.kafka.consumer_topics import is_retry_topic
from ferryman.consumer.model import Partition
from ferryman.runtime.errors import Permanent, Unreachable
from ferryman.runtime.kafka import translate

log = structlog.get_logger(__name__)

_LEAST_SECONDS = 0.1
_ASK_AGAIN_SECONDS = 5.0
_MOST_ASKING_SECONDS = 0.25
"""The time for asking about all held partitions together: the loop stands still meanwhile."""


class OffsetsGone(Permanent):
    """Kafka no longer has what comes next: a person has to decide whether to go on."""


@dataclass(slots=True)
class FirstOffsets:
    """The rules by which a group starts in a partition."""

    group: str
    start: str
    seconds: float
    unknown: set[Partition] = field(default_factory=set)
    """Partitions without a leader when they were assigned: their first offset is not known yet."""

    def forget(self, places: Collection[Partition]) -> None:
        """Stop tracking partitions that moved to another member."""
        self.unknown.difference_update(places)

    def of(self, client: Consumer, places: list[TopicPartition]) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the partitions with their first offsets, and those whose leader is not known, with offset 0.

        A partition that starts at the first record holds up no other: `fix` corrects its offset once it has a leader.
        """
        ends, unknown = self._ends(client, places)
        for place, error in unknown.items():
            if self._at_the_end(place):
                why = translate(error).message
                raise Unreachable(f"the first offset of {place[0]}[{place[1]}] is not known yet: {why}")
        self.unknown |= unknown.keys()
        known = [
            TopicPartition(*place, high if self._at_the_end(place) else low) for place, (low, high) in ends.items()
        ]
        return known, [TopicPartition(*place, 0) for place in unknown]

    def fix(self, client: Consumer) -> dict[Partition, int]:
        """Read partitions whose leader is known by now from their first offset, and commit it. Return these offsets."""
        fixed: dict[Partition, int] = {}
        for place in self.unknown:
            try:
                low, _ = client.get_watermark_offsets(TopicPartition(*place), timeout=_LEAST_SECONDS)
            except KafkaException:
                continue
            first = TopicPartition(*place, low)
            try:
                client.commit(offsets=[first], asynchronous=False)
                if low > 0:
                    client.incremental_unassign([first])
                    client.incremental_assign([first])
            except KafkaException as error:
                log.info("first offset not committed", consumer=self.group, error=str(translate(error)))
                break
            fixed[place] = low
        return fixed

    def _at_the_end(self, place: Partition) -> bool:
        """Return True if the group starts at the end. Requeued messages are always new to it."""
        return self.start == "latest" and not is_retry_topic(place[0], self.group)

    def _ends(
        self, client: Consumer, places: list[TopicPartition]
    ) -> tuple[dict[Partition, tuple[int, int]], dict[Partition, KafkaException]]:
        """Return the first offset of each partition and the one behind its last, or why it is not known."""
        ends: dict[Partition, tuple[int, int]] = {}
        unknown: dict[Partition, KafkaException] = {}
        until = time.monotonic() + self.seconds
        for each in places:
            left = max(_LEAST_SECONDS, until - time.monotonic())
            try:
                ends[each.topic, each.partition] = client.get_watermark_offsets(each, timeout=left)
            except KafkaException as error:
                unknown[each.topic, each.partition] = error
        return ends, unknown


@dataclass(slots=True)
class EndOffsets:
    """The end offsets of partitions, as far as one client knows them.

    Answers to fetches tell them; held partitions are not fetched, so the brokers are asked. Without an answer, the last
    known end stays.
    """

    _asked: dict[Partition, int] = field(default_factory=dict)
    _asked_at: dict[Partition, float] = field(default_factory=dict)
    _ask_at: float = 0.0

    def behind(
        self, client: Consumer, positions: Mapping[Partition, int], held: AbstractSet[Partition]
    ) -> dict[Partition, int]:
        """Return how many messages are behind each position, as far as that is known."""
        if time.monotonic() >= self._ask_at:
            self._ask(client, held & positions.keys())
        behind = {}
        for place, position in positions.items():
            _, seen = client.get_watermark_offsets(TopicPartition(*place), cached=True)
            end = max(seen, self._asked.get(place, seen))
            if end >= 0:
                behind[place] = max(0, end - position)
        return behind

    def forget(self, places: Collection[Partition]) -> None:
        """Stop tracking partitions that moved to another member."""
        for place in places:
            self._asked.pop(place, None)
            self._asked_at.pop(place, None)

    def _ask(self, client: Consumer, places: Collection[Partition]) -> None:
        """Ask about the longest unasked first: a partition without a leader uses up the time of the others."""
        began = time.monotonic()
        for place in sorted(places, key=lambda place: self._asked_at.get(place, 0.0)):
            left = began + _MOST_ASKING_SECONDS - time.monotonic()
            if left <= 0:
                break
            self._asked_at[place] = began
            with suppress(KafkaException):
                _, self._asked[place] = client.get_watermark_offsets(TopicPartition(*place), timeout=left)
        self._ask_at = time.monotonic() + _ASK_AGAIN_SECONDS
