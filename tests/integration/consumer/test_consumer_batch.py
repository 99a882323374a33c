"""A batch in its transaction: the answers of handlers, and the errors that are reported."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, registry
from structlog.testing import capture_logs

from ferryman import Consumer, Done, Message, Misconfigured, Outcome, Received, Retry, Transient
from ferryman.consumer.at_most_once import AtMostOnce
from ferryman.consumer.connections import Deadline, HandlerConnection, handler_connection
from ferryman.consumer.failures import HandlerFailed, NotNow, NotThere, Overtaken, cause_of
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Item, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.transaction import BatchTransaction, Transactions
from ferryman.consumer.wire import decode, poison_of
from ferryman.runtime.settings import ConsumerSettings
from ferryman.testing import stack

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
    batch = BatchTransaction(consumer, handler_connection(kind, db), messages or [message()])
    batch.run()
    return batch


class Odd(str):
    """Text that cannot be sent, for an unforeseen reason."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        raise LookupError("odd")


def test_a_report_that_cannot_be_sent_is_the_handlers_fault(ferryman_db: Database) -> None:
    """N10: else it would end the process again and again."""

    def answers(_db: Any, _message: Received) -> Done:
        return Done(*[Message("t", b"", key=Odd("k"), topic="results") for _ in range(2)])

    with pytest.raises(HandlerFailed, match="LookupError: odd"):
        run(ferryman_db, answers)
    assert ferryman_db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_retry_takes_seconds_or_a_timedelta(ferryman_db: Database) -> None:
    for given in (3, 3.0, timedelta(seconds=3)):
        with pytest.raises(NotNow) as caught:
            run(ferryman_db, lambda _db, _message, given=given: Retry("later", given))  # type: ignore[misc]
        assert caught.value.retry.after_seconds == 3
    for wrong in (None, "3", -1, float("inf"), float("nan")):
        with pytest.raises(HandlerFailed, match="another try after"):
            run(ferryman_db, lambda _db, _message, wrong=wrong: Retry("later", wrong))  # type: ignore[misc]
    with pytest.raises(HandlerFailed, match="its reason None is not a string"):
        run(ferryman_db, lambda _db, _message: Retry(cast(Any, None)))


@pytest.mark.parametrize("together", [True, False])
def test_a_report_that_an_idempotency_key_swallowed_is_not_reported_again(
    ferryman_db: Database, together: bool
) -> None:
    """N3: each published id comes again unchanged, and no other id comes."""

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


MISSING = {
    "42883": "SELECT 'w1'::text = 7::smallint",
    "42703": "SELECT no_column FROM ferryman.inbox",
    "42P01": "SELECT FROM orders_of_4711",
    "3F000": "CREATE TABLE tenant_4711.orders ()",
    "42501": "DO $$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'another tenant'; END $$",
}


@pytest.mark.parametrize("state", MISSING)
@pytest.mark.parametrize("kind", [psycopg.Connection, sa.Connection])
def test_what_a_handler_misses_is_not_a_wrong_setting(ferryman_db: Database, state: str, kind: type[Any]) -> None:
    """N10, N11: its message's data may be the reason, and the group must not end for that."""

    def misses(db: Any, _message: Received) -> Done:
        db.execute(MISSING[state] if kind is psycopg.Connection else sa.text(MISSING[state].replace(":", "\\:")))
        return Done()

    with pytest.raises(NotThere) as caught:
        run(ferryman_db, misses, kind=kind)
    assert cause_of(caught.value) == state


def test_a_table_of_the_runtime_that_goes_missing_under_a_handler_is_a_wrong_setting(ferryman_db: Database) -> None:
    def takes_it(db: Any, _message: Received) -> Done:
        db.execute("ALTER TABLE ferryman.inbox RENAME TO elsewhere")
        return Done()

    with pytest.raises(Misconfigured, match=r"ferryman\.inbox.*ferryman migrate"):
        run(ferryman_db, takes_it)


