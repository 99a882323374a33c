"""Sections 6.3, 6.4, 8.1 and 10 of the document on real tables: deliveries, their mails, and their results."""

from collections.abc import Iterator

import psycopg
import pytest

from ferryman import Message, use_schemas
from ferryman.schemas import active
from ferryman.services.notifier.deliveries import NOT_NOTIFIED, NOTIFIED, NOTIFY
from ferryman.services.notifier.mailer import commands
from ferryman.testing import prove
from ferryman.testing.mail import MailServer
from ferryman.testing.resend import ResendServer, refusal
from support.mailing import by_resend, by_smtp
from support.reviewing import CHANGE, JOB, WORDS, Database, NotifierDesk, appended, said

ADA, BEN = said("ada@example.com"), said("ben@example.com")


@pytest.fixture
def desk(ferryman_db: Database, ferryman_database_url: str) -> Iterator[NotifierDesk]:
    use_schemas()
    yield NotifierDesk(ferryman_db, ferryman_database_url)
    active.forget()


@pytest.fixture
def resend() -> Iterator[ResendServer]:
    with ResendServer() as running:
        yield running


def attempts(db: Database) -> list[tuple[str, str | None]]:
    return db.execute("SELECT outcome, code FROM ferryman.outbox_attempt ORDER BY number").fetchall()


# --- 6.3 and 10.2: a row for each recipient, before any send


def test_rule_6_3_a_delivery_is_recorded_for_each_recipient_before_any_send(desk: NotifierDesk) -> None:
    assert desk.tell(ADA, BEN) == ["Done", "Done"]
    assert desk.rows() == [("ada@example.com", "queued", None), ("ben@example.com", "queued", None)]
    assert attempts(desk.db) == []


def test_rule_10_2_a_recipient_of_a_version_has_one_row_however_often_it_is_asked_for(desk: NotifierDesk) -> None:
    assert desk.tell(ADA, ADA) == ["Done", "Done"]
    assert desk.tell(ADA, said("ada@example.com", 4)) == ["Done", "Done"]
    assert len(desk.rows()) == 2
    with pytest.raises(psycopg.errors.UniqueViolation, match="notified_once"):
        desk.db.execute(
            "INSERT INTO notifier.deliveries (job_id, changelist_id, recipient, review_version, payload) "
            "VALUES (gen_random_uuid(), %s, 'ada@example.com', 3, '{}')", (CHANGE,),
        )  # fmt: skip


def test_commands_take_effect_once_whatever_dies(desk: NotifierDesk) -> None:
    """N5 and N6: a crash before each step and statement, duplicates, replays and two owners."""
    asked = [Message(NOTIFY, {**WORDS, **each}, key=CHANGE, topic="reviews.commands") for each in (ADA, BEN, ADA)]
    two = [("ada@example.com", "queued", None), ("ben@example.com", "queued", None)]
    assert prove(commands(), *asked, db=desk.db, invariant=lambda _: desk.rows() == two)


def test_a_command_that_no_row_can_hold_is_refused_and_answered(desk: NotifierDesk) -> None:
    wrong = [
        said("a" * 400 + "@example.com"), said("a\0b@example.com"), said(version=0), {**ADA, "subject": "\0"},
        {**ADA, "changelist_id": "c" * 300},
    ]  # fmt: skip
    assert desk.tell(*wrong, BEN) == ["Refused"] * 5 + ["Done"]
    assert [(kind, data["permanent"]) for kind, data in desk.told] == [(NOT_NOTIFIED, True)] * 5
    assert [recipient for recipient, *_ in desk.rows()] == ["ben@example.com"]


# --- 6.4: send, then mark


