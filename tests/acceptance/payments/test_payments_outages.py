"""N8, N11: an outage or a pause that is longer than an answer may take fails no payment: its time does not count."""

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from ferryman.schemas import active
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from support.launch import Launcher
from support.pipeline import Pipeline, new_pipeline
from support.published import poll_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]

Act = Callable[[Pipeline, LocalKafka], None]
# A silence of up to two seconds counts as time, and there are three on a slow machine: until the command is read, until
# its result is published, and until that is read.
ANSWER_SECONDS = 6.5
AWAY_SECONDS = 7.0
PAYMENTS = 50


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    server = started(LocalKafka())
    yield server
    server.close()


@pytest.fixture
def pipeline(ferryman: Launcher, kafka: LocalKafka, ferryman_postgres: str) -> Iterator[Pipeline]:
    with new_pipeline(ferryman, kafka.url, ferryman_postgres, ferryman_postgres) as made:
        made.env["FERRYMAN_PAYMENTS__ANSWER_SECONDS"] = str(ANSWER_SECONDS)
        made.env["FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"] = made.logins["desk_wallet"]
        made.rules = Rules(PaymentsSettings(answer_seconds=ANSWER_SECONDS))
        yield made
    active.forget()


def kill(name: str) -> tuple[Act, Act]:
    return lambda pipeline, _: pipeline.kill(name), lambda pipeline, _: pipeline.start(name)


def pause(name: str) -> tuple[Act, Act]:
    def act(pipeline: Pipeline, verb: str) -> None:
        env = {"FERRYMAN_DATABASE_URL": pipeline.logins[name]}
        done = pipeline.ferryman.run(verb, name, "--consumer", "--reason", "a test", env=env)
        assert done.wait() == 0, done.transcript()

    return lambda pipeline, _: act(pipeline, "pause"), lambda pipeline, _: act(pipeline, "resume")


def pause_results() -> tuple[Act, Act]:
    """Let the wallet carry payments out while its results wait in its outbox."""

    def act(pipeline: Pipeline, verb: str) -> None:
        env = {"FERRYMAN_DATABASE_URL": pipeline.logins["relay_wallet"]}
        done = pipeline.ferryman.run(verb, "wallet.results", "--reason", "a test", env=env)
        assert done.wait() == 0, done.transcript()

    return lambda pipeline, _: act(pipeline, "pause"), lambda pipeline, _: act(pipeline, "resume")


OUTAGES: dict[str, tuple[Act, Act]] = {
    "the orchestrator is killed": kill("payments"),
    "Kafka is killed": (lambda _, kafka: kafka.kill(), lambda _, kafka: kafka.start()),
    "the wallet is killed": kill("wallet"),
    "the relay is killed": kill("relay"),
    "the orchestrator is paused": pause("payments"),
    "the wallet is paused": pause("wallet"),
    "the wallet's results are paused": pause_results(),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_no_payment_fails_because_somebody_did_not_listen(pipeline: Pipeline, kafka: LocalKafka, outage: str) -> None:
    begin, end = OUTAGES[outage]
    [of] = pipeline.open_wallets(1)
    pipeline.pay(Request(uuid4(), of, 1, "EUR"))
    pipeline.start("relay", "wallet", "payments")
    pipeline.until_over()
    begin(pipeline, kafka)
    pipeline.pay(*(Request(uuid4(), of, 1, "EUR") for _ in range(PAYMENTS)))
    over = time.monotonic() + AWAY_SECONDS
    poll_until(lambda: time.monotonic() > over, "the end of the outage", 2 * AWAY_SECONDS)
    end(pipeline, kafka)
    pipeline.until_over()
    assert pipeline.statuses() == {"SUCCEEDED": PAYMENTS + 1}
    pipeline.assert_money_moved_once()
