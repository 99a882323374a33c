"""Least privilege of reviews and of the notifier: PostgreSQL refuses each role what its process must not do."""

from collections.abc import Sequence
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.services.reviews.jobs import create_job
from ferryman.testing import stack
from support.reviewing import Database, request

NOTIFIER, REVIEWS = "ferryman_notifier", "ferryman_reviews"
WRITER, MONITOR = "ferryman_review_writer", "ferryman_monitor"
SEND = (
    "INSERT INTO notifier.deliveries (job_id, changelist_id, recipient, review_version, payload) "
    "VALUES (gen_random_uuid(), 'c', 'a@b', 1, '{}')"
)
MARK = "UPDATE notifier.deliveries SET status = 'sent', notified_at = now()"
READDRESS = "UPDATE notifier.deliveries SET recipient = 'eve@example.com'"
RERUN = "UPDATE notifier.deliveries SET review_version = 2"
FORGET = "DELETE FROM notifier.deliveries"
READ_MAIL = "SELECT recipient, payload FROM notifier.deliveries"
MAKE_JOB = (
    "INSERT INTO reviews.jobs (idempotency_key, changelist_id, review_version, due_at) VALUES ('k', 'c', 1, now())"
)
CREATE = "SELECT reviews.create_job('k', 'c', 1, '{a@example.com}', 's', 'b')"
MOVE = "UPDATE reviews.jobs SET status = 'succeeded', due_at = NULL"
REVERSION = "UPDATE reviews.jobs SET review_version = 9"
REKEY = "UPDATE reviews.jobs SET idempotency_key = 'other'"
DELETE_JOB, ARCHIVE = "DELETE FROM reviews.jobs", "SELECT reviews.archive(now(), 'ann', 'r')"
TELL = "UPDATE reviews.recipients SET notified_at = now()"
RENAME = "UPDATE reviews.recipients SET recipient = 'eve@example.com'"
DELETE_RECIPIENT = "DELETE FROM reviews.recipients"
REWORD = "UPDATE reviews.requests SET body = 'other'"
LOWER = "UPDATE reviews.changelists SET newest = 0"
READ_WORDS = "SELECT body FROM reviews.requests"
EVERY = (
    FORGET,
    READDRESS,
    RERUN,
    MAKE_JOB,
    REVERSION,
    REKEY,
    DELETE_JOB,
    ARCHIVE,
    RENAME,
    DELETE_RECIPIENT,
    REWORD,
    LOWER,
)
"""The acts that no process may do."""

FORBIDDEN: dict[str, Sequence[str]] = {
    NOTIFIER: (CREATE, MOVE, TELL, READ_WORDS, "SELECT FROM reviews.jobs"),
    REVIEWS: (SEND, MARK, READ_MAIL),
    WRITER: (SEND, MARK, READ_MAIL, MOVE, TELL, READ_WORDS),
    MONITOR: (SEND, MARK, READ_MAIL, CREATE, MOVE, TELL, READ_WORDS, "SELECT recipient FROM reviews.recipients",
              "SELECT idempotency_key FROM reviews.jobs"),
}  # fmt: skip


def login(url: str, role: str) -> str:
    return stack.login(url, f"test_{uuid4().hex[:8]}", role)


def test_each_forbidden_act_is_refused(ferryman_db: Database, ferryman_database_url: str) -> None:
    """Each is tried by a login with the role alone."""
    ferryman_db.execute(SEND)
    ferryman_db.execute(CREATE)
    for role, acts in FORBIDDEN.items():
        with psycopg.connect(login(ferryman_database_url, role)) as db:
            for act in (*EVERY, *acts):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    db.execute(act)
                db.rollback()


def test_a_writer_creates_a_job_with_its_role_alone(ferryman_db: Database, ferryman_database_url: str) -> None:
    use_schemas()
    try:
        with psycopg.connect(login(ferryman_database_url, WRITER)) as db:
            job, _ = create_job(db, request("ada@example.com"))
    finally:
        active.forget()
    assert isinstance(job, UUID)
    assert ferryman_db.execute("SELECT type FROM ferryman.outbox").fetchall() == [("review.notify",)]
