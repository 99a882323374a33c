"""The testing kit: a correct handler passes, and each broken one is caught with the point named."""

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ferryman import Consumer, Done, Message, Misconfigured, Outcome, Received, Refused, Retry, append, use_schemas
from ferryman.consumer import wire
from ferryman.schemas import active
from ferryman.testing import NotProven, prove
from support.catalogues import ORDER, write
from support.published import poll_until

Database = psycopg.Connection[tuple[Any, ...]]
Handler = Callable[[Any, Received], Outcome]

BALANCE = "SELECT balance FROM wallet WHERE id = 'w1'"
TAKE = "UPDATE wallet SET balance = balance - %(amount)s WHERE id = %(wallet)s AND balance >= %(amount)s"


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute("CREATE TABLE wallet (id text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0))")
    ferryman_db.execute("CREATE TABLE effect (number serial, wallet text REFERENCES wallet, at text)")
    ferryman_db.execute("INSERT INTO wallet VALUES ('w1', 900), ('w2', 900)")
    return ferryman_db


def pay(amount: int = 300, wallet: str = "w1") -> Message:
    return Message("payment.requested", {"wallet": wallet, "amount": amount}, key=wallet)


def succeeded(payment: Received, **more: Any) -> Done:
    return Done(Message("payment.succeeded", more, key=payment.key, topic="results"))


def deduct(db: Database, payment: Received) -> Outcome:
    if not db.execute(TAKE, payment.data).rowcount:
        return Refused("INSUFFICIENT_FUNDS", Message("payment.failed", {}, key=payment.key, topic="results"))
    db.execute("INSERT INTO effect (wallet) VALUES (%(wallet)s)", payment.data)
    return succeeded(payment)


def consumer(handler: Handler = deduct, **more: Any) -> Consumer:
    made = Consumer("wallet", topics=["payments.commands"], **more)
    made.handles("payment.requested")(handler)
    return made


def balance(expected: int) -> Callable[[Database], bool]:
    return lambda db: db.execute(BALANCE).fetchone() == (expected,)


def failure(handler: Handler | Consumer, *messages: Message, db: Database, **more: Any) -> str:
    """Return what `prove` says; check that the run which it names fails alike when it is tried alone."""
    proven = handler if isinstance(handler, Consumer) else consumer(handler)
    wanted = {"invariant": balance(600), **more}
    with pytest.raises(NotProven) as caught:
        prove(proven, *(messages or [pay()]), db=db, **wanted)
    words = str(caught.value)
    named = words.partition("only='")[2].partition("'")[0]
    assert words.startswith(f"{named}: ")
    with pytest.raises(NotProven) as again:
        prove(proven, *(messages or [pay()]), db=db, **wanted, only=named)
    assert str(again.value).splitlines()[0] == words.splitlines()[0]
    return words


class Base(DeclarativeBase):
    pass


class Wallet(Base):
    __tablename__ = "wallet"
    id: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


def test_a_correct_handler_passes_every_run(db: Database) -> None:
    """The points are the loop's steps and each of the handler's statements."""
    tried = prove(consumer(), pay(), db=db, invariant=balance(600))
    steps = ("poll", "find", "sort", "handle", "statement 1", "statement 2", "check", "report", "record", "commit",
             "offsets")  # fmt: skip
    assert tried == [
        "plain",
        *(f"crash before {step}" for step in steps),
        "crash after offsets",
        "commit whose answer is lost",
        *(f"connection lost before {step}" for step in steps),
        "statement 1 is refused with 40001",
        "statement 2 is refused with 40001",
        "each message twice, in one batch",
        "each message twice, the second time later",
        "replayed from offset 0",
        "two owners at once",
    ]


