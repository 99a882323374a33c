"""Rows that are mails: what is sent of them, how their attempts are logged, and which may have been sent already."""

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

# Each claim of a mail is in the log before the mail can be sent. So an attempt that never ended is known to the next
# claim, whatever a person did to the row meanwhile.
BEGUN = """, read AS MATERIALIZED (
    SELECT c.*, {edition_of_c} AS edition FROM claimed c
), begun AS (
    INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, ended_at, outcome, content, provider)
    SELECT {name}, c.id, c.lease, NULL, 'begun', c.edition, {provider} FROM read c
    ON CONFLICT DO NOTHING
)"""
NEVER_ENDED = """, never_ended AS (
    INSERT INTO ferryman.outbox_attempt AS a (outbox, row_id, began_at, outcome)
    SELECT {name}, begun.row_id, begun.began_at, 'lost' FROM due CROSS JOIN LATERAL (
        SELECT o.row_id, o.began_at FROM ferryman.outbox_attempt o
        WHERE o.outbox = {name} AND o.row_id = due.id::text AND o.outcome = 'begun' OFFSET 0
    ) begun
    {completed}outcome = EXCLUDED.outcome WHERE a.outcome = 'begun'
)"""
# A conflict is found by the primary key, whatever the planner knows of the log. An UPDATE that joins a log without
# statistics reads all of it.
COMPLETED = "ON CONFLICT (outbox, row_id, began_at) DO UPDATE SET ended_at = clock_timestamp(), "

# The age of the first attempt that may have sent this edition since a person last decided on the row. A row that was
# lost and is not in the log is as old as can be, and so is one that another provider may have sent. Clocks may go back,
# so the order of acts is that of their numbers.
DOUBT = """(
    SELECT CASE WHEN {was_lost} AND count(*) = 0 OR bool_or(a.provider <> {provider} AND a.content = c.edition)
                THEN 'Infinity'::float8 ELSE extract(epoch FROM clock_timestamp()
           - min(a.began_at) FILTER (WHERE a.content IS NULL OR a.content = c.edition))::float8 END
    FROM ferryman.outbox_attempt a
    WHERE a.outbox = {name} AND a.row_id = c.id AND a.outcome IN ('begun', 'lost', 'unknown', 'held')
      AND NOT EXISTS (SELECT FROM ferryman.outbox_attempt d WHERE d.outbox = a.outbox AND d.row_id = a.row_id
                      AND d.outcome = 'reopened' AND d.number > a.number))"""

# A success of a mail that was corrected meanwhile is no success of the corrected one, which is still to be sent.
SAME_CONTENT = " AND n.content = {edition_of_t}"
NEXT_STATUS = "CASE WHEN n.ending = 'done' AND n.content <> {edition_of_t} THEN {first_pending} ELSE n.status END"
TOLD_REFERENCE = "CASE WHEN n.content = {edition_of_t} THEN n.reference END"

# A hash of what a row holds: not of the mail made of it, which a new version may make differently.
EDITION = """encode(sha256(
    convert_to(coalesce({destination}, ''), 'UTF8') || decode('00', 'hex') || coalesce({content}, '')
), 'hex')"""

# The end of an attempt completes the row of its claim. One that was taken for lost stays so: its late end stands beside
# it, so that the person who decides finds it, and settling it twice records it once.
COMPLETES_CLAIM = """
    {completed}outcome = EXCLUDED.outcome, code = EXCLUDED.code,
        error = EXCLUDED.error, reference = EXCLUDED.reference, excerpt = EXCLUDED.excerpt
    WHERE a.outcome = 'begun'
), not_tried AS (
    DELETE FROM ferryman.outbox_attempt a USING n
    WHERE {is_attempt} AND a.outcome = 'begun' AND n.outcome = 'released'"""
BEGAN_AT = """n.claimed_at + CASE (SELECT a.outcome FROM ferryman.outbox_attempt a WHERE {is_attempt})
                                        WHEN 'lost' THEN interval '1 us' ELSE interval '0' END"""
IS_ATTEMPT = "a.outbox = {name} AND a.row_id = n.id::text AND a.began_at = n.claimed_at"


def mails(_: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
    """Return the mail of each row, whose payload has a `subject`, a `text` (or `body`), and perhaps `html`."""
    return [_mail(row) for row in rows]


def with_doubts(rows: Sequence[Claimed], made: Sequence[Any]) -> Sequence[Any]:
    """Give each mail its key and edition, and its doubt if an attempt of this edition may have arrived."""
    return [
        replace(item, key=key_of(row), edition=row.edition, doubt=_doubt(row)) if isinstance(item, Mail) else item
        for row, item in zip(rows, made, strict=True)
    ]  # fmt: skip


def key_of(row: Claimed) -> str:
    """Return the key that the provider is given: the same for each attempt of this edition."""
    return hashlib.sha256(f"{row.key or row.id}\0{row.edition}".encode()).hexdigest()


def _doubt(row: Claimed) -> Doubt | None:
    if not row.may_have_arrived:
        return None
    return Doubt(math.inf if row.doubt_seconds is None else row.doubt_seconds, row.reference)


def _mail(row: Claimed) -> Mail | Rejected:
    try:
        given = json.loads(row.content)
        subject, text, html = given["subject"], given.get("text", given.get("body")), given.get("html")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return Rejected("the payload is not an object with a subject", Code.MAIL_INVALID)
    if not (isinstance(subject, str) and isinstance(text, str) and isinstance(html, str | None)):
        return Rejected("subject, text and html must be texts, and one of text and body is needed", Code.MAIL_INVALID)
    return Mail(row.destination, subject, text, html)
