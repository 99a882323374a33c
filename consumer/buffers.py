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
    """So many are to be begun alone: one of them may have closed the connection."""
    singly_until: int = 0
    """What is before this offset is begun alone: the last owner died of a batch that went so far."""
    watched: int = 0
    """So many are begun in batches that are marked: the last owner died of nobody knows what."""

    def add(self, record: Record) -> None:
        if self.position is None:
            self.position = record.offset
        self.waiting.append(record)
        self.bytes += size(record)

    @property
    def suspicious(self) -> bool:
        """Whether what stands in front may be what ended a process, or a connection."""
        return self.singly > 0 or (bool(self.waiting) and self.waiting[0].offset < self.singly_until)

    def finish(self, record: Record) -> None:
        """It must stand in front: what was passed over would never be handled."""
        if self.waiting.popleft() is not record:
            raise AssertionError(f"{record} was handled before what stands in front of it")
        self.bytes -= size(record)
        self.position = record.offset + 1
        self.singly, self.watched = max(0, self.singly - 1), max(0, self.watched - 1)
        self.attempts, self.alone, self.doomed = 0, False, None


@dataclass(slots=True)
class Buffers:
    """Of all partitions that are ours."""

    most_bytes: int
    by_place: dict[Partition, Buffer] = field(default_factory=dict)

    def own(self, places: Collection[Partition]) -> None:
        for place in places:
            self.by_place[place] = Buffer()

    def suspect(self, place: Partition, until: int, most: int) -> None:
        """Its last owner died. What it had marked is begun alone; for the rest batches are marked, until as many as one
        may have are through: most owners die of something else than a message.
        """
        if buffer := self.by_place.get(place):
            buffer.singly_until, buffer.watched = until, most

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