def test_each_fault_strikes_where_its_name_says(db: Database) -> None:
    """It is seen by how often the handler began and ended."""
    calls: list[str] = []
    counted: list[tuple[int, int]] = []

    def counting(db: Database, payment: Received) -> Outcome:
        calls.append("begun")
        outcome = deduct(db, payment)
        calls.append("ended")
        return outcome

    def count(_: Database) -> None:
        counted.append((calls.count("begun"), calls.count("ended")))

    tried = prove(consumer(counting), pay(), db=db, invariant=count, reset=calls.clear)
    found = dict(zip(tried, counted, strict=True))
    early, inside, late, committed = (1, 1), (2, 1), (2, 2), (1, 1)
    expected = {
        **dict.fromkeys(("poll", "find", "sort", "handle"), early),
        **dict.fromkeys(("statement 1", "statement 2"), inside),
        **dict.fromkeys(("check", "report", "record", "commit"), late),
        "offsets": committed,
    }
    for point, numbers in expected.items():
        assert found[f"crash before {point}"] == numbers, point
        if point not in ("sort", "handle"):  # the handler runs into it
            assert found[f"connection lost before {point}"] == numbers, point
    assert found["connection lost before handle"] == inside
    assert found["commit whose answer is lost"] == found["crash after offsets"] == committed
    assert found["statement 2 is refused with 40001"] == inside
    assert found["two owners at once"][0] == 2


def test_the_database_is_left_as_it_was(db: Database) -> None:
    """Rows and sequences: the handler's own, and the runtime's."""
    db.execute("INSERT INTO effect (wallet) VALUES ('w2')")
    prove(consumer(), pay(), db=db, invariant=balance(600))
    assert db.execute("SELECT * FROM wallet ORDER BY id").fetchall() == [("w1", 900), ("w2", 900)]
    assert db.execute("SELECT number, wallet FROM effect").fetchall() == [(1, "w2")]
    assert db.execute("SELECT last_value FROM effect_number_seq").fetchall() == [(1,)]
    assert db.execute("SELECT count(*) FROM ferryman.inbox").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (0,)


def test_many_messages_are_also_tried_in_single_batches_and_in_reverse_order(db: Database) -> None:
    tried = prove(consumer(), pay(), pay(500, "w2"), db=db, invariant=balance(600))
    assert "crash before commit (2), each message in a batch of its own" in tried
    assert tried[-1] == "keys in reverse order"


def test_a_batch_handler_passes(db: Database) -> None:
    def deduct_all(db: Database, payments: Sequence[Received]) -> list[Outcome]:
        return [deduct(db, payment) for payment in sorted(payments, key=lambda payment: payment.key)]

    made = Consumer("wallet", topics=["payments.commands"])
    made.handles_batch("payment.requested")(deduct_all)
    prove(made, pay(), pay(300, "w2"), db=db, invariant=balance(600))


def test_a_handler_on_a_sqlalchemy_connection_passes(db: Database) -> None:
    def deduct_core(db: sa.Connection, payment: Received) -> Outcome:
        taken = sa.update(Wallet).where(Wallet.id == payment.key).values(balance=Wallet.balance - 300)
        assert db.execute(taken).rowcount == 1
        append(db, Message("audit", {}, key="a", topic="audits"))
        return succeeded(payment)

    prove(consumer(deduct_core, connection=sa.Connection), pay(), db=db, invariant=balance(600))


def test_a_handler_on_a_sqlalchemy_session_passes(db: Database) -> None:
    """Changes that the session still holds are written with their message."""

    def deduct_orm(session: Session, payment: Received) -> Outcome:
        wallet = session.get_one(Wallet, payment.key, with_for_update=True)
        wallet.balance -= payment.data["amount"]
        return succeeded(payment, left=wallet.balance)

    prove(consumer(deduct_orm, connection=Session), pay(100), pay(200), db=db, invariant=balance(600))


def test_each_transaction_has_a_session_of_its_own(db: Database) -> None:
    """Else it would work on rows that others have changed since."""
    seen: list[Session] = []

    def remembering(session: Session, payment: Received) -> Outcome:
        seen.append(session)
        session.get_one(Wallet, payment.key).balance -= payment.data["amount"]
        return succeeded(payment)

    run = "each message in a batch of its own"
    prove(consumer(remembering, connection=Session), pay(100), pay(200), db=db, invariant=balance(600), only=run)
    in_plain, behind = seen[:2], seen[2:]
    assert in_plain[0] is in_plain[1]
    assert len({in_plain[0], *behind}) == 3


