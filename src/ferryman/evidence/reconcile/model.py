"""What is known of payments that are still pending, and what is made of it: frozen values."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID


class Cause(StrEnum):
    """Why a payment is still pending: section 6 of the document, and what the machine adds to it."""

    NEVER_PUBLISHED = "never_published"
    NOT_CONSUMED = "not_consumed"
    CONSUMER_FAILED = "consumer_failed"
    RESULT_LOST = "result_lost"
    WAITS_DOWNSTREAM = "waits_downstream"
    NEEDS_PERSON = "needs_person"
    EVIDENCE_EXPIRED = "evidence_expired"


class Repair(StrEnum):
    """What --yes does. Each is safe: an operation happens once, and whoever asks again is answered with its outcome."""

    REPUBLISH = "republish"
    REREPORT = "rereport"
    REPLAY = "replay"
    NONE = "none"


ORCHESTRATOR, WALLET = "orchestrator", "wallet"


class Pending(NamedTuple):
    """A request that is not over; no time to look at it where it waits for a person."""

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


EXHAUSTED = "PENDING for good"
"""Of an entry of the literal mode's outbox whose attempts are used up."""


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
    """Whether it was recorded in the literal mode: its result is told by HTTP, once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is true of the whole house when it is looked at, in words: it explains what waits."""

    answer_seconds: float
    receipts_seconds: float
    relays: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each database, the topics that are paused; the empty name is all of them."""
    lags: dict[str, str] = field(default_factory=dict)
    """What Kafka says of each topic's reader, where a cluster is named."""


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
