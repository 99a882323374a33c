"""Every command works on librdkafka's built-in broker, the one that a machine without Java has.

`ferryman demo payments --wheels` is tested in test_up_and_demo.py.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from ferryman.schemas import active
from ferryman.services.payments.store import Request
from ferryman.testing.kafka import BuiltInKafka
from ferryman.testing.parts import started
from support.launch import Launched, Launcher
from support.pipeline import Pipeline, new_pipeline


@pytest.fixture
def broker() -> Iterator[BuiltInKafka]:
    made = started(BuiltInKafka())
    yield made
    made.close()


def run(ferryman: Launcher, env: dict[str, str], *arguments: str, code: int) -> Launched:
    ran = ferryman.run(*arguments, env=env)
    assert ran.wait() == code, ran.transcript()
    assert "unexpected" not in ran.transcript()
    return ran


def test_topics_are_compared_and_created_on_the_built_in_broker(ferryman: Launcher, broker: BuiltInKafka) -> None:
    env = {"FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": broker.url}
    before = run(ferryman, env, "topics", "check", "--for", "all", "--json", code=1)
    missing = [each["topic"] for each in before.json["differences"]]
    assert "payments.commands" in missing
    assert "built-in broker" in before.stderr
    made = run(ferryman, env, "topics", "apply", "--for", "all", "--yes", "--json", code=0).json
    assert [each["topic"] for each in made["differences"]] == missing
    assert run(ferryman, env, "topics", "check", "--for", "all", "--json", code=0).json["differences"] == []


def test_doctor_recognises_the_built_in_broker(
    ferryman: Launcher, broker: BuiltInKafka, ferryman_database_url: str
) -> None:
    env = {"FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": broker.url, "FERRYMAN_DATABASE_URL": ferryman_database_url}
    said = run(ferryman, env, "doctor", "--json", code=0).json
    checks = {each["name"]: each for each in said["checks"]}
    assert [checks[name]["status"] for name in ("kafka.reached", "kafka.version", "kafka.settings")] == [
        "ok", "ok", "skipped",
    ]  # fmt: skip
    assert "built-in broker" in checks["kafka.version"]["detail"]


@pytest.fixture
def pipeline(ferryman: Launcher, broker: BuiltInKafka, ferryman_postgres: str) -> Iterator[Pipeline]:
    with new_pipeline(ferryman, broker.url, ferryman_postgres, ferryman_postgres) as made:
        yield made
    active.forget()


@pytest.mark.slow
def test_payments_run_on_the_built_in_broker(ferryman: Launcher, pipeline: Pipeline) -> None:
    """N1, N5, N13: `trace`, `reconcile` and `audit` agree. This is slow because three processes start."""
    env = pipeline.both()
    pipeline.open_wallets(3)
    asked = [Request(uuid4(), wallet, 500, "EUR") for wallet in pipeline.wallets]
    pipeline.pay(*asked)
    assert _json(run(ferryman, env, "reconcile", "payments", "--json", code=0))["cases"] == []
    pipeline.start("relay", "wallet", "payments")
    pipeline.until_over()
    pipeline.assert_money_moved_once()
    story = run(ferryman, env, "trace", str(asked[0].uuid), "--json", code=0).json
    assert (story["now"], story["missing"]) == ("SUCCEEDED", [])
    assert any(each["where"] == "kafka" and each["offset"] >= 0 for each in story["events"] if "offset" in each)
    assert run(ferryman, env, "audit", "--json", code=0).json["verdict"] == "ok"
    pipeline.stop("relay", "wallet", "payments")


def _json(ran: Launched) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
