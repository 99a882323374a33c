"""The messages of a payment by their ids: they follow from the payment, so no index on the journal is needed."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ferryman.runtime.settings import Settings
from ferryman.runtime.uuids import derived
from ferryman.services.payments.literal import OUTBOX
from ferryman.services.payments.rules import DEDUCT as STEP
from ferryman.services.payments.rules import message_id
from ferryman.services.wallet.consumer import entry_id
from ferryman.services.wallet.rules import Kind

DEDUCT = "wallet.deduct"
KINDS: Mapping[str, Kind] = {DEDUCT: "DEDUCT", "wallet.cancel": "CANCEL", "wallet.refund": "REFUND"}
"""Of each command for the wallet, the operation that it names in the ledger."""

COMMANDS = tuple(KINDS)
FULFILMENTS = ("fulfilment.request", "fulfilment.cancel")
EVENTS = ("payment.requested", "payment.succeeded", "payment.failed")
RESULTS = ("wallet.succeeded", "wallet.failed")
BALANCE = "wallet.balance-changed"
LITERAL_LIMIT = int(OUTBOX["retry"]["limit"])
ANSWER = "wallet/0"
"""How the id of the wallet's result follows from its command's: a consumer's name, and the first that it reports."""

EXHAUSTED = "PENDING for good"
"""Of an entry of the literal mode's outbox whose attempts are used up."""

_ATTEMPTS = 32
"""More than are made by themselves, with the settings as they come."""


class Said(NamedTuple):
    """What a message of a payment is: its type, and the attempt."""

    type: str
    attempt: int


def messages_of(payment: UUID, attempt: int = 1, types: Iterable[str] = COMMANDS + FULFILMENTS) -> dict[UUID, Said]:
    """Every message that can have been said of it. In the literal mode the first command has the payment's own id."""
    kinds, attempts = list(types), range(1, max(attempt, _ATTEMPTS) + 1)
    said = [Said(kind, each) for kind in kinds for each in attempts]
    literal = {payment: Said(DEDUCT, 1)} if DEDUCT in kinds else {}
    return literal | {message_id(payment, *each): each for each in [*said, *(Said(kind, 1) for kind in EVENTS)]}


def balances_of(payment: UUID) -> frozenset[UUID]:
    """The ids of what the wallet tells everyone of it."""
    return frozenset(entry_id(payment, STEP, kind) for kind in KINDS.values())


def results_of(commands: Mapping[UUID, Said]) -> dict[UUID, UUID]:
    """The id of the wallet's result, and the command that it answers."""
    return {result_of(each): each for each, said in commands.items() if said.type in COMMANDS}


def result_of(command: UUID) -> UUID:
    """As a consumer gives ids to what it reports: the first, and only, of the wallet's."""
    return derived(command, ANSWER)


ASKED = {
    "DEDUCTING": "wallet.deduct", "CANCELLING": "wallet.cancel", "REFUNDING": "wallet.refund",
    "FULFILLING": "fulfilment.request", "RECALLING": "fulfilment.cancel",
}  # fmt: skip
"""Of each state, the command whose answer moves a payment on."""


def literal_limit(settings: Settings) -> int:
    """After so many attempts an entry of the literal mode's outbox stays where it is."""
    given = settings.outbox.get("payments")
    return given.retry.limit if given else LITERAL_LIMIT
