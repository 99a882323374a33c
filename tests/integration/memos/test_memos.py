"""Memos in the database: both rows or none, the document's tables, and who may do what."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, create_memo, find_memo, key_of, serializably

MEMO = MemoInput("HR", "people", "Summer party", "ann@example.com", "You are invited.", "Fun")
CRUD = {"SELECT", "INSERT", "UPDATE", "DELETE"}


def counts(db: Connection) -> tuple[int, int]:
    row = db.execute("SELECT (SELECT count(*) FROM memos.memos), (SELECT count(*) FROM memos.email_outbox)").fetchone()
    assert row is not None
    return row[0], row[1]


def test_a_memo_and_its_mail_are_recorded_together(ferryman_db: Connection) -> None:
    made = create_memo(ferryman_db, MEMO)
    [row] = ferryman_db.execute(
        "SELECT o.id, m.memo_number_prefix || '-' || m.memo_number_sequence, o.payload, o.recipient_email,"
        " o.event_type, o.notification_type, o.status, o.retry_count, o.idempotency_key"
        " FROM memos.memos m JOIN memos.email_outbox o ON o.memo_id = m.id WHERE m.id = %s", (made.id,)
    ).fetchall()  # fmt: skip
    payload = {"subject": "Memo Summer party Created", "body": "You are invited."}
    assert row == (made.mail, made.number, payload, "ann@example.com", "memo.created", "MEMO_CREATED", "PENDING", 0,
                   f"{made.id}-memo.created-ann@example.com")  # fmt: skip


@pytest.mark.parametrize("failing", ["memos", "email_outbox"])
def test_neither_row_stands_without_the_other(ferryman_db: Connection, failing: str) -> None:
    """N2: whichever of the two rows is refused, the other is rolled back with it."""
    ferryman_db.execute(f"ALTER TABLE memos.{failing} ADD CONSTRAINT refused CHECK (false) NOT VALID")
    with pytest.raises(errors.CheckViolation):
        create_memo(ferryman_db, MEMO)
    ferryman_db.execute(f"ALTER TABLE memos.{failing} DROP CONSTRAINT refused")
    with ferryman_db.transaction(force_rollback=True):
        create_memo(ferryman_db, MEMO)
    assert counts(ferryman_db) == (0, 0)


def test_a_mail_is_recorded_once_per_memo_event_and_recipient(ferryman_db: Connection) -> None:
    made = create_memo(ferryman_db, MEMO)
    with pytest.raises(errors.UniqueViolation):
        ferryman_db.execute(
            "INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type,"
            " idempotency_key) VALUES (%s, 'memo.created', '{}', 'ann@example.com', 'MEMO_CREATED', %s)",
            (made.id, key_of(made.id, "memo.created", "ann@example.com")),
        )


@pytest.mark.parametrize(("characters", "hashed"), [(50, False), (51, True), (255, True)])
def test_a_key_that_the_column_cannot_hold_is_hashed(characters: int, hashed: bool) -> None:
    memo, recipient = UUID(int=7), "a" * (characters - 4) + "@b.c"
    key = key_of(memo, "memo.created", recipient)
    assert len(key) == (43 if hashed else 100)
    assert key == key_of(memo, "memo.created", recipient) != key_of(memo, "memo.created", "x" + recipient[1:])


def test_two_writers_that_conflict_both_succeed(ferryman_db: Connection, ferryman_database_url: str) -> None:
    """Each reads how many memos there are and writes one: the database refuses one of them, who does it again."""
    both_read, tries = threading.Barrier(2), []

    @contextmanager
    def opened() -> Iterator[Connection]:
        with closing(psycopg.connect(ferryman_database_url)) as db:
            db.isolation_level = IsolationLevel.SERIALIZABLE
            with db.transaction():
                yield db

    def write(barrier: list[threading.Barrier]) -> None:
        def work(db: Connection) -> None:
            tries.append(1)
            seen = counts(db)[0]
            if barrier:
                barrier.pop().wait(10)
            create_memo(db, MemoInput("HR", "people", f"after {seen}", "ann@example.com", "Text"))

        serializably(opened, work)

    threads = [threading.Thread(target=write, args=([both_read],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    titles = {title for (title,) in ferryman_db.execute("SELECT title FROM memos.memos").fetchall()}
    assert (titles, len(tries)) == ({"after 0", "after 1"}, 3)


def test_deadlock_is_tried_again_and_any_other_error_is_raised_at_once(ferryman_db: Connection) -> None:
    failing: list[Exception] = [errors.DeadlockDetected(), errors.SerializationFailure(), errors.UniqueViolation()]

    def work(_: Connection) -> None:
        raise failing.pop(0)

    with pytest.raises(errors.UniqueViolation):
        serializably(lambda: nullcontext(ferryman_db), work)


def test_memo_is_found_with_the_oldest_mail_about_its_creation(ferryman_db: Connection) -> None:
    made = create_memo(ferryman_db, MEMO)
    _, [oldest], _ = [
        ferryman_db.execute(
            "INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type,"
            " meta_created_at) VALUES (%s, %s, '{}', 'bob@example.com', 'MEMO', now() + make_interval(hours => %s))"
            " RETURNING id", (made.id, event, hours),
        ).fetchall()
        for event, hours in (("memo.approved", -3), ("memo.created", -2), ("memo.created", 1))
    ]  # fmt: skip
    found = find_memo(ferryman_db, made.id)
    assert found is not None
    assert ((found.mail,), found.number, found.purpose) == (oldest, made.number, "Fun")


def test_application_may_delete_a_memo_with_its_mail(ferryman_db: Connection) -> None:
    made = create_memo(ferryman_db, MEMO)
    ferryman_db.execute("SET ROLE ferryman_memos")
    ferryman_db.execute("DELETE FROM memos.email_outbox WHERE memo_id = %s", (made.id,))
    assert ferryman_db.execute("DELETE FROM memos.memos WHERE id = %s", (made.id,)).rowcount == 1
    ferryman_db.execute("RESET ROLE")
    assert ferryman_db.execute("SELECT count(*) FROM memos.request").fetchone() == (0,)


def test_the_tables_are_the_documents(ferryman_db: Connection) -> None:
    def columns(table: str) -> dict[str, tuple[str, int | None, bool, str | None]]:
        found = ferryman_db.execute(
            "SELECT column_name, data_type, character_maximum_length, is_nullable = 'NO', column_default"
            " FROM information_schema.columns WHERE table_schema = 'memos' AND table_name = %s", (table,)
        ).fetchall()  # fmt: skip
        return {name: (kind, length, never_null, default) for name, kind, length, never_null, default in found}

    text, moment = "character varying", "timestamp with time zone"
    assert columns("memos") == {
        "id": ("uuid", None, True, "gen_random_uuid()"),
        "memo_number_prefix": (text, 50, True, None),
        "memo_number_sequence": ("integer", None, True, None),
        "department_code": (text, 50, True, None),
        "title": (text, 500, True, None),
        "purpose": ("text", None, False, None),
        "created_at": (moment, None, True, "now()"),
        "updated_at": (moment, None, False, None),
    }
    assert columns("email_outbox") == {
        "id": ("uuid", None, True, "gen_random_uuid()"),
        "memo_id": ("uuid", None, True, None),
        "event_type": (text, 100, True, None),
        "payload": ("jsonb", None, True, None),
        "recipient_email": (text, 255, True, None),
        "notification_type": (text, 100, True, None),
        "status": (text, 20, True, "'PENDING'::character varying"),
        "retry_count": ("integer", None, True, "0"),
        "last_attempt_at": (moment, None, False, None),
        "sent_at": (moment, None, False, None),
        "error_message": ("text", None, False, None),
        "idempotency_key": (text, 100, False, None),
        "meta_created_at": (moment, None, True, "now()"),
        "meta_updated_at": (moment, None, False, None),
    }
    found = ferryman_db.execute(
        "SELECT indexname FROM pg_indexes WHERE schemaname = 'memos' AND tablename = 'email_outbox'"
    ).fetchall()
    indexes = {name for (name,) in found}
    assert indexes == {"email_outbox_pkey", "ux_email_outbox_idempotent", "ix_email_outbox_status_created_at",
                       "ix_email_outbox_memo_id"}  # fmt: skip


def test_a_status_outside_the_lifecycle_is_refused(ferryman_db: Connection) -> None:
    create_memo(ferryman_db, MEMO)
    with pytest.raises(errors.CheckViolation):
        ferryman_db.execute("UPDATE memos.email_outbox SET status = 'LOST'")


@pytest.mark.parametrize(
    ("role", "table", "allowed"),
    [
        ("ferryman_memos", "memos", CRUD),
        ("ferryman_memos", "email_outbox", CRUD),
        ("ferryman_memos", "email_archive", {"SELECT"}),
        ("ferryman_memos_worker", "memos", set()),
        ("ferryman_memos", "request", {"SELECT", "INSERT"}),
        ("ferryman_memos_worker", "email_outbox", {"SELECT"}),
        ("ferryman_memos_worker", "email_archive", {"SELECT"}),
        ("ferryman_courier", "email_outbox", set()),
        ("ferryman_monitor", "memos", set()),
        ("ferryman_monitor", "email_outbox", set()),
    ],
)
def test_each_role_may_do_its_own_work_only(ferryman_db: Connection, role: str, table: str, allowed: set[str]) -> None:
    """The worker changes six columns and no recipient or payload; monitors read neither."""
    rights = {right for right in CRUD if ferryman_db.execute(
        "SELECT has_table_privilege(%s, %s, %s)", (role, f"memos.{table}", right)).fetchone() == (True,)}  # fmt: skip
    assert rights == allowed
    for column in ("payload", "recipient_email", "idempotency_key", "meta_created_at"):
        for which, act in (("ferryman_memos_worker", "UPDATE"), ("ferryman_monitor", "SELECT")):
            may = ferryman_db.execute("SELECT has_column_privilege(%s, 'memos.email_outbox', %s, %s)",
                                      (which, column, act)).fetchone()  # fmt: skip
            assert may == (which == "ferryman_monitor" and column == "meta_created_at",)
    assert ferryman_db.execute("SELECT has_column_privilege('ferryman_monitor', 'memos.memos', 'title', 'SELECT')"
                               ).fetchone() == (False,)  # fmt: skip


def test_a_memo_may_be_given_its_id(ferryman_db: Connection) -> None:
    memo = uuid4()
    assert create_memo(ferryman_db, MEMO, memo).id == memo
    with pytest.raises(errors.UniqueViolation):
        create_memo(ferryman_db, MEMO, memo)
