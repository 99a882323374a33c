"""`ferryman trace` over a running system: two databases, two relays, the wallet, the orchestrator, and real Kafka."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.services.payments.requests import record
from ferryman.services.payments.rules import Rules, message_id
from ferryman.services.payments.store import Request
from support.launch import Launched, Launcher
from support.topics import create

# The topics and the groups have the names that they have everywhere: one test at a time.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]

TOPICS = ("payments.commands", "payments.events", "wallet.results", "fulfilments.results", "fulfilments.commands")


@dataclass
class System:
    """The relays, the wallet and the orchestrator, each as a process of its own."""

    ferryman: Launcher
    kafka: str
    ours: str
    wallets: str

    def environment(self, url: str) -> dict[str, str]:
        return {
            "FERRYMAN_DATABASE_URL": url,
            "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL": self.wallets,
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "6000",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
            "FERRYMAN_RELAY__IDLE_SECONDS": "0.02",
            "FERRYMAN_HEALTH__PORT": "0",
        }

    def start(self, name: str, url: str) -> Launched:
        return self.ferryman.start("run", name, env=self.environment(url))

    def request(self, balance: int = 900) -> Request:
        wallet = uuid4()
        with psycopg.connect(self.wallets) as db:
            db.execute("SELECT wallet.open(%s, 'EUR', %s)", (wallet, balance))
        asked = Request(uuid4(), wallet, 500, "EUR")
        with psycopg.connect(self.ours) as db:
            record(db, [asked], Rules())
        return asked

    def state(self, payment: Request) -> str:
        with psycopg.connect(self.ours) as db:
            row = db.execute("SELECT state FROM payments.requests WHERE uuid = %s", (payment.uuid,)).fetchone()
        assert row is not None
        return str(row[0])

    def trace(self, identity: UUID, *options: str, code: int = 0, **env: str) -> Launched:
        traced = self.ferryman.run("trace", str(identity), *options, env=self.environment(self.ours) | env)
        assert traced.wait() == code, traced.transcript()
        return traced


@pytest.fixture
def system(
    ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_new_database: Callable[[], str]
) -> Iterator[System]:
    known = AdminClient({"bootstrap.servers": ferryman_kafka}).list_topics(timeout=10).topics
    for name in set(TOPICS) - set(known):
        create(ferryman_kafka, name, partitions=3)
    use_schemas()
    yield System(ferryman, ferryman_kafka, ferryman_database_url, ferryman_new_database())
    active.forget()


HAPPY = [
    ("orchestrator", "requested", None),
    ("orchestrator", "appended", "wallet.deduct"),
    ("kafka", "published", "wallet.deduct"),
    ("wallet", "received", "wallet.deduct"),
    ("wallet", "handled", "wallet.deduct"),
    ("wallet", "reported", "wallet.succeeded"),
    ("kafka", "published", "wallet.succeeded"),
    ("orchestrator", "received", "wallet.succeeded"),
    ("orchestrator", "applied", "wallet.succeeded"),
    ("orchestrator", "SUCCEEDED", None),
]


def told(story: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    events = [(each["where"], each["what"], each.get("type")) for each in story["events"]]
    return [each for each in events if not (each[2] or "").startswith("payment.")]


@pytest.mark.slow
def test_payment_is_traced_to_its_end_and_each_stop_says_what_to_run(system: System) -> None:
    """N13: no relay, then no wallet, then everyone; by the payment's id and a message's. Slow: two groups begin."""
    payment = system.request()
    waits = system.trace(payment.uuid, "--json").json
    assert (waits["now"], waits["next"]) == ("PENDING (DEDUCTING)", "ferryman run relay")
    relays = [system.start("relay", url) for url in (system.ours, system.wallets)]
    command = message_id(payment.uuid, "wallet.deduct")

    def published() -> bool:
        return "the command is published" in system.trace(payment.uuid, "--json", "--no-kafka").json["why"]

    relays[0].until(published, "the command in Kafka")
    waits = system.trace(payment.uuid, "--json").json
    there = next(each for each in waits["events"] if (each["what"], each.get("type")) == ("published", "wallet.deduct"))
    assert there["topic"] == "payments.commands"
    assert there["offset"] >= 0
    assert there["at"] >= waits["events"][0]["at"]
    assert waits["next"] == 'FERRYMAN_DATABASE_URL="$FERRYMAN_PAYMENTS__WALLET_DATABASE_URL" ferryman run wallet'
    wallet, orchestrator = system.start("wallet", system.wallets), system.start("payments", system.ours)
    orchestrator.until(lambda: system.state(payment) == "SUCCEEDED", "the end")
    story = system.trace(payment.uuid, "--json").json
    assert list(story) == ["id", "payment", "events", "now", "why", "next", "missing"]
    assert told(story) == HAPPY
    moments = [each["at"] for each in story["events"] if each["at"]]
    assert moments == sorted(moments)
    assert all(each["at"] for each in story["events"] if each["what"] == "published" and "offset" in each)
    received = next(each for each in story["events"] if each["what"] == "received")
    assert {name: received[name] for name in ("topic", "partition", "offset")} == {
        name: there[name] for name in ("topic", "partition", "offset")
    }
    assert (story["now"], story["next"], story["missing"]) == ("SUCCEEDED", None, [])
    assert system.trace(command, "--json").json["id"] == str(payment.uuid)
    text = system.trace(payment.uuid).stdout
    assert text.startswith(f"SUCCEEDED  payment {payment.uuid}\n500 EUR from wallet {payment.wallet_id}")
    assert "took 500 EUR, 400 left" in text
    assert "\x1b[" not in text
    print(text)
    for each in (wallet, orchestrator, *relays):
        assert each.alive


def test_unanswered_sources_are_missing_and_an_unknown_id_is_an_error(system: System) -> None:
    payment = system.request()
    away = "postgresql://nobody@127.0.0.1:1/nowhere"
    one = system.trace(payment.uuid, "--json", "--no-kafka", code=5, FERRYMAN_PAYMENTS__WALLET_DATABASE_URL=away).json
    assert one["payment"]["amount"] == 500
    assert "the wallet's database" in one["missing"][0]
    mute = system.trace(payment.uuid, code=5, FERRYMAN_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert "PENDING (DEDUCTING)" in mute.stdout
    assert "not looked at: Kafka" in mute.stderr
    nobody = system.trace(uuid4(), "--no-kafka", code=1)
    assert "nobody knows" in nobody.stderr
    assert "the wallet's outbox" in nobody.stderr
