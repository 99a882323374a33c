"""A batch in its transaction, as the loop runs it: what its handlers answer, and what is said of what goes wrong."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest

from ferryman import Consumer, Done, Message, Outcome, Received, Retry
from ferryman.consumer.decoding import decode
from ferryman.consumer.face import face_of
from ferryman.consumer.faults import HandlerFailed, NotNow
from ferryman.consumer.model import Record
from ferryman.consumer.transaction import BatchTransaction

Database = psycopg.Connection[tuple[Any, ...]]
Handler = Callable[[Any, Received], Outcome]


def message(offset: int = 0) -> Received:
    headers: list[tuple[str, bytes | None]] = [("ce_id", str(uuid4()).encode()), ("ce_type", b"t")]
    made = decode(Record("topic", 0, offset, b"k", b"secret bytes", headers, 0), "t")
    assert isinstance(made, Received)
    return made


def run(db: Database, handler: Handler, *messages: Received, kind: type[Any] = psycopg.Connection) -> BatchTransaction:
    consumer = Consumer("c", ["topic"], connection=kind)
    consumer.handles("t")(handler)
    batch = BatchTransaction(consumer, db, face_of(kind, db), messages or [message()])
    batch.run()
    return batch


class Odd(str):
    """Text that cannot be sent, for a reason that nobody foresaw."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        raise LookupError("odd")


def test_a_report_that_cannot_be_sent_is_its_handlers_doing(ferryman_db: Database) -> None:
    """N10: else it would end the process, time and again."""

    def answers(_db: Any, _message: Received) -> Done:
        return Done(*[Message("t", b"", key=Odd("k"), topic="results") for _ in range(2)])

    with pytest.raises(HandlerFailed, match="LookupError: odd"):
        run(ferryman_db, answers)
    assert ferryman_db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_retry_may_say_its_time_in_any_way_that_is_one(ferryman_db: Database) -> None:
    for given in (3, 3.0, timedelta(seconds=3)):
        with pytest.raises(NotNow) as caught:
            run(ferryman_db, lambda _db, _message, given=given: Retry("later", given))  # type: ignore[misc]
        assert caught.value.retry.after_seconds == 3
    for wrong in (None, "3", -1, float("inf"), float("nan")):
        with pytest.raises(HandlerFailed, match="another try after"):
            run(ferryman_db, lambda _db, _message, wrong=wrong: Retry("later", wrong))  # type: ignore[misc]
    with pytest.raises(HandlerFailed, match="its reason None is no text"):
        run(ferryman_db, lambda _db, _message: Retry(cast(Any, None)))
