"""Mails that were sent long ago leave the outbox, and no others do."""

import json
from typing import Any

import psycopg
import pytest
from psycopg import errors

from ferryman import Chore, Transient
from ferryman.cli.wiring import load_settings
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.services.memos import archiving
from ferryman.services.memos.memos import MemoInput, create_memo, find_memo
from ferryman.services.memos.memos_settings import MemosSettings
from ferryman.services.memos.worker import worker

DAY = 86_400
MEMO = MemoInput("HR", "people", "Party", "ann@example.com", "You are invited.")
BULK = """
INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type, status, sent_at,
                                meta_created_at)
SELECT %s, 'memo.created', '{}', 'ann@example.com', 'MEMO_CREATED',
       CASE WHEN n %% 1000 = 0 THEN 'PENDING' ELSE 'SENT' END,
       now() - n * interval '1 min', now() - n * interval '1 min'
FROM generate_series(1, 50000) n
"""


def mail(db: Connection, status: str, created_days: float, sent_days: float | None) -> str:
    """Record a memo whose mail has this status and these ages. Return the mail's id."""
    made = create_memo(db, MEMO)
    db.execute(
        "UPDATE memos.email_outbox SET status = %s, meta_created_at = now() - make_interval(secs => %s),"
        " sent_at = now() - make_interval(secs => %s) WHERE id = %s",
        (status, created_days * DAY, None if sent_days is None else sent_days * DAY, made.mail),
    )
    return str(made.mail)


def ids(db: Connection, table: str) -> set[str]:
    return {identity for (identity,) in db.execute(f"SELECT id::text FROM memos.{table}").fetchall()}


def chore(**given: Any) -> Chore:
    return archiving.archiving(MemosSettings(**given))


def portions(db: Connection, which: Chore) -> int:
    """Do the work as long as there is more. Return how often it was done."""
    times = 1
    while which.run_once(db, Settings()):
        times += 1
    return times


@pytest.mark.parametrize("archive", [True, False])
def test_only_mails_that_were_sent_long_ago_leave(ferryman_db: Connection, archive: bool) -> None:
    old = {mail(ferryman_db, "SENT", 40, 31), mail(ferryman_db, "SENT", 31, 31), mail(ferryman_db, "SENT", 31, None)}
    kept = {
        mail(ferryman_db, "SENT", 40, 29), mail(ferryman_db, "SENT", 1, 1), mail(ferryman_db, "FAILED", 40, None),
        mail(ferryman_db, "PENDING", 40, None), mail(ferryman_db, "SENDING", 40, None),
    }  # fmt: skip
    portions(ferryman_db, chore(archive=archive))
    assert ids(ferryman_db, "email_outbox") == kept
    assert ids(ferryman_db, "email_archive") == (old if archive else set())


def test_archived_mail_is_as_it_was(ferryman_db: Connection) -> None:
    created = create_memo(ferryman_db, MEMO)
    ferryman_db.execute(
        "UPDATE memos.email_outbox SET status = 'SENT', retry_count = 2, meta_created_at = '2026-01-01', sent_at ="
        " '2026-01-02', meta_updated_at = '2026-01-02', last_attempt_at = '2026-01-02', error_message = 'x'"
    )
    [before] = ferryman_db.execute("SELECT to_jsonb(o) FROM memos.email_outbox o").fetchall()
    portions(ferryman_db, chore())
    [after] = ferryman_db.execute("SELECT to_jsonb(a) - 'archived_at' FROM memos.email_archive a").fetchall()
    assert (before, None not in before[0].values()) == (after, True)
    found = find_memo(ferryman_db, created.id)
    assert found is not None
    assert found.mail is None


def test_mails_leave_in_portions(ferryman_db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "PORTION", 2)
    old = {mail(ferryman_db, "SENT", 31 + n, 31) for n in range(5)}
    assert portions(ferryman_db, chore()) == 3
    assert ids(ferryman_db, "email_archive") == old


def test_mail_that_somebody_changes_is_left_for_later(ferryman_db: Connection, ferryman_database_url: str) -> None:
    """N10: the chore waits for nobody."""
    first, second = mail(ferryman_db, "SENT", 40, 31), mail(ferryman_db, "SENT", 39, 31)
    with psycopg.connect(ferryman_database_url) as other:
        other.execute("UPDATE memos.email_outbox SET meta_updated_at = now() WHERE id = %s", (first,))
        portions(ferryman_db, chore())
        assert ids(ferryman_db, "email_archive") == {second}
    portions(ferryman_db, chore())
    assert ids(ferryman_db, "email_archive") == {first, second}


