"""What came and is not handled yet, by partition: in order, bounded by bytes, and held back where something failed."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ferryman.consumer.model import Partition, Record

_OWN_BYTES = 500
"""Of each record, beside what it carries."""


@dataclass(slots=True)
class Buffer:
    """Of one partition. What is handled leaves it from the front."""

    position: int | None = None
    """The offset behind the last that is handled."""
    waiting: deque[Record] = field(default_factory=deque)
    bytes: int = 0
    held_until: float = 0.0
    attempts: int = 0
    """How often what stands in front has failed."""
    alone: bool = False
    """It failed by itself: the others wait for it."""
    begun: int | None = None
    """The offset that was begun alone in this process: while the process lives, once is all that counts."""
    doomed: str | None = None
    """Why it is to be rejected, as soon as there is a connection to write that down."""
    singly: int = 0
    """So many are to be begun alone: the last owner may have been killed by one of them."""

    def add(self, record: Record) -> None:
        if self.position is None:
            self.position = record.offset
        self.waiting.append(record)
        self.bytes += size(record)

    def finish(self, record: Record) -> None:
        """It must stand in front: what was passed over would never be handled."""
        if self.waiting.popleft() is not record:
            raise AssertionError(f"{record} was handled before what stands in front of it")
        self.bytes -= size(record)
        self.position = record.offset + 1
        self.singly = max(0, self.singly - 1)
        self.attempts, self.alone, self.doomed = 0, False, None


@dataclass(slots=True)
class Buffers:
    """Of all partitions that are ours."""

    most_bytes: int
    by_place: dict[Partition, Buffer] = field(default_factory=dict)

    def own(self, places: Collection[Partition], *, singly: int = 0, suspects: Collection[Partition] = ()) -> None:
        for place in places:
            self.by_place[place] = Buffer(singly=singly if place in suspects else 0)

    def drop(self, places: Iterable[Partition]) -> dict[Partition, int]:
        """Where they were."""
        gone = {place: self.by_place.pop(place) for place in places if place in self.by_place}
        return {place: buffer.position for place, buffer in gone.items() if buffer.position is not None}

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if buffer := self.by_place.get(record.place):  # what came of a partition that is gone is another's
                buffer.add(record)

    def ready(self, now: float) -> list[Partition]:
        return [place for place, each in self.by_place.items() if each.waiting and each.held_until <= now]

    def to_pause(self, now: float) -> set[Partition]:
        """Those that are held, and all that have something when there is too much of it."""
        full = self.bytes >= self.most_bytes
        return {place for place, each in self.by_place.items() if each.held_until > now or (full and each.waiting)}

    def next_due(self, now: float) -> float | None:
        """Seconds until the first that is held may go on."""
        held = [each.held_until - now for each in self.by_place.values() if each.held_until > now and each.waiting]
        return min(held) if held else None

    def oldest_age_seconds(self, now: float) -> float:
        """Of what came and waits."""
        fronts = [each.waiting[0].timestamp_ms for each in self.by_place.values() if each.waiting]
        return max(0.0, now - min(fronts) / 1000) if fronts else 0.0

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.by_place.values())

    @property
    def positions(self) -> dict[Partition, int]:
        return {place: each.position for place, each in self.by_place.items() if each.position is not None}


def size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"") + _OWN_BYTES