def test_rule_6_4_a_mail_is_marked_in_one_write_with_its_result(desk: NotifierDesk, resend: ResendServer) -> None:
    """The provider's id, the time and the status change together, in the transaction that appends the result."""
    desk.db.execute("CREATE TABLE written (status text, id boolean, at boolean, told bigint)")
    desk.db.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO written VALUES "
        "(NEW.status, NEW.notification_id IS NOT NULL, NEW.notified_at IS NOT NULL, "
        "pg_current_xact_id()::text::bigint);"
        " RETURN NULL; END $$"
    )
    desk.db.execute("CREATE TRIGGER note AFTER UPDATE ON notifier.deliveries FOR EACH ROW EXECUTE FUNCTION note()")
    desk.tell(ADA)
    desk.send(by_resend(resend))
    [(_, status, reference)] = desk.rows()
    assert (status, reference) == ("sent", resend.sent[0].id)
    written = desk.db.execute("SELECT status, id, at FROM written").fetchall()
    assert written == [("sending", False, False), ("sent", True, True)]
    assert desk.db.execute(
        "SELECT count(*) FROM written JOIN ferryman.outbox o ON o.xid::text::bigint = told"
    ).fetchone() == (1,)
    [(kind, result)] = appended(desk.db)
    [(marked,)] = desk.db.execute("SELECT notified_at FROM notifier.deliveries").fetchall()
    assert kind == NOTIFIED
    assert result == {**ADA, "notification_id": reference, "notified_at": marked}


def test_rule_6_4_the_token_follows_from_recipient_change_and_version(desk: NotifierDesk, resend: ResendServer) -> None:
    """10.3: the same in each attempt, another one for another version or other words."""
    failures = [refusal(500, "application_error"), None]
    resend.after = lambda _: failures.pop(0) if failures else None
    desk.tell(ADA, BEN)
    desk.send(by_resend(resend))
    desk.tell({**ADA, "review_version": 4})
    desk.send(by_resend(resend))
    assert len(resend.sent) == 3
    assert len({mail.key for mail in resend.sent}) == 3
    requests = [each for each in resend.requests if b"ada@" in each.body]
    assert len({each.headers["idempotency-key"] for each in requests}) == 2


def test_rule_6_4_a_delivery_that_is_marked_is_never_sent_again(desk: NotifierDesk, resend: ResendServer) -> None:
    """10.3 and 6.3: it is answered from its row, whatever the command says; the table refuses to queue it."""
    desk.tell(ADA)
    desk.send(by_resend(resend))
    other = JOB.__class__(int=7)
    assert desk.tell({**ADA, "body": "Other words", "job_id": other}) == ["Done"]
    [(kind, result)] = desk.told
    assert (kind, result["job_id"], result["notification_id"]) == (NOTIFIED, other, resend.sent[0].id)
    for status in ("queued", "sending", "failed"):
        with pytest.raises(psycopg.errors.CheckViolation, match="sent_is_marked"):
            desk.db.execute("UPDATE notifier.deliveries SET status = %s", (status,))
    with pytest.raises(psycopg.errors.CheckViolation, match="sent_is_marked"):
        desk.db.execute("UPDATE notifier.deliveries SET notified_at = NULL")
    desk.send(by_resend(resend))
    assert len(resend.requests) == 1


@pytest.mark.parametrize("known", [True, False])
def test_rule_6_4_a_known_id_without_its_time_is_looked_up_first(
    desk: NotifierDesk, resend: ResendServer, known: bool
) -> None:
    """The third of the three cases. The provider has the mail: it is marked and not sent; else it is sent."""
    desk.tell(ADA)
    desk.send(by_resend(resend))
    desk.db.execute(
        "UPDATE notifier.deliveries SET status = 'queued', notified_at = NULL, notification_id = %s",
        (resend.sent[0].id if known else "unknown",),
    )
    resend.requests.clear()
    desk.send(by_resend(resend))
    assert resend.requests[0].method == "GET"
    assert [status for _, status, _ in desk.rows()] == ["sent" if known else "failed"]
    assert len(resend.sent) == 1


def test_rule_8_2_a_send_whose_mark_was_lost_is_looked_up_and_not_sent_twice(
    desk: NotifierDesk, resend: ResendServer
) -> None:
    """The first row of the matrix: the provider has it, the database does not know."""
    desk.tell(ADA)
    with desk.sending(by_resend(resend)) as turns:
        turns.run_once()
        while not resend.sent:
            pass
    desk.expire()
    desk.send(by_resend(resend))
    assert [status for _, status, _ in desk.rows()] == ["sent"]
    assert len(resend.sent) == 1
    assert [kind for kind, _ in appended(desk.db)] == [NOTIFIED]


