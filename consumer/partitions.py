"""The partitions of this process: the records that wait in each, and the marks in the database of who owns it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, islice
from math import inf
from typing import TypeAlias

import psycopg
import structlog

from ferryman.consumer import metrics
from ferryman.consumer.model import Advance, Partition, Position, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.store import owners
from ferryman.consumer.store.receipts import Connection
from ferryman.runtime import postgres
from ferryman.schemas import headers

log = structlog.get_logger(__name__)

Seek: TypeAlias = Callable[[Mapping[Partition, int]], None]
"""Reads partitions from these offsets on."""

_SPREAD = 0.618
"""The golden ratio: its multiples come near every place between the first and the last."""


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
    worked: dict[bytes | None, Record] = field(default_factory=dict)
    """A message of each type that worked when it was compared. It may be gone by now."""
    _unmarked: dict[Partition, Entitlement] = field(default_factory=dict)
    _compared: int = 0

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

    def look_again(self, places: Iterable[Partition] | None = None) -> None:
        """Have the positions of these partitions, or of all, read again: the database may have been put back."""
        for place in self.by_place if places is None else places:
            self._unmarked.setdefault(place, Entitlement.SAME)

    def mark(self, connection: Connection, seek: Seek) -> None:
        """Mark partitions as owned, and go back where this database does not know all that was handled.

        How far that is, Kafka's offset says for a new partition, and for any other the position that we wrote last. If
        this fails, the partitions stay unmarked, and nothing of them is handled.
        """
        if not self._unmarked:
            return
        mine = {place: self.by_place[place] for place in self._unmarked}
        known = owners.own(
            connection, self.consumer, {p: Position(each.began, each.topic_id) for p, each in mine.items()}
        )
        handled = {p: (each.position or 0) if each.written is None else each.written for p, each in mine.items()}
        anew = {place for place, each in known.items() if is_another_topic(mine[place].topic_id, each.before)}
        behind = {place for place, each in known.items() if each.position.offset < handled[place]} - anew
        self._watch(known, restored=bool(behind))
        self._log("this database never knew what Kafka says was handled; if it was restored, reset the group's offsets",
                  {place: {"kafka": handled[place]} for place, how in self._unmarked.items()
                   if how != Entitlement.FIRST and known[place].owned is None and handled[place]})  # fmt: skip
        self._unmarked = dict.fromkeys(self._unmarked, Entitlement.SAME)
        if back := anew | behind if self.goes_back else anew:
            seek({place: known[place].position.offset for place in back})
        passed = {
            place: Advance(known[place].position.offset, Position(mine[place].position or 0, mine[place].topic_id))
            for place in sorted(behind - back)
        }
        if passed:  # what was handled stays handled, so the database follows
            owners.reach(connection, self.consumer, passed)
        for place, buffer in mine.items():
            if place in back:
                buffer.restart(known[place].position)
            buffer.written = known[place].position.offset
        self.wrote(passed)
        self._unmarked.clear()
        self._log("topic made anew: it is read from its first record",
                  {place: {"was_at": was.offset} for place in anew if (was := known[place].before)})  # fmt: skip
        self._log("the database is behind Kafka, as after a restore: it goes back" if self.goes_back else
                  "the database is behind Kafka, as after a restore: at most once, nothing is handled again",
                  {place: {"database": known[place].position.offset, "kafka": handled[place]}
                   for place in behind})  # fmt: skip

    def is_marked(self, place: Partition) -> bool:
        return place in self.by_place and place not in self._unmarked

    def _watch(self, known: Mapping[Partition, owners.KnownPartition], *, restored: bool) -> None:
        """Be careful with partitions whose last owner died.

        Begin the records of its marked batch alone, and mark other batches until `watched` records are through: most
        owners do not die of a message. In a restored database, the marks are those of the time of its backup.
        """
        suspects = [place for place, each in known.items() if each.owned and self._unmarked[place] != Entitlement.SAME]
        for place in suspects:
            self.by_place[place].singly, self.by_place[place].watched = known[place].marked, self.watched
        if suspects and not restored:
            log.warning(
                "an owner died, or the database was restored", consumer=self.consumer, partitions=sorted(suspects)
            )

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

    def behind(self, records: Iterable[Record]) -> dict[Partition, Advance]:
        """Return the positions behind these records, sorted, so that two owners hardly ever deadlock."""
        ends = {each.place: each.offset + 1 for each in records}
        buffers = {place: self.by_place[place] for place in sorted(ends)}
        return {p: Advance(each.written, Position(ends[p], each.topic_id)) for p, each in buffers.items()}

    def wrote(self, reached: Mapping[Partition, Advance]) -> None:
        """Note the positions that a batch has written."""
        for place, each in reached.items():
            self.by_place[place].written = each.to.offset

    def finish(self, records: Iterable[Record]) -> None:
        for record in records:
            self.by_place[record.place].finish(record)

    def forgive(self) -> None:
        """Reset all retry deadlines after a pause or an outage: time in which nothing was tried must not count."""
        for buffer in self.by_place.values():
            buffer.failing_since = None

    def another(self, record: Record) -> Record | None:
        """Return a waiting message of the record's type to compare it with. Prefer one that has worked before."""
        kind = record.header(headers.TYPE)
        worked = self.worked.get(kind)
        if worked is not None and worked is not record and self._waits(worked):
            return worked
        return next(iter(self.others(kind, 1)), None)

    def others(self, kind: bytes | None, most: int) -> list[Record]:
        """Return waiting messages of a type that are not known to fail, other ones each time.

        Every second one is the last of its partition: if all in front fail, it is the last ones that tell more.
        """
        found = [some for buffer in self.by_place.values() if (some := _comparable(buffer, kind))]
        every = list(chain.from_iterable(found))
        chosen: dict[tuple[Partition, int], Record] = {}
        for _ in range(most if every else 0):
            self._compared += 1
            nth, last = divmod(self._compared, 2)
            each = found[nth % len(found)][-1] if last else every[int(nth * _SPREAD * len(every)) % len(every)]
            chosen[each.place, each.offset] = each
        return list(chosen.values())

    def alike(self) -> dict[tuple[bytes | None, str], list[PartitionBuffer]]:
        """Return the partitions whose fronts wait because others fail of the same cause, by their type and cause."""
        found: dict[tuple[bytes | None, str], list[PartitionBuffer]] = {}
        for each in self.by_place.values():
            if each.waiting and each.problem and each.cause:
                found.setdefault((each.waiting[0].header(headers.TYPE), each.cause), []).append(each)
        return found

    def _waits(self, record: Record) -> bool:
        """Return True if the record waits, and is not known to fail."""
        buffer = self.by_place.get(record.place)
        if buffer is None or not buffer.waiting or record.offset in buffer.singly:
            return False
        first = buffer.waiting[0].offset + bool(buffer.cause)
        return first <= record.offset < buffer.following

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
        """Return the partitions of which nothing more is fetched: while the buffers are full, all that have something.

        A partition that waits for its next try is fetched up to its share of half of the memory: what comes behind may
        tell whose fault the failure is, and the other half is for partitions that work.
        """
        full, share = self.bytes >= self.most_bytes, self.most_bytes / 2 / max(1, len(self.by_place))
        return {
            place
            for place, each in self.by_place.items()
            if each.waiting and (full or (each.held_until > now and each.bytes >= share))
        }

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


def is_another_topic(topic_id: str | None, before: Position | None) -> bool:
    """Return True if the topic was deleted and made anew, as far as Kafka tells."""
    return before is not None and None not in (topic_id, before.topic_id) and topic_id != before.topic_id


def _comparable(buffer: PartitionBuffer, kind: bytes | None) -> list[Record]:
    """Return the waiting records of a type, but for a front that is known to fail, and for suspects."""
    unknown = islice(buffer.waiting, 1 if buffer.cause else 0, None)
    return [each for each in unknown if each.offset not in buffer.singly and each.header(headers.TYPE) == kind]
