"""Appending many messages at once, in the order of the arrays; and repeated appends with an idempotency key."""

import threading
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import Message, Permanent, append, append_many
from support.published import poll_until

Database = psycopg.Connection[tuple[Any, ...]]
Refused = psycopg.errors.InvalidParameterValue


def order(number: int = 1, **more: Any) -> Message:
    return Message("order.placed", str(number).encode(), key="k", topic="orders", **more)


def ids(db: Database) -> list[UUID]:
    return [entry for (entry,) in db.execute("SELECT id FROM ferryman.outbox ORDER BY position").fetchall()]


def test_positions_and_ids_follow_the_order_of_the_messages(ferryman_db: Database) -> None:
    """N4 begins here: messages of one key that are appended together are published in order."""
    with ferryman_db.transaction():
        appended = append_many(
            ferryman_db,
            [order(number, id=uuid4() if number % 3 else None, idempotency_key=f"{-number}") for number in range(2000)],
        )
        appended += append_many(ferryman_db, [order(number) for number in range(2000, 4000)])
    assert ids(ferryman_db) == appended
    payloads = ferryman_db.execute("SELECT payload FROM ferryman.outbox ORDER BY position").fetchall()
    assert [int(payload) for (payload,) in payloads] == list(range(4000))


def test_entries_are_stored_as_they_were_given(ferryman_db: Database) -> None:
    given = uuid4()
    messages = [
        Message("a", b"\x00\xff,{}", key="", topic="orders"),
        Message("b", {"naïve": "NULL"}, key="NULL", topic="o.1", id=given, headers={"traceparent": 'a"b\\'}),
        Message("c", b"", key="k", topic="O_-2", content_type="text/plain", headers={"x": ""}),
    ]
    with ferryman_db.transaction():
        append_many(ferryman_db, messages)
    columns = "type, key, topic, payload, headers, content_type, lane"
    assert ferryman_db.execute(f"SELECT {columns} FROM ferryman.outbox ORDER BY position").fetchall() == [
        ("a", "", "orders", b"\x00\xff,{}", {}, None, 3),
        ("b", "NULL", "o.1", '{"naïve":"NULL"}'.encode(), {"traceparent": 'a"b\\'}, "application/json", 3),
        ("c", "k", "O_-2", b"", {"x": ""}, "text/plain", 2),
    ]
    assert ids(ferryman_db)[1] == given


@pytest.mark.parametrize("keyed", [False, True])
def test_bad_message_in_the_middle_is_named_and_nothing_is_appended(ferryman_db: Database, keyed: bool) -> None:
    messages = [order(number, idempotency_key=str(number) if keyed else None) for number in range(5)]
    messages[2] = Message("order.placed", b"", key="k" * 2001, topic="orders")
    with pytest.raises(Refused, match=r"its key has 2001 bytes, and 2000 is the most \(message 3 of 5\)"):
        with ferryman_db.transaction():
            append_many(ferryman_db, messages)
    assert ids(ferryman_db) == []


def test_batch_appended_again_with_the_same_ids_appends_nothing(ferryman_db: Database) -> None:
    messages = [order(number, id=uuid4(), idempotency_key=str(number)) for number in range(3)]
    for _ in range(2):
        with ferryman_db.transaction():
            assert append_many(ferryman_db, [*messages, messages[0]]) == [each.id for each in [*messages, messages[0]]]
    assert ids(ferryman_db) == [each.id for each in messages]


def test_known_idempotency_keys_are_skipped_and_messages_without_one_are_not(ferryman_db: Database) -> None:
    with ferryman_db.transaction():
        (first,) = append_many(ferryman_db, [order(idempotency_key="a")])
        appended = append_many(ferryman_db, [order(), order(idempotency_key="a"), order(), order(idempotency_key="b")])
    assert appended[1] == first
    assert ids(ferryman_db) == [first, appended[0], appended[2], appended[3]]


