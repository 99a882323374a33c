"""`ferryman run payments`: results are applied, and what is not answered in time is undone."""

from collections.abc import Sequence
from typing import Any

import psycopg

from ferryman import Consumer, Misconfigured
from ferryman.saga.engine import Results, Sagas, Source
from ferryman.services.payments.machine import MACHINE
from ferryman.services.payments.rules import Payment, Rules, payment_of

NAME = "payments"
_WALLET = Source(NAME, "wallet.results")
_FULFILMENTS = Source("payments-fulfilments", "fulfilments.results")
RESULTS = {
    "wallet.succeeded": _WALLET,
    "wallet.failed": _WALLET,
    "fulfilment.accepted": _FULFILMENTS,
    "fulfilment.refused": _FULFILMENTS,
}
"""Of each type its source: whoever fulfils may write to its own topic, and has no word on the wallet's money."""


def sagas(rules: Rules) -> Sagas[Payment]:
    return Sagas(MACHINE, Payment, Results(RESULTS, payment_of), on_result=rules.on_result, on_due=rules.on_due)


def consumers(engine: Sagas[Payment]) -> list[Consumer]:
    """One for each source. They take every type: what comes from where it does not belong is kept as FORGED."""
    return [consumer(engine, source.consumer, [source.topic]) for source in dict.fromkeys(RESULTS.values())]


def consumer(engine: Sagas[Payment], name: str, topics: Sequence[str]) -> Consumer:
    """Applies results; a duplicate is answered by nobody, so nothing is reported again."""
    made = Consumer(name, topics, connection=psycopg.Connection, unknown="reject", rereport=False)
    made.handles_batch(*RESULTS)(engine.apply)
    made.after_commit(engine.tell)
    return made


def rules_of(settings: Any) -> Rules:
    """As the settings under [payments] say."""
    given = settings.payments
    return Rules(
        answer_seconds=given.answer_seconds, again_seconds=given.again_seconds, longest_seconds=given.longest_seconds,
        most_attempts=given.most_attempts, events=given.events, literal=given.mode == "literal",
    )  # fmt: skip


def payments(settings: Any) -> list[Consumer | Sagas[Payment]]:
    """The consumers of results, and the sagas whose timeouts are looked after."""
    rules = rules_of(settings)
    if rules.literal:
        raise Misconfigured(
            "in the literal mode no results come by Kafka, and nothing is ever undone: there is nothing to run",
            setting="payments.mode", remedy="run `relay`, `wallet-literal` and `api`; or set the mode to saga",
        )  # fmt: skip
    engine = sagas(rules)
    return [*consumers(engine), engine]
