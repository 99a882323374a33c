"""The ids of a payment's messages, and its rows in both databases.

The ids follow from the payment, so no index on the journal is needed. Nothing joins across the databases.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString, NamedTuple
from uuid import UUID, uuid5

from ferryman.evidence.journey import EXHAUSTED
from ferryman.evidence.messages import OutboxEntry, rows, tuples
from ferryman.evidence.sides import Connection
from ferryman.services.payments import rules
from ferryman.services.payments.payments_settings import LITERAL_OUTBOX as OUTBOX
from ferryman.services.payments.rules import message_id

NAME, WALLET = "payments", "wallet"
"""The consumers of either database."""
ORCHESTRATOR = "orchestrator"
"""The name that stories and cases give to the database of payments."""

DEDUCT, CANCEL = "wallet.deduct", "wallet.cancel"
KINDS: Mapping[str, str] = {DEDUCT: "DEDUCT", CANCEL: "CANCEL", "wallet.refund": "REFUND"}
"""The operation in the ledger that each command for the wallet asks for."""
COMMAND_OF: Mapping[str, str] = {operation: command for command, operation in KINDS.items()}

ASKED = rules.COMMANDS
"""The command whose answer moves a payment on, by its state."""
COMMANDS = tuple(KINDS)
FULFILMENTS = ("fulfilment.request", "fulfilment.cancel")
EVENTS = ("payment.requested", "payment.succeeded", "payment.failed")
RESULTS = ("wallet.succeeded", "wallet.failed")
BALANCE = "wallet.balance-changed"
READS = {WALLET: "payments.commands", NAME: "wallet.results"}
"""The topic that each consumer reads."""
TOPICS = dict.fromkeys(COMMANDS, READS[WALLET]) | dict.fromkeys(FULFILMENTS, "fulfilments.commands")

SUCCEEDED, FAILED, STUCK, PENDING = "SUCCEEDED", "FAILED", "STUCK", "PENDING"

ANSWER = "wallet/0"
"""The wallet gives an id to what it reports by its name and a number: it reports one result, the first."""
_ATTEMPTS = 32
"""More attempts than are made by themselves, with the default settings."""


class Said(NamedTuple):
    """The type of a payment's message, and the attempt."""

    type: str
    attempt: int


def messages_of(payment: UUID, attempt: int = 1, types: Iterable[str] = COMMANDS + FULFILMENTS) -> dict[UUID, Said]:
    """Return every message that may exist. In the literal mode the first command has the payment's own id."""
    kinds, attempts = list(types), range(1, max(attempt, _ATTEMPTS) + 1)
    said = [Said(kind, each) for kind in kinds for each in attempts]
    literal = {payment: Said(DEDUCT, 1)} if DEDUCT in kinds else {}
    return literal | {message_id(payment, *each): each for each in [*said, *(Said(kind, 1) for kind in EVENTS)]}


def command_of(payment: "PaymentRow", attempt: int) -> UUID:
    """Return the command that a payment waits for. In the literal mode the first has the payment's own id."""
    own = payment.literal and (payment.asked, attempt) == (DEDUCT, 1)
    return payment.uuid if own else message_id(payment.uuid, payment.asked, attempt)


def result_of(command: UUID) -> UUID:
    """Return the id of the wallet's result."""
    return uuid5(command, ANSWER)


def balances_of(payment: UUID) -> frozenset[UUID]:
    """Return the ids of the events by which the wallet tells that a balance changed."""
    return frozenset(uuid5(payment, f"{rules.DEDUCT}/{kind}") for kind in KINDS.values())


def literal_limit(settings: Any) -> int:
    """Return the number of attempts after which a row of the literal mode's outbox is not tried again."""
    given = settings.outbox.get(NAME)
    return int(given.retry.limit if given else OUTBOX["retry"]["limit"])


