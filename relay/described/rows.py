"""Rows of a described outbox, and the decision what is written of each after its delivery: pure, with no clock."""

from datetime import datetime
from enum import Enum
from typing import NamedTuple, TypeAlias

from ferryman.channels.outcome import Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown
from ferryman.relay.model import Entry
from ferryman.relay.policy import retries_of
from ferryman.runtime.settings_outbox import Outbox

IN_DOUBT_BEGINS = "in doubt: "
"""The beginning of the error of a row that may have been sent, and waits for a person."""

BY_HAND = "discarded by hand"
"""The beginning of the error of a row that a person gave up."""

_Failure: TypeAlias = Rejected | Retry | Unavailable | Unknown

# The longest wait that a channel may ask for: as long as `http.retry_after_cap_seconds` may be.
_LONGEST_ASKED_SECONDS = 604_800.0


class Claimed(NamedTuple):
    """A row that was claimed, and its state before. Its attempts count this one.

    Where rows go to Kafka, the destination is the topic.
    """

    id: str
    destination: str
    key: str
    type: str
    content: bytes
    headers: str | None
    content_type: str | None
    created_us: int
    attempts: int
    claimed_at: datetime
    error_before: str | None
    status_before: str
    lost: bool
    """True if an earlier claim of the row was never settled: the row may be what ended its relay."""
    reference: str | None = None
    """The receiver's name for the message, if an attempt was told."""
    flaw: str | None = None
    """Why nothing can be made of the row: it is rejected alone."""
    too_large: int | None = None
    """The bytes of a content that is larger than it may be sent: it was not read, and `content` is empty."""
    edition: str | None = None
    """A hash of what the row of a mail holds."""
    doubt_seconds: float | None = None
    """The age of the first attempt that may have sent this edition of a mail, if there is one."""

    @property
    def may_have_arrived(self) -> bool:
        """True if an earlier attempt may have sent this edition of a mail, or the provider had told a name for one."""
        return self.doubt_seconds is not None or bool(self.reference)

    def entry(self, position: int) -> Entry:
        """Return the row as an entry of the journal, which the relay publishes."""
        return Entry(position, self.id, self.destination, self.key, self.type, self.content, self.headers,
                     self.content_type, self.created_us, 0)  # fmt: skip


class RowEnd(Enum):
    """The end of an attempt."""

    DONE = "done"
    """It is written even when the lease is lost."""
    FAILED = "failed"
    GIVEN_UP = "given up"
    RELEASED = "released"
    RETURNED = "returned"
    """It was lost before, and nothing was tried since: it is lost as it was."""


class Settling(NamedTuple):
    """The end of a row's attempt, and the row's new state in the words of its table."""

    row: Claimed
    end: RowEnd
    status: str
    error: str | None = None
    wait_seconds: float | None = None
    outcome: Outcome | None = None
    content: str | None = None
    """A hash of what was sent, for the attempt log."""
    seconds: float = 0.0
    """The duration of the send."""

    @property
    def counts(self) -> bool:
        """True if the attempt counts; else it is taken back."""
        return self.end in (RowEnd.FAILED, RowEnd.GIVEN_UP)

    @property
    def is_held(self) -> bool:
        """True if the row may have been sent, and waits for a person."""
        return (self.error or "").startswith(IN_DOUBT_BEGINS)


def settling(
    outbox: Outbox, row: Claimed, outcome: Outcome | None, content: str | None = None, seconds: float = 0.0,
    *, dice: float = 0.0, now: float = 0.0,
) -> Settling:  # fmt: skip
    """Decide on a row; without an outcome it was not tried. `content` and `seconds` are those of its send.

    Without a word for dead, a rejected row is tried as often as any other that fails. An HTTP destination concerns the
    row alone: each of its failures counts. Kafka and a mail provider are shared by all rows: their outages count for
    none, unless `retry.count_outages` says so, or the row is older than `retry.max_outage_seconds`.
    """
    if isinstance(outcome, Delivered):
        return Settling(row, RowEnd.DONE, outbox.words.done, None, None, outcome, content, seconds)
    decided = released(row) if outcome is None else _undelivered(outbox, row, outcome, dice, now)
    return decided._replace(outcome=outcome, content=content, seconds=seconds)


def _undelivered(outbox: Outbox, row: Claimed, why: _Failure | Held, dice: float, now: float) -> Settling:
    if isinstance(why, Held) or (isinstance(why, Rejected) and outbox.words.dead is not None):
        return _given_up(outbox, row, why)
    # Kafka drops duplicates by their id; a mail provider may not.
    released_for = {"kafka": (Unavailable, Unknown), "email": (Unavailable,)}.get(outbox.channel, ())
    if isinstance(why, released_for) and not (outbox.retry.count_outages or _is_overdue(outbox, row, now)):
        return released(row, why.error)
    return _failed(outbox, row, why, dice)


def _is_overdue(outbox: Outbox, row: Claimed, now: float) -> bool:
    longest = outbox.retry.max_outage_seconds
    return longest is not None and row.created_us > 0 and now - row.created_us / 1e6 > longest


def released(row: Claimed, error: str | None = None) -> Settling:
    """Give the row back as it was, except for its error."""
    kept = row.error_before if row.lost else error or row.error_before
    end = RowEnd.RETURNED if row.lost and error is None else RowEnd.RELEASED
    return Settling(row, end, row.status_before, kept)


def _failed(outbox: Outbox, row: Claimed, why: _Failure, dice: float) -> Settling:
    retries = retries_of(outbox.retry)
    if outbox.retry.once or (retries.limit and row.attempts >= retries.limit):
        return _given_up(outbox, row, why)
    asked = why.after_seconds if isinstance(why, Retry | Unavailable) else None
    wait = max(retries.backoff.delay_seconds(row.attempts, dice=dice), min(asked or 0.0, _LONGEST_ASKED_SECONDS))
    return Settling(row, RowEnd.FAILED, outbox.words.pending[-1], why.error, wait)


def _given_up(outbox: Outbox, row: Claimed, why: _Failure | Held) -> Settling:
    """Give the row up. A mail that this attempt or an earlier one may have sent is left to a person."""
    may_have_arrived = isinstance(why, Unknown) or getattr(why, "in_doubt", False) or row.may_have_arrived
    in_doubt = isinstance(why, Held) or (outbox.channel == "email" and may_have_arrived)
    status = outbox.words.dead or outbox.words.pending[-1]
    return Settling(row, RowEnd.GIVEN_UP, status, IN_DOUBT_BEGINS + why.error if in_doubt else why.error)
