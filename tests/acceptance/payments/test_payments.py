"""Payments from request to outcome through every process: relay, wallet, orchestrator and fulfilment."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from ferryman.schemas import active
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from support.launch import Launcher
from support.pipeline import Pipeline, new_pipeline
from support.published import poll_until, read_topic

# Topics and groups have the names that they have everywhere: one test at a time, on a broker of its own.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    kafka = started(LocalKafka())
    yield kafka.url
    kafka.close()


@pytest.fixture
def pipeline(ferryman: Launcher, broker: str, ferryman_postgres: str) -> Iterator[Pipeline]:
    with new_pipeline(ferryman, broker, ferryman_postgres, ferryman_postgres) as made:
        yield made
    active.forget()


def test_payments_pass_through_every_process_and_end_correctly(pipeline: Pipeline) -> None:
    """N1, N5: taken once; too poor; accepted downstream; refused downstream and refunded."""
    [rich, poor] = [*pipeline.open_wallets(1, 1_000_000), *pipeline.open_wallets(1, 5)]
    plain = [Request(uuid4(), rich, 100, "EUR") for _ in range(200)]
    failing = [Request(uuid4(), poor, 100, "EUR") for _ in range(50)]
    fulfilled = [Request(uuid4(), rich, 10, "EUR", fulfil=True) for _ in range(50)]
    refused = [Request(uuid4(), rich, 11, "EUR", fulfil=True) for _ in range(50)]
    pipeline.pay(*plain, *failing, *fulfilled, *refused)
    pipeline.start("relay", "wallet", "payments", "fulfilment")
    pipeline.until_over()
    assert pipeline.statuses() == {"SUCCEEDED": 250, "INSUFFICIENT_FUNDS": 50, "REFUSED_DOWNSTREAM": 50}
    pipeline.assert_money_moved_once()
    poll_until(lambda: len(told(pipeline)) == 700, "an event for each request and each outcome")
    pipeline.stop("relay", "wallet", "payments", "fulfilment")


def told(pipeline: Pipeline) -> list[str]:
    return [dict(each.headers)["ce_type"].decode() for each in read_topic(pipeline.kafka, "payments.events")]


def test_a_late_wallet_is_cancelled_and_takes_nothing_or_gives_it_back(pipeline: Pipeline) -> None:
    """N5: a CANCEL after and before its DEDUCT; only the wallet's answer ends a payment."""
    pipeline.rules = Rules(PaymentsSettings(answer_seconds=0.1))
    pipeline.env |= {
        "FERRYMAN_PAYMENTS__ANSWER_SECONDS": "0.1", "FERRYMAN_PAYMENTS__AGAIN_SECONDS": "0.2",
        "FERRYMAN_PAYMENTS__WALLET_GROUP": "",  # the time counts although the wallet is away
    }  # fmt: skip
    [of] = pipeline.open_wallets(1)
    asked = [Request(uuid4(), of, 100, "EUR") for _ in range(100)]
    pipeline.pay(*asked)
    pipeline.start("payments", "relay")
    poll_until(lambda: states(pipeline) == {"CANCELLING": 100}, "cancellations")
    assert pipeline.pending() == 100
    pipeline.start("wallet")
    pipeline.until_over()
    assert pipeline.statuses() == {"TIMED_OUT": 100}
    pipeline.assert_money_moved_once()
    pipeline.stop("relay", "wallet", "payments")


def states(pipeline: Pipeline) -> dict[str, int]:
    with psycopg.connect(pipeline.orchestrator_url) as db:
        return dict(db.execute("SELECT state, count(*) FROM payments.requests GROUP BY 1").fetchall())