class PaymentRow(NamedTuple):
    """A row of `payments.requests`; `mark` is its place in the order of a walk."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    state: str
    attempt: int
    created_at: datetime
    changed_at: datetime
    now: datetime
    due_at: datetime | None = None
    """None if it is over, or waits for a person."""
    reason: str | None = None
    mark: str = ""
    literal: bool = False
    """True if it was recorded in the literal mode: its first command has its own id, and left by another outbox."""

    @property
    def status(self) -> str:
        return self.state if self.state in (SUCCEEDED, FAILED) else PENDING

    @property
    def age_seconds(self) -> float:
        return (self.now - self.created_at).total_seconds()

    @property
    def by_letter(self) -> bool:
        """True if it goes on as the literal mode has it: no timeout looks at it, and its result is told by HTTP, once.
        What a timeout has begun to undo all the same waits for a message.
        """
        return self.literal and self.state != "CANCELLING"

    @property
    def moves(self) -> bool:
        """True if a result moves it on: neither a person does, nor a report by HTTP that may be lost."""
        return not self.by_letter and self.state != STUCK

    @property
    def asked(self) -> str:
        """The command that it waits for; if it has FAILED, the one that gives back its amount."""
        return CANCEL if self.state == FAILED else ASKED[self.state]

    def asked_back(self, back: "AskedBack | None") -> "PaymentRow":
        """Return it as it waits for its last cancellation: the attempt, and since when."""
        if back is None:
            return self._replace(attempt=1)
        return self._replace(attempt=back.attempt, changed_at=max(self.changed_at, back.at))


class LedgerRow(NamedTuple):
    """An operation that the wallet decided once, for all attempts. The amount is negative if the wallet lost it."""

    request_id: UUID
    step: str
    kind: str
    wallet_id: UUID
    amount: int
    currency: str | None
    reason: str | None
    decided_at: datetime
    balance: int | None = None


class Booked:
    """Conclusions from the ledger of one payment."""

    __slots__ = ()
    ledger: Sequence[LedgerRow]

    @property
    def kept(self) -> int:
        """The amount that stays taken, whatever the payment's state."""
        return -sum(each.amount for each in self.ledger)

    @property
    def moved(self) -> bool:
        return any(each.amount for each in self.ledger)

    @property
    def deductions(self) -> list[LedgerRow]:
        return [each for each in self.ledger if each.kind == "DEDUCT" and each.reason is None]

    @property
    def refusal(self) -> LedgerRow | None:
        """The last refusal to give the amount back."""
        return next((each for each in reversed(self.ledger) if each.kind != "DEDUCT" and each.reason), None)


class AskedBack(NamedTuple):
    """When the amount of a payment that had FAILED was last asked back, and how often by people."""

    at: datetime
    by_people: int

    @property
    def attempt(self) -> int:
        """The attempt of the last cancellation: the first is the machine's, or would have been."""
        return 1 + self.by_people


COLUMNS = """\
r.uuid, r.wallet_id, r.amount, r.currency, r.fulfil, r.state, r.attempt, r.created_at, r.changed_at,
clock_timestamp() AS now, CASE WHEN r.due_at < 'infinity' THEN r.due_at END AS due_at, r.reason,
coalesce(r.due_at::text, '') AS mark,
EXISTS (SELECT FROM payments.outbox o WHERE o.uuid = r.uuid OFFSET 0) AS literal"""

# Each is looked up by itself (OFFSET 0): before a table was analyzed, the planner would read all of it.
_PAYMENTS: LiteralString = f"""\
-- payments.case_requests
SELECT {COLUMNS} FROM unnest(%(ids)b::uuid[]) n (id)
CROSS JOIN LATERAL (SELECT * FROM payments.requests r WHERE r.uuid = n.id OFFSET 0) r
"""  # noqa: S608 - only our own columns are put in

_LEDGER = """\
-- payments.case_ledger
SELECT l.request_id, l.step, l.kind, l.wallet_id, l.amount, l.currency, l.reason, l.decided_at, l.balance
FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT * FROM wallet.ledger l WHERE l.request_id = n.id AND l.kind <> 'OPEN' OFFSET 0
) l
ORDER BY l.decided_at
"""

_LITERAL = """\
-- payments.case_literal
SELECT o.* FROM unnest(%(ids)b::uuid[]) n (id) CROSS JOIN LATERAL (
    SELECT o.uuid AS id, NULL::bigint AS position, o.type, o.topic, o.created_at, o.try_count AS attempts,
           o.last_error AS error, coalesce(o.published_at, o.last_attempt_at) AS changed_at, %(table)s AS "table",
           CASE WHEN o.status = 'PENDING' AND o.try_count >= %(limit)s THEN %(exhausted)s ELSE o.status END AS status
    FROM payments.outbox o WHERE o.uuid = n.id OFFSET 0
) o
"""

