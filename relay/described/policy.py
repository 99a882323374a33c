"""What becomes of a claimed row: decided from the outcome of its delivery, with no clock."""

from dataclasses import dataclass
from enum import Enum

from ferryman.relay.described.model import Row, Settling
from ferryman.relay.policy import Outcome, Rejected, Retries, Retry, TopicUnavailable, Unknown, Waits
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.settings_outbox import Outbox, OutboxWords


class End(Enum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    GIVEN_UP = "given up"
    RELEASED = "released"
    """It does not count."""


@dataclass(frozen=True, slots=True)
class Verdict:
    end: End
    error: str | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """With the rules of one outbox."""

    words: OutboxWords
    retries: Retries
    count_outages: bool

    def of(self, row: Row, outcome: Outcome | None) -> Verdict:
        """None is delivered. Where there is no word for dead, what is rejected is tried as often as anything else."""
        match outcome:
            case None:
                return Verdict(End.DONE)
            case Rejected(error) if self.words.dead is not None:
                return Verdict(End.GIVEN_UP, error)
            case Rejected(error) | Retry(error):
                return self._failed(row, error)
            case TopicUnavailable(error) | Unknown(error):
                return self._failed(row, error) if self.count_outages else Verdict(End.RELEASED, error)
            case Waits():
                return Verdict(End.RELEASED)

    def settling(self, row: Row, verdict: Verdict) -> Settling:
        """In the words of the table. What is released stands as it did, but for the reason why it waits."""
        words = self.words
        match verdict.end:
            case End.DONE:
                return Settling(row.id, row.claimed_at, words.done, 1, None, done=True)
            case End.FAILED:
                wait = verdict.wait_seconds
                return Settling(row.id, row.claimed_at, words.pending[-1], 0, verdict.error, wait_seconds=wait)
            case End.GIVEN_UP:
                return Settling(row.id, row.claimed_at, words.dead or words.pending[-1], 0, verdict.error)
            case End.RELEASED:
                error = row.error_before if row.alone else verdict.error or row.error_before
                return Settling(row.id, row.claimed_at, row.status_before, 1, error)

    def _failed(self, row: Row, error: str) -> Verdict:
        if row.attempts >= self.retries.limit:
            return Verdict(End.GIVEN_UP, error)
        return Verdict(End.FAILED, error, self.retries.backoff.delay_seconds(row.attempts))


def judge_of(outbox: Outbox) -> Judge:
    return Judge(outbox.words, retries_of(outbox), outbox.retry.count_outages)


def retries_of(outbox: Outbox) -> Retries:
    retry = outbox.retry
    backoff = Backoff(retry.base_seconds, max(retry.base_seconds, retry.cap_seconds), retry.offset)
    return Retries(retry.limit, backoff)
