"""Rows of a described table that leave as mails: what the mail server received judges."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman.relay.described import hooks
from ferryman.relay.described.couriers import courier, drain
from ferryman.runtime import postgres
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_email import Email
from ferryman.testing.mail import ACCEPTED, ACCEPTED_UNHEARD, MailServer
from ferryman.testing.receiver import Answer
from ferryman.testing.resend import ResendServer, refusal
from support.hooks import CourierTurns
from support.mailing import by_resend, by_smtp
from support.published import poll_until

DDL = """
CREATE SCHEMA shop;
CREATE TABLE shop.mails (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, destination text NOT NULL, payload jsonb NOT NULL,
    key text NOT NULL DEFAULT gen_random_uuid(), status text NOT NULL DEFAULT 'PENDING',
    attempts integer NOT NULL DEFAULT 0, error text, reference text,
    claimed_at timestamptz, next_attempt_at timestamptz, done_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON shop.mails (created_at, id) WHERE status = 'PENDING';
CREATE INDEX ON shop.mails (destination, created_at, id) WHERE status = 'PENDING';
"""
WORDS = {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}


@pytest.fixture
def db(ferryman_db: Connection) -> Connection:
    ferryman_db.execute(DDL)
    return ferryman_db


def write(db: Connection, *recipients: str, **payload: Any) -> None:
    given = json.dumps({"subject": "Order 7", "text": "Dear Ann", **payload})
    for each in recipients:
        db.execute("INSERT INTO shop.mails (destination, payload) VALUES (%s, %s)", (each, given))


def rows(db: Connection) -> list[tuple[str, int]]:
    return db.execute("SELECT status, attempts FROM shop.mails ORDER BY id").fetchall()


def attempts(db: Connection) -> list[tuple[str, str | None]]:
    """Return (outcome, code) of each attempt that has ended."""
    return db.execute(
        "SELECT outcome, code FROM ferryman.outbox_attempt WHERE outcome <> 'begun' ORDER BY number"
    ).fetchall()


def mail_settings(url: str, email: Email) -> Settings:
    described = {"table": "shop.mails", "channel": "email", "words": WORDS, "poll_seconds": 0.05,
                 "retry": {"limit": 3, "base_seconds": 0.05}}  # fmt: skip
    settings = Settings.model_validate({"database_url": url, "outbox": {"mails": described}})
    return settings.model_copy(update={"email": email})


@contextmanager
def mailing(url: str, email: Email) -> Iterator[CourierTurns]:
    service = courier("mails", mail_settings(url, email))
    with closing(service.way), service.opened() as table:
        assert service.way.why_not() is None
        yield CourierTurns(service, table)


def test_rows_are_mailed_and_settled(db: Connection, ferryman_database_url: str) -> None:
    """N1."""
    write(db, "ann@example.com", "ben@example.com")
    write(db, "two@example.com, addresses@example.com")
    with MailServer() as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        turns.until_quiet()
    assert rows(db) == [("SENT", 0), ("SENT", 0), ("DEAD", 1)]
    assert sorted(each.recipients[0] for each in server.received) == ["ann@example.com", "ben@example.com"]
    assert sorted(attempts(db)) == [("delivered", None)] * 2 + [("rejected", "MAIL_INVALID")]


def test_mail_that_was_accepted_without_a_reply_is_held(db: Connection, ferryman_database_url: str) -> None:
    """N3."""
    write(db, "ann@example.com")
    with MailServer(lambda _: ACCEPTED_UNHEARD) as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        turns.until_quiet()
    assert rows(db) == [("DEAD", 1)]
    assert attempts(db) == [("held", "CONNECTION_LOST")]
    [(error,)] = db.execute("SELECT error FROM shop.mails").fetchall()
    assert error.startswith("in doubt")
    assert len(server.received) == 1


def test_mail_that_resend_accepted_before_it_failed_is_sent_once(db: Connection, ferryman_database_url: str) -> None:
    """N3 and N8: the second attempt has the same key, and gets the first answer."""
    failures: list[Answer | None] = [refusal(500, "application_error"), None]
    write(db, "ann@example.com")
    with (
        ResendServer(after=lambda _: failures.pop(0)) as server,
        mailing(ferryman_database_url, by_resend(server)) as turns,
    ):
        while rows(db) != [("SENT", 0)]:
            turns.run_once()
    assert attempts(db) == [("unknown", "SERVER_FAILED"), ("delivered", None)]
    assert len(server.sent) == 1
    assert len(server.requests) == 2
    assert db.execute("SELECT reference FROM shop.mails").fetchall() == [(server.sent[0].id,)]


def test_mail_in_doubt_since_an_outage_of_a_day_is_held(db: Connection, ferryman_database_url: str) -> None:
    """N3: the outage used up no attempt, and the provider has forgotten the key meanwhile."""
    seconds = 0.0
    write(db, "ann@example.com")
    with (
        ResendServer(after=lambda _: refusal(500, "application_error"), clock=lambda: seconds) as server,
        mailing(ferryman_database_url, by_resend(server)) as turns,
    ):
        while not attempts(db):
            turns.run_once()
        assert (rows(db), attempts(db)) == ([("PENDING", 0)], [("unknown", "SERVER_FAILED")])
        seconds, server.after = 90_000.0, lambda _: None
        db.execute("UPDATE ferryman.outbox_attempt SET began_at = began_at - interval '25 h'")
        while rows(db)[0][0] not in ("SENT", "DEAD"):
            turns.run_once()
    assert rows(db)[0][0] == "DEAD"
    assert len(server.sent) == 1


def test_mail_in_doubt_that_is_replayed_by_sql_is_held_again(db: Connection, ferryman_database_url: str) -> None:
    """N3: a statement for all failed rows is no decision on one that may have been sent."""
    write(db, "ann@example.com")
    with MailServer(lambda _: ACCEPTED_UNHEARD) as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        turns.until_quiet()
        server.answer = lambda _: ACCEPTED
        db.execute("UPDATE shop.mails SET status = 'PENDING', attempts = 0, error = NULL WHERE status = 'DEAD'")
        while rows(db)[0][0] not in ("SENT", "DEAD"):
            turns.run_once()
    assert rows(db)[0][0] == "DEAD"
    assert len(server.received) == 1


def test_mail_that_the_server_alone_fails_at_delays_no_other_and_ends(
    db: Connection, ferryman_database_url: str
) -> None:
    """N8, N10: it is the oldest, so it is what finds out whether the outage is over."""

    def script(command: str, argument: str) -> str | None:
        return "451 4.3.0 later" if command == "RCPT" and "poison" in argument else None

    write(db, "poison@example.com")
    with MailServer(script=script) as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        while not attempts(db):
            turns.run_once()
        assert rows(db) == [("PENDING", 0)], "there is no other mail, so it may be an outage"
        until = time.monotonic() + 20
        while rows(db)[0] != ("DEAD", 3):
            if len(rows(db)) == len(server.received) + 1:  # one other mail at a time
                write(db, f"reader-{len(server.received)}@example.com")
            assert time.monotonic() < until, rows(db)
            turns.run_once()
    assert rows(db)[1:-1] == [("SENT", 0)] * (len(rows(db)) - 2)
    assert len(rows(db)) >= 4, "each of its failures counted because another mail had got through"


def test_mail_that_the_server_alone_fails_at_ends_by_drains_too(db: Connection, ferryman_database_url: str) -> None:
    """N8: each process remembers on its own which mails failed."""

    def script(command: str, argument: str) -> str | None:
        return "451 4.3.0 later" if command == "RCPT" and "poison" in argument else None

    write(db, "poison@example.com")
    with MailServer(script=script) as server:
        for number in range(20):
            write(db, f"reader-{number}@example.com")
            db.execute("UPDATE shop.mails SET next_attempt_at = NULL")
            with suppress(Unreachable):
                drain(courier("mails", mail_settings(ferryman_database_url, by_smtp(server))), threading.Event())
            if rows(db)[0] == ("DEAD", 3):
                break
    assert rows(db) == [("DEAD", 3), *[("SENT", 0)] * len(server.received)]
    assert len(server.received) == len(rows(db)) - 1


def test_mails_are_prepared_without_a_transaction(
    db: Connection, ferryman_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their claim has found out whether an earlier attempt may have arrived."""
    opened: list[str] = []

    @contextmanager
    def transaction(*arguments: Any) -> Iterator[Any]:
        opened.append("prepare")
        with postgres.transaction(*arguments) as cursor:
            yield cursor

    monkeypatch.setattr(hooks, "postgres", SimpleNamespace(transaction=transaction))
    answers = ["452 4.2.2 mailbox full", ACCEPTED]
    write(db, "ann@example.com")
    with MailServer(lambda _: answers.pop(0)) as server, mailing(ferryman_database_url, by_smtp(server)) as turns:
        poll_until(lambda: turns.run_once().failed == 1, "the first attempt")
        poll_until(lambda: turns.run_once().published == 1, "the second attempt")
        assert opened == []
    assert rows(db) == [("SENT", 1)]


def test_corrected_row_is_a_new_mail(db: Connection, ferryman_database_url: str) -> None:
    write(db, "wrong@example.com")
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        turns.until_quiet()
        db.execute("UPDATE shop.mails SET status = 'PENDING', reference = NULL, destination = 'ann@example.com'")
        turns.until_quiet()
    assert [each.content["to"] for each in server.sent] == [["wrong@example.com"], ["ann@example.com"]]
    assert len({each.key for each in server.sent}) == 2
