"""Mails that may have been sent, whatever people and clocks do meanwhile: none is sent twice, and none is lost."""

import json
import time
from collections.abc import Callable

import pytest

from ferryman.channels.outcome import Code, Delivered, Retry
from ferryman.cli.app import run
from ferryman.relay.admin import described_rows
from ferryman.relay.admin.described_rows import RowDesk, RowSelection, open_rows
from ferryman.relay.described.rows import Claimed, released, settling
from ferryman.runtime.desk import Act, Desk
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_email import Email
from ferryman.testing import stack
from ferryman.testing.mail import MailServer
from ferryman.testing.receiver import Answer, ReceivedRequest
from ferryman.testing.resend import ResendServer, refusal
from integration.relay.test_rows_as_mails import DDL, attempts, mail_settings, mailing, rows, write
from support.hooks import CourierTurns
from support.mailing import by_resend, by_smtp, email

BY_PERSON = Act("ann", "asked for")
ONE = RowSelection(ids=("1",))


@pytest.fixture
def db(ferryman_db: Connection) -> Connection:
    ferryman_db.execute(DDL)
    return ferryman_db


def desk(db: Connection, url: str, settings: Email) -> RowDesk:
    described = mail_settings(url, settings)
    return open_rows(Desk(db, described.database), "mails", "mails", described.outbox["mails"])


def as_courier(db: Connection, url: str) -> str:
    """Return the URL of a login that has the role of couriers alone."""
    db.execute("GRANT USAGE ON SCHEMA shop TO ferryman_courier; GRANT SELECT, UPDATE ON shop.mails TO ferryman_courier")
    return stack.login(url, "mails", "ferryman_courier")


def until_settled(turns: CourierTurns, db: Connection) -> str:
    """Take turns until the first row is sent or dead. Return its status."""
    until = time.monotonic() + 15
    while (status := str(rows(db)[0][0])) not in ("SENT", "DEAD"):
        assert time.monotonic() < until, rows(db)
        turns.service.lost_at = 0.0
        turns.run_once()
    return status


def die_while_sending(turns: CourierTurns, db: Connection) -> Claimed:
    """Claim the row as a process does that dies before it settles it; its lease has ended."""
    [row] = turns.table.claim(1)
    db.execute("UPDATE shop.mails SET claimed_at = claimed_at - interval '1 h'")
    return row