_OF_WALLET = """\
-- payments.case_of_wallet
SELECT uuid FROM payments.requests WHERE wallet_id = %(wallet)s AND created_at <= %(until)s
ORDER BY created_at DESC LIMIT %(most)s
"""

# By the results that came too late for what was taken to be kept, and by people. An act names up to 500 payments, and
# to look into one costs more than to take it apart: that is done once for all that are asked for.
_ASKED_BACK = """\
-- payments.case_asked_back
WITH by_hand AS MATERIALIZED (
    SELECT p.id::uuid AS id, max(a.at) AS at, count(DISTINCT a.id) AS many
    FROM ferryman.outbox_audit a CROSS JOIN LATERAL jsonb_array_elements_text(a.filter -> 'payments') p (id)
    WHERE a.act = 'reconcile' AND a.filter ->> 'repair' = 'give_back' AND p.id = ANY (%(names)s::text[])
    GROUP BY p.id
)
SELECT n.id, greatest(late.at, by_hand.at), coalesce(by_hand.many, 0)
FROM unnest(%(ids)b::uuid[]) n (id)
CROSS JOIN LATERAL (
    SELECT max(s.came_at) AS at FROM ferryman.saga_stray s
    WHERE s.saga_id = n.id AND s.machine = 'payment' AND s.why = 'LATE' AND s.type = 'wallet.succeeded'
      AND s.data ->> 'kind' = 'DEDUCT'
) late
LEFT JOIN by_hand ON by_hand.id = n.id
WHERE late.at IS NOT NULL OR by_hand.at IS NOT NULL
"""

# A state that follows begins at one again, so a payment does not tell how often it was asked for before.
_BY_HAND = """\
-- payments.case_by_hand
SELECT p.id::uuid, count(DISTINCT a.id)
FROM ferryman.outbox_audit a CROSS JOIN LATERAL jsonb_array_elements_text(a.filter -> 'payments') p (id)
WHERE a.act = 'reconcile' AND p.id = ANY (%(names)s::text[])
GROUP BY p.id
"""

_SETTLED = """\
-- payments.case_settled
SELECT (filter ->> 'settle')::uuid FROM ferryman.outbox_audit
WHERE act = 'reconcile' AND filter ? 'settle' AND (filter ->> 'settle')::uuid = ANY (%(ids)s::uuid[])
"""


def payments(db: Connection, ids: Sequence[UUID]) -> list[PaymentRow]:
    return rows(db, PaymentRow, _PAYMENTS, {"ids": list(ids)})


def place_of(request: PaymentRow) -> tuple[str, str]:
    """Return the topic and the key of the command that a payment waits for."""
    return TOPICS[request.asked], str(request.wallet_id if request.asked in KINDS else request.uuid)


def ledger(db: Connection, ids: Sequence[UUID]) -> list[LedgerRow]:
    return rows(db, LedgerRow, _LEDGER, {"ids": list(ids)})


def literal(db: Connection, ids: Sequence[UUID], settings: Any) -> dict[UUID, OutboxEntry]:
    """Return the commands that left by the literal mode's outbox."""
    given = {"limit": literal_limit(settings), "exhausted": EXHAUSTED, "table": OUTBOX["table"]}
    return {each.id: each for each in rows(db, OutboxEntry, _LITERAL, {"ids": list(ids), **given})}


def payments_of_wallet(db: Connection, wallet: UUID, until: datetime, most: int) -> list[UUID]:
    """Return the payments of a wallet, the newest first."""
    return [uuid for (uuid,) in tuples(db, _OF_WALLET, {"wallet": wallet, "until": until, "most": most})]


def asked_back(db: Connection, ids: Sequence[UUID]) -> dict[UUID, AskedBack]:
    """Return those of these payments whose amount was asked back after they had ended."""
    given = {"ids": list(ids), "names": [str(each) for each in ids]}
    return {uuid: AskedBack(*said) for uuid, *said in tuples(db, _ASKED_BACK, given)}


def by_hand(db: Connection, ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return in how many repairs by people each payment was named: each may have made an attempt."""
    return dict(tuples(db, _BY_HAND, {"names": [str(each) for each in ids]}))


def settled(db: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Return the payments of which a person said that they were given back by hand."""
    return {uuid for (uuid,) in tuples(db, _SETTLED, {"ids": list(ids)})}
