"""A consumer's loop: poll, one transaction for what came, offsets after it; and what to do when that fails.

What fails is taken apart: a batch into halves, down to the message that cannot be handled. That one is tried again a
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
from ferryman.consumer.deadline import Deadline
from ferryman.consumer.decoding import Decode, decode, poison_of, type_of
from ferryman.consumer.face import Face
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Partition, Poison, Received, Record
from ferryman.consumer.policy import Policy
from ferryman.consumer.store import receipts, starts
from ferryman.consumer.store.receipts import Connection
from ferryman.consumer.transaction import BatchTransaction, HandlerFailed, NotNow, Overtaken, received_only
from ferryman.runtime import postgres
from ferryman.runtime.errors import Transient, Unreachable
from ferryman.runtime.pace import rest_seconds

log = structlog.get_logger(__name__)

BUG, KILLER, UNKNOWN_TYPE, TIMED_OUT = "BUG", "KILLER", "UNKNOWN_TYPE", "TIMED_OUT"


class Undecided(Exception):
    """Nobody can tell yet what a record says: the registry that has its schema is away."""


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
    paused: bool = False
    _failing_since: dict[Partition, float] = field(default_factory=dict)
    _stuck: set[Partition] = field(default_factory=set)
    """Where something failed in this turn: what is behind it waits."""
    _turns: int = 0
    _rested_at: float = 0.0

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
            return 0
        began = self.clock()
        records = self._portion(began)
        if not records:
            return 0
        if self.consumer.mode == "at_most_once":
            done = self._at_most_once(connection, face, records)
        else:
            self._mark(connection, records)
            done = self._handle(connection, face, records)
        if done:
            self.before("offsets")
            self.feed.commit(
                {place: self.buffers.by_place[place].position or 0 for place in {each.place for each in done}}
            )
        ended = self.clock()
        self._rested_at = ended + rest_seconds(ended - began, self.policy.rests)
        return len(done)

    def _hold_back(self, now: float) -> None:
        wanted = set(self.buffers.by_place) if self.paused else self.buffers.to_pause(now)
        self.feed.pause(wanted)
        self.feed.resume(set(self.buffers.by_place) - wanted)

    def _portion(self, now: float) -> list[Record]:
        """The next of each partition that is not held, each time beginning with another; one alone, where one may be a
        killer or has failed.
        """
        portion: list[Record] = []
        ready = self.buffers.ready(now)
        self._stuck.clear()
        self._turns += 1
        first = self._turns % max(1, len(ready))
        for place in (*ready[first:], *ready[:first]):
            buffer = self.buffers.by_place[place]
            if buffer.suspicious or buffer.alone:
                if not portion:
                    return [buffer.waiting[0]]
                continue
            room = self.policy.batch - len(portion)
            portion += [buffer.waiting[n] for n in range(min(room, len(buffer.waiting)))]
            if len(portion) >= self.policy.batch:
                break
        return portion

    def _handle(self, connection: Connection, face: Face, records: Sequence[Record]) -> list[Record]:
        """Those that are done with: taken apart where they cannot be handled together."""
        buffer = self.buffers.by_place[records[0].place]
        alone = len(records) == 1
        if alone and buffer.doomed:
            return self._reject(connection, face, records[0], BUG, buffer.doomed)
        if alone and buffer.suspicious and self._begun(connection, buffer, records[0]) > self.policy.kills:
            return self._reject(connection, face, records[0], KILLER, "each time it was begun alone its process died")
        try:
            self._transact(connection, face, [self._item(record) for record in records])
        except Overtaken:
            return self._handle(connection, face, records)
        except Unreachable:
            raise
        except (NotNow, Undecided, Transient, HandlerFailed) as error:
            if not alone and not isinstance(error, Transient):
                self._still_connected(connection, records)
                return self._apart(connection, face, records)
            return self._failed(connection, face, records, error)
        self._finish(records)
        return list(records)

    def _mark(self, connection: Connection, records: Sequence[Record]) -> None:
        """How far this batch goes in each partition whose last owner died: if this one dies too, that is where."""
        watched = {place for place, each in self.buffers.by_place.items() if each.watched and not each.suspicious}
        if untils := {each.place: each.offset + 1 for each in records if each.place in watched}:
            starts.begin_batch(connection, self.consumer.name, untils)

    def _begun(self, connection: Connection, buffer: Buffer, record: Record) -> int:
        """How many processes have begun it alone. Trying it again in this one ends none."""
        if buffer.begun == record.offset:
            return 0
        self.feed.commit({record.place: record.offset}, wait=True)  # only one is counted: none before it may come again
        times, buffer.begun = starts.begin_alone(connection, self.consumer.name, record), record.offset
        return times

    def _at_most_once(self, connection: Connection, face: Face, records: Sequence[Record]) -> list[Record]:
        """Receipts and offsets first; what fails after that leaves an error in its receipt, and is not tried again."""
        items = []
        for number, record in enumerate(records):
            try:
                items += [item] if (item := self._item(record)) is not None else []
            except Undecided as error:
                if not number:
                    return self._failed(connection, face, records[:1], error)
                records = records[:number]
                break
        with postgres.translated(), connection.transaction():
            fresh = receipts.record(connection, self.consumer.name, received_only(items)).ids
        self._finish(records)
        self.feed.commit({each.place: self.buffers.by_place[each.place].position or 0 for each in records}, wait=True)
        for number, item in enumerate(items):
            if item.id not in fresh:
                continue
            fresh -= {item.id}
            try:
                self._transact(connection, face, [item], claimed=frozenset({item.id}))
            except (NotNow, Transient, HandlerFailed) as error:
                if isinstance(error, Unreachable):  # nothing that is behind it is begun either, and none comes again
                    self._vanished([item, *(each for each in items[number:] if each.id in fresh)], error)
                    raise
                self._vanished([item], error)
                receipts.note_error(connection, self.consumer.name, item.id, str(error)[:2000])
        return list(records)

    def _vanished(self, items: Sequence[Received | Poison], error: Exception) -> None:
        for item in items:
            log.error("vanished", consumer=self.consumer.name, message=str(item.record), id=str(item.id),
                      error=str(error)[:500])  # fmt: skip
        metrics.MESSAGES.labels(self.consumer.name, "vanished").inc(len(items))

    def _apart(self, connection: Connection, face: Face, records: Sequence[Record]) -> list[Record]:
        """In halves; of a partition whose message is held, nothing that is behind it is handled."""
        middle = len(records) // 2
        done = self._handle(connection, face, records[:middle])
        rest = [record for record in records[middle:] if record.place not in self._stuck]
        return [*done, *(self._handle(connection, face, rest) if rest else ())]

    def _failed(
        self,
        connection: Connection,
        face: Face,
        records: Sequence[Record],
        error: NotNow | Undecided | Transient | HandlerFailed,
    ) -> list[Record]:
        """Held back for a while; one alone is rejected when it was tried enough, or for long enough.

        What nobody can read yet waits as long as that takes.
        """
        now, alone = self.clock(), len(records) == 1
        buffers = [self.buffers.by_place[place] for place in dict.fromkeys(each.place for each in records)]
        attempts = max(each.attempts for each in buffers) + 1
        since = min(self._failing_since.setdefault(each.place, now) for each in records)
        too_long = now - since > self.policy.retry_seconds and not isinstance(error, Undecided)
        if too_long and not alone:
            return self._apart(connection, face, records)
        if alone and isinstance(error, HandlerFailed) and attempts >= self.policy.tries:
            buffers[0].doomed = str(error)
            self._still_connected(connection, records)
            return self._reject(connection, face, records[0], BUG, str(error))
        if too_long:
            return self._reject(connection, face, records[0], TIMED_OUT, str(error))
        wait = self.policy.backoff.delay_seconds(attempts)
        if isinstance(error, NotNow):
            wait = max(wait, error.retry.after_seconds)
        self._stuck |= {each.place for each in records}
        for buffer in buffers:
            buffer.held_until, buffer.attempts, buffer.alone = now + wait, attempts, alone
        metrics.RETRIES.labels(self.consumer.name).inc(len(records))
        log.warning("handling failed", consumer=self.consumer.name, messages=len(records), first=str(records[0]),
                    attempt=attempts, again_in_seconds=round(wait, 1), error=str(error)[:500])  # fmt: skip
        return []

    def _still_connected(self, connection: Connection, records: Sequence[Record]) -> None:
        """A handler that closes the connection is found message by message, each time on a new one."""
        if not connection.closed:
            return
        for record in records:
            buffer = self.buffers.by_place[record.place]
            buffer.singly = max(buffer.singly, len(records))
        raise Unreachable("a handler closed the connection")

    def _reject(self, connection: Connection, face: Face, record: Record, code: str, why: str) -> list[Record]:
        poison = poison_of(record, code, why)
        self._transact(connection, face, [poison])
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
        metrics.MESSAGES.labels(self.consumer.name, "ignored").inc(len(items) - len(wanted))
        if not wanted:
            return
        began = self.clock()
        batch = BatchTransaction(
            self.consumer, connection, face, wanted, self.policy.limits, claimed, before=self.before
        )
        try:
            with self.deadline.over(connection):
                tally = batch.run()
        except Transient as error:
            if self.deadline.passed:  # together it is too much: apart it may not be
                raise HandlerFailed(f"it took too long (consumer.deadline_seconds): {error.message}") from error
            raise
        self.tell(batch.handled)
        metrics.batch(self.consumer.name, tally, len(wanted), self.clock() - began)

    def _item(self, record: Record) -> Received | Poison | None:
        """None for what this consumer has no handler for."""
        kind = type_of(record)
        if kind in self.consumer.handlers:
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
            self._failing_since.pop(record.place, None)
