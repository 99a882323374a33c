"""What is known of payments that are still pending, and what is made of it: frozen values."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from ferryman.evidence.addressing import BY_URL, Address


class Cause(StrEnum):
    """Why a payment is still pending: section 6 of the document, and what the machine adds to it."""

    NEVER_PUBLISHED = "never_published"
    NOT_CONSUMED = "not_consumed"
    CONSUMER_FAILED = "consumer_failed"
    RESULT_LOST = "result_lost"
    WAITS_DOWNSTREAM = "waits_downstream"
    NEEDS_PERSON = "needs_person"
    EVIDENCE_EXPIRED = "evidence_expired"
    NOT_GIVEN_BACK = "not_given_back"
    """It is over, having FAILED, and what was taken for it stays taken."""


class Repair(StrEnum):
    """What --yes does. Each is safe: an operation happens once, and whoever asks again is answered with its outcome."""

    REPUBLISH = "republish"
    REREPORT = "rereport"
    REPLAY = "replay"
    GIVE_BACK = "give_back"
    NONE = "none"


ORCHESTRATOR, WALLET = "orchestrator", "wallet"


class Pending(NamedTuple):
    """A request that is not over, or that keeps what it must not; no time to look at it where it waits for a person, or
    is over.
    """

    uuid: UUID
    wallet_id: UUID
    state: str
    attempt: int
    due_at: datetime | None
    changed_at: datetime
    now: datetime
    age_seconds: float
    mark: str


class Operation(NamedTuple):
    """What the wallet decided."""

    request_id: UUID
    kind: str
    reason: str | None
    decided_at: datetime
    amount: int = 0
    """What the wallet gained by it."""


class Entry(NamedTuple):
    """What of an outbox is not published; `replay` is the number of one that it was queued by."""

    id: UUID
    position: int
    status: str
    attempts: int
    error: str | None
    replay: int | None
    changed_at: datetime | None


class Receipt(NamedTuple):
    """What a consumer knows of a message."""

    id: UUID
    status: str
    outcome: str | None
    reason: str | None
    error: str | None
    received_at: datetime


class Rejected(NamedTuple):
    """A record that a consumer could not handle."""

    id: UUID
    code: str
    error: str
    status: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one payment: first what the ledger says, then each step of what was asked last."""

    request: Pending
    outcome: Operation | None = None
    command: Entry | None = None
    receipts: tuple[Receipt, ...] = ()
    """Of this attempt's command and of those before it, the newest first."""
    rejected: tuple[Rejected, ...] = ()
    result: Entry | None = None
    applied: tuple[Receipt, ...] = ()
    """What the orchestrator's inbox has of the results."""
    unread: tuple[Rejected, ...] = ()
    strays: tuple[str, ...] = ()
    """Why results were applied to nothing."""
    literal: bool = False
    """Whether it was recorded in the literal mode."""
    booked: tuple[Operation, ...] = ()
    """All that the ledger has of it."""
    asked_since: bool = False
    """Whether it was asked for once more since the newest of the receipts."""
    asked_back: bool = True
    """Of one that is over: whether anything ever asked for what it took to be given back."""

    @property
    def by_letter(self) -> bool:
        """Whether it goes on as the literal mode has it: no timeout looks at it, and its result is told by HTTP, once.
        What a timeout has begun to undo all the same waits for a message.
        """
        return self.literal and self.request.state != "CANCELLING"

    @property
    def kept(self) -> int:
        """What stays taken for it."""
        return -sum(each.amount for each in self.booked)


class Lag(NamedTuple):
    """How far a group is behind, in words; and how much of that is older than an answer may take. None where Kafka does
    not say.
    """

    said: str
    overdue: int | None = None
    resets: str | None = None
    """What a person runs where Kafka deleted what it had not read: it stops there, and goes on from what is left."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who is to read what was published: how many of its processes are connected, by whom it is paused, and how far it
    is behind, where a cluster is named.
    """

    processes: int = 1
    paused: str | None = None
    lag: Lag | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is true of the whole house when it is looked at, in words: it explains what waits."""

    answer_seconds: float
    receipts_seconds: float
    relays: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each database, the topics that are paused; the empty name is all of them."""
    readers: dict[str, Reader] = field(default_factory=dict)
    """By the consumer's name: the wallet, which reads commands, and payments, which reads results."""
    wallets: Address = BY_URL
    """How what a person runs finds the wallet's database."""


@dataclass(frozen=True, slots=True)
class Case:
    """A payment, why it is still pending, by what evidence, what --yes would do, and what a person runs."""

    uuid: UUID
    state: str
    attempt: int
    age_seconds: float
    cause: Cause
    evidence: str
    repair: Repair
    next: str
    where: str = ORCHESTRATOR
    position: int | None = None
    """Of the entry that is replayed, and in which database it is."""
    person: bool = False
    """Whether nothing goes on until a person has done something."""
