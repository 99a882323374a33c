"""Rows of a described table that leave as mails: what the mail server received judges."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ferryman.relay.described.couriers import courier
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_email import Email
from ferryman.testing.mail import ACCEPTED_UNHEARD, MailServer
from ferryman.testing.receiver import Answer
from ferryman.testing.resend import ResendServer, refusal
from support.hooks import CourierTurns
from support.mailing import by_resend, by_smtp

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
    return db.execute("SELECT outcome, code FROM ferryman.outbox_attempt ORDER BY began_at").fetchall()


@contextmanager
def mailing(url: str, email: Email) -> Iterator[CourierTurns]:
    described = {"table": "shop.mails", "channel": "email", "words": WORDS, "poll_seconds": 0.05,
                 "retry": {"limit": 3, "base_seconds": 0.05}}  # fmt: skip
    settings = Settings.model_validate({"database_url": url, "outbox": {"mails": described}})
    service = courier("mails", settings.model_copy(update={"email": email}))
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


def test_corrected_row_is_a_new_mail(db: Connection, ferryman_database_url: str) -> None:
    write(db, "wrong@example.com")
    with ResendServer() as server, mailing(ferryman_database_url, by_resend(server)) as turns:
        turns.until_quiet()
        db.execute("UPDATE shop.mails SET status = 'PENDING', reference = NULL, destination = 'ann@example.com'")
        turns.until_quiet()
    assert [each.content["to"] for each in server.sent] == [["wrong@example.com"], ["ann@example.com"]]
    assert len({each.key for each in server.sent}) == 2