@pytest.mark.parametrize("kind", [sa.Connection, Session])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_sqlalchemy_can_neither_commit_nor_roll_back(db: Database, kind: type[Any], how: str) -> None:
    def ending(db: Any, payment: Received) -> Outcome:
        db.execute(sa.text("UPDATE wallet SET balance = 600 WHERE id = 'w1'"))
        getattr(db, how)()
        return succeeded(payment)

    words = failure(consumer(ending, connection=kind), db=db)
    assert words.startswith("plain: the invariant does not hold")
    assert "rejected: " in words
    assert "forbidden within a Transaction context" in words


def test_a_handler_that_waits_for_another_message_passes(db: Database) -> None:
    """Nothing waits for real: the loop's clock is the kit's."""
    seen: list[str] = []

    def waiting(db: Database, payment: Received) -> Outcome:
        seen.append(payment.key)
        return Retry("not yet", after_seconds=60) if len(seen) < 3 else deduct(db, payment)

    prove(consumer(waiting), pay(), db=db, invariant=balance(600), reset=seen.clear)


def test_at_most_once_may_lose_an_effect_and_never_doubles_one(db: Database) -> None:
    def once_at_most(db: Database) -> bool:
        return db.execute(BALANCE).fetchone() in [(600,), (900,)]

    prove(consumer(mode="at_most_once"), pay(), db=db, invariant=once_at_most)


def test_a_duplicate_that_is_not_answered_again_is_caught(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "restored_reports", lambda _kept: [])
    assert "it was not reported again" in failure(consumer(), db=db)
    prove(consumer(rereport=False), pay(), db=db, invariant=balance(600))


def test_a_message_that_is_rejected_plainly_may_be_rejected_always(db: Database) -> None:
    spoilt = Message("payment.requested", b"{", key="w1", content_type="application/json")
    prove(consumer(), spoilt, db=db, invariant=balance(900))


def test_messages_are_encoded_as_the_catalogue_says(db: Database, tmp_path: Path) -> None:
    """Their topics are the catalogue's too."""
    use_schemas(write(tmp_path))
    try:
        orders = Consumer("orders", topics=["orders"])

        @orders.handles("order.placed")
        def place(db: Database, order: Received) -> Outcome:
            assert order.data["order"] == UUID(str(ORDER["order"]))
            db.execute("UPDATE wallet SET balance = balance - %(amount)s", order.data)
            return Done()

        data = {**ORDER, "order": UUID(str(ORDER["order"]))}
        prove(orders, Message("order.placed", data, key="o"), db=db, invariant=balance(895))
    finally:
        active.forget()


# Broken handlers, and what `prove` says of them.


def commits_by_sql(db: Database, payment: Received) -> Outcome:
    outcome = deduct(db, payment)
    db.execute("COMMIT")
    return outcome


def leaks_a_cursor(db: Database, payment: Received) -> Outcome:
    left = db.cursor("left")
    LEFT.append(left)
    left.execute("SELECT generate_series(1, 10)")
    return deduct(db, payment)


LEFT: list[Any] = []


def raises(_: Database, payment: Received) -> Outcome:
    raise LookupError(payment.key)


def answers_nothing(db: Database, payment: Received) -> Outcome:
    deduct(db, payment)
    return None  # type: ignore[return-value]  # the bug


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (commits_by_sql, "it ended the transaction: only the runtime commits"),
        (leaks_a_cursor, "it left 1 cursors open"),
        (raises, "LookupError: w1"),
        (answers_nothing, "it answered None"),
    ],
)
def test_a_permanent_bug_is_reported_for_the_plain_run_with_its_reason(
    db: Database, handler: Handler, why: str
) -> None:
    words = failure(handler, db=db)
    assert words.startswith("plain: the invariant does not hold: it answered False\n  rejected: ")
    assert why in words


def test_an_effect_through_a_second_connection_is_caught(db: Database, ferryman_database_url: str) -> None:
    """In autocommit mode or not, it stays when the transaction is rolled back."""

    def elsewhere(_: Database, payment: Received) -> Outcome:
        with psycopg.connect(ferryman_database_url) as other:
            other.execute(TAKE, payment.data)
        return succeeded(payment)

    words = failure(elsewhere, db=db)
    assert words.startswith("crash before check: the invariant does not hold: it answered False\n")


