"""The partitions of this process: the records that wait in each, and the marks in the database of who owns it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice, takewhile
from math import inf
from typing import TypeAlias

import psycopg
import structlog

from ferryman.consumer import metrics
from ferryman.consumer.model import Partition, Position, Record
from ferryman.consumer.store import owners
from ferryman.consumer.store.receipts import Connection
from ferryman.runtime import postgres
from ferryman.schemas import headers

log = structlog.get_logger(__name__)

Seek: TypeAlias = Callable[[Mapping[Partition, int]], None]
"""Reads partitions from these offsets on."""

_OVERHEAD_BYTES = 500
"""The memory of a record besides its key, value and headers."""
_SPREAD = 0.618
"""The golden ratio: its multiples come near every place between the first and the last."""


@dataclass(slots=True)
class PartitionBuffer:
    """The records of one partition that wait, in order. Handled ones leave it from the front."""

    position: int | None = None
    """The offset behind the last handled record."""
    topic_id: str | None = None
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


class Entitlement(Enum):
    """The way in which a partition came to be ours."""

    COMMITTED = auto()
    """It starts at the offset that its group has committed."""
    FIRST = auto()
    """Its group had committed no offset."""
    SAME = auto()
    """It was marked by this process before."""


@dataclass(slots=True)
class Partitions:
    """The partitions that this process owns. The group member tells it as they come and go.

    Nothing of a partition is handled before it is marked in the database, which says where it starts. A mark of
    ownership that the last owner did not take away says that it died, perhaps of a message.
    """

    consumer: str
    most_bytes: int
    watched: int
    """The number of records to handle in marked batches after an owner died."""
    on_assigned: Callable[[], None] = lambda: None
    goes_back: bool = True
    """False if messages that this database has lost must not be handled again."""
    by_place: dict[Partition, PartitionBuffer] = field(default_factory=dict)
    connection: Connection | None = None
    """The connection of the current turn, for the marks. It may be closed."""
    _unmarked: dict[Partition, Entitlement] = field(default_factory=dict)

    def assigned(self, starts: Mapping[Partition, Position], how: Entitlement = Entitlement.FIRST) -> None:
        metrics.REBALANCES.labels(self.consumer).inc()
        self.by_place |= {place: PartitionBuffer(*start) for place, start in starts.items()}
        self._unmarked |= dict.fromkeys(starts, how)
        self.on_assigned()

    def identify(self, topic_ids: Mapping[str, str]) -> None:
        """Look once more where the partitions of topics start whose ids are new to us."""
        for place, buffer in self.by_place.items():
            topic_id = topic_ids.get(place[0], buffer.topic_id)
            if topic_id != buffer.topic_id:
                buffer.topic_id = topic_id
                self._unmarked.setdefault(place, Entitlement.SAME)

    def mark(self, connection: Connection, seek: Seek) -> None:
        """Mark new partitions as owned, and go back where this database does not know all that Kafka says was handled.

        If that fails, the partitions stay unmarked, and nothing of them is handled.
        """
        if not self._unmarked:
            return
        given = {place: Position(self.by_place[place].position or 0, self.by_place[place].topic_id)
                 for place in self._unmarked}  # fmt: skip
        known = owners.own(connection, self.consumer, given)
        self._watch(known)
        committed = {place for place, how in self._unmarked.items() if how == Entitlement.COMMITTED}
        self._log("this database never knew what Kafka says was handled; if it was restored, reset the group's offsets",
                  {place: {"kafka": given[place].offset} for place in committed
                   if known[place].owned is None and given[place].offset})  # fmt: skip
        self._unmarked = dict.fromkeys(self._unmarked, Entitlement.SAME)
        anew = {place for place, each in known.items() if is_another_topic(given[place], each.position)}
        behind = {place for place, each in known.items() if each.position.offset < given[place].offset} - anew
        back = {place: given[place]._replace(offset=0) for place in anew}
        if self.goes_back:
            back |= {place: given[place]._replace(offset=known[place].position.offset) for place in behind}
        if back:
            seek({place: to.offset for place, to in back.items()})
        for place, to in back.items():
            self.by_place[place].restart(to)
        self._unmarked.clear()
        self._log("topic made anew: it is read from its first record",
                  {place: {"was_at": known[place].position.offset} for place in anew})  # fmt: skip
        self._log("the database is behind Kafka, as after a restore: it goes back" if self.goes_back else
                  "the database is behind Kafka, as after a restore: at most once, nothing is handled again",
                  {place: {"database": known[place].position.offset, "kafka": given[place].offset}
                   for place in behind})  # fmt: skip

    def is_marked(self, place: Partition) -> bool:
        return place in self.by_place and place not in self._unmarked

    def _watch(self, known: Mapping[Partition, owners.KnownPartition]) -> None:
        """Be careful with partitions whose last owner died.

        Begin the records of its marked batch alone, and mark other batches until `watched` records are through: most
        owners do not die of a message.
        """
        suspects = [place for place, each in known.items() if each.owned and self._unmarked[place] != Entitlement.SAME]
        for place in suspects:
            self.by_place[place].singly, self.by_place[place].watched = known[place].marked, self.watched
        if suspects:
            log.warning("an owner died", consumer=self.consumer, partitions=sorted(suspects))

    def _log(self, event: str, partitions: Mapping[Partition, Mapping[str, int]]) -> None:
        if partitions:
            said = {f"{topic}[{number}]": numbers for (topic, number), numbers in sorted(partitions.items())}
            log.warning(event, consumer=self.consumer, partitions=said)

    def revoked(self, places: set[Partition], commit: Callable[[Mapping[Partition, int]], None]) -> None:
        """Commit the offsets of what was handled, and take the marks away."""
        metrics.REBALANCES.labels(self.consumer).inc()
        new = {place for place, how in self._unmarked.items() if how != Entitlement.SAME}
        marked = (places & self.by_place.keys()) - new
        commit(self.drop(places))
        if self.connection is not None and not self.connection.closed and marked:
            try:
                owners.release(self.connection, self.consumer, marked)
            except psycopg.Error as error:  # the next owner then marks its batches
                log.warning("not released", consumer=self.consumer, error=str(postgres.translate(error)))

    def lost(self, places: set[Partition]) -> None:
        metrics.REBALANCES.labels(self.consumer).inc()
        log.warning("partitions lost", consumer=self.consumer, partitions=sorted(places))
        self.drop(places)

    def drop(self, places: set[Partition]) -> dict[Partition, int]:
        """Forget these partitions and return the next offset of each."""
        self._unmarked = {place: how for place, how in self._unmarked.items() if place not in places}
        gone = {place: self.by_place.pop(place) for place in places if place in self.by_place}
        return {place: buffer.position for place, buffer in gone.items() if buffer.position is not None}

    def add(self, records: Iterable[Record]) -> None:
        """Add records, except those of partitions that were taken away meanwhile."""
        for record in records:
            if buffer := self.by_place.get(record.place):
                buffer.add(record)

    def behind(self, records: Iterable[Record]) -> dict[Partition, Position]:
        """Return the positions behind these records."""
        return {each.place: Position(each.offset + 1, self.by_place[each.place].topic_id) for each in records}

    def finish(self, records: Iterable[Record]) -> None:
        for record in records:
            self.by_place[record.place].finish(record)

    def forgive(self) -> None:
        """Reset all retry deadlines after a pause or an outage: time in which nothing was tried must not count."""
        for buffer in self.by_place.values():
            buffer.failing_since = None

    def another(self, record: Record) -> Record | None:
        """Return a waiting message of the record's type that is not known to fail: after each attempt another one."""
        kind, nth = record.header(headers.TYPE), self.by_place[record.place].attempts
        others = [
            each
            for buffer in self.by_place.values()
            for each in islice(buffer.waiting, 1 if buffer.cause else 0, None)
            if each is not record and each.offset not in buffer.singly and each.header(headers.TYPE) == kind
        ]
        return others[int(nth * _SPREAD * len(others)) % len(others)] if others else None

    def share(self, record: Record) -> bool:
        """Return True if the front of another partition fails of the same cause as this one."""
        front = self.by_place[record.place]
        return any(each.cause == front.cause for each in self.by_place.values() if each.waiting and each is not front)

    @property
    def problem(self) -> str | None:
        """The reason why a partition waits though its front is not to blame, or None."""
        return next((each.problem for each in self.by_place.values() if each.problem), None)

    def ready(self, now: float) -> list[Partition]:
        waiting = (place for place, each in self.by_place.items() if each.waiting and each.held_until <= now)
        return [place for place in waiting if place not in self._unmarked]

    def to_hold(self, now: float) -> set[Partition]:
        """Return the partitions that are held; while the buffers are full, all that have something waiting too."""
        full = self.bytes >= self.most_bytes
        return {place for place, each in self.by_place.items() if each.held_until > now or (full and each.waiting)}

    def fed(self) -> set[Partition]:
        """Return the partitions with something waiting. One fetch of the others still tells how old their front is."""
        return {place for place, each in self.by_place.items() if each.waiting}

    def next_due(self, now: float) -> float:
        """Return the seconds until the first held partition may go on; infinity if none is held."""
        held = (each.held_until - now for each in self.by_place.values() if each.held_until > now and each.waiting)
        return min(held, default=inf)

    def oldest_age_seconds(self, now: float) -> float:
        fronts = (each.waiting[0].timestamp_ms for each in self.by_place.values() if each.waiting)
        return max(0.0, now - min(fronts, default=inf) / 1000)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.by_place.values())

    @property
    def positions(self) -> dict[Partition, int]:
        return {place: each.position for place, each in self.by_place.items() if each.position is not None}


def is_another_topic(ours: Position, theirs: Position) -> bool:
    """Return True if the topic was deleted and made anew, as far as Kafka tells."""
    return None not in (ours.topic_id, theirs.topic_id) and ours.topic_id != theirs.topic_id


def size_of(record: Record) -> int:
    named = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + named + _OVERHEAD_BYTES