def test_a_trial_tells_whether_a_message_works_and_leaves_nothing(ferryman_db: Database) -> None:
    """N5, N6: it is only compared with another message, and is handled later."""
    consumer, told = Consumer("c", ["topic"]), list[Any]()
    consumer.handles("t")(lambda _db, _message: Done(Message("t", b"", key="k", topic="results")))
    deadline = Deadline(20)
    transactions, lent, one = (
        Transactions(consumer, 9, deadline, after_commit=told.append),
        HandlerConnection(ferryman_db),
        message(),
    )
    assert transactions.works(lent, one)
    assert transactions.worked.keys() == {"t"}
    for table in ("inbox", "outbox", "inbox_open"):
        assert ferryman_db.execute(f"SELECT FROM ferryman.{table}").fetchall() == []
    assert told == []
    transactions.run(lent, [one], frozenset(), {})
    assert len(told) == 1
    assert not transactions.works(lent, one), "its handler is not called for a duplicate"


def test_at_most_once_gives_up_few_messages_for_a_table_that_is_missing(ferryman_db: Database) -> None:
    """N9, N10: the next may need it too, so each waits longer; one that works ends that."""
    clock, one, two, three = Later(), message(0), message(1), message(2)
    partitions = Partitions("c", 1 << 20, 9, by_place={one.record.place: PartitionBuffer()})
    partitions.add([one.record, two.record, three.record])

    class Missing(Transactions):
        def run(self, lent: Any, items: Any, claimed: Any, reached: Any) -> bool:
            if items[0].record.offset < 2:
                raise NotThere("no such table")
            return True

    consumer, unused = Consumer("c", ["topic"]), cast(Any, None)
    consumer.handles("t")(lambda _db, _message: Done())
    loop = AtMostOnce(consumer, unused, ConsumerSettings(), partitions, Missing(consumer, 9, unused), clock=clock)
    waits, all_of = [], [one.record, two.record, three.record]
    for number in range(3):
        assert loop.handle(HandlerConnection(ferryman_db), all_of[number:]) == [all_of[number]]
        waits.append(round(partitions.by_place[one.record.place].held_until - clock.now, 1))
        assert (partitions.problem is None) == (number == 2)
        clock.now += 60
    assert waits == [0.2, 0.4, 0.0]


class Later:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_known_id_with_other_bytes_is_rejected_and_keeps_its_receipt(ferryman_db: Database) -> None:
    """N5, N6: its handler is not called, also if both are in one batch."""
    called: list[bytes] = []

    def counts(_db: Any, each: Received) -> Done:
        called.append(each.data)
        return Done()

    one = message()
    other = decode(one.record._replace(offset=1, value=b"other bytes"), "t")
    third = decode(one.record._replace(offset=2, value=b"more bytes"), "t")
    assert run(ferryman_db, counts, one, other).tally == {"done": 1, "conflict": 1}
    assert run(ferryman_db, counts, third).tally == {"conflict": 1}
    assert called == [b"secret bytes"]
    kept = ferryman_db.execute('SELECT "offset", code FROM ferryman.inbox_rejected ORDER BY 1').fetchall()
    assert kept == [(1, "CONFLICT"), (2, "CONFLICT")]
    assert ferryman_db.execute("SELECT outcome, hash FROM ferryman.inbox").fetchall() == [("DONE", one.hash)]


