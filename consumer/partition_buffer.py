"""The records of one partition that wait to be handled, and what is known of a front that fails."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from ferryman.consumer.model import Position, Record

_OVERHEAD_BYTES = 500
"""The memory of a record besides its key, value and headers."""


@dataclass(slots=True)
class PartitionBuffer:
    """The records of one partition that wait, in order. Handled ones leave it from the front."""

    position: int | None = None
    """The offset behind the last handled record."""
    topic_id: str | None = None
    began: int = field(init=False)
    """The first offset that this process has read. A database that has lost the partition is put back to it."""
    written: int | None = None
    """The position as this process last read or wrote it in the database. None until the partition is marked."""
    waiting: deque[Record] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)
    """The size of each waiting record."""
    bytes: int = 0
    held_until: float = 0.0
    ends: list[int] = field(default_factory=list)
    """A stack of the end offsets of the parts still to retry; the next part is last. Empty while nothing failed."""
    attempts: int = 0
    """The failures of the front record, alone or with others: the backoff grows by them."""
    bugs: int = 0
    """The failures of the front record alone that were its handler's fault."""
    failing_since: float | None = None
    """The time of the front's first transient failure alone. It is reset when nothing can be tried for a while."""
    begun: int | None = None
    """The offset that this process has begun alone: retries in a living process do not count."""
    lost_seconds: float = 0.0
    """The time of the front's tries alone that lost their session, and of the waits after them."""
    claiming: int | None = None
    """at_most_once: the offset whose claim got no answer. It may be in the inbox, claimed by this process."""
    cause: str | None = None
    """The cause of the front's last failure, if other messages may fail of it too."""
    problem: str | None = None
    """The reason why the front waits though it is not to blame, for a person to read."""
    doomed: tuple[str, str] | None = None
    """The code and error to reject the front with, as soon as that can be written."""
    singly: range = range(0)
    """The offsets to begin alone: the last owner died in a batch that contained them."""
    watched: int = 0
    """The number of records still to handle in marked batches, because the last owner died of an unknown cause."""

    def __post_init__(self) -> None:
        self.began = self.position or 0

    def add(self, record: Record) -> None:
        if self.position is None:
            self.position = record.offset
        self.waiting.append(record)
        self.sizes.append(size_of(record))
        self.bytes += self.sizes[-1]

    @property
    def following(self) -> int:
        """The offset behind the last record that waits, or was handled."""
        return self.waiting[-1].offset + 1 if self.waiting else self.position or 0

    def restart(self, position: Position) -> None:
        """Drop what waits: it comes again, from this position on."""
        fresh = PartitionBuffer(position.offset, position.topic_id, singly=self.singly, watched=self.watched)
        fresh.began = min(self.began, position.offset)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    @property
    def suspicious(self) -> bool:
        """True if the front may have killed a process."""
        return bool(self.waiting) and self.waiting[0].offset in self.singly

    @property
    def apart(self) -> bool:
        """True if the next records must not share a transaction with other partitions."""
        return bool(self.ends) or self.suspicious

    def next(self, most: int) -> list[Record]:
        """Return the records at the front that may be handled together."""
        if self.suspicious:
            return [self.waiting[0]]
        end = self.ends[-1] if self.ends else None

        def together(record: Record) -> bool:
            return (end is None or record.offset < end) and record.offset not in self.singly

        return list(takewhile(together, islice(self.waiting, most)))

    def take_apart(self, failed: Sequence[Record], *, halve: bool) -> None:
        """Retry the failed records by themselves, or their first half before the second."""
        end = failed[-1].offset + 1
        if not self.ends or self.ends[-1] != end:
            self.ends.append(end)
        if halve and len(failed) > 1:
            self.ends.append(failed[len(failed) // 2].offset)

    def finish(self, record: Record) -> None:
        """Remove a handled record. It must be in front: records that are skipped would never be handled."""
        if self.waiting.popleft() is not record:
            raise AssertionError(f"{record} was handled before the record in front of it")
        self.bytes -= self.sizes.popleft()
        self.position = record.offset + 1
        self.watched = max(0, self.watched - 1)
        front = self.waiting[0].offset if self.waiting else self.position
        while self.ends and self.ends[-1] <= front:
            self.ends.pop()
        self.attempts = self.bugs = 0
        self.lost_seconds = 0.0
        self.failing_since = self.doomed = self.claiming = self.cause = self.problem = None

    def count_anew(self) -> None:
        """Try the front again at once, and count its failures from the beginning."""
        self.attempts = self.bugs = 0
        self.held_until = 0.0
        self.failing_since = self.problem = None


def size_of(record: Record) -> int:
    named = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + named + _OVERHEAD_BYTES
