"""The document about memos, section by section: each scenario as a user of the API, the command line or SQL has it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import IsolationLevel, conninfo, errors

from ferryman.testing import stack
from ferryman.testing.mail import ACCEPTED, MailServer
from ferryman.testing.receiver import Answer, ReceivedRequest
from ferryman.testing.resend import ResendServer, refusal
from support.memoing import Memoing, at
from support.published import metric

ONE_CONNECTION = {"FERRYMAN_EMAIL__SMTP__CONNECTIONS": "1"}
MEMO = """
    INSERT INTO memos (id, memo_number_prefix, department_code, title, purpose)
    VALUES (%(id)s, 'HR', 'people', 'No. 0', NULL)
"""
MAIL = """
    INSERT INTO email_outbox
    (memo_id, event_type, payload, recipient_email, notification_type, idempotency_key)
    VALUES (%(id)s::uuid, 'memo.created', '{"subject": "Memo No. 0 Created", "body": "Please read."}',
            'ann@example.com', 'MEMO_CREATED', %(id)s::text || '-memo.created-ann@example.com')
    RETURNING id::text
"""
REPLAY = """
    UPDATE email_outbox
    SET status = 'PENDING', retry_count = 0, error_message = NULL, meta_updated_at = now()
    WHERE id = %s
"""


@contextmanager
def service_of_ones_own(url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """Connect as the document's services do: with the role of the application, and SERIALIZABLE."""
    login = stack.login(url, "memos_app", "ferryman_memos")
    with psycopg.connect(conninfo.make_conninfo(login, options="-csearch_path=memos")) as db:
        db.isolation_level = IsolationLevel.SERIALIZABLE
        yield db


def test_application_transaction_flow_commits_both_rows_or_neither(by_smtp: Memoing) -> None:
    """A service in any language records both rows by the document's statements, or neither; the key refuses a second.

    Section 4; N2.
    """
    with service_of_ones_own(by_smtp.database_url) as db:
        memo = {"id": str(uuid4())}
        db.execute(MEMO, memo)
        db.execute(MAIL, memo)
        db.rollback()
        assert by_smtp.statuses() == {}
        db.execute(MEMO, memo)
        [(mail,)] = db.execute(MAIL, memo).fetchall()
        db.commit()
        by_smtp.mails.append(mail)
        with pytest.raises(errors.UniqueViolation, match="ux_email_outbox_idempotent"):
            db.execute(MAIL, memo)
    by_smtp.run("drain", "memos")
    assert by_smtp.statuses() == {"SENT": 1}
    assert by_smtp.received() == {0: 1}


def test_outbox_worker_counts_failures_and_the_fifth_ends_the_mail(by_smtp: Memoing, smtp: MailServer) -> None:
    """Each failure counts and leaves its error; the fifth makes the mail FAILED; a success clears the error.

    Section 5; the waits are moved, so that nobody waits for them.
    """
    failing, recovering = by_smtp.write("quota@example.com", "ann@example.com")
    smtp.script = at("RCPT", "452 4.2.2 mailbox full")
    worker = by_smtp.start(FERRYMAN_MEMOS__BASE_SECONDS="600")
    for count in range(1, 6):
        status = "PENDING" if count < 5 else "FAILED"
        worker.until(lambda: by_smtp.row(failing)[:2] == (status, count), f"failure {count}")  # noqa: B023 - at once
        assert "452 4.2.2 mailbox full" in by_smtp.row(failing)[2]
        if count == 1:
            worker.until(lambda: by_smtp.row(recovering)[1] == 1, "failure")
            smtp.script = at("RCPT", "452 4.2.2 mailbox full", "quota@example.com")
        by_smtp.age(7200, "PENDING")
    by_smtp.await_statuses(worker, SENT=1, FAILED=1)
    by_smtp.stop(worker)
    assert by_smtp.row(recovering) == ("SENT", 1, "")
    assert by_smtp.received() == {1: 1}
    assert by_smtp.attempts(failing) == [("failed", "MAILBOX_BUSY")] * 5


def test_concurrency_with_skip_locked_sends_each_mail_once(by_smtp: Memoing) -> None:
    """Two workers send each mail once, and neither waits for a row that somebody else has locked.

    Section 6; the locked mail stays PENDING, which metrics show, until it is free.
    """
    locked, *_ = by_smtp.write_many(80)
    with psycopg.connect(by_smtp.database_url) as other:
        other.execute("SELECT FROM memos.email_outbox WHERE id = %s FOR UPDATE", (locked,))
        workers = [by_smtp.start(FERRYMAN_RELAY__BACKLOG_SECONDS="0.2") for _ in range(2)]
        by_smtp.await_statuses(workers[0], SENT=79, PENDING=1)
        workers[0].until(lambda: metric(workers[0], "ferryman_relay_pending_entries") == 1, "gauge")
        other.rollback()
    by_smtp.await_statuses(workers[0], SENT=80)
    by_smtp.stop(*workers)
    assert by_smtp.received() == dict.fromkeys(range(80), 1)


def test_concurrency_of_one_takes_the_oldest_mail_first(by_smtp: Memoing, smtp: MailServer) -> None:
    """Section 6: one worker with one connection sends the mails in the order in which they were recorded."""
    by_smtp.write_many(20)
    by_smtp.env.update(ONE_CONNECTION)
    by_smtp.run("drain", "memos")
    assert [each.recipients[0] for each in smtp.received] == [f"reader-{number}@example.com" for number in range(20)]