def test_a_batch_that_another_owner_has_overtaken_keeps_no_effect(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    """N5: both found no receipt, and both called the handler."""
    ferryman_db.execute("CREATE TABLE effect (who text)")
    one = message()

    def second(db: Any, _message: Received) -> Done:
        db.execute("INSERT INTO effect VALUES ('second')")
        return Done()

    def first(db: Any, _message: Received) -> Done:
        db.execute("INSERT INTO effect VALUES ('first')")
        with psycopg.connect(ferryman_database_url) as other:
            run(other, second, one)
        return Done()

    with pytest.raises(Overtaken):
        run(ferryman_db, first, one)
    assert ferryman_db.execute("SELECT who FROM effect").fetchall() == [("second",)]


IMMEDIATE = "SET CONSTRAINTS ALL IMMEDIATE"


@pytest.fixture
def consumer_db(ferryman_db: Database, ferryman_database_url: str) -> Iterator[Database]:
    """Connect with a login that has the role of consumers and no other right, but may write the table `effect`."""
    ferryman_db.execute("CREATE TABLE effect (); GRANT SELECT, INSERT ON effect TO ferryman_consumer")
    login = stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", "ferryman_consumer")
    with psycopg.connect(login, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    "statements", [(IMMEDIATE,), (IMMEDIATE, IMMEDIATE), ("SAVEPOINT s", IMMEDIATE, "ROLLBACK TO s")]
)
def test_a_handler_may_make_its_constraints_immediate(consumer_db: Database, statements: tuple[str, ...]) -> None:
    """It is the usual way to hear early of deferred constraints."""

    def hears_early(db: Any, _message: Received) -> Done:
        for each in statements:
            db.execute(each)
        return Done()

    run(consumer_db, hears_early)
    assert consumer_db.execute("SELECT outcome FROM ferryman.inbox").fetchall() == [("DONE",)]
    assert consumer_db.execute("SELECT FROM ferryman.inbox_open").fetchall() == []


@pytest.mark.parametrize(
    "statements", [("COMMIT",), (IMMEDIATE, "COMMIT"), (f"{IMMEDIATE}; COMMIT",), (IMMEDIATE, "COMMIT AND CHAIN")]
)
def test_a_handler_cannot_commit_by_sql(consumer_db: Database, statements: tuple[str, ...]) -> None:
    """N5: not after it made its constraints immediate either. What it wrote is rolled back."""

    def commits(db: Any, _message: Received) -> Done:
        db.execute("INSERT INTO effect DEFAULT VALUES")
        for each in statements:
            db.execute(each)
        return Done()

    with pytest.raises(HandlerFailed, match="only the runtime commits"):
        run(consumer_db, commits)
    assert consumer_db.execute("SELECT FROM effect").fetchall() == []


TABLE = """
CREATE TABLE card (
    id uuid PRIMARY KEY, number text UNIQUE DEFERRABLE INITIALLY DEFERRED, amount int NOT NULL CHECK (amount > 0)
)
"""
INSERT = "INSERT INTO card VALUES (gen_random_uuid(), %(number)s, %(amount)s)"
CARD = "4111-1111-1111-1111"


def twice(db: Any, _message: Received) -> Done:
    """Insert the same row twice: the COMMIT is refused."""
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
def test_errors_are_reported_without_the_rows_and_parameters_they_quote(
    ferryman_db: Database, handler: Handler, kind: type[Any], said: str
) -> None:
    """N14: errors go to the log, to `inbox list` and into dead letters."""
    ferryman_db.execute(TABLE)
    with pytest.raises(HandlerFailed) as caught:
        run(ferryman_db, handler, kind=kind)
    assert said in str(caught.value)
    assert "4111" not in str(caught.value)


VALUES = {
    "SELECT CAST('4111 1111' AS bigint)": "invalid input syntax for type bigint... (22P02)",
    "SELECT CAST('41111111111111111111' AS int)": "value ... is out of range for type integer (22003)",
    "SELECT CAST('4111-13-45' AS date)": "date/time field value out of range... (22008)",
    "SELECT CAST('it''s \"4111\" here' AS uuid)": "invalid input syntax for type uuid... (22P02)",
    "SELECT CAST('{4111' AS int[])": "malformed array literal... (22P02)",
    "SELECT CAST('[4111' AS json)": "invalid input syntax for type json (22P02)",
    "SELECT CAST('4111' AS card_kind)": "invalid input value for enum card_kind... (22P02)",
    "SELECT to_date('4111', 'Mon')": "invalid value ... (22007)",
    "DO $$ BEGIN RAISE '4111222233334444 is no card' USING ERRCODE = '22023'; END $$": "... is no card (22023)",
    "DO $$ BEGIN RAISE 'carte « 4111 » fausse' USING ERRCODE = '22023'; END $$": "carte ... fausse (22023)",
}


@pytest.mark.parametrize("statement", VALUES)
@pytest.mark.parametrize("kind", [psycopg.Connection, sa.Connection])
def test_errors_about_a_value_are_reported_without_it(ferryman_db: Database, statement: str, kind: type[Any]) -> None:
    """N14: the code, the server's words and the type stay."""
    ferryman_db.execute("CREATE TYPE card_kind AS ENUM ('debit')")

    def fails(db: Any, _message: Received) -> Done:
        db.execute(statement if kind is psycopg.Connection else sa.text(statement))
        return Done()

    with pytest.raises(HandlerFailed) as caught:
        run(ferryman_db, fails, kind=kind)
    assert str(caught.value).endswith(VALUES[statement])
    assert "4111" not in str(caught.value)


def test_the_outbox_says_in_full_why_it_refuses_a_report(ferryman_db: Database) -> None:
    with pytest.raises(HandlerFailed, match="the message cannot be appended: its key has 3000 bytes"):
        run(ferryman_db, lambda _db, _message: Done(Message("t", b"", key="k" * 3000, topic="results")))


def test_a_flush_that_failed_for_a_value_is_reported_without_it(ferryman_db: Database) -> None:
    """N14: SQLAlchemy repeats the first error in the next one."""
    ferryman_db.execute(TABLE)

    def goes_on(session: Session, _message: Received) -> Done:
        row = mapped(sa.Table("card", sa.MetaData(), autoload_with=session.connection()))
        session.add(row(id=uuid4(), number=CARD, amount="4111 1111"))
        with suppress(sa.exc.DataError):
            session.flush()
        session.execute(sa.text("SELECT 1"))
        return Done()

    with pytest.raises(HandlerFailed, match="PendingRollbackError") as caught:
        run(ferryman_db, goes_on, kind=Session)
    assert "4111" not in str(caught.value)


def test_transient_errors_are_reported_without_details_too(ferryman_db: Database) -> None:
    def stands_in_line(db: Any, _message: Received) -> Done:
        db.execute("DO $$ BEGIN RAISE deadlock_detected USING MESSAGE = 'a deadlock', DETAIL = '4111'; END $$")
        return Done()

    with pytest.raises(Transient, match="a deadlock") as caught:
        run(ferryman_db, stands_in_line)
    assert "4111" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "events"), [(ConsumerLoop, ["handling failed", "rejected"]), (AtMostOnce, ["vanished"])]
)
def test_log_of_a_failure_has_its_place_and_no_values(
    ferryman_db: Database, kind: type[ConsumerLoop], events: list[str]
) -> None:
    """N14: file, line and function."""
    one = message()
    partitions = Partitions("c", 1 << 20, 1, by_place={one.record.place: PartitionBuffer(0)})
    partitions.add([one.record])
    partitions.look_again()
    partitions.mark(ferryman_db, lambda _offsets: None)

    def refuses_the_card(_db: Database, _message: Received) -> Outcome:
        card = "4111"
        raise ValueError(f"{card[:1]}...")

    consumer = Consumer("c", ["topic"], mode="at_most_once" if kind is AtMostOnce else "effectively_once")
    consumer.handles("t")(refuses_the_card)
    made = Transactions(consumer, 1, Deadline(20))
    loop = kind(consumer, cast(Any, None), ConsumerSettings(tries=2), partitions, made)
    with capture_logs() as logs:
        for _ in events:
            loop.handle(HandlerConnection(ferryman_db), [one.record])
    assert [each["event"] for each in logs] == events
    for each in logs:
        assert [place.rsplit(":", 1)[0] for place in each["where"]] == [__file__]
        assert each["where"][0].endswith("refuses_the_card")
        assert "4111" not in str(each)


def test_the_receipt_of_a_vanished_message_shows_no_secret(ferryman_db: Database) -> None:
    """N14: at most once, the error is in the receipt and in the log."""
    one = message()
    partitions = Partitions("c", 1 << 20, 1, by_place={one.record.place: PartitionBuffer()})
    partitions.add([one.record])

    class Failing(Transactions):
        def run(self, *_: Any) -> bool:
            raise HandlerFailed("https://bank/ with password=geheim refused it")

    consumer, unused = Consumer("c", ["topic"]), cast(Any, None)
    consumer.handles("t")(lambda _db, _message: Done())
    loop = AtMostOnce(consumer, unused, ConsumerSettings(), partitions, Failing(consumer, 1, unused))
    with capture_logs() as logs:
        assert loop.handle(HandlerConnection(ferryman_db), [one.record]) == [one.record]
    [(kept,)] = ferryman_db.execute("SELECT error FROM ferryman.inbox").fetchall()
    assert kept == "https://bank/ with password=*** refused it" == logs[-1]["error"]