def test_a_connection_that_is_left_with_a_transaction_open_is_caught(db: Database, ferryman_database_url: str) -> None:
    left: list[Database] = []

    def leaving(db: Database, payment: Received) -> Outcome:
        left.append(psycopg.connect(ferryman_database_url))
        left[-1].execute("SELECT balance FROM wallet")
        return deduct(db, payment)

    words = failure(leaving, db=db)
    assert words.startswith(
        "plain: a connection of the handler's still has a transaction open, after: SELECT balance FROM wallet"
    )
    for each in left:
        each.close()


def test_a_handler_that_waits_for_its_own_lock_is_caught(
    db: Database, ferryman_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferryman.testing.proving.prove_owner.HANG_SECONDS", 1.0)

    def waiting_for_itself(db: Database, payment: Received) -> Outcome:
        outcome = deduct(db, payment)
        with psycopg.connect(ferryman_database_url) as other:
            other.execute(TAKE, payment.data)
        return outcome

    assert failure(waiting_for_itself, db=db).startswith("plain: the handler did not come back within 1 s")


def test_a_handler_that_closes_its_connection_is_caught(db: Database) -> None:
    def closing(db: Database, payment: Received) -> Outcome:
        db.close()
        return succeeded(payment)

    assert "closed the connection" in failure(closing, db=db)


def test_an_effect_in_memory_is_caught(db: Database) -> None:
    """With `reset`, at the point that doubles it; without, the error says that something is kept."""
    paid: list[int] = []

    def counting(db: Database, payment: Received) -> Outcome:
        paid.append(payment.data["amount"])
        return deduct(db, payment)

    words = failure(counting, db=db, invariant=lambda _: paid == [300], reset=paid.clear)
    assert words.startswith("crash before statement 1: ")
    paid.clear()
    with pytest.raises(NotProven, match="something outside this database goes from one run to the next"):
        prove(consumer(counting), pay(), db=db, invariant=lambda _: paid == [300])


def test_an_effect_in_a_file_is_caught(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "payments"

    def writing(db: Database, payment: Received) -> Outcome:
        outcome = deduct(db, payment)
        with file.open("a") as lines:
            lines.write("paid\n")
        return outcome

    def once(_: Database) -> None:
        assert file.read_text() == "paid\n", "it was paid twice"

    words = failure(writing, db=db, invariant=once, reset=lambda: file.unlink(missing_ok=True))
    assert words.startswith("crash before check: the invariant raised AssertionError: it was paid twice")


def test_a_handler_that_swallows_errors_of_the_database_is_caught(db: Database) -> None:
    def swallowing(db: Database, payment: Received) -> Outcome:
        try:
            return deduct(db, payment)
        except psycopg.Error:
            return Refused("TRY_LATER")

    words = failure(swallowing, db=db)
    assert words.startswith("statement 1 is refused with 40001: rejected, which it is not in the plain run: BUG: ")
    assert "it swallowed a database error" in words


def test_a_handler_that_hides_a_transient_error_is_caught(db: Database) -> None:
    def wrapping(db: Database, payment: Received) -> Outcome:
        try:
            return deduct(db, payment)
        except psycopg.errors.SerializationFailure as error:
            raise RuntimeError("the database is strange") from error

    words = failure(wrapping, db=db)
    assert words.startswith("statement 1 is refused with 40001: rejected, which it is not in the plain run: BUG: ")
    assert "the database is strange" in words


def test_a_handler_that_swallows_its_own_end_does_not_go_on(db: Database) -> None:
    def immortal(db: Database, payment: Received) -> Outcome:
        try:
            return deduct(db, payment)
        except BaseException:
            return succeeded(payment)

    assert failure(immortal, db=db).startswith("statement 1 is refused with 40001: ")


def test_a_wrong_number_of_outcomes_is_caught_though_the_runtime_heals_it(db: Database) -> None:
    def one_for_all(db: Database, payments: Sequence[Received]) -> list[Outcome]:
        return [deduct(db, payment) for payment in payments][:1]

    made = Consumer("wallet", topics=["payments.commands"])
    made.handles_batch("payment.requested")(one_for_all)
    words = failure(made, pay(100), pay(200), db=db)
    assert words.startswith("plain: the handler failed (in a batch of 2), though what it was given can be handled: ")
    assert "it was given 2 messages and answered 1" in words


def drawn(db: Database, payment: Received) -> Outcome:
    db.execute(TAKE, payment.data)
    return succeeded(payment, number=random.random())


def with_an_id_of_its_own(db: Database, payment: Received) -> Outcome:
    db.execute(TAKE, payment.data)
    return Done(Message("payment.succeeded", {}, key=payment.key, topic="results", id=uuid4()))


@pytest.mark.parametrize("handler", [drawn, with_an_id_of_its_own])
def test_reports_that_differ_from_try_to_try_are_caught_unless_meant(db: Database, handler: Handler) -> None:
    with pytest.raises(NotProven, match=r"crash before poll: .* is reported differently from try to try"):
        prove(consumer(handler), pay(), db=db, invariant=balance(600))
    prove(consumer(handler), pay(), db=db, invariant=balance(600), repeatable=False)


def test_a_handler_that_relies_on_the_order_between_keys_is_caught(db: Database) -> None:
    def second_needs_first(db: Database, payment: Received) -> Outcome:
        first = db.execute("SELECT count(*) FROM effect WHERE wallet = 'w1'").fetchone()
        if payment.key == "w2" and first == (0,):
            return Refused("TOO_EARLY")
        return deduct(db, payment)

    def both(db: Database) -> None:
        assert db.execute("SELECT count(*) FROM effect").fetchone() == (2,), "one payment is missing"

    words = failure(second_needs_first, pay(), pay(100, "w2"), db=db, invariant=both)
    assert words.startswith("keys in reverse order: the invariant raised AssertionError: one payment is missing")


def test_the_error_has_the_point_the_steps_and_how_to_repeat_the_run(db: Database) -> None:
    paid: list[int] = []

    def counting(db: Database, payment: Received) -> Outcome:
        outcome = deduct(db, payment)
        paid.append(payment.data["amount"])
        return outcome

    words = failure(counting, db=db, invariant=lambda _: len(paid) == 1, reset=paid.clear)
    assert words.splitlines() == [
        "crash before check: the invariant does not hold: it answered False",
        "",
        "  run just this one: prove(..., only='crash before check')",
        "  what came, in this order, 1 in a batch:",
        '    payment.requested 83b0a479-be41-5e09-acfb-7470e927b69a (key w1) {"wallet": "w1", "amount": 300}',
        "  what was done, step by step:",
        "    poll, find, sort, handle, statement 1, statement 2, check, CRASH BEFORE CHECK",
        "    a new worker: what was not committed at Kafka comes again",
        (
            "    poll (2), find (2), sort (2), handle (2), statement 3, statement 4, check (2), report, record, "
            "commit, offsets"
        ),
    ]


def test_an_unknown_run_is_refused_with_the_known_ones(db: Database) -> None:
    with pytest.raises(ValueError, match=r"no run 'crash'; there are:\n  plain\n  crash before poll\n"):
        prove(consumer(), pay(), db=db, invariant=balance(600), only="crash")


@pytest.mark.usefixtures("db")
def test_an_open_transaction_is_refused(ferryman_database_url: str) -> None:
    with psycopg.connect(ferryman_database_url) as other:
        other.execute("UPDATE wallet SET balance = 0")
        with pytest.raises(ValueError, match="commit what the messages are to find"):
            prove(consumer(), pay(), db=other, invariant=balance(600))


def test_a_role_that_cannot_restore_the_database_is_refused(db: Database, ferryman_database_url: str) -> None:
    role = f"prover_{secrets.token_hex(4)}"
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    try:
        with (
            psycopg.connect(ferryman_database_url, user=role, password="p", autocommit=True) as weak,
            pytest.raises(Misconfigured, match="let it connect as a superuser"),
        ):
            prove(consumer(), pay(), db=weak, invariant=balance(600))
    finally:
        db.execute(f"DROP ROLE {role}")


@pytest.fixture(autouse=True)
def _no_connection_is_left(ferryman_database_url: str) -> Iterator[None]:
    yield
    for cursor in LEFT:
        cursor.close()
    left = (
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ferryman prove'"
    )
    with psycopg.connect(ferryman_database_url, autocommit=True) as look:
        poll_until(lambda: not look.execute(left).fetchall(), "end of the sessions of `prove`")
