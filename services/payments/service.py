"""`ferryman run payments`: results are applied, and what is not answered in time is undone."""

from typing import Any

import psycopg

from ferryman import Consumer, Misconfigured
from ferryman.saga.engine import Results, Sagas
from ferryman.services.payments.machine import MACHINE
from ferryman.services.payments.rules import Payment, Rules, payment_of

NAME = "payments"
RESULTS = {
    "wallet.succeeded": "wallet.results",
    "wallet.failed": "wallet.results",
    "fulfilment.accepted": "fulfilments.results",
    "fulfilment.refused": "fulfilments.results",
}
"""Of each type its topic: whoever fulfils may write to its own, and has no word on the wallet's money."""
TOPICS = tuple(sorted(set(RESULTS.values())))


def sagas(rules: Rules) -> Sagas[Payment]:
    results = Results(NAME, RESULTS, payment_of)
    return Sagas(MACHINE, Payment, results, on_result=rules.on_result, on_due=rules.on_due)


def consumer(engine: Sagas[Payment]) -> Consumer:
    """Applies results; a duplicate is answered by nobody, so nothing is reported again."""
    made = Consumer(NAME, TOPICS, connection=psycopg.Connection, unknown="reject", rereport=False)
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


def payments(settings: Any) -> tuple[Consumer, Sagas[Payment]]:
    """The consumer of results, and the sagas whose timeouts are looked after."""
    rules = rules_of(settings)
    if rules.literal:
        raise Misconfigured(
            "in the literal mode no results come by Kafka, and nothing is ever undone: there is nothing to run",
            setting="payments.mode", remedy="run `relay`, `wallet-literal` and `api`; or set the mode to saga",
        )  # fmt: skip
    engine = sagas(rules)
    return consumer(engine), engine