def test_rule_8_2_a_mail_that_nobody_can_look_up_is_held_and_not_permanent(desk: NotifierDesk) -> None:
    """In doubt by SMTP: it is reported as a failure that a person may decide, and never as a refusal."""
    desk.tell(ADA)
    desk.db.execute(
        "UPDATE notifier.deliveries SET status = 'sending', begun_at = now() - interval '1 h', attempts = 1"
    )
    with MailServer() as server:
        desk.send(by_smtp(server))
    assert server.received == []
    [(_, result)] = appended(desk.db, NOT_NOTIFIED)
    assert (result["permanent"], result["error_code"]) == (False, "NOT_LOOKED_UP")
    [(error,)] = desk.db.execute("SELECT error FROM notifier.deliveries").fetchall()
    assert error.startswith("in doubt: ")


# --- 8.1: failures


@pytest.mark.parametrize(
    ("recipient", "answer"),
    [("two@example.com, addresses@example.com", None), ("ada@example.com", (422, "validation_error"))],
)
def test_rule_8_1_a_permanent_failure_is_failed_at_once_and_told(
    desk: NotifierDesk, resend: ResendServer, recipient: str, answer: tuple[int, str] | None
) -> None:
    """An invalid recipient, and the provider's policy."""
    resend.before = lambda _: refusal(*answer) if answer else None
    desk.tell(said(recipient))
    desk.send(by_resend(resend))
    assert [status for _, status, _ in desk.rows()] == ["failed"]
    [(kind, result)] = appended(desk.db)
    assert (kind, result["recipient"], result["permanent"]) == (NOT_NOTIFIED, recipient, True)
    assert [outcome for outcome, _ in attempts(desk.db)] == ["rejected"]


def test_rule_8_1_a_transient_failure_backs_off_and_every_attempt_is_recorded(
    desk: NotifierDesk, resend: ResendServer
) -> None:
    failures = [refusal(408, "timeout")] * 2
    resend.before = lambda _: failures.pop() if failures else None
    desk.tell(ADA)
    with desk.sending(by_resend(resend)) as turns:
        while desk.rows()[0][1] != "sent":
            turns.run_once()
    assert [outcome for outcome, _ in attempts(desk.db)] == ["failed", "failed", "delivered"]
    assert [kind for kind, _ in appended(desk.db)] == [NOTIFIED]


def test_rule_8_1_the_last_transient_failure_is_told_as_one_that_may_pass(
    desk: NotifierDesk, resend: ResendServer
) -> None:
    resend.before = lambda _: refusal(408, "timeout")
    desk.tell(ADA)
    with desk.sending(by_resend(resend)) as turns:
        while desk.rows()[0][1] != "failed":
            turns.run_once()
    [(_, result)] = appended(desk.db, NOT_NOTIFIED)
    assert (result["permanent"], result["error_code"]) == (False, "ANSWER_RETRY")
    assert len(attempts(desk.db)) == 3


def test_a_command_for_a_failed_delivery_queues_it_again(desk: NotifierDesk, resend: ResendServer) -> None:
    """With the same words or others: what was refused was never sent, and what is in doubt is looked up."""
    resend.before = lambda _: refusal(422, "validation_error")
    for words in ({}, {"body": "Other words"}):
        desk.tell(ADA)
        desk.send(by_resend(resend))
        assert [status for _, status, _ in desk.rows()] == ["failed"]
        assert desk.tell({**ADA, **words}) == ["Done"]
        assert [status for _, status, _ in desk.rows()] == ["queued"]
    resend.before = lambda _: None
    desk.send(by_resend(resend))
    assert [mail.content["text"] for mail in resend.sent] == ["Other words"]


def test_other_words_correct_a_delivery_that_waits_and_wait_for_one_that_is_sent_now(desk: NotifierDesk) -> None:
    desk.tell(ADA, {**ADA, "body": "Corrected"})
    desk.db.execute("UPDATE notifier.deliveries SET status = 'sending', begun_at = now()")
    assert desk.tell({**ADA, "body": "Corrected"}) == ["Done"]
    assert desk.tell({**ADA, "body": "Corrected again"}) == ["Retry"]
    [(body, status)] = desk.db.execute("SELECT payload ->> 'body', status FROM notifier.deliveries").fetchall()
    assert (body, status) == ("Corrected", "sending")
