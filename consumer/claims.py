"""`at_most_once`: each message is claimed right before it is handled, and never begun again whatever becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import structlog

from ferryman.consumer import metrics
from ferryman.consumer.buffers import Buffer, Buffers
from ferryman.consumer.decoding import sayable
from ferryman.consumer.face import Face
from ferryman.consumer.faults import HandlerFailed, NotNow, Undecided
from ferryman.consumer.model import Poison, Received, Record
from ferryman.consumer.policy import Policy
from ferryman.consumer.setbacks import Setbacks
from ferryman.consumer.store import receipts
from ferryman.consumer.store.receipts import Connection
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured, Transient, Unreachable
from ferryman.runtime.redaction import redact

log = structlog.get_logger(__name__)


class Transact(Protocol):
    """A transaction of these; `claimed` are those whose receipt was written for this very try."""

    def __call__(
        self, connection: Connection, face: Face, items: Sequence[Received | Poison | None],
        claimed: frozenset[UUID] = ...,
    ) -> None: ...  # fmt: skip


@dataclass(slots=True)
class Claims:
    """Of one worker: who dies, or is cut off, gives up no more than the message in hand."""

    consumer: str
    policy: Policy
    buffers: Buffers
    setbacks: Setbacks
    item: Callable[[Record], Received | Poison | None]
    transact: Transact
    clock: Callable[[], float]
    before: Callable[[str], None]
    _unnoted: list[tuple[UUID, str]] = field(default_factory=list)
    """What vanished while there was no connection to say so in its receipt."""

    def handle(self, connection: Connection, face: Face, records: Sequence[Record]) -> list[Record]:
        """Those that are done with. After some seconds the others wait for the next turn, or for another owner."""
        self._note(connection)
        done: list[Record] = []
        held = set()
        until = self.clock() + self.policy.turn_seconds
        for record in records:
            if record.place in held:
                continue
            if self._once(connection, face, record):
                done.append(record)
            else:
                held.add(record.place)
            if self.clock() > until:
                break
        return done

    def _once(self, connection: Connection, face: Face, record: Record) -> bool:
        """Whether it is done with. What was not begun is tried again: nothing of it has had an effect."""
        buffer = self.buffers.by_place[record.place]
        try:
            item = self.item(record)
            if isinstance(item, Received) and self._claim(connection, buffer, item):
                buffer.finish(record)
                self._begin(connection, face, item)
                return True
            self.transact(connection, face, [item])  # a duplicate, a conflict, or no message
        except Unreachable:
            raise
        except (Undecided, Transient, HandlerFailed) as error:
            self.setbacks.hold(buffer, record, error, self.clock())
            return False
        buffer.finish(record)
        return True

    def _claim(self, connection: Connection, buffer: Buffer, item: Received) -> bool:
        """Whether it is ours to begin. One whose claim was not answered may have been claimed: it is given up."""
        unsure, buffer.claiming = buffer.claiming == item.record.offset, item.record.offset
        self.before("claim")
        with postgres.translated():
            claimed, known = receipts.claim(connection, self.consumer, item, self.policy.limits)
        if unsure and known == receipts.RECEIVED:
            self._vanished(connection, item, Unreachable("the answer to its claim was lost"))
        return claimed

    def _begin(self, connection: Connection, face: Face, item: Received) -> None:
        """What fails leaves an error in its receipt, and is not tried again."""
        try:
            self.transact(connection, face, [item], claimed=frozenset({item.id}))
        except (NotNow, Undecided, Transient, HandlerFailed, Misconfigured) as error:
            self._vanished(connection, item, error)
            if isinstance(error, Unreachable | Misconfigured):
                raise

    def _vanished(self, connection: Connection, item: Received, error: Exception) -> None:
        words = redact(str(error))
        log.error("vanished", consumer=self.consumer, message=str(item.record), id=str(item.id), error=words[:500])
        metrics.MESSAGES.labels(self.consumer, "vanished").inc()
        self._unnoted.append((item.id, sayable(words)))
        if not connection.closed:
            self._note(connection)

    def _note(self, connection: Connection) -> None:
        while self._unnoted:
            with postgres.translated():
                receipts.note_error(connection, self.consumer, *self._unnoted[0])
            self._unnoted.pop(0)
