"""What came and is not handled yet, by partition: in order, bounded by bytes, and held back where something failed."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from ferryman.consumer.model import Partition, Record

_OWN_BYTES = 500
"""Of each record, beside what it carries."""


@dataclass(slots=True)
class Buffer:
    """Of one partition. What is handled leaves it from the front."""

    position: int | None = None
    """The offset behind the last that is handled."""
    waiting: deque[Record] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)
    """Of each that waits."""
    bytes: int = 0
    held_until: float = 0.0
    ends: list[int] = field(default_factory=list)
    """What failed is taken apart: where each part ends, the one that is next last. Empty while nothing has failed."""
    attempts: int = 0
    """How often what stands in front has failed, alone or with others: by that it waits."""
    bugs: int = 0
    """How often that was its handler's doing, and it was alone."""
    failing_since: float | None = None
    """When it failed alone for the first time, and not for good; while nothing is tried, no time passes."""
    begun: int | None = None
    """The offset that was begun alone in this process: while the process lives, once is all that counts."""
    claiming: int | None = None
    """at_most_once: the offset whose claim was not answered. It may stand in the inbox, and be nobody else's."""
    doomed: tuple[str, str] | None = None
    """The code and the words it is to be rejected with, as soon as that can be written down."""
    singly: range = range(0)
    """These offsets are begun alone: the last owner died of a batch that had them."""
    watched: int = 0
    """So many are begun in batches that are marked: the last owner died of nobody knows what."""

    def add(self, record: Record) -> None:
        if self.position is None:
            self.position = record.offset
        self.waiting.append(record)
        self.sizes.append(size(record))
        self.bytes += self.sizes[-1]

    @property
    def suspicious(self) -> bool:
        """Whether what stands in front may be what ended a process."""
        return bool(self.waiting) and self.waiting[0].offset in self.singly

    @property
    def apart(self) -> bool:
        """Whether it is handled by itself, and not in one transaction with other partitions."""
        return bool(self.ends) or self.suspicious

    def next(self, most: int) -> list[Record]:
        """From the front, as many as may be handled together."""
        if self.suspicious:
            return [self.waiting[0]]
        end = self.ends[-1] if self.ends else None

        def together(record: Record) -> bool:
            return (end is None or record.offset < end) and record.offset not in self.singly

        return list(takewhile(together, islice(self.waiting, most)))

    def take_apart(self, failed: Sequence[Record], *, halve: bool) -> None:
        """What failed is tried again by itself, or its first half before its second."""
        end = failed[-1].offset + 1
        if not self.ends or self.ends[-1] != end:
            self.ends.append(end)
        if halve and len(failed) > 1:
            self.ends.append(failed[len(failed) // 2].offset)

    def finish(self, record: Record) -> None:
        """It must stand in front: what was passed over would never be handled."""
        if self.waiting.popleft() is not record:
            raise AssertionError(f"{record} was handled before what stands in front of it")
        self.bytes -= self.sizes.popleft()
        self.position = record.offset + 1
        self.watched = max(0, self.watched - 1)
        front = self.waiting[0].offset if self.waiting else self.position
        while self.ends and self.ends[-1] <= front:
            self.ends.pop()
        self.attempts = self.bugs = 0
        self.failing_since = self.doomed = self.claiming = None


@dataclass(slots=True)
class Buffers:
    """Of all partitions that are ours."""

    most_bytes: int
    by_place: dict[Partition, Buffer] = field(default_factory=dict)

    def own(self, places: Collection[Partition]) -> None:
        for place in places:
            self.by_place[place] = Buffer()

    def suspect(self, place: Partition, marked: range, most: int) -> None:
        """Its last owner died. What it had marked is begun alone; for the rest batches are marked, until as many as one
        may have are through: most owners die of something else than a message.
        """
        if buffer := self.by_place.get(place):
            buffer.singly, buffer.watched = marked, most

    def drop(self, places: Iterable[Partition]) -> dict[Partition, int]:
        """Where they were."""
        gone = {place: self.by_place.pop(place) for place in places if place in self.by_place}
        return {place: buffer.position for place, buffer in gone.items() if buffer.position is not None}

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if buffer := self.by_place.get(record.place):  # what came of a partition that is gone is another's
                buffer.add(record)

    def forgive(self) -> None:
        """While nothing was tried, nothing has failed: what was seen to fail is given its whole time again."""
        for buffer in self.by_place.values():
            buffer.failing_since = None

    def ready(self, now: float) -> list[Partition]:
        return [place for place, each in self.by_place.items() if each.waiting and each.held_until <= now]

    def to_pause(self, now: float) -> set[Partition]:
        """Those that are held, and all that have something when there is too much of it."""
        full = self.bytes >= self.most_bytes
        return {place for place, each in self.by_place.items() if each.held_until > now or (full and each.waiting)}

    def fed(self) -> set[Partition]:
        """Those that have something waiting: of the others one fetch shows how old what comes is."""
        return {place for place, each in self.by_place.items() if each.waiting}

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
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + _OWN_BYTES
