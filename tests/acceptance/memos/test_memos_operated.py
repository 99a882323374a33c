"""Held mails are resolved under plain logins, which have the role of the process that sends them and nothing else."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from psycopg import conninfo, sql

from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.testing import stack
from support.launch import Launcher

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.mails (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), destination text NOT NULL, payload jsonb NOT NULL,
    key text NOT NULL DEFAULT gen_random_uuid(), status text NOT NULL DEFAULT 'PENDING',
    attempts integer NOT NULL DEFAULT 0, error text, claimed_at timestamptz, done_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO shop.mails (destination, payload, status, attempts, error, claimed_at)
VALUES ('ann@example.com', '{}', 'FAILED', 1, 'in doubt: no reply', now());
GRANT USAGE ON SCHEMA shop TO ferryman_courier;
GRANT SELECT, UPDATE ON shop.mails TO ferryman_courier;
"""
ENVIRONMENT = {
    "FERRYMAN_EMAIL__PROVIDER": "file",
    "FERRYMAN_EMAIL__PATH": "mails",
    "FERRYMAN_EMAIL__SENDER": "shop@example.com",
    "FERRYMAN_OUTBOX__MAILS__TABLE": "shop.mails",
    "FERRYMAN_OUTBOX__MAILS__CHANNEL": "email",
    "FERRYMAN_OUTBOX__MAILS__WORDS__PENDING": '["PENDING"]',
    "FERRYMAN_OUTBOX__MAILS__WORDS__CLAIMED": "SENDING",
    "FERRYMAN_OUTBOX__MAILS__WORDS__DONE": "SENT",
    "FERRYMAN_OUTBOX__MAILS__WORDS__DEAD": "FAILED",
}


@pytest.fixture
def login(ferryman_db: Connection, ferryman_database_url: str) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(role: str) -> str:
        url = stack.login(ferryman_database_url, f"test_{uuid4().hex[:8]}", role)
        made.append(str(conninfo.conninfo_to_dict(url)["user"]))
        return url

    yield make
    for user in made:
        ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(user)))


def held_memo(db: Connection) -> None:
    create_memo(db, MemoInput("HR", "people", "Party", "ann@example.com", "You are invited."))
    db.execute("UPDATE memos.email_outbox SET status = 'FAILED', retry_count = 1, error_message = 'in doubt: no reply'")


WORKERS = {
    "memos": ("ferryman_memos_worker", "memos.email_outbox"),
    "mails": ("ferryman_courier", "shop.mails"),
}
STATUS = {"--sent": "SENT", "--resend": "PENDING"}


@pytest.mark.parametrize("decision", STATUS)
@pytest.mark.parametrize("outbox", WORKERS)
def test_role_of_the_sending_process_is_enough_to_resolve_a_mail(
    ferryman: Launcher, ferryman_db: Connection, login: Callable[..., str], outbox: str, decision: str
) -> None:
    ferryman_db.execute(SHOP)
    held_memo(ferryman_db)
    role, table = WORKERS[outbox]
    [(identity,)] = ferryman_db.execute(f"SELECT id::text FROM {table}").fetchall()
    resolve = ("outbox", "resolve", outbox, "--id", identity, decision, "--yes", "--reason", "the server's log")
    stranger = ferryman.run(*resolve, env=ENVIRONMENT | {"FERRYMAN_DATABASE_URL": login("ferryman_monitor")})
    assert stranger.wait() == 3, stranger.transcript()
    planned = ferryman.run(*resolve[:6], env=ENVIRONMENT | {"FERRYMAN_DATABASE_URL": login(role)})
    assert (planned.wait(), "1 row" in planned.stdout) == (0, True), planned.transcript()
    assert ferryman_db.execute(f"SELECT status FROM {table}").fetchall() == [("FAILED",)]
    done = ferryman.run(*resolve, env=ENVIRONMENT | {"FERRYMAN_DATABASE_URL": login(role)})
    assert done.wait() == 0, done.transcript()
    assert ferryman_db.execute(f"SELECT status FROM {table}").fetchall() == [(STATUS[decision],)]
    [[said]] = ferryman_db.execute("SELECT filter ->> 'outbox' FROM ferryman.outbox_audit").fetchall()
    assert said == outbox
