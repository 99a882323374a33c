"""A consumer's loop: poll Kafka, handle a portion of the records in a transaction, then commit their offsets."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol
from uuid import UUID

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.api import Consumer
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.failures import (
    Failure,
    Failures,
    HandlerFailed,
    NotNow,
    NotThere,
    Overtaken,
    SessionLost,
    Undecided,
    calls_of,
    cause_of,
)
from ferryman.consumer.kafka.consumer_topics import is_retry_topic
from ferryman.consumer.model import BY_ID, Item, Partition, Received, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.store import owners
from ferryman.consumer.transaction import Transactions
from ferryman.consumer.wire import Decode, decode, poison_of, type_of
from ferryman.runtime.errors import Misconfigured, Transient, Unreachable
from ferryman.runtime.life import Before, no_hook
from ferryman.runtime.pace import Pace, stood_in_line
from ferryman.runtime.settings import ConsumerSettings
from ferryman.schemas import headers

log = structlog.get_logger(__name__)

KILLER, UNKNOWN_TYPE = "KILLER", "UNKNOWN_TYPE"

# Rest for this multiple of the time that the batch waited for a processor. A multiple of the wall time would make the
# batches of a moderate load grow without need, since a batch waits for servers and computes in proportion to its size.
_RESTS, _LONGEST_REST_SECONDS = 1.0, 0.05

_COMPARED, _COMPARE_SECONDS, _COMPARE_RESTS = 6, 2.0, 10.0
"""While all fail alike, this many others are tried, with rests of so many seconds or this multiple of what it took."""

_RECENT_SECONDS = 60.0
"""A table that a message of the same type used so lately is there: a few messages that miss it are to blame."""


class Feed(Protocol):
    """The source of records: a member of a Kafka group, or one in memory."""

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]: ...
    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None: ...
    def hold(self, partitions: Collection[Partition]) -> None: ...
    def seek(self, offsets: Mapping[Partition, int]) -> None: ...


@dataclass(slots=True)
class ConsumerLoop:
    """The loop of one member of a group, in the mode `effectively_once`: a portion that fails is retried in parts.

    It outlives database connections: each turn is lent one, which is in autocommit mode between transactions.
    """

    consumer: Consumer
    feed: Feed
    settings: ConsumerSettings
    partitions: Partitions
    transactions: Transactions
    decode: Decode = decode
    before: Before = no_hook
    clock: Callable[[], float] = time.monotonic
    pace: Pace = field(default_factory=lambda: Pace(_RESTS, _LONGEST_REST_SECONDS, stood_in_line))
    failures: Failures = field(init=False)
    _turns: int = 0
    _rested_at: float = 0.0
    _compare_at: float = 0.0

    def __post_init__(self) -> None:
        self.failures = Failures(self.consumer.name, self.settings, self.partitions)

    def turn(self, lent: HandlerConnection, *, paused: bool = False) -> int:
        """Poll, handle one portion and commit its offsets. Return how many records are finished."""
        self.partitions.connection = lent.connection
        self._poll(paused=paused)
        self.partitions.mark(lent.connection, self.feed.seek)
        if paused:
            self.partitions.forgive()
            return 0
        self._compare(lent)
        records = self._portion()
        if not records:
            return 0
        self.pace.began()
        finished = self.handle(lent, records)
        self._commit(finished)
        self._rested_at = self.clock() + self.pace.rest_seconds()
        return len(finished)

    def _poll(self, *, paused: bool) -> None:
        """Fetch records; wait for them if nothing else is to do."""
        now = self.clock()
        self.feed.hold(self.partitions.fed() if paused else self.partitions.to_hold(now))
        ready = self.partitions.ready(now)
        busy = ready and not paused
        wait = 0.0 if busy else min(self.settings.poll_seconds, self.partitions.next_due(now))
        gather = 0.0 if ready or paused else max(0.0, self._rested_at - now)
        self.before("poll")
        self.partitions.add(self.feed.take(self.settings.batch_messages, wait, gather))

    def _portion(self) -> list[Record]:
        """Return the next records of each partition that is not held, starting with another partition each turn.

        A partition in which something failed, or may kill the process, gets a portion of its own.
        """
        portion: list[Record] = []
        ready = self.partitions.ready(self.clock())
        size = self.transactions.size
        self._turns += 1
        first = self._turns % max(1, len(ready))
        for place in (*ready[first:], *ready[:first]):
            buffer = self.partitions.by_place[place]
            if not buffer.apart:
                portion += buffer.next(size - len(portion))
            elif not portion:
                return buffer.next(size)
            if len(portion) >= size:
                break
        return portion

    def handle(self, lent: HandlerConnection, records: Sequence[Record]) -> list[Record]:
        """Handle these records, and return those that are finished: all or none."""
        self._mark(lent, records)
        buffer = self.partitions.by_place[records[0].place]
        if buffer.doomed:
            return self._reject(lent, records[0], *buffer.doomed)
        if buffer.suspicious and self._deaths(lent, buffer, records[0]) > self.settings.kills:
            return self._reject(lent, records[0], KILLER, "each process that began it alone died")
        began = self.clock()
        try:
            self.transact(lent, records, [self.item(record) for record in records])
        except Overtaken:
            return []  # their receipts, or the lost ones in front of them, are found at the next try
        except SessionLost as error:
            now = self.clock()
            buffer.doomed = self.failures.failed(records, error, now, now - began)
            self.transactions.shrink(len(records))
            raise
        except Unreachable:
            raise
        except (NotNow, Undecided, Transient, HandlerFailed) as error:
            return self._failed(lent, records, error)
        self.partitions.finish(records)
        return list(records)

    def item(self, record: Record) -> Item | None:
        """Decode a record. Return None if its type has no handler and is to be ignored.

        If its headers cannot be read, its type is not known, and it is rejected.
        """
        kind = type_of(record)
        if kind in self.consumer.handlers or record.no_headers is not None:
            try:
                return self.decode(record, kind, self._id_from(record))
            except (Transient, Misconfigured) as error:
                raise Undecided(str(error)) from error
        if self.consumer.unknown == "ignore":
            return None
        known = ", ".join(self.consumer.handlers)
        why = f"{self.consumer.name} has no handler for {kind or 'a record without a type'}, only for {known}"
        return poison_of(record, UNKNOWN_TYPE, why, self._id_from(record))

    def _id_from(self, record: Record) -> Sequence[str]:
        """Return the headers that make the record's id. A requeued record has the id that it had at first."""
        own = self.consumer.id_from
        return BY_ID if own != BY_ID and is_retry_topic(record.topic, self.consumer.name) else own

    def transact(
        self,
        lent: HandlerConnection,
        records: Sequence[Record],
        items: Sequence[Item | None],
        claimed: frozenset[UUID] = frozenset(),
    ) -> None:
        """Handle the items of these records, and write the positions behind the records.

        If the database is not where this process left it, the positions are read again before anything else is handled.
        """
        wanted = [item for item in items if item is not None]
        reached, in_step = self.partitions.behind(records), False
        try:
            if wanted:
                in_step = self.transactions.run(lent, wanted, claimed, reached)
            else:
                in_step = owners.reach(lent.connection, self.consumer.name, reached)
        except Overtaken:
            self.partitions.look_again(reached)
            raise
        if in_step:
            self.partitions.wrote(reached)
        else:
            self.partitions.look_again(reached)
        metrics.MESSAGES.labels(self.consumer.name, "ignored").inc(len(items) - len(wanted))

    def _mark(self, lent: HandlerConnection, records: Sequence[Record]) -> None:
        """Write down which offsets this batch has of partitions whose last owner died.

        If this process dies too, the cause is among them.
        """
        watched = {place for place, each in self.partitions.by_place.items() if each.watched and not each.suspicious}
        spans: dict[Partition, range] = {}
        for each in records:
            if each.place in watched:
                first = spans[each.place].start if each.place in spans else each.offset
                spans[each.place] = range(first, each.offset + 1)
        if spans:
            owners.begin_batch(lent.connection, self.consumer.name, spans)

    def _deaths(self, lent: HandlerConnection, buffer: PartitionBuffer, record: Record) -> int:
        """Count the processes that began this message alone, this one included. Its retries here do not count."""
        if buffer.begun == record.offset:
            return 0
        # Only one offset is counted, so the messages in front of it must not come again.
        self.feed.commit({record.place: record.offset}, wait=True)
        times, buffer.begun = owners.begin_alone(lent.connection, self.consumer.name, record), record.offset
        return times

    def _failed(self, lent: HandlerConnection, records: Sequence[Record], error: Failure) -> list[Record]:
        """Handle a failed batch. Return the finished records: none, or the rejected one."""
        if verdict := self.failures.failed(records, error, self.clock()):
            shared = False if lent.connection.closed else self._is_shared(lent, records[0], error)
            if not self.failures.wait(records[0], error, self.clock(), shared=shared):
                return self._reject(lent, records[0], *verdict, calls_of(error))
        if lent.connection.closed:  # the handler that closes it is found part by part, each time on a new connection
            raise Unreachable("a handler closed the connection")
        return []

    def _is_shared(self, lent: HandlerConnection, record: Record, error: Failure) -> bool | None:
        """Return True if others fail of the same cause, and no message of the record's type works meanwhile.

        Return None if nothing tells: something is not there, and no message of the type has worked here yet.
        """
        cause = cause_of(error)
        worked_at = self.transactions.worked.get(type_of(record), -inf)
        if cause is None or worked_at > (self.partitions.by_place[record.place].failing_since or 0.0):
            return False
        other = self.partitions.another(record)
        works = None if other is None else self._works(lent, other, cause)
        if works is not None:
            if other and works and isinstance(error, NotThere) and not self.failures.knows(record, error, self.clock()):
                works = not self._works(lent, record, cause)  # what it needs may have come since it was tried
                self.partitions.worked[record.header(headers.TYPE)] = other
            return not works
        recently = isinstance(error, NotThere) and worked_at > self.clock() - _RECENT_SECONDS
        if not recently and self.partitions.share(record):
            return True
        return None if isinstance(error, NotThere) and worked_at == -inf else False

    def _compare(self, lent: HandlerConnection) -> None:
        """Try others now and then while all fail alike. If one works, those in front count from the beginning."""
        began = self.clock()
        alike = self.partitions.alike() if began >= self._compare_at else {}
        for (kind, cause), fronts in alike.items():
            if self._any_works(lent, self.partitions.others(kind, _COMPARED), cause):
                for each in fronts:
                    each.count_anew()
            else:
                now = self.clock()
                self._compare_at = now + max(_COMPARE_SECONDS, _COMPARE_RESTS * (now - began))

    def _any_works(self, lent: HandlerConnection, others: Sequence[Record], cause: str) -> bool:
        """Try these messages until one works, but no more once it took long."""
        until = self.clock() + _COMPARE_SECONDS / _COMPARE_RESTS
        for each in others:
            if self._works(lent, each, cause):
                return True
            if lent.connection.closed:
                raise Unreachable("the connection was lost while messages were compared")
            if self.clock() > until:
                break
        return False

    def _works(self, lent: HandlerConnection, other: Record, cause: str) -> bool | None:
        """Try another message, and roll it back. Return None if that tells nothing about the cause."""
        self._mark(lent, [other])
        kind = other.header(headers.TYPE)
        self.partitions.worked.pop(kind, None)
        try:
            item = self.item(other)
            if not isinstance(item, Received) or not self.transactions.works(lent, item):
                return None
            self.partitions.worked[kind] = other
            return True
        except SessionLost:
            return None
        except Unreachable:
            raise
        except (NotNow, Undecided, Transient, HandlerFailed) as error:
            return False if cause_of(error) == cause else None

    def _reject(
        self, lent: HandlerConnection, record: Record, code: str, why: str, where: Sequence[str] = ()
    ) -> list[Record]:
        """Reject the record now, or as soon as that can be written: the decision stands. `where` is for the log."""
        buffer = self.partitions.by_place[record.place]
        buffer.doomed = code, why
        if lent.connection.closed:
            raise Unreachable("a handler closed the connection")
        poison = poison_of(record, code, why, self._id_from(record))
        try:
            self.transact(lent, [record], [poison])
        except Overtaken:
            return []
        except Unreachable:
            raise
        except (Transient, HandlerFailed) as error:
            self.failures.hold(buffer, record, error, self.clock())
            return []
        log.error("rejected", consumer=self.consumer.name, record=str(record), type=poison.type, code=code,
                  error=poison.error, where=list(where))  # fmt: skip
        self.partitions.finish([record])
        return [record]

    def _commit(self, finished: list[Record]) -> None:
        if finished:
            self.before("offsets")
            places = {each.place for each in finished}
            self.feed.commit({place: self.partitions.by_place[place].position or 0 for place in places})
