"""Rows that are mails: what is sent of them, and which of them may have been sent already."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ferryman.channels.model import Doubt, Mail
from ferryman.channels.outcome import Code, Rejected
from ferryman.relay.described.rows import Claimed
from ferryman.runtime.postgres import Connection

# Attempts of which nobody knows whether they arrived, since a person last decided on the row. An attempt that was lost
# has no hash of its content: it counts for every edition.
_POSSIBLY_SENT = """\
-- outbox.possibly_sent
SELECT a.row_id, a.content, extract(epoch FROM clock_timestamp() - min(a.began_at))::float8
FROM ferryman.outbox_attempt a
WHERE a.outbox = %(outbox)s AND a.row_id = ANY (%(ids)s) AND a.outcome IN ('unknown', 'lost', 'held')
  AND NOT EXISTS (SELECT FROM ferryman.outbox_attempt d
                  WHERE d.outbox = a.outbox AND d.row_id = a.row_id AND d.outcome = 'reopened'
                    AND d.began_at > a.began_at)
GROUP BY 1, 2
"""


def mails(_: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
    """Return the mail of each row, whose payload has a `subject`, a `text` (or `body`), and perhaps `html`."""
    return [_mail(row) for row in rows]


def with_doubts(db: Connection, outbox: str, rows: Sequence[Claimed], made: Sequence[Any]) -> Sequence[Any]:
    """Give each mail its key and edition, and its doubt if an attempt of this edition may have arrived."""
    editions = {row.id: edition_of(row) for row in rows}
    ages: dict[tuple[str, str | None], float] = {}
    if again := tried_before(rows):
        found = db.execute(_POSSIBLY_SENT, {"outbox": outbox, "ids": again}).fetchall()
        ages = {(row_id, content): age for row_id, content, age in found}

    def doubt(row: Claimed) -> Doubt | None:
        known = [ages[key] for key in ((row.id, None), (row.id, editions[row.id])) if key in ages]
        unsettled = row.lost or row.set_back  # perhaps not in the log: by SQL, its lease may be null
        return Doubt(max(known, default=math.inf), row.reference) if known or row.reference or unsettled else None

    return [
        replace(item, key=key_of(row, editions[row.id]), edition=editions[row.id], doubt=doubt(row))
        if isinstance(item, Mail) else item
        for row, item in zip(rows, made, strict=True)
    ]  # fmt: skip


def tried_before(rows: Sequence[Claimed]) -> list[str]:
    """Return the ids of the rows that an earlier attempt may have sent.

    A row's count does not tell: an outage takes its attempts back, and a person may have reset it.
    """
    return [row.id for row in rows if row.tried or row.lost or row.set_back]


def edition_of(row: Claimed) -> str:
    """Return a hash of what the row holds: not of the mail made of it, which a new version may make differently."""
    return hashlib.sha256(b"\0".join([row.destination.encode(), row.content])).hexdigest()


def key_of(row: Claimed, edition: str) -> str:
    """Return the key that the provider is given: the same for each attempt of this edition."""
    return hashlib.sha256(f"{row.key or row.id}\0{edition}".encode()).hexdigest()


def _mail(row: Claimed) -> Mail | Rejected:
    try:
        given = json.loads(row.content)
        subject, text, html = given["subject"], given.get("text", given.get("body")), given.get("html")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return Rejected("the payload is not an object with a subject", Code.MAIL_INVALID)
    if not (isinstance(subject, str) and isinstance(text, str) and isinstance(html, str | None)):
        return Rejected("subject, text and html must be texts, and one of text and body is needed", Code.MAIL_INVALID)
    return Mail(row.destination, subject, text, html)
