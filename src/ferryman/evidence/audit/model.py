"""What an audit reads, counts and finds: values."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ferryman.evidence.audit.columns import Column, Numbers, Texts, Uuids


class Request(NamedTuple):
    """A payment as its orchestrator has it."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    state: str
    attempt: int
    created_at: datetime
    changed_at: datetime


FOUND, MISSING, EXPIRED = "found", "missing", "expired"
"""What the journal has of a command: where its time is past the journal's retention, nobody can tell."""

Place = tuple[datetime, UUID]
"""When a payment was recorded, and which: the order of a walk."""


class Page(NamedTuple):
    """Payments in the order in which they were recorded, up to a place; their columns as they came."""

    many: int
    last: Place
    uuids: Uuids
    wallets: Uuids
    amounts: Numbers
    currencies: Texts
    statuses: Texts

    def columns(self) -> dict[str, Column]:
        return {"uuids": self.uuids, "wallets": self.wallets, "amounts": self.amounts, "currencies": self.currencies,
                "statuses": self.statuses}  # fmt: skip


class Plain(NamedTuple):
    """Payments that are plainly in order: how many, what they asked for, and what was taken for them."""

    status: str
    currency: str
    many: int
    amount: int
    taken: int


class Operation(NamedTuple):
    """A row of the ledger: negative where the wallet lost it."""

    request_id: UUID
    step: str
    kind: str
    wallet_id: UUID
    amount: int
    currency: str | None
    reason: str | None
    decided_at: datetime


class Held(NamedTuple):
    """What a wallet holds, what its ledger sums to, and what it was opened with."""

    id: UUID
    currency: str
    balance: int
    booked: int | None
    """None where its ledger is too long to be summed beside others."""
    opened: int

    @property
    def unbalanced(self) -> bool:
        """Whether it does not hold what its ledger says, or holds less than nothing."""
        return self.balance != self.booked or self.balance < 0


class Window(NamedTuple):
    """What is audited: what was recorded from one moment on, and before another."""

    since: datetime | None
    until: datetime


class Horizon(NamedTuple):
    """Before these moments receipts are forgotten: of the wallet, and of the orchestrator. None where none ever are.

    What happened before `overdue` must have been followed by what follows it; and the orchestrator has heard of results
    so long after `heard` that one which was decided before must have come.
    """

    wallet: datetime | None
    orchestrator: datetime | None
    overdue: datetime | None = None
    heard: datetime | None = None


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that must not be, by its name; why, and what a person runs next."""

    what: str
    id: UUID | None
    """Of the payment or the wallet; none where it is all of a currency."""
    why: str
    next: str


class Receipt(NamedTuple):
    """What a consumer's inbox has of a message; `reported` says whether a result was reported with it."""

    id: UUID
    status: str
    at: datetime
    reported: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of one payment: its ledger, the kinds of commands that were received, whether a result of one
    was applied.
    """

    request: Request
    operations: tuple[Operation, ...] = ()
    received: frozenset[str] = frozenset()
    applied: bool = False
    settled: bool = False
    """Whether a person said that it was given back by hand."""
    literal: bool = False
    """Whether its command left by the outbox of the literal mode, whose results are told by HTTP alone."""
    seen: bool = False
    """Whether the wallet's inbox knows a command of it, whatever became of that."""
    stale: frozenset[str] = frozenset()
    """The kinds of commands that took effect so long ago that the ledger must have them."""
    reported: bool = False
    """Whether the wallet reported a result of it to the orchestrator."""
    commanded: str = MISSING
    """What the journal has of its commands, where neither the ledger nor the wallet's inbox knows one."""
    back_at: datetime | None = None
    """When a cancellation was last asked for, after it had FAILED; None also where that was in vain."""
    back_waits: bool = False
    """Whether that cancellation stands in the outbox, and is yet to be published."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What is counted of a payment, and what is wrong with it."""

    counts: tuple[str, ...]
    wrong: tuple[Wrong, ...] = ()


@dataclass(slots=True)
class Sums:
    """Of one currency, in its smallest unit."""

    succeeded: int = 0
    deducted: int = 0
    failed_net: int = 0
    in_flight_net: int = 0
    wallets: int = 0
    opened: int = 0
    by_hand: int = 0
    """Of `failed_net`, what a person gave back."""
    giving_back: int = 0
    """Of `failed_net`, what a cancellation that is on its way gives back."""

    def as_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Books:
    """What an audit comes to. What is wrong is listed up to a limit, and counted whole."""

    window: Window
    counts: Counter[str] = field(default_factory=Counter)
    sums: dict[str, Sums] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)
    wrongs: int = 0
    expired: Counter[str] = field(default_factory=Counter)
    oldest: datetime | None = None
    """When the oldest of those that are on their way was recorded."""
    most: int = 1_000

    def sum_of(self, currency: str) -> Sums:
        return self.sums.setdefault(currency, Sums())

    def find(self, wrong: Wrong) -> None:
        self.wrongs += 1
        if len(self.wrong) < self.most:
            self.wrong.append(wrong)

    def wait(self, since: datetime) -> None:
        """One that is on its way since then."""
        self.oldest = min(self.oldest or since, since)

    @property
    def verdict(self) -> str:
        return "wrong" if self.wrongs else "ok"

    def as_json(self) -> dict[str, Any]:
        counts: dict[str, dict[str, int]] = {}
        for name, count in sorted(self.counts.items()):
            stage, _, kind = name.partition(".")
            counts.setdefault(stage, {})[kind] = count
        return {
            "window": self.window._asdict(), "counts": counts, "in_flight": self.counts["requests.PENDING"],
            "oldest_in_flight": self.oldest,
            "sums": {currency: each.as_json() for currency, each in sorted(self.sums.items())},
            "wrong": [{name: getattr(each, name) for name in each.__slots__} for each in self.wrong],
            "wrong_total": self.wrongs,
            "expired": [{"what": what, "count": count} for what, count in sorted(self.expired.items())],
            "verdict": self.verdict,
        }  # fmt: skip
