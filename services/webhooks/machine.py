"""The states of a delivery and its rules: pure decisions on results and times, without a database or a clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from ferryman import Columns, End, Go, Message, Received, ResultSource, Row, Saga, State
from ferryman.services.webhooks.webhooks_settings import JOBS, WebhooksSettings

SAGAS, DEAD_LETTERS = "webhooks.webhook_delivery_sagas", "webhooks.dead_letters"
SUCCEEDED, FAILED = "webhook.attempt-succeeded", "webhook.attempt-failed"
DISABLED, LOST = "SUBSCRIPTION_DISABLED", "WORKER_LOST"
INSTEAD_OF_MOVE = (
    "set `active` of its subscription to false to give up what is on its way; `ferryman dead-letters requeue` sends a "
    "dead one again"
)
COLUMNS = Columns("status", "attempt_count", "final_error_code", "next_attempt_at", "updated_at")
STATES: Mapping[str, State] = {
    "Pending": State("The event is routed; there is no job yet."),
    "InProgress": State("One job is under way."),
    "PendingRetry": State("The last job failed; the next one is made when its time has come."),
    "Completed": End("The endpoint has the event."),
    "DeadLettered": End("Given up: no attempt is left, or the subscription is disabled."),
}
_CODE_CHARACTERS = 100
_NAMES = UUID("3a0a7f5e-5a0e-5d55-8c1b-7a9f4b6d2c10")
"""The namespace of the ids of messages about deliveries."""


class Job(NamedTuple):
    """An attempt of a delivery, as its table has it."""

    id: int
    status: str


class WebhookDelivery(NamedTuple):
    """The columns of a delivery's row that the rules need; behind them what `complete` reads of other tables."""

    id: int
    event_id: int
    subscription_id: int
    state: str
    attempt: int
    reason: str | None
    limit: int = 0
    """The most attempts; 0 if the subscription is disabled."""
    base_seconds: float = 0.0
    cap_seconds: float = 0.0
    jobs: Sequence[Job] = ()
    """Every job, in the order of the attempts."""
    last_code: str | None = None
    """Why the last attempt of the last job failed, as the log of attempts has it."""

    @property
    def job(self) -> Job | None:
        """The job whose result is not applied yet."""
        return self.jobs[self.attempt] if len(self.jobs) > self.attempt else None


