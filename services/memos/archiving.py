"""Mails that were sent long ago leave the outbox: for the archive, or for good."""

import psycopg
from psycopg import errors

from ferryman import Chore, Transient
from ferryman.services.memos.memos import Connection
from ferryman.services.memos.memos_settings import MemosSettings

PORTION = 1000
"""The most mails that leave in one transaction."""
_LEAVE = """\
-- memos.leave
SELECT memos.leave(%(seconds)s, %(most)s, %(keep)s)
"""


def archiving(memos: MemosSettings, *, every_seconds: float = 60.0) -> Chore:
    """Return the chore by which SENT mails leave the outbox once `memos.retention_seconds` have passed."""
    chore = Chore("memos-archive", every_seconds=every_seconds)

    @chore.work
    def leave(db: Connection) -> bool:
        """Let one portion leave. Return True if there may be more."""
        values = {"seconds": memos.retention_seconds, "most": PORTION, "keep": memos.archive}
        try:
            row = db.execute(_LEAVE, values).fetchone()
        except errors.IntegrityError as error:  # a constraint of the user's own: mails are sent all the same
            raise Transient(
                f"old mails cannot leave memos.email_outbox: {_constraint(error)} refuses it",
                setting="memos.retention_seconds", remedy="change the constraint, or set it to 0 to keep all mails",
            ) from error  # fmt: skip
        return row is not None and bool(row[0] == PORTION)

    return chore


def _constraint(error: psycopg.Error) -> str:
    return f"the constraint {error.diag.constraint_name}" if error.diag.constraint_name else "a constraint"
