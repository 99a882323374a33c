"""What is known of one payment, and its story: frozen values, without a database in sight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ferryman.runtime.settings import Settings

Where = Literal["orchestrator", "wallet", "kafka"]
ORCHESTRATOR: Where = "orchestrator"
WALLET: Where = "wallet"
KAFKA: Where = "kafka"


@dataclass(frozen=True, slots=True)
class Times:
    """How long an answer may take, and how long what happened is kept, as it is set."""

    answer_seconds: float
    receipts_seconds: float
    """0 is for ever."""
    outbox_seconds: float
    """Of what was published, at least."""

    @classmethod
    def of(cls, settings: Settings) -> "Times":
        kept = settings.consumer.receipts_retention_seconds, settings.relay.ring.retention_seconds
        return cls(settings.payments.answer_seconds, *kept)


@dataclass(frozen=True, slots=True)
class Payment:
    """A row of `payments.requests`; what the ledger says of it stands in for what is not known."""

    id: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    state: str
    status: str
    reason: str | None
    attempt: int
    due_at: datetime | None
    """None where it is over, or waits for a person."""
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Operation:
    """What the wallet decided once, for all attempts."""

    kind: str
    step: str
    wallet_id: UUID
    amount: int
    currency: str | None
    balance: int | None
    reason: str | None
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an outbox; of one that is not PUBLISHED, the relay's own story of it. No position: a row of the
    literal mode's own table.
    """

    id: UUID
    position: int | None
    type: str
    topic: str
    status: str
    created_at: datetime
    attempts: int = 0
    error: str | None = None
    changed_at: datetime | None = None
    reason: str | None = None
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """That a consumer has a verdict on a message, and where the message stood."""

    id: UUID
    type: str
    topic: str
    partition: int
    offset: int
    status: str
    outcome: str | None
    reason: str | None
    error: str | None
    received_at: datetime
    results: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that its consumer could not handle, and what a person did about it."""

    id: UUID
    type: str
    topic: str
    partition: int
    offset: int
    code: str
    error: str
    status: str
    rejected_at: datetime
    changed_at: datetime | None = None
    who: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Stray:
    """A result that moved nothing."""

    message_id: UUID
    why: str
    type: str
    came_at: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `ferryman inbox show` says of a message that is not handled."""

    reason: str
    next: str | None


@dataclass(frozen=True, slots=True)
class Side:
    """What one database knows: its outbox's entries of the payment, its consumer's receipts, and who is at work."""

    entries: Sequence[Entry] = ()
    receipts: Sequence[Receipt] = ()
    rejections: Sequence[Rejection] = ()
    verdicts: Mapping[UUID, Verdict] = field(default_factory=dict)
    consumers: int = 0
    """Processes of its consumer that are connected."""
    paused: str | None = None
    """By whom its consumer is paused, since when and why."""
    whole: bool = True
    """Whether its outbox was looked through for all that must be in it."""

    def entry(self, identity: UUID | None) -> Entry | None:
        """The first with this id: a result that was reported again has several."""
        return next((each for each in self.entries if each.id == identity), None)

    def receipt(self, identity: UUID | None) -> Receipt | None:
        return next((each for each in self.receipts if each.id == identity), None)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as it stands in a topic, and whether its reader's group is past it."""

    partition: int
    offset: int
    at: datetime | None
    read: bool | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """All of it. A side that is None could not be asked; `missing` says in words what was not looked at."""

    id: UUID
    now: datetime
    payment: Payment | None
    ledger: Sequence[Operation] = ()
    strays: Sequence[Stray] = ()
    orchestrator: Side | None = None
    wallet: Side | None = None
    kafka: Mapping[UUID, Sequence[Seen]] | None = None
    """By message; of one that was looked for and is not there, nothing. None where Kafka was not asked."""
    missing: Sequence[str] = ()
    literal: Entry | None = None
    """Its row in the literal mode's outbox, where it was recorded in that mode."""
    settled: bool = False
    """Whether a person said that it was given back by hand."""
    times: Times = field(default_factory=lambda: Times.of(Settings()))

    def age(self, at: datetime) -> float:
        """In seconds, of what happened then."""
        return (self.now - at).total_seconds()

    def forgets(self, at: datetime) -> bool:
        """Whether a receipt of then may not be kept any more."""
        return 0 < self.times.receipts_seconds < self.age(at)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `at` is None where nobody wrote down when; its place in the story is known all the same.

    `times` is how often, where it was folded; `bad` is what kept the payment from going on.
    """

    at: datetime | None
    where: Where
    what: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """Where it is now, why, and the exact command to run next: None when waiting is all, or nothing is left to do."""

    now: str
    why: str
    next: str | None = None
    at: Where = ORCHESTRATOR
    """Whose database the command is for."""


@dataclass(frozen=True, slots=True)
class Story:
    events: Sequence[Event]
    ending: Ending