def test_status_lifecycle_has_four_states_and_one_way_back(by_smtp: Memoing, smtp: MailServer) -> None:
    """PENDING, SENDING while the server thinks, SENT; or FAILED, PENDING again by hand, SENT. No other way.

    Section 7.
    """
    over = threading.Event()
    mail, other = by_smtp.write("ann@example.com", "gone@example.com")
    assert by_smtp.row(mail) == ("PENDING", 0, "")
    smtp.script = at("RCPT", "550 5.1.1 no such user", "gone@example.com")
    smtp.answer = lambda _: ACCEPTED if over.wait(20) else "451 too late"
    worker = by_smtp.start()
    by_smtp.await_statuses(worker, SENDING=1, FAILED=1)
    assert by_smtp.row(mail)[0] == "SENDING"
    over.set()
    by_smtp.await_statuses(worker, SENT=1, FAILED=1)
    by_smtp.stop(worker)
    by_smtp.run("outbox", "replay", "--outbox", "memos", other, "--yes", "--reason", "the mailbox is there now")
    assert by_smtp.row(other) == ("PENDING", 0, "")
    smtp.script = lambda *_: None
    by_smtp.run("drain", "memos")
    assert by_smtp.row(other) == ("SENT", 0, "")
    replay = ("outbox", "replay", "--outbox", "memos", other, "--yes", "--reason", "once more")
    assert "a delivered row is never sent again" in by_smtp.run(*replay, exit_code=1).stderr


def test_recovery_and_replay_by_sql_keep_the_key_and_the_history(by_smtp: Memoing, smtp: MailServer) -> None:
    """FAILED mails are found, corrected and replayed by the document's statements; key and history stay.

    Section 8.
    """
    smtp.script = at("RCPT", "550 5.1.1 no such user", "anm@example.com")
    [mail] = by_smtp.write("anm@example.com")
    by_smtp.run("drain", "memos")
    with service_of_ones_own(by_smtp.database_url) as db:
        found = db.execute("SELECT id::text, error_message, idempotency_key FROM email_outbox WHERE status = 'FAILED'")
        [(failed, error, key)] = found.fetchall()
        assert (failed, "550 5.1.1" in error) == (mail, True)
        db.execute("UPDATE email_outbox SET recipient_email = 'ann@example.com' WHERE id = %s", (mail,))
        db.execute(REPLAY, (mail,))
        db.commit()
        by_smtp.run("drain", "memos")
        assert db.execute("SELECT idempotency_key FROM email_outbox WHERE id = %s", (mail,)).fetchone() == (key,)
    assert by_smtp.row(mail) == ("SENT", 0, "")
    assert [each.recipients for each in smtp.received] == [("ann@example.com",)]
    assert by_smtp.attempts(mail) == [("rejected", "RECIPIENT_REFUSED"), ("delivered", None)]
    shown = by_smtp.run("outbox", "show", "--outbox", "memos", mail, "--json").json
    assert [each["outcome"] for each in shown["history"]] == ["rejected", "delivered"]


def test_recovery_guards_the_idempotency_of_a_replayed_mail(by_resend: Memoing, resend: ResendServer) -> None:
    """A replayed mail has its old key, so the provider drops the second copy; a corrected mail is a new one.

    Section 8; N3.
    """
    [mail] = by_resend.write("ann@example.com")
    failing = True

    def after(_: ReceivedRequest) -> Answer | None:
        return refusal(422, "validation_error", "taken, and then refused") if failing else None

    resend.after = after
    by_resend.run("drain", "memos")
    assert by_resend.row(mail)[0] == "FAILED"
    failing = False
    replay = ("outbox", "replay", "--outbox", "memos", mail, "--yes", "--reason", "the provider erred")
    by_resend.run(*replay)
    by_resend.run("drain", "memos")
    assert by_resend.row(mail)[0] == "SENT"
    assert (len(resend.requests), len(resend.sent)) == (2, 1)


def test_operational_guidelines_for_roles_schedule_and_monitoring(by_smtp: Memoing, smtp: MailServer) -> None:
    """Application and worker have roles of their own; from a timer or as a service; failures and counts are measured.

    Section 9.
    """
    gone, _ = by_smtp.write("gone@example.com", "ann@example.com")
    smtp.script = at("RCPT", "550 5.1.1 no such user", "gone@example.com")
    by_smtp.database_url = stack.login(by_smtp.database_url, "memos_worker", "ferryman_memos_worker")
    by_smtp.run("drain", "memos")  # from a timer
    assert by_smtp.statuses() == {"SENT": 1, "FAILED": 1}
    worker = by_smtp.start(FERRYMAN_RELAY__BACKLOG_SECONDS="0.2")  # as a service
    by_smtp.write_many(1)
    by_smtp.await_statuses(worker, SENT=2, FAILED=1)
    worker.until(lambda: metric(worker, "ferryman_relay_failed_entries") == 1, "gauge")
    worker.until(lambda: metric(worker, "ferryman_relay_pending_entries") == 0, "gauge")
    by_smtp.stop(worker)
    with psycopg.connect(by_smtp.database_url) as db, pytest.raises(errors.InsufficientPrivilege):
        db.execute("UPDATE memos.email_outbox SET recipient_email = 'eve@example.com' WHERE id = %s", (gone,))
    [listed] = by_smtp.run("outbox", "list", "--outbox", "memos", "--status", "FAILED", "--json").json["rows"]
    assert listed["id"] == gone
