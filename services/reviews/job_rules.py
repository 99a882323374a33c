"""The states of a job and its rules: pure decisions on how many recipients were told, without a database or a clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from ferryman import Columns, End, Go, Message, Received, ResultSource, Saga, State
from ferryman.services.reviews.reviews_settings import ReviewsSettings

NOTIFY, RESULTS = "review.notify", ("review.notified", "review.notify-failed")
SUCCEEDED, FAILED = "review.succeeded", "review.failed"
IN_PROGRESS, RETRYABLE = "in_progress", "retryable_failed"
COLUMNS = Columns(state="status")
STATES: Mapping[str, State] = {
    IN_PROGRESS: State("Something still goes on by itself: a recipient was asked for, and its result has not come."),
    "succeeded": End("Every required recipient was told."),
    RETRYABLE: State(
        "Nothing goes on by itself: a recipient was not told, and the caller or a person acts.", ("failed",)
    ),
    "failed": End("Given up by an operator."),
}
PORTION = 200
"""The most recipients that one step asks for again."""
_SOON_SECONDS = 0.05
_NAMES = UUID("0b8a2f52-7a4e-5a53-9c53-5d9d1f7b8e21")
"""The namespace of the ids of events about jobs."""


class Asked(NamedTuple):
    """A recipient, and the words for it."""

    recipient: str
    subject: str
    body: str


class ReviewJob(NamedTuple):
    """The columns of a job's row; behind them what `complete` reads of its recipients."""

    id: UUID
    idempotency_key: str
    changelist_id: str
    review_version: int
    asked_up_to: str
    state: str
    attempt: int
    reason: str | None
    waiting: bool = False
    """True if a required recipient is neither told nor failed."""
    failed: int = 0
    """The number of required recipients that failed."""
    recipients: int = 0
    """The number of required recipients, once each was told."""
    missing: Sequence[Asked] = ()
    """The next recipients to ask for again, once the job is due."""

    @property
    def facts(self) -> dict[str, Any]:
        return {"job_id": self.id, "changelist_id": self.changelist_id, "review_version": self.review_version}


@dataclass(frozen=True)
class JobRules:
    """The rules with the settings of one deployment."""

    settings: ReviewsSettings = field(default_factory=ReviewsSettings)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @cached_property
    def saga(self) -> Saga[ReviewJob]:
        """The saga of jobs. Time counts only while the notifier reads its commands."""
        saga = Saga(
            "review_job", ReviewJob, table="reviews.jobs", states=STATES, columns=COLUMNS, archive="archive",
            of=lambda result: result.data["job_id"], fits=_fits,
            results={"review.*": ResultSource("reviews", "reviews.results")},
            participants={"reviews.commands": "notifier"},
            instead_of_move="correct its recipients, or give it up, by the routes of docs/reviews.md",
        )  # fmt: skip
        saga.on(IN_PROGRESS, RESULTS, to=("succeeded", RETRYABLE))(self.noted)
        saga.on(RETRYABLE, RESULTS, to=(IN_PROGRESS, "succeeded"))(self.noted)
        saga.due(IN_PROGRESS, to=("succeeded", RETRYABLE))(self.unanswered)
        return saga

    def noted(self, job: ReviewJob, _: Received) -> Go:
        """Let a job stand as its recipients do, now that the result is noted on one of them."""
        return self.stands(job)

    def stands(self, job: ReviewJob) -> Go:
        """Let a job stand as its recipients do: it is over only if each that is required was told."""
        if job.waiting:
            asking = job.state == IN_PROGRESS and job.asked_up_to
            return Go(IN_PROGRESS) if asking else Go(IN_PROGRESS, due=self.settings.answer_seconds)
        if job.failed:
            return Go(RETRYABLE)
        told = {**job.facts, "recipients": job.recipients, "succeeded_at": self.now()}
        return Go("succeeded", _event(SUCCEEDED, job, told))

    def unanswered(self, job: ReviewJob) -> Go:
        """Ask again for recipients of whom nothing was heard, in portions: the notifier answers from its rows."""
        if not job.waiting:
            return self.stands(job)
        last = job.missing[-1].recipient if len(job.missing) == PORTION else ""
        due = _SOON_SECONDS if last else self.settings.answer_seconds
        return Go(IN_PROGRESS, *commands(job.facts, job.missing), set={"asked_up_to": last}, due=due)

    def given_up(self, job: ReviewJob, reason: str) -> Go | None:
        """Give up a job for which nothing goes on by itself."""
        if job.state != RETRYABLE:
            return None
        told = {**job.facts, "failed_recipients": job.failed, "failed_at": self.now()}
        return Go("failed", _event(FAILED, job, told), reason=reason)


def commands(facts: Mapping[str, Any], wanted: Sequence[Asked]) -> list[Message]:
    """Return the commands that ask the notifier to tell these recipients."""
    return [Message(NOTIFY, {**facts, **each._asdict()}, key=facts["changelist_id"]) for each in wanted]


def _event(kind: str, job: ReviewJob, data: Mapping[str, Any]) -> Message:
    return Message(kind, data, key=job.changelist_id, id=uuid5(_NAMES, f"{kind}/{job.id}"))


def _fits(job: ReviewJob, result: Received) -> bool:
    """Return True if the result is about this job's version of its change."""
    data = result.data
    return (job.changelist_id, job.review_version) == (data["changelist_id"], data["review_version"])
