"""`at_most_once`: each message is claimed right before it is handled, and never handled again, whatever happens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.api import Consumer
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.failures import HandlerFailed, NotNow, NotThere, Undecided, calls_of
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Received, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.store import receipts
from ferryman.consumer.transaction import TURN_SECONDS
from ferryman.consumer.wire import storable
from ferryman.runtime import postgres
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import Misconfigured, Transient, Unreachable
from ferryman.runtime.redaction import redact

log = structlog.get_logger(__name__)

_PATIENCE = Backoff(base_seconds=0.2, cap_seconds=60)


@dataclass(slots=True)
class AtMostOnce(ConsumerLoop):
    """A loop that handles message by message. A process that dies or is cut off gives up only the one in hand."""

    _unnoted: list[tuple[UUID, str]] = field(default_factory=list, init=False)
    """The ids and errors of vanished messages that are not in their receipts yet, for lack of a connection."""
    _in_a_row: int = field(default=0, init=False)
    """The messages given up, one after another, for causes that the next may have too."""

    def handle(self, lent: HandlerConnection, records: Sequence[Record]) -> list[Record]:
        """Handle records, and return those that are finished.

        After some seconds the others wait for the next turn, or for another owner.
        """
        self._note(lent)
        done: list[Record] = []
        held = set()
        until = self.clock() + TURN_SECONDS
        for record in records:
            if record.place in held or self.partitions.by_place[record.place].held_until > self.clock():
                continue
            if self._handle_one(lent, record):
                done.append(record)
            else:
                held.add(record.place)
            if self.clock() > until:
                break
        return done

    def _handle_one(self, lent: HandlerConnection, record: Record) -> bool:
        """Return True if the record is finished. One that was not begun had no effect, and is tried again."""
        buffer = self.partitions.by_place[record.place]
        try:
            item = self.item(record)
            if isinstance(item, Received) and self._claim(lent, buffer, item):
                buffer.finish(record)
                self._begin(lent, item)
                return True
            self.transact(lent, [record], [item])  # a duplicate, a conflict, poison, or an ignored type
        except Unreachable:
            raise
        except (Undecided, Transient, HandlerFailed) as error:
            self.failures.hold(buffer, record, error, self.clock())
            return False
        buffer.finish(record)
        return True

    def _claim(self, lent: HandlerConnection, buffer: PartitionBuffer, item: Received) -> bool:
        """Return True if this process may begin the message. If an earlier claim got no answer, it is given up."""
        unsure, buffer.claiming = buffer.claiming == item.record.offset, item.record.offset
        self.before("claim")
        with postgres.translated():
            claimed, known = receipts.claim(lent.connection, self.consumer.name, item, self.transactions.limits)
        lent.check_committed()
        if unsure and known == receipts.RECEIVED:
            self._vanished(lent, item, Unreachable("the answer to its claim was lost"))
        return claimed

    def _begin(self, lent: HandlerConnection, item: Received) -> None:
        """Handle a claimed message. A failure is written into its receipt, and not tried again."""
        try:
            self.transact(lent, [item.record], [item], claimed=frozenset({item.id}))
        except (NotNow, Undecided, Transient, HandlerFailed, Misconfigured) as error:
            self._vanished(lent, item, error)
            if isinstance(error, Unreachable | Misconfigured):
                raise
            if isinstance(error, NotThere | Undecided):  # the next may need the same, and each try costs one
                self._in_a_row += 1
                self._hold_all(_PATIENCE.delay_seconds(self._in_a_row), str(error))
        else:
            if self._in_a_row:
                self._in_a_row = 0
                self._hold_all(0.0, None)

    def _hold_all(self, seconds: float, problem: str | None) -> None:
        until = self.clock() + seconds
        for buffer in self.partitions.by_place.values():
            buffer.held_until, buffer.problem = until, problem

    def _vanished(self, lent: HandlerConnection, item: Received, error: Exception) -> None:
        words = redact(str(error))
        name = self.consumer.name
        log.error("vanished", consumer=name, message=str(item.record), id=str(item.id), error=words[:500],
                  where=calls_of(error))  # fmt: skip
        metrics.MESSAGES.labels(name, "vanished").inc()
        self._unnoted.append((item.id, storable(words)))
        if not lent.connection.closed:
            self._note(lent)

    def _note(self, lent: HandlerConnection) -> None:
        """Write the errors of vanished messages into their receipts."""
        while self._unnoted:
            with postgres.translated():
                receipts.note_error(lent.connection, self.consumer.name, *self._unnoted[0])
            self._unnoted.pop(0)


def loop_of(consumer: Consumer) -> type[ConsumerLoop]:
    """Return the loop for the consumer's mode."""
    return AtMostOnce if consumer.mode == "at_most_once" else ConsumerLoop
