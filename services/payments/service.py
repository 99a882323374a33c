"""Payments are moved by results and timeouts, in `ferryman run payments`, and by the wallet's reports over HTTP."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ferryman import FerrymanError, Go, Misconfigured, Saga
from ferryman.services.payments import store
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Payment, Rules
from ferryman.services.payments.store import Connection, RecordedPayment

if TYPE_CHECKING:
    from ferryman.services.payments.bodies import Result


def rules_of(settings: Any) -> Rules:
    """Return the rules with the settings under [payments]."""
    return Rules(settings.section(PaymentsSettings))


def payments(settings: Any) -> Saga[Payment]:
    """Return the saga of payments, which consumers of results and a loop of timeouts move."""
    rules = rules_of(settings)
    if rules.literal:
        raise Misconfigured(
            "in the literal mode no results come by Kafka, and nothing is cancelled: there is nothing to run",
            setting="payments.mode", remedy="run `relay`, `wallet-literal` and `api`; or set the mode to saga",
        )  # fmt: skip
    return rules.saga


class NotBelieved(FerrymanError):
    """A report that contradicts the payment, or that may not end it."""


def tell(
    db: Connection, uuid: UUID, told: "Result", *, rules: Rules, headers: Mapping[str, str]
) -> RecordedPayment | None:
    """Apply the wallet's report by HTTP, and return the payment after it; None if there is none.

    A report may come never, late or twice, and may be wrong. A payment that is over never changes.
    """

    def rule(payment: Payment) -> Go | None:
        for name in ("wallet_id", "amount", "currency"):
            if (said := getattr(told, name)) is not None and said != getattr(payment, name):
                raise NotBelieved(f"the payment {uuid} has another {name}")
        return rules.told(payment, told.status, told.reason or "UNKNOWN", headers)

    rules.saga.engine.act(db, [uuid], rule)
    found = store.find(db, [uuid]).get(uuid)
    if found is not None and found.status != told.status:
        raise NotBelieved(f"the payment {uuid} {_why(found)}")
    return found


def _why(found: RecordedPayment) -> str:
    if found.status != "PENDING":
        return f"is over: it is {found.status}, and that is final"
    if found.fulfil:
        return "has several steps: only the results of its steps end it"
    return f"is {found.state}: only the wallet's answer to the last command ends it"
