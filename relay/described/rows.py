"""Rows of a described outbox, and the decision what is written of each after its delivery: pure, with no clock."""

from datetime import datetime
from enum import Enum
from typing import NamedTuple

from ferryman.relay.model import Entry
from ferryman.relay.policy import Outcome, Rejected, Retry, TopicUnavailable, Unknown, Waits, retries_of
from ferryman.runtime.settings_outbox import Outbox


class ClaimedRow(NamedTuple):
    """A row that was claimed, and its state before. Its attempts count this one."""

    entry: Entry
    attempts: int
    claimed_at: datetime
    error_before: str | None
    status_before: str
    alone: bool
    """True if an earlier claim of the row was never settled: the row may be what ended its relay."""

    @property
    def id(self) -> str:
        return self.entry.id


class RowEnd(Enum):
    """The end of an attempt."""

    DONE = "done"
    """It is written even when the lease is lost."""
    FAILED = "failed"
    GIVEN_UP = "given up"
    RELEASED = "released"


class Settling(NamedTuple):
    """The end of a row's attempt, and the row's new state in the words of its table."""

    row: ClaimedRow
    end: RowEnd
    status: str
    error: str | None = None
    wait_seconds: float | None = None

    @property
    def counts(self) -> bool:
        """True if the attempt counts; else it is taken back."""
        return self.end in (RowEnd.FAILED, RowEnd.GIVEN_UP)


def settling(outbox: Outbox, row: ClaimedRow, outcome: Outcome | None) -> Settling:
    """Decide on a row; no outcome means delivered.

    Without a word for dead, a rejected row is tried as often as any other that fails.
    """
    match outcome:
        case None:
            return Settling(row, RowEnd.DONE, outbox.words.done)
        case Rejected(error) if outbox.words.dead is not None:
            return Settling(row, RowEnd.GIVEN_UP, outbox.words.dead, error)
        case Rejected(error) | Retry(error):
            return _failed(outbox, row, error)
        case TopicUnavailable(error) | Unknown(error):
            return _failed(outbox, row, error) if outbox.retry.count_outages else released(row, error)
        case Waits():
            return released(row)


def released(row: ClaimedRow, error: str | None = None) -> Settling:
    """Give the row back as it was, except for its error."""
    kept = row.error_before if row.alone else error or row.error_before
    return Settling(row, RowEnd.RELEASED, row.status_before, kept)


def _failed(outbox: Outbox, row: ClaimedRow, error: str) -> Settling:
    words, retries = outbox.words, retries_of(outbox.retry)
    if row.attempts >= retries.limit:
        return Settling(row, RowEnd.GIVEN_UP, words.dead or words.pending[-1], error)
    return Settling(row, RowEnd.FAILED, words.pending[-1], error, retries.backoff.delay_seconds(row.attempts))