@pytest.mark.parametrize("archive", [True, False])
def test_chore_needs_no_more_than_the_role_of_the_worker(ferryman_db: Connection, archive: bool) -> None:
    mail(ferryman_db, "SENT", 40, 31)
    ferryman_db.execute("SET ROLE ferryman_memos_worker")
    portions(ferryman_db, chore(archive=archive))
    ferryman_db.execute("RESET ROLE")
    assert ids(ferryman_db, "email_outbox") == set()


def test_worker_can_neither_delete_mails_nor_let_others_than_old_sent_ones_leave(ferryman_db: Connection) -> None:
    """N1: a login that was stolen deletes no mail that waits, and hides no mail that was just sent."""
    kept = {mail(ferryman_db, "SENT", 0.03, 0.03), mail(ferryman_db, "PENDING", 40, None)}
    ferryman_db.execute("SET ROLE ferryman_memos_worker")
    archive = "INSERT INTO memos.email_archive SELECT * FROM memos.email_archive"
    for statement in ("DELETE FROM memos.email_outbox", archive):
        with pytest.raises(errors.InsufficientPrivilege):
            ferryman_db.execute(statement.encode())
    attempt = "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) VALUES ('memos', '1', now(), %s)"
    for outcome in ("lost", "begun"):
        ferryman_db.execute(attempt, (outcome,))
    assert ferryman_db.execute("DELETE FROM ferryman.outbox_attempt").rowcount == 1, "a claim without an attempt"
    assert ferryman_db.execute("SELECT memos.leave(0, 1000, false)").fetchone() == (0,)
    ferryman_db.execute("RESET ROLE")
    assert ids(ferryman_db, "email_outbox") == kept


def test_mail_that_was_put_back_has_two_records(ferryman_db: Connection) -> None:
    """N1: who restores a row, sends it again and archives it again loses neither record."""
    identity = mail(ferryman_db, "SENT", 40, 31)
    portions(ferryman_db, chore())
    ferryman_db.execute(
        "INSERT INTO memos.email_outbox SELECT (jsonb_populate_record(NULL::memos.email_outbox, to_jsonb(a))).*"
        " FROM memos.email_archive a"
    )
    ferryman_db.execute("UPDATE memos.email_outbox SET sent_at = sent_at + interval '1 h'")
    portions(ferryman_db, chore())
    found = ferryman_db.execute("SELECT id::text, sent_at FROM memos.email_archive").fetchall()
    assert ({each for each, _ in found}, len({at for _, at in found})) == ({identity}, 2)
    assert ids(ferryman_db, "email_outbox") == set()


def test_chore_reads_old_mails_by_the_documents_index(ferryman_db: Connection) -> None:
    """Nothing of 50,000 mails is old enough, or the oldest thousand: no plan reads the table.

    The function has a plan for any values: as a prepared statement does here.
    """
    ferryman_db.execute(BULK, (create_memo(ferryman_db, MEMO).id,))
    ferryman_db.execute("ANALYZE memos.email_outbox")
    [[body]] = ferryman_db.execute("SELECT prosrc FROM pg_proc WHERE oid = 'memos.leave'::regproc").fetchall()
    body = body.replace("leave.seconds", "$1").replace("leave.most", "$2").replace("leave.keep", "$3")
    ferryman_db.execute(f"PREPARE leave (float8, bigint, boolean) AS {body}".encode())
    ferryman_db.execute("SET plan_cache_mode = force_generic_plan")
    [[plan]] = ferryman_db.execute("EXPLAIN (FORMAT JSON) EXECUTE leave (60, 1000, true)").fetchall()
    assert "ix_email_outbox_status_created_at" in json.dumps(plan), plan
    assert "Seq Scan" not in json.dumps(plan), plan


def test_constraint_of_the_users_own_does_not_end_the_process(ferryman_db: Connection) -> None:
    """N11: it is said, and tried again; mails go on being sent."""
    mail(ferryman_db, "SENT", 40, 31)
    ferryman_db.execute("ALTER TABLE memos.email_archive ADD CONSTRAINT ours CHECK (retry_count > 0)")
    with pytest.raises(Transient, match="ours"):
        portions(ferryman_db, chore())
    assert len(ids(ferryman_db, "email_outbox")) == 1


@pytest.mark.parametrize(("seconds", "runs"), [(0, 1), (60, 2)])
def test_mails_are_kept_for_ever_without_a_retention(seconds: float, runs: int) -> None:
    environment = {
        "FERRYMAN_EMAIL__PROVIDER": "file", "FERRYMAN_EMAIL__PATH": "mails", "FERRYMAN_EMAIL__SENDER": "a@example.com",
        "FERRYMAN_MEMOS__RETENTION_SECONDS": str(seconds),
    }  # fmt: skip
    assert len(worker(load_settings(environment).settings)) == runs