@pytest.mark.parametrize("change", [
    "status = 'PENDING'", "status = 'PENDING', attempts = 0", "status = 'PENDING', claimed_at = NULL",
    "claimed_at = NULL", "status = 'PENDING', attempts = 0, error = NULL",
    "status = 'PENDING', attempts = 0, error = NULL, claimed_at = NULL",
])  # fmt: skip
def test_mail_that_sql_sets_back_while_it_is_being_sent_is_held(
    db: Connection, ferryman_database_url: str, change: str
) -> None:
    """N3: its process may have sent it, and nobody wrote that down."""
    write(db, "ann@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        die_while_sending(turns, db)
        db.execute(f"UPDATE shop.mails SET {change}")
        assert until_settled(turns, db) == "DEAD"
        assert server.received == []
    [(error,)] = db.execute("SELECT error FROM shop.mails").fetchall()
    assert error.startswith("in doubt")


def test_mail_that_sql_sets_back_is_sent_under_the_same_key_while_resend_knows_it(
    db: Connection, ferryman_database_url: str
) -> None:
    """N3."""
    write(db, "ann@example.com")
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        die_while_sending(turns, db)
        db.execute("UPDATE shop.mails SET status = 'PENDING'")
        assert until_settled(turns, db) == "SENT"
        assert len(server.sent) == 1
    assert [outcome for outcome, _ in attempts(db)] == ["lost", "delivered"]


@pytest.mark.parametrize("change", ["status = 'SENDING'", "status = 'PENDING', attempts = 0, error = NULL"])
def test_lost_mail_that_is_corrected_is_a_new_mail(db: Connection, ferryman_database_url: str, change: str) -> None:
    """Its claim recorded what it was about to send, so the attempt says nothing about the corrected mail."""
    write(db, "wrong@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        die_while_sending(turns, db)
        db.execute(f"UPDATE shop.mails SET destination = 'right@example.com', {change}")
        assert until_settled(turns, db) == "SENT"
        assert [each.recipients for each in server.received] == [("right@example.com",)]


@pytest.mark.parametrize("make", [by_smtp, by_resend])
def test_mail_that_is_corrected_while_it_is_being_sent_is_sent_as_it_is_now(
    db: Connection, ferryman_database_url: str, make: Callable[..., Email]
) -> None:
    """N1: the success is that of the old mail, so the row is not done."""
    write(db, "wrong@example.com")
    with MailServer() as smtp, ResendServer() as resend:
        with mailing(ferryman_database_url, make(smtp if make is by_smtp else resend)) as turns:
            [row] = turns.table.claim(1)
            db.execute("UPDATE shop.mails SET destination = 'right@example.com'")
            sent = settling(turns.service.outbox, row, Delivered())._replace(
                outcome=Delivered("0a1b"), content=row.edition
            )
            turns.table.settle([sent])
            found = db.execute("SELECT status, attempts, error, done_at, reference FROM shop.mails").fetchall()
            assert found == [("PENDING", 0, None, None, None)]
            assert until_settled(turns, db) == "SENT"
        mailed = [each.recipients for each in smtp.received] + [tuple(each.content["to"]) for each in resend.sent]
        assert mailed == [("right@example.com",)]
    assert attempts(db) == [("delivered", None)] * 2


def test_attempt_that_has_not_ended_is_shown(
    db: Connection,
    ferryman_database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(db, "ann@example.com")
    settings = email("file", path="unused")
    described = mail_settings(ferryman_database_url, settings).outbox["mails"]
    monkeypatch.setenv("FERRYMAN_DATABASE_URL", ferryman_database_url)
    monkeypatch.setenv("FERRYMAN_OUTBOX", json.dumps({"mails": described.model_dump(mode="json", exclude_unset=True)}))
    with mailing(ferryman_database_url, settings) as turns:
        turns.table.claim(1)
    for form in ([], ["--json"]):
        assert run(["outbox", "show", "--outbox", "mails", "1", *form]) == 0
        assert "begun" in capsys.readouterr().out


def test_mail_that_was_claimed_and_released_is_not_in_doubt(db: Connection, ferryman_database_url: str) -> None:
    """The role of couriers is enough for that."""
    write(db, "ann@example.com")
    with MailServer() as server, mailing(as_courier(db, ferryman_database_url), by_smtp(server)) as turns:
        [row] = turns.table.claim(1)
        assert turns.table.settle([released(row)]) == {"1"}
        assert until_settled(turns, db) == "SENT"
    assert attempts(db) == [("delivered", None)]


def test_lost_mail_whose_log_is_gone_is_held(db: Connection, ferryman_database_url: str) -> None:
    """N3."""
    write(db, "ann@example.com")
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        die_while_sending(turns, db)
        db.execute("TRUNCATE ferryman.outbox_attempt")
        assert until_settled(turns, db) == "DEAD"
        assert server.requests == []


def test_end_of_an_attempt_that_was_taken_for_lost_is_known(db: Connection, ferryman_database_url: str) -> None:
    """The person who decides finds it in the log. The role of couriers is enough for that."""
    write(db, "ann@example.com")
    with MailServer() as server, mailing(as_courier(db, ferryman_database_url), by_smtp(server)) as turns:
        row = die_while_sending(turns, db)
        assert until_settled(turns, db) == "DEAD"
        outcome = Retry("full", Code.MAILBOX_BUSY)
        late = settling(mail_settings("", by_smtp(server)).outbox["mails"], row, outcome)
        for _ in range(2):
            assert turns.table.settle([late]) == set()
            assert attempts(db) == [("lost", None), ("held", "NOT_LOOKED_UP"), ("failed", "MAILBOX_BUSY")]


def lose(turns: CourierTurns, db: Connection, times: int) -> None:
    """Let a mail be lost so many times."""
    die_while_sending(turns, db)
    for _ in range(times - 1):
        assert turns.table.claim_lost(1) or turns.table.claim_lost(1, twice=True)
        db.execute("UPDATE shop.mails SET claimed_at = claimed_at - interval '1 h'")


def test_mail_that_is_lost_on_its_last_attempt_is_settled_by_the_provider(
    db: Connection, ferryman_database_url: str
) -> None:
    """N3: it is sent under the key that the provider knows."""
    write(db, "ann@example.com")
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        lose(turns, db, 3)
        assert until_settled(turns, db) == "SENT"
        assert len(server.sent) == 1


def test_mail_that_is_lost_each_time_is_held_in_the_end(db: Connection, ferryman_database_url: str) -> None:
    """N8, N10: it may be what ends its process."""
    write(db, "ann@example.com")
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        lose(turns, db, 4)
        assert until_settled(turns, db) == "DEAD"
        assert server.requests == []
    [(error,)] = db.execute("SELECT error FROM shop.mails").fetchall()
    assert error.startswith("in doubt")
    assert attempts(db) == [("lost", None)] * 4


@pytest.mark.parametrize("set_back", [False, True])
def test_lost_mail_that_is_discarded_and_replayed_is_held(
    db: Connection, ferryman_database_url: str, set_back: bool
) -> None:
    """N3: its doubt ends by `resolve` alone."""
    write(db, "ann@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        die_while_sending(turns, db)
        if set_back:
            db.execute("UPDATE shop.mails SET status = 'PENDING'")
        by_hand = desk(db, ferryman_database_url, by_smtp(server))
        assert list(described_rows.discard(by_hand, ONE, BY_PERSON)) == [1]
        assert list(described_rows.replay(by_hand, ONE, BY_PERSON)) == [1]
        assert until_settled(turns, db) == "DEAD"
        assert server.received == []


def test_set_back_mail_that_is_replayed_is_held(db: Connection, ferryman_database_url: str) -> None:
    """N3."""
    write(db, "ann@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        die_while_sending(turns, db)
        db.execute("UPDATE shop.mails SET status = 'PENDING'")
        by_hand = desk(db, ferryman_database_url, by_smtp(server))
        assert list(described_rows.replay(by_hand, ONE, BY_PERSON)) == [1]
        assert until_settled(turns, db) == "DEAD"
        assert server.received == []


def test_lost_mail_is_in_doubt_after_a_decision_by_a_clock_that_was_ahead(
    db: Connection, ferryman_database_url: str
) -> None:
    """N3: a person decided on an earlier attempt, and the database's clock went back since."""
    write(db, "ann@example.com")
    db.execute(
        "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) "
        "VALUES ('mails', '1', now() + interval '1 h', 'reopened')"
    )
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        die_while_sending(turns, db)
        db.execute("UPDATE shop.mails SET status = 'PENDING', attempts = 0, error = NULL")
        assert until_settled(turns, db) == "DEAD"
        assert server.received == []


def test_doubt_is_not_forgotten_for_a_decision_by_a_clock_that_was_ahead(
    db: Connection, ferryman_database_url: str
) -> None:
    """N3."""
    db.execute(
        "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) "
        "VALUES ('mails', '1', now() - interval '1 y', 'reopened'), ('mails', '1', now() - interval '2 y', 'unknown')"
    )
    with mailing(ferryman_database_url, email("file", path="unused")) as turns:
        turns.service.housekeeping.forget(turns.table)
    assert attempts(db) == [("unknown", None)]


@pytest.mark.parametrize("corrected", [True, False])
def test_late_success_is_that_of_the_mail_that_was_sent(
    db: Connection, ferryman_database_url: str, corrected: bool
) -> None:
    """N3: a process that was suspended sent the wrong mail; a person has corrected it and let it be sent meanwhile."""
    write(db, "wrong@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        row = die_while_sending(turns, db)
        assert until_settled(turns, db) == "DEAD"
        if corrected:
            db.execute("UPDATE shop.mails SET destination = 'right@example.com'")
        by_hand = desk(db, ferryman_database_url, by_smtp(server))
        assert list(described_rows.resolve(by_hand, ONE, BY_PERSON, sent=False)) == [1]
        late = settling(by_hand.outbox, row, Delivered(), row.edition)
        assert turns.table.settle([late]) == (set() if corrected else {"1"})
        assert until_settled(turns, db) == "SENT"
        assert [each.recipients for each in server.received] == ([("right@example.com",)] if corrected else [])
    assert ("delivered", None) in attempts(db)


def test_question_that_fails_leaves_no_doubt_of_its_own(db: Connection, ferryman_database_url: str) -> None:
    """N3: else the mail would seem to be as young as the question, and be sent under a key that Resend forgot."""
    seconds, away = 0.0, True

    def before(request: ReceivedRequest) -> Answer | None:
        if away:
            return refusal(500, "application_error")
        return refusal(404, "not_found") if request.method == "GET" else None

    write(db, "ann@example.com")
    with ResendServer(clock=lambda: seconds) as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        assert until_settled(turns, db) == "SENT"
        db.execute("UPDATE ferryman.outbox_attempt SET began_at = began_at - interval '25 h'")
        db.execute("UPDATE shop.mails SET status = 'PENDING'")
        seconds, server.before = 90_000.0, before
        while len(attempts(db)) < 2:
            turns.run_once()
        assert attempts(db)[1] == ("unavailable", "SERVER_FAILED")
        away = False
        assert until_settled(turns, db) == "DEAD"
        assert len(server.sent) == 1


def test_mail_that_another_provider_may_have_sent_is_held(db: Connection, ferryman_database_url: str) -> None:
    """N3: Resend knows no key of a mail that went to an SMTP server, however young it is."""
    write(db, "ann@example.com", "bob@example.com")
    with MailServer() as old, mailing(ferryman_database_url, by_smtp(old)) as turns:
        die_while_sending(turns, db)
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        assert until_settled(turns, db) == "DEAD"
        while rows(db)[1][0] != "SENT":
            turns.run_once()
        assert [each.content["to"] for each in server.sent] == [["bob@example.com"]]


def test_window_of_a_key_begins_with_the_first_attempt(db: Connection, ferryman_database_url: str) -> None:
    """N3: a younger attempt, which the provider answered as the first one, does not make the key younger."""
    write(db, "ann@example.com")
    with ResendServer(before=lambda _: refusal(500, "application_error")) as server:
        with mailing(ferryman_database_url, by_resend(server)) as turns:
            for count in (1, 2):
                while len(attempts(db)) < count:
                    turns.run_once()
                db.execute("UPDATE ferryman.outbox_attempt SET began_at = began_at - interval '12 h'")
            server.before = lambda _: None
            assert until_settled(turns, db) == "DEAD"
            assert len(server.requests) == 2


def test_mail_that_is_in_doubt_again_after_a_decision_is_held_again(db: Connection, ferryman_database_url: str) -> None:
    """N3: the decision was about the attempts before it."""
    write(db, "ann@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        by_hand = desk(db, ferryman_database_url, by_smtp(server))
        die_while_sending(turns, db)
        assert until_settled(turns, db) == "DEAD"
        assert list(described_rows.resolve(by_hand, ONE, BY_PERSON, sent=False)) == [1]
        turns.table.claim(1)
        db.execute("UPDATE ferryman.outbox_attempt SET began_at = began_at - interval '2 h'")
        db.execute("UPDATE shop.mails SET claimed_at = claimed_at - interval '1 h'")
        assert until_settled(turns, db) == "DEAD"
        db.execute("UPDATE shop.mails SET status = 'PENDING', attempts = 0, error = NULL")
        assert until_settled(turns, db) == "DEAD"
        assert server.received == []


def test_doubts_are_not_forgotten_before_they_end(db: Connection, ferryman_database_url: str) -> None:
    """N3: else a mail that was held for a month would be sent when SQL sets it back."""
    write(db, "ann@example.com")
    age = (
        "UPDATE ferryman.outbox_attempt SET began_at = began_at - interval '1 y', ended_at = ended_at - interval '1 y'"
    )
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        die_while_sending(turns, db)
        assert until_settled(turns, db) == "DEAD"
        db.execute(age)
        assert not turns.service.housekeeping.forget(turns.table)
        db.execute("UPDATE shop.mails SET status = 'PENDING', attempts = 0, error = NULL")
        assert until_settled(turns, db) == "DEAD"
        assert server.received == []
        by_hand = desk(db, ferryman_database_url, by_smtp(server))
        assert list(described_rows.resolve(by_hand, ONE, BY_PERSON, sent=True)) == [1]
        db.execute(age)
        turns.service.housekeeping.forget(turns.table)
    assert attempts(db) == []


def test_payload_that_is_nested_too_deeply_is_rejected_at_once(db: Connection, ferryman_database_url: str) -> None:
    deep = f'{{"subject": "x", "text": "y", "more": {"[" * 5000}{"]" * 5000}}}'
    db.execute("INSERT INTO shop.mails (destination, payload) VALUES ('ann@example.com', %s)", (deep,))
    with mailing(ferryman_database_url, email("file", path="unused")) as turns:
        assert until_settled(turns, db) == "DEAD"
    assert (rows(db), attempts(db)) == ([("DEAD", 1)], [("rejected", "MAIL_INVALID")])