def test_in_sql_the_optional_arrays_may_be_left_out(ferryman_db: Database) -> None:
    call = "SELECT ferryman.outbox_append_many('{o,o}', '{a,b}', '{t,t}', '{x,y}')"
    appended = ferryman_db.execute(call).fetchone()
    assert appended == (ids(ferryman_db),)
    assert len(ids(ferryman_db)) == 2
    assert ferryman_db.execute("SELECT ferryman.outbox_append_many('{}', '{}', '{}', '{}')").fetchone() == ([],)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ("'{o}', '{a,b}', '{t,t}', '{x,y}'", "it has no topic"),
        ("'{o,o}', '{a}', '{t,t}', '{x,y}'", "it has no key"),
        ("'{o,o}', NULL, '{t,t}', '{x,y}'", "it has no key"),
        ("'{o,o}', '{a,b}', '{t}', '{x,y}'", "its type must have 1 to 255 characters"),
        ("'{o,o}', '{a,b}', '{t,t}', '{x}'", "it has no payload"),
        ("""'{o}', '{a}', '{t}', '{x}', '{"{}","{}"}'""", "it has no topic"),
    ],
)
def test_arrays_of_different_lengths_are_refused(ferryman_db: Database, arrays: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        ferryman_db.execute(f"SELECT ferryman.outbox_append_many({arrays})")


def test_idempotency_key_appends_once_and_returns_the_first_id(
    ferryman_database_url: str, ferryman_db: Database
) -> None:
    with psycopg.connect(ferryman_database_url) as connection:
        first = append(connection, order(idempotency_key="a"))
        assert append(connection, order(idempotency_key="a")) == first
        connection.commit()
        assert append(connection, order(idempotency_key="a")) == first
        assert append_many(connection, [order(idempotency_key=key) for key in ("b", "a", "b")])[1] == first
        other = Message("order.cancelled", {}, key="k", topic="orders", idempotency_key="a")
        assert append(connection, other) != first
    assert len(ids(ferryman_db)) == 3


def test_bad_message_is_refused_even_with_a_known_idempotency_key(ferryman_database_url: str) -> None:
    with psycopg.connect(ferryman_database_url) as connection:
        append(connection, order(idempotency_key="a"))
        with pytest.raises(Refused, match="its key has 2001 bytes"):
            append(connection, Message("order.placed", b"", key="k" * 2001, topic="orders", idempotency_key="a"))


def test_concurrent_writers_with_one_idempotency_key_append_once(
    ferryman_database_url: str, ferryman_db: Database
) -> None:
    appended: set[UUID] = set()
    start = threading.Barrier(6)

    def writer() -> None:
        with psycopg.connect(ferryman_database_url) as connection:
            start.wait()
            appended.add(append(connection, order(idempotency_key="same")))

    threads = [threading.Thread(target=writer) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(appended) == 1
    assert len(ids(ferryman_db)) == 1


@pytest.mark.parametrize("many", [False, True])
def test_key_that_is_forgotten_while_it_is_used_again_appends_anew(
    ferryman_database_url: str, ferryman_db: Database, many: bool
) -> None:
    """N1: the ring deletes the key after it was found and before its id is read."""
    ferryman_db.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;"
        "CREATE TRIGGER wait AFTER INSERT ON ferryman.outbox_key FOR EACH STATEMENT EXECUTE FUNCTION wait()"
    )
    messages = [order(1, idempotency_key="a"), order(2), order(3, idempotency_key="a")]
    with ferryman_db.transaction():
        first = append(ferryman_db, messages[0])
    given: list[UUID] = []

    def write() -> None:
        with psycopg.connect(ferryman_database_url) as db:
            given.extend(append_many(db, messages) if many else [append(db, messages[0])])

    ferryman_db.execute("SELECT pg_advisory_lock(1)")
    writer = threading.Thread(target=write)
    writer.start()
    waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
    poll_until(lambda: ferryman_db.execute(waits).fetchall(), "a writer that has found the key")
    ferryman_db.execute("DELETE FROM ferryman.outbox_key")
    ferryman_db.execute("SELECT pg_advisory_unlock(1)")
    writer.join(20)
    assert ids(ferryman_db) == list(dict.fromkeys([first, *given]))
    assert len(set(given)) == (2 if many else 1)


def test_many_writers_with_crossing_idempotency_keys_do_not_deadlock(ferryman_database_url: str) -> None:
    errors: list[Exception] = []
    start = threading.Barrier(4)

    def writer(number: int) -> None:
        keys = [str(key) for key in range(50)]
        try:
            with psycopg.connect(ferryman_database_url) as connection:
                start.wait()
                append_many(connection, [order(idempotency_key=key) for key in (keys if number % 2 else keys[::-1])])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=writer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("many", [1, 2])
def test_single_message_is_checked_like_many(ferryman_database_url: str, many: int) -> None:
    """There are two statements: a message that passes alone must also pass among many."""
    given = uuid4()
    wrong: list[dict[str, Any]] = [{"content_type": b"text/plain"}, {"idempotency_key": 7}, {"id": "5"}]
    with psycopg.connect(ferryman_database_url) as connection:
        for each in wrong:
            with pytest.raises(Permanent, match=f"its {next(iter(each))} is not"):
                append_many(connection, [order(**each) for _ in range(many)])
        keyed = append_many(connection, [order(idempotency_key=given) for _ in range(many)])
        assert append_many(connection, [order(idempotency_key=str(given)) for _ in range(many)]) == keyed
        ids_as_text: list[Any] = [str(uuid4()) for _ in range(many)]
        assert list(map(str, append_many(connection, [order(id=each) for each in ids_as_text]))) == ids_as_text


def test_appending_nothing_sends_no_statement(ferryman_database_url: str) -> None:
    with psycopg.connect(ferryman_database_url) as connection:
        assert append_many(connection, []) == []
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
