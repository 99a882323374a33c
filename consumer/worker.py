"""A consumer's loop: poll, one transaction for what came, offsets after it; and what to do when that fails.

What fails is taken apart, a part in each turn, down to the message that cannot be handled. That one is tried again a
few times while its partition is held, then it is rejected, with its record kept. The others go on meanwhile.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.api import Consumer, Handled
from ferryman.consumer.buffers import Buffer, Buffers
from ferryman.consumer.claims import Claims
from ferryman.consumer.deadline import Deadline
from ferryman.consumer.decoding import Decode, decode, poison_of, type_of
from ferryman.consumer.face import Face
from ferryman.consumer.faults import HandlerFailed, NotNow, Overtaken, SessionLost, TookTooLong, Undecided
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Partition, Poison, Received, Record
from ferryman.consumer.policy import Policy, next_size
from ferryman.consumer.setbacks import Setback, Setbacks
from ferryman.consumer.store import starts
from ferryman.consumer.store.receipts import Connection
from ferryman.consumer.transaction import BatchTransaction
from ferryman.runtime.errors import Transient, Unreachable
from ferryman.runtime.pace import Pace, stood_in_line

log = structlog.get_logger(__name__)

# So many times as long as it stood in line for a processor: a batch computes and waits for as many messages as it has,
# and a rest by what all that took would make a moderate load's batches grow without need.
_RESTS = 1.0

KILLER, UNKNOWN_TYPE = "KILLER", "UNKNOWN_TYPE"


@dataclass(slots=True)
class Worker:
    """On one connection, which is in autocommit mode between transactions; `serve` is called again after each failure
    of the database, with a new one.
    """

    consumer: Consumer
    feed: Feed
    policy: Policy
    buffers: Buffers
    deadline: Deadline
    own: Callable[[Connection], None] = lambda _connection: None
    decode: Decode = decode
    before: Callable[[str], None] = lambda _step: None
    tell: Callable[[Sequence[Handled]], None] = lambda _handled: None
    """Of what is committed; returns at once."""
    clock: Callable[[], float] = time.monotonic
    pace: Pace = field(default_factory=lambda: Pace(lambda: _RESTS, clock=stood_in_line))
    paused: bool = False
    _setbacks: Setbacks = field(init=False)
    _size: int = field(init=False)
    """So many messages at once: fewer for a while, where they took long."""
    _claims: Claims = field(init=False)
    _turns: int = 0
    _rested_at: float = 0.0

    def __post_init__(self) -> None:
        self._setbacks = Setbacks(self.consumer.name, self.policy, self.buffers)
        self._size = self.policy.batch
        self._claims = Claims(
            self.consumer.name, self.policy, self.buffers, self._setbacks, self._item, self._transact, self.clock,
            self.before,
        )  # fmt: skip

    def turn(self, connection: Connection, face: Face) -> int:
        """Takes what there is and handles some of it; how many messages have their verdict now."""
        now = self.clock()
        self._hold_back(now)
        ready = self.buffers.ready(now)
        wait = 0.0 if ready and not self.paused else min(self.policy.poll_seconds, self.buffers.next_due(now) or 1e9)
        self.before("poll")
        gather = 0.0 if ready or self.paused else max(0.0, self._rested_at - now)
        self.buffers.add(self.feed.take(self.policy.batch, wait, gather))
        self.own(connection)  # what came may be of a partition that was assigned a moment ago
        if self.paused:
            self.buffers.forgive()
            return 0
        records = self._portion(self.clock())
        if not records:
            return 0
        self.pace.began()
        if self.consumer.mode == "at_most_once":
            done = self._claims.handle(connection, face, records)
        else:
            self._mark(connection, records)
            done = self._handle(connection, face, records)
        if done:
            self.before("offsets")
            self.feed.commit(
                {place: self.buffers.by_place[place].position or 0 for place in {each.place for each in done}}
            )
        self._rested_at = self.clock() + self.pace.rest_seconds()
        return len(done)

    def _hold_back(self, now: float) -> None:
        wanted = self.buffers.fed() if self.paused else self.buffers.to_pause(now)
        self.feed.pause(wanted)
        self.feed.resume(set(self.buffers.by_place) - wanted)

    def _portion(self, now: float) -> list[Record]:
        """The next of each partition that is not held, each time beginning with another; of one by itself, where
        something has failed or may be a killer.
        """
        portion: list[Record] = []
        ready = self.buffers.ready(now)
        self._turns += 1
        first = self._turns % max(1, len(ready))
        for place in (*ready[first:], *ready[:first]):
            buffer = self.buffers.by_place[place]
            if not buffer.apart:
                portion += buffer.next(self._size - len(portion))
            elif not portion:
                return buffer.next(self._size)
            if len(portion) >= self._size:
                break
        return portion

    def _handle(self, connection: Connection, face: Face, records: Sequence[Record]) -> list[Record]:
        """Those that are done with: all of them, or none."""
        buffer = self.buffers.by_place[records[0].place]
        if buffer.doomed:
            return self._reject(connection, face, records[0], *buffer.doomed)
        if buffer.suspicious and self._begun(connection, buffer, records[0]) > self.policy.kills:
            return self._reject(connection, face, records[0], KILLER, "each time it was begun alone its process died")
        began = self.clock()
        try:
            self._transact(connection, face, [self._item(record) for record in records])
        except Overtaken:
            return []  # the next time they are known
        except SessionLost as error:
            self._cut_off(buffer, records, error, began)
            raise
        except Unreachable:
            raise
        except (NotNow, Undecided, Transient, HandlerFailed) as error:
            return self._failed(connection, face, records, error)
        self._finish(records)
        return list(records)

    def _cut_off(self, buffer: Buffer, records: Sequence[Record], error: SessionLost, began: float) -> None:
        """On the next connection they are fewer: perhaps so many take longer than a session may, or one ends it."""
        now = self.clock()
        buffer.doomed = self._setbacks.failed(records, error, now, now - began)
        self._size = max(1, len(records) // 2)

    def _failed(self, connection: Connection, face: Face, records: Sequence[Record], error: Setback) -> list[Record]:
        """None is done with, unless it is rejected."""
        if verdict := self._setbacks.failed(records, error, self.clock()):
            return self._reject(connection, face, records[0], *verdict)
        if connection.closed:  # a handler that does so is found part by part, each time on a new one
            raise Unreachable("a handler closed the connection")
        return []

    def _mark(self, connection: Connection, records: Sequence[Record]) -> None:
        """What this batch has of each partition whose last owner died: if this one dies too, it is of one of these."""
        watched = {place for place, each in self.buffers.by_place.items() if each.watched and not each.suspicious}
        spans: dict[Partition, range] = {}
        for each in records:
            if each.place in watched:
                first = spans[each.place].start if each.place in spans else each.offset
                spans[each.place] = range(first, each.offset + 1)
        if spans:
            starts.begin_batch(connection, self.consumer.name, spans)

    def _begun(self, connection: Connection, buffer: Buffer, record: Record) -> int:
        """How many processes have begun it alone. Trying it again in this one ends none."""
        if buffer.begun == record.offset:
            return 0
        self.feed.commit({record.place: record.offset}, wait=True)  # only one is counted: none before it may come again
        times, buffer.begun = starts.begin_alone(connection, self.consumer.name, record), record.offset
        return times

    def _reject(self, connection: Connection, face: Face, record: Record, code: str, why: str) -> list[Record]:
        """As soon as that can be written down: what was decided stays so."""
        buffer = self.buffers.by_place[record.place]
        buffer.doomed = code, why
        if connection.closed:
            raise Unreachable("a handler closed the connection")
        poison = poison_of(record, code, why)
        try:
            self._transact(connection, face, [poison])
        except Unreachable:
            raise
        except (Transient, HandlerFailed) as error:
            self._setbacks.hold(buffer, record, error, self.clock())
            return []
        log.error("rejected", consumer=self.consumer.name, record=str(record), type=poison.type, code=code,
                  error=poison.error)  # fmt: skip
        self._finish([record])
        return [record]

    def _transact(
        self,
        connection: Connection,
        face: Face,
        items: Sequence[Received | Poison | None],
        claimed: frozenset[UUID] = frozenset(),
    ) -> None:
        wanted = [item for item in items if item is not None]
        if wanted:
            self._commit(connection, face, wanted, claimed)
        metrics.MESSAGES.labels(self.consumer.name, "ignored").inc(len(items) - len(wanted))

    def _commit(
        self, connection: Connection, face: Face, wanted: Sequence[Received | Poison], claimed: frozenset[UUID]
    ) -> None:
        began = self.clock()
        batch = BatchTransaction(
            self.consumer, connection, face, wanted, self.policy.limits, claimed, before=self.before
        )
        try:
            with self.deadline.over(connection):
                tally = batch.run()
        except Transient as error:
            if self.deadline.passed and not isinstance(error, Overtaken | Unreachable):  # apart it may be in time
                self._size = next_size(self._size, self.policy, len(wanted), self.clock() - began)
                raise TookTooLong(f"it took too long (consumer.deadline_seconds): {error.message}") from error
            raise
        self.tell(batch.handled)
        seconds = self.clock() - began
        self._size = next_size(self._size, self.policy, len(wanted), seconds)
        metrics.batch(self.consumer.name, tally, len(wanted), seconds)

    def _item(self, record: Record) -> Received | Poison | None:
        """None for what this consumer has no handler for. Where no header can be read, nobody knows whether it has."""
        kind = type_of(record)
        if kind in self.consumer.handlers or record.no_headers is not None:
            try:
                return self.decode(record, kind)
            except Transient as error:
                raise Undecided(str(error)) from error
        if self.consumer.unknown == "ignore":
            return None
        known = ", ".join(self.consumer.handlers)
        why = f"{self.consumer.name} has no handler for {kind or 'a record without a type'}, only for {known}"
        return poison_of(record, UNKNOWN_TYPE, why)

    def _finish(self, records: Sequence[Record]) -> None:
        for record in records:
            self.buffers.by_place[record.place].finish(record)
