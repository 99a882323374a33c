"""Payments are moved by results and timeouts, in `ferryman run payments`, and by the wallet's reports over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from ferryman import Consumer, FerrymanError, Misconfigured
from ferryman.saga.engine import Results, ResultSource, Sagas
from ferryman.saga.moves import Move
from ferryman.services.payments import store
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import MACHINE, Payment, Rules
from ferryman.services.payments.store import Connection, RecordedPayment

if TYPE_CHECKING:
    from ferryman.services.payments.bodies import Result

NAME = "payments"
_WALLET = ResultSource(NAME, "wallet.results")
_FULFILMENTS = ResultSource("payments-fulfilments", "fulfilments.results")
RESULTS = {
    "wallet.succeeded": _WALLET,
    "wallet.failed": _WALLET,
    "fulfilment.accepted": _FULFILMENTS,
    "fulfilment.refused": _FULFILMENTS,
}
"""The source of each type of result: who writes fulfilments must have no say on the wallet's money."""


def sagas(rules: Rules) -> Sagas[Payment]:
    results = Results(RESULTS, of=lambda result: result.data["request_id"])
    group, wallet_url = rules.settings.wallet_group, rules.settings.wallet_database_url
    return Sagas(
        MACHINE, Payment, results, on_result=rules.on_result, on_due=rules.on_due,
        participants={"payments.commands": group} if group else None,
        outboxes={_WALLET.topic: wallet_url} if group and wallet_url else None,
    )  # fmt: skip


def consumers(engine: Sagas[Payment]) -> list[Consumer]:
    """Return a consumer for each source. They take every type: a result from the wrong source is kept as FORGED."""
    return [consumer(engine, source.consumer, [source.topic]) for source in dict.fromkeys(RESULTS.values())]


def consumer(engine: Sagas[Payment], name: str, topics: Sequence[str]) -> Consumer:
    """Return a consumer that applies results. It reports nothing, so nothing is reported again for duplicates."""
    made = Consumer(name, topics, connection=psycopg.Connection, unknown="reject", rereport=False)
    made.handles_batch(*RESULTS)(engine.apply)
    made.after_commit(engine.tell)
    return made


def rules_of(settings: Any) -> Rules:
    """Return the rules with the settings under [payments]."""
    return Rules(settings.section(PaymentsSettings))


def payments(settings: Any) -> list[Consumer | Sagas[Payment]]:
    """Return the consumers of results, and the sagas for the loop of timeouts."""
    rules = rules_of(settings)
    if rules.literal:
        raise Misconfigured(
            "in the literal mode no results come by Kafka, and nothing is cancelled: there is nothing to run",
            setting="payments.mode", remedy="run `relay`, `wallet-literal` and `api`; or set the mode to saga",
        )  # fmt: skip
    engine = sagas(rules)
    return [*consumers(engine), engine]


class NotBelieved(FerrymanError):
    """A report that contradicts the payment, or that may not end it."""


def tell(
    db: Connection, uuid: UUID, told: "Result", *, engine: Sagas[Payment], rules: Rules, headers: Mapping[str, str]
) -> RecordedPayment | None:
    """Apply the wallet's report by HTTP, and return the payment after it; None if there is none.

    A report may come never, late or twice, and may be wrong. A payment that is over never changes.
    """

    def rule(payment: Payment) -> Move | None:
        for name in ("wallet_id", "amount", "currency"):
            if (said := getattr(told, name)) is not None and said != getattr(payment, name):
                raise NotBelieved(f"the payment {uuid} has another {name}")
        move = rules.told(payment, told.status, told.reason or "UNKNOWN")
        return move and move._replace(messages=tuple(replace(each, headers=headers) for each in move.messages))

    engine.act(db, [uuid], rule)
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