@dataclass(frozen=True)
class DeliveryRules:
    """The rules with the settings of one deployment."""

    settings: WebhooksSettings = field(default_factory=WebhooksSettings)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @cached_property
    def saga(self) -> Saga[WebhookDelivery]:
        """The saga of deliveries."""
        saga = Saga(
            "webhook_delivery", WebhookDelivery, table=SAGAS, states=STATES, columns=COLUMNS, archive="archive",
            due_by_state=True, instead_of_move=INSTEAD_OF_MOVE,
            state_type="webhooks.delivery_status", of=lambda result: int(result.data["saga_id"]), fits=_fits,
            results={"webhook.*": ResultSource("webhooks", "webhooks.results")},
        )  # fmt: skip
        saga.on("InProgress", SUCCEEDED, to="Completed")(self.succeeded)
        saga.on("InProgress", FAILED, to="PendingRetry")(self.failed)
        saga.due("Pending", to="InProgress")(self.next_job)
        saga.due("PendingRetry", to=("InProgress", "DeadLettered"))(self.next_job)
        saga.due("InProgress", to=("Completed", "PendingRetry"))(self.unanswered)
        return saga

    def succeeded(self, delivery: WebhookDelivery, result: Received) -> Go | None:
        """End a delivery whose current job succeeded. A result of an earlier job comes late."""
        return self._completed(delivery, result.data["finished_at"]) if _is_current(delivery, result) else None

    def failed(self, delivery: WebhookDelivery, result: Received) -> Sequence[Go] | None:
        return self._retried(delivery, result.data["error_code"]) if _is_current(delivery, result) else None

    def next_job(self, delivery: WebhookDelivery) -> Sequence[Go]:
        """Make the next job, or give up a delivery that may have no more.

        A disabled subscription's first job fails without a send: nothing else leads from Pending to DeadLettered.
        """
        if delivery.attempt < delivery.limit:
            return [self._asked(delivery)]
        if delivery.state == "PendingRetry":
            return [self._dead(delivery, delivery.reason or LOST)]
        unsent = self._asked(delivery, status="Failed", error=DISABLED)
        return [unsent, *self._retried(delivery, DISABLED)]

    def unanswered(self, delivery: WebhookDelivery) -> Go | Sequence[Go]:
        """Believe the row of a job that is over and whose result never came; wait for one that is not."""
        job = delivery.job
        if job is None or job.status not in ("Completed", "Failed"):
            return Go("InProgress", due=self.settings.answer_seconds)
        if job.status == "Completed":
            return self._completed(delivery, self.now())
        return self._retried(delivery, delivery.last_code or LOST)

    def _asked(self, delivery: WebhookDelivery, **more: str) -> Go:
        job = {**_facts(delivery), "attempt": delivery.attempt + 1, "status": "Pending", **more}
        return Go("InProgress", rows=[Row(JOBS, job)], due=self.settings.answer_seconds)

    def _completed(self, delivery: WebhookDelivery, at: datetime) -> Go:
        """End a delivery. The code of its last failure stays."""
        attempts = delivery.attempt + 1
        told = _event("webhook.delivered", delivery, attempts=attempts, delivered_at=at)
        return Go("Completed", told, set={"attempt": attempts})

    def _retried(self, delivery: WebhookDelivery, code: str) -> Sequence[Go]:
        """Count a failed attempt, and let it be the last one if no more are allowed."""
        attempts, code = delivery.attempt + 1, code[:_CODE_CHARACTERS]
        waits = wait_seconds(attempts, delivery.base_seconds, delivery.cap_seconds)
        retried = Go("PendingRetry", set={"attempt": attempts}, reason=code, due=waits)
        if attempts < delivery.limit:
            return [retried]
        return [retried, self._dead(delivery._replace(attempt=attempts), code)]

    def _dead(self, delivery: WebhookDelivery, code: str) -> Go:
        """Give a delivery up, with its dead letter and its event."""
        code = code if delivery.limit else DISABLED
        letter = {**_facts(delivery), "attempts": delivery.attempt, "error_code": code}
        told = _event(
            "webhook.dead-lettered", delivery, attempts=delivery.attempt, error_code=code, dead_lettered_at=self.now()
        )
        return Go("DeadLettered", told, rows=[Row(DEAD_LETTERS, letter)], reason=code)


def wait_seconds(attempts: int, base_seconds: float, cap_seconds: float) -> float:
    """Return the wait after failed attempts: `base * 2 ** (attempts - 1)`, capped, with nothing left to chance."""
    return min(cap_seconds, base_seconds * 2.0 ** min(attempts - 1, 60))


def result_id(job: int, created_us: int) -> UUID:
    """Return the id of a job's result: however often it is told, it is one message.

    In a restored database other jobs get the same numbers, at other times.
    """
    return uuid5(_NAMES, f"result/{job}/{created_us}")


def event_id(kind: str, delivery: int) -> UUID:
    """Return the id of the event about the end of a delivery."""
    return uuid5(_NAMES, f"{kind}/{delivery}")


def _facts(delivery: WebhookDelivery) -> dict[str, Any]:
    return {"saga_id": delivery.id, "event_id": delivery.event_id, "subscription_id": delivery.subscription_id}


def _event(kind: str, delivery: WebhookDelivery, **more: Any) -> Message:
    return Message(kind, {**_facts(delivery), **more}, key=str(delivery.id), id=event_id(kind, delivery.id))


def _is_current(delivery: WebhookDelivery, result: Received) -> bool:
    return int(result.data["attempt"]) == delivery.attempt + 1


def _fits(delivery: WebhookDelivery, result: Received) -> bool:
    """Return True if this delivery made the job, and the job's row says what the result says.

    A result is appended in the transaction that ends its job, so an honest one never comes before that.
    """
    data, over = result.data, "Completed" if result.type == SUCCEEDED else "Failed"
    if (data["saga_id"], data["event_id"], data["subscription_id"]) != delivery[:3]:
        return False
    attempt = int(data["attempt"])
    return 0 < attempt <= len(delivery.jobs) and delivery.jobs[attempt - 1] == (data["job_id"], over)
