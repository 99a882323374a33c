"""Where a group begins in partitions in which Kafka knows no offset of it, without passing over anything in silence.

What it has read had an offset, unless that expired while nobody was there. What came since is then there whole, or it
is not known what was lost: that is a person's to look at.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from ferryman.consumer.model import Partition
from ferryman.consumer.retries import is_retry_topic
from ferryman.runtime.errors import Permanent

_LEAST_SECONDS = 0.1


class OffsetsGone(Permanent):
    """The topic does not have what comes next any more: whether to go on is a person's to say."""


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Of one group."""

    group: str
    start: str
    seconds: float
    read_before: Callable[[set[Partition]], set[Partition]]

    def of(self, client: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """Each with its offset. One that has no leader, and that the group has never read, holds up no other."""
        ends, unknown = self._ends(client, places)
        doubtful = {place for place in ends if self._at_the_end(place) or ends[place][0] > 0} | unknown.keys()
        before = self.read_before(doubtful) if doubtful else set()
        for place, error in unknown.items():
            if place in before or self._at_the_end(place):
                raise error
        self._refuse_to_skip(before)
        return [self._first((each.topic, each.partition), ends) for each in places]

    def _at_the_end(self, place: Partition) -> bool:
        """What is requeued is always new to a group."""
        return self.start == "latest" and not is_retry_topic(place[0], self.group)

    def _first(self, place: Partition, ends: dict[Partition, tuple[int, int]]) -> TopicPartition:
        if place not in ends:
            return TopicPartition(*place, OFFSET_BEGINNING)
        low, high = ends[place]
        return TopicPartition(*place, high if self._at_the_end(place) else low)

    def _ends(
        self, client: Consumer, places: list[TopicPartition]
    ) -> tuple[dict[Partition, tuple[int, int]], dict[Partition, KafkaException]]:
        """The first offset of each and the one behind its last; or why it is not known."""
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

    def _refuse_to_skip(self, gone: set[Partition]) -> None:
        if not gone:
            return
        places = ", ".join(f"{topic}[{number}]" for topic, number in sorted(gone))
        if any(map(self._at_the_end, gone)):
            why = "to begin at the end would skip what came since"
        else:
            why = "records were deleted there: to begin at the first that is left may skip some that it has not read"
        raise OffsetsGone(
            f"{self.group} has read {places} before, and its offsets are gone: {why}",
            remedy="see what was lost; then reset the group's offsets to where it is to go on "
            "(kafka-consumer-groups --reset-offsets)",
        )
