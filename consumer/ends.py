"""Where partitions end. Of those that are fetched each answer says it; of those that are held the brokers are asked."""

import time
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ferryman.consumer.model import Partition

_AGAIN_SECONDS = 5.0
# For all of them together: the loop stands still meanwhile.
_MOST_SECONDS = 0.25


@dataclass(slots=True)
class Ends:
    """As one client of a group learns of them. One that is not answered is as long as it was."""

    _told: dict[Partition, int] = field(default_factory=dict)
    _asked_at: dict[Partition, float] = field(default_factory=dict)
    _again_at: float = 0.0

    def behind(
        self, client: Consumer, positions: Mapping[Partition, int], held: AbstractSet[Partition]
    ) -> dict[Partition, int]:
        """How many messages are behind each position, as far as that is known."""
        if time.monotonic() >= self._again_at:
            self._ask(client, held & positions.keys())
        behind = {}
        for place, position in positions.items():
            _, seen = client.get_watermark_offsets(TopicPartition(*place), cached=True)
            end = max(seen, self._told.get(place, seen))
            if end >= 0:
                behind[place] = max(0, end - position)
        return behind

    def forget(self, places: Collection[Partition]) -> None:
        """They are another's."""
        for place in places:
            self._told.pop(place, None)
            self._asked_at.pop(place, None)

    def _ask(self, client: Consumer, places: Collection[Partition]) -> None:
        """First those that were not asked about for longest: one without a leader uses up the time of the others."""
        began = time.monotonic()
        for place in sorted(places, key=lambda place: self._asked_at.get(place, 0.0)):
            left = began + _MOST_SECONDS - time.monotonic()
            if left <= 0:
                break
            self._asked_at[place] = began
            with suppress(KafkaException):
                _, self._told[place] = client.get_watermark_offsets(TopicPartition(*place), timeout=left)
        self._again_at = time.monotonic() + _AGAIN_SECONDS
