"""Mails that were sent long ago leave the outbox by the real command line, and through a kill."""

import json
from pathlib import Path

import psycopg
import pytest

from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, create_memo
from support.launch import Launcher
from support.published import poll_until

MAILS = 2500
BLOCKED = """
SELECT FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE '-- memos.leave%' AND wait_event_type = 'Lock'
"""
SESSIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'ferryman %'"
Environment = dict[str, str]


@pytest.fixture
def environment(ferryman_database_url: str, tmp_path: Path) -> Environment:
    return {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_EMAIL__PROVIDER": "file",
        "FERRYMAN_EMAIL__PATH": str(tmp_path / "mails"),
        "FERRYMAN_EMAIL__SENDER": "memos@example.com",
        "FERRYMAN_MEMOS__RETENTION_SECONDS": "60",
    }


@pytest.fixture
def old(ferryman_db: Connection) -> None:
    made = create_memo(ferryman_db, MemoInput("HR", "people", "Party", "ann@example.com", "You are invited."))
    ferryman_db.execute(
        "INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type, status,"
        " sent_at, meta_created_at) SELECT %s, 'memo.created', '{}', 'ann@example.com', 'MEMO_CREATED', 'SENT',"
        " now() - interval '1 d', now() - interval '1 d' FROM generate_series(1, %s)", (made.id, MAILS),
    )  # fmt: skip


def counts(db: Connection) -> tuple[int, int]:
    row = db.execute(
        "SELECT (SELECT count(*) FROM memos.email_outbox), (SELECT count(*) FROM memos.email_archive)"
    ).fetchone()
    assert row is not None
    return row


@pytest.mark.usefixtures("old")
def test_drain_sends_what_is_due_and_archives_what_is_old(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection
) -> None:
    done = ferryman.start("drain", "memos", "--json", env=environment)
    assert done.wait() == 0, done.transcript()
    assert json.loads(done.stdout)["published"] == 1
    assert counts(ferryman_db) == (1, MAILS)


@pytest.mark.usefixtures("old")
def test_killed_worker_neither_loses_an_old_mail_nor_doubles_it(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, ferryman_database_url: str
) -> None:
    """N1, N11: it dies when the mails have left the outbox and are not yet in the archive."""
    with psycopg.connect(ferryman_database_url) as other:
        other.execute("LOCK TABLE memos.email_archive IN SHARE MODE")
        worker = ferryman.start("run", "memos", env=environment)
        poll_until(lambda: ferryman_db.execute(BLOCKED).rowcount == 1, "the portion")
        worker.kill()
        worker.wait()
    poll_until(lambda: ferryman_db.execute(SESSIONS).rowcount == 0, "the end of its session")
    assert counts(ferryman_db) == (MAILS + 1, 0)
    again = ferryman.start("run", "memos", env=environment)
    again.until(lambda: counts(ferryman_db) == (1, MAILS), "archiving")
