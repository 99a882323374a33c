"""Mails that were sent long ago leave the outbox: for the archive, or for good."""

import psycopg
from psycopg import errors

from ferryman import Chore, Transient
from ferryman.services.memos.memos import Connection
from ferryman.services.memos.memos_settings import MemosSettings

PORTION = 1000
"""The most mails that leave in one transaction."""
_COLUMNS = (
    "id, memo_id, event_type, payload, recipient_email, notification_type, status, retry_count, last_attempt_at, "
    "sent_at, error_message, idempotency_key, meta_created_at, meta_updated_at"
)

# No mail is older than its row: the index on (status, meta_created_at) leads to the old ones. Each portion is one
# statement, so a mail is in one of the tables and never in both.
_LEAVE = """\
-- memos.leave
WITH old AS (
    SELECT id FROM memos.email_outbox
    WHERE status = 'SENT' AND meta_created_at < statement_timestamp() - make_interval(secs => %(seconds)s)
      AND coalesce(sent_at, meta_created_at) < statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY meta_created_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM memos.email_outbox o WHERE o.id = ANY (ARRAY(SELECT id FROM old)) RETURNING o.*
){kept}
SELECT count(*) FROM gone
"""
_KEPT = f""", kept AS (
    INSERT INTO memos.email_archive ({_COLUMNS}) SELECT {_COLUMNS} FROM gone ON CONFLICT (id) DO NOTHING
)"""  # noqa: S608 - only our own columns are put in
DELETE, ARCHIVE = _LEAVE.format(kept=""), _LEAVE.format(kept=_KEPT)


def archiving(memos: MemosSettings, *, every_seconds: float = 60.0) -> Chore:
    """Return the chore by which SENT mails leave the outbox once `memos.retention_seconds` have passed."""
    chore = Chore("memos-archive", every_seconds=every_seconds)

    @chore.work
    def leave(db: Connection) -> bool:
        """Let one portion leave. Return True if there may be more."""
        values = {"seconds": memos.retention_seconds, "most": PORTION}
        try:
            row = db.execute(ARCHIVE if memos.archive else DELETE, values).fetchone()
        except errors.IntegrityError as error:  # a constraint of the user's own: mails are sent all the same
            raise Transient(
                f"old mails cannot leave memos.email_outbox: {_constraint(error)} refuses it",
                setting="memos.retention_seconds", remedy="change the constraint, or set it to 0 to keep all mails",
            ) from error  # fmt: skip
        return row is not None and bool(row[0] == PORTION)

    return chore


def _constraint(error: psycopg.Error) -> str:
    return f"the constraint {error.diag.constraint_name}" if error.diag.constraint_name else "a constraint"
