"""A batch in its transaction, as the loop runs it: what its handlers answer, and what is said of what goes wrong."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, registry
from structlog.testing import capture_logs

from ferryman import Consumer, Done, Message, Outcome, Received, Retry, Transient
from ferryman.consumer.buffers import Buffers
from ferryman.consumer.claims import Claims
from ferryman.consumer.decoding import decode, poison_of
from ferryman.consumer.face import Plain, face_of
from ferryman.consumer.faults import HandlerFailed, NotNow
from ferryman.consumer.model import Record
from ferryman.consumer.policy import Policy
from ferryman.consumer.setbacks import Setbacks
from ferryman.consumer.transaction import BatchTransaction, Item

Database = psycopg.Connection[tuple[Any, ...]]
Handler = Callable[[Any, Received], Outcome]


def message(offset: int = 0) -> Received:
    headers: list[tuple[str, bytes | None]] = [("ce_id", str(uuid4()).encode()), ("ce_type", b"t")]
    made = decode(Record("topic", 0, offset, b"k", b"secret bytes", headers, 0), "t")
    assert isinstance(made, Received)
    return made


def run(db: Database, handler: Handler, *messages: Item, kind: type[Any] = psycopg.Connection) -> BatchTransaction:
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


@pytest.mark.parametrize("together", [True, False])
def test_what_an_idempotency_key_swallowed_is_not_reported_again_under_an_id_of_its_own(
    ferryman_db: Database, together: bool
) -> None:
    """N3: each id that was published comes again as it was, and no other."""

    def answers(_db: Any, each: Received) -> Done:
        own = Message("own", b"", key="k", topic="results")
        return Done(Message("once", str(each.id).encode(), key="k", topic="results", idempotency_key="k"), own)

    def published() -> list[tuple[Any, ...]]:
        query = "SELECT id, type, payload FROM ferryman.outbox WHERE topic = 'results' ORDER BY position"
        return ferryman_db.execute(query).fetchall()

    first, second = message(0), message(1)
    bad = poison_of(message(9).record, "BUG", "in front of them")
    for batch in [(bad, first, second)] if together else [(first,), (second,)]:
        run(ferryman_db, answers, *batch)
    once = published()
    assert [kind for _, kind, _ in once] == ["once", "own", "own"]
    run(ferryman_db, answers, second)
    assert published()[3:] == [once[2]]
    run(ferryman_db, answers, first)
    assert published()[4:] == once[:2]


TABLE = """
CREATE TABLE card (
    id uuid PRIMARY KEY, number text UNIQUE DEFERRABLE INITIALLY DEFERRED, amount int NOT NULL CHECK (amount > 0)
)
"""
INSERT = "INSERT INTO card VALUES (gen_random_uuid(), %(number)s, %(amount)s)"
CARD = "4111-1111-1111-1111"


def twice(db: Any, _message: Received) -> Done:
    """The COMMIT is refused."""
    for _ in range(2):
        db.execute(INSERT, {"number": CARD, "amount": 1})
    return Done()


def nothing_of_it(db: Any, _message: Received) -> Done:
    db.execute(INSERT, {"number": CARD, "amount": None})
    return Done()


def too_little(db: Any, _message: Received) -> Done:
    db.execute(INSERT, {"number": CARD, "amount": 0})
    return Done()


def in_alchemy(db: sa.Connection, _message: Received) -> Done:
    db.execute(sa.text("INSERT INTO card VALUES (gen_random_uuid(), :number, 0)"), {"number": CARD})
    return Done()


def after_a_flush_that_failed(session: Session, _message: Received) -> Done:
    """`PendingRollbackError` quotes the first error, with its details and parameters."""
    row = mapped(sa.Table("card", sa.MetaData(), autoload_with=session.connection()))
    session.add(row(id=uuid4(), number=CARD, amount=0))
    with suppress(sa.exc.IntegrityError):
        session.flush()
    session.execute(sa.text("SELECT 1"))
    return Done()


def mapped(table: sa.Table) -> Any:
    class Row:
        def __init__(self, **values: Any) -> None:
            for name, value in values.items():
                setattr(self, name, value)

    registry().map_imperatively(Row, table)
    return Row


@pytest.mark.parametrize(
    ("handler", "kind", "said"),
    [
        (
            twice,
            psycopg.Connection,
            'UniqueViolation: duplicate key value violates unique constraint "card_number_key"',
        ),
        (nothing_of_it, psycopg.Connection, 'null value in column "amount" of relation "card"'),
        (too_little, psycopg.Connection, '"card" violates check constraint "card_amount_check" (23514)'),
        (in_alchemy, sa.Connection, 'CheckViolation: new row for relation "card" violates check constraint'),
        (after_a_flush_that_failed, Session, "PendingRollbackError"),
    ],
)
def test_what_goes_wrong_is_said_without_the_row_and_the_parameters_it_went_wrong_with(
    ferryman_db: Database, handler: Handler, kind: type[Any], said: str
) -> None:
    """N14: it goes to the log, to `inbox list` and into the dead letters."""
    ferryman_db.execute(TABLE)
    with pytest.raises(HandlerFailed) as caught:
        run(ferryman_db, handler, kind=kind)
    assert said in str(caught.value)
    assert "4111" not in str(caught.value)


def test_what_passes_is_said_so_too(ferryman_db: Database) -> None:
    def stands_in_line(db: Any, _message: Received) -> Done:
        db.execute("DO $$ BEGIN RAISE deadlock_detected USING MESSAGE = 'a deadlock', DETAIL = '4111'; END $$")
        return Done()

    with pytest.raises(Transient, match="a deadlock") as caught:
        run(ferryman_db, stands_in_line)
    assert "4111" not in str(caught.value)


def test_a_receipt_of_what_vanished_shows_no_secret(ferryman_db: Database) -> None:
    """N14: at most once its error stands there, and in the log."""
    one, buffers = message(), Buffers(1 << 20)
    buffers.own({one.record.place})
    buffers.add([one.record])

    def fails(*_: Any, **__: Any) -> None:
        raise HandlerFailed("https://bank/ with password=geheim refused it")

    setbacks = Setbacks("c", Policy(), buffers)
    claims = Claims("c", Policy(), buffers, setbacks, lambda _: one, fails, lambda: 0.0, lambda _: None)
    with capture_logs() as logs:
        assert claims.handle(ferryman_db, Plain(ferryman_db), [one.record]) == [one.record]
    [(kept,)] = ferryman_db.execute("SELECT error FROM ferryman.inbox").fetchall()
    assert kept == "https://bank/ with password=*** refused it" == logs[-1]["error"]
