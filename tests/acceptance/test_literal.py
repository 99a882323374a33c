"""ChancePay to the letter, as processes: what each sentence of the document says, tried."""

import hashlib
import json
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Request_
from urllib.request import urlopen
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.services.payments import requests
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing import house
from ferryman.testing.receiver import Answer, Receiver
from support.launch import KillAt, Launched, Launcher
from support.published import read_topic, readyz, said, stays
from support.topics import create

# The topic and the group have the names that they have everywhere: one test at a time.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]

COMMANDS = "payments.commands"
TOKEN = "a-token-that-nobody-knows"
Database = psycopg.Connection[tuple[Any, ...]]

# As the settings have it, but for the waits.
QUICKLY = """
[outbox.payments]
table = "payments.outbox"
words = { pending = ["PENDING"], done = "PUBLISHED" }
lease = { column = "last_attempt_at", seconds = 60 }
columns = { id = "uuid", attempts = "try_count", error = "last_error", done_at = "published_at" }
retry = { limit = 5, base_seconds = 0.01, cap_seconds = 0.01, count_outages = true }
poll_seconds = 0.02
"""


@dataclass
class ChancePay:
    """The orchestrator's database, the wallet's, and what the wallet tells by HTTP."""

    ferryman: Launcher
    kafka: str
    ours: str
    theirs: str
    payments: Database
    wallet: Database
    http: Receiver

    def pay(self, amount: int, of: UUID) -> UUID:
        request = Request(uuid4(), of, amount, "EUR")
        with self.payments.transaction():
            requests.record(self.payments, [request], Rules(literal=True))
        return request.uuid

    def open(self, balance: int) -> UUID:
        identity = uuid4()
        self.wallet.execute("SELECT wallet.open(%s, 'EUR', %s)", (identity, balance))
        return identity

    def balance(self, of: UUID) -> int:
        return int(one(self.wallet, "SELECT balance FROM wallet.wallets WHERE id = %s", of))

    def row(self, uuid: UUID) -> tuple[str, int]:
        """Its status and try_count."""
        row = self.payments.execute("SELECT status, try_count FROM payments.outbox WHERE uuid = %s", (uuid,)).fetchone()
        assert row is not None
        return row

    def status(self, uuid: UUID) -> str:
        return str(one(self.payments, "SELECT status FROM payments.requests WHERE uuid = %s", uuid))

    def receipt(self, uuid: UUID) -> str | None:
        query = "SELECT coalesce(outcome, status) FROM ferryman.inbox WHERE consumer = 'wallet' AND id = %s"
        row = self.wallet.execute(query, (uuid,)).fetchone()
        return None if row is None else str(row[0])

    def puts(self, uuid: UUID) -> list[Any]:
        found = [each for each in list(self.http.requests) if each.path == f"/internal/requests/{uuid}"]
        assert all((each.method, each.headers["authorization"]) == ("PUT", f"Bearer {TOKEN}") for each in found)
        return [json.loads(each.body) for each in found]

    def copies(self, uuid: UUID) -> list[tuple[str, bytes]]:
        return [(each.key, each.value) for each in read_topic(self.kafka, COMMANDS) if each.id == str(uuid)]

    def send(self) -> None:
        """What is due, once."""
        drained = self.ferryman.run("drain", "relay", env=self.environment(self.ours))
        assert drained.wait() == 0, drained.transcript()

    def relay(self, kill_at: KillAt | None = None, **more: str) -> Launched:
        return self.ferryman.start("run", "relay", env={**self.environment(self.ours), **more}, kill_at=kill_at)

    def start(self) -> Launched:
        return self.ferryman.start("run", "wallet-literal", env=self.environment(self.theirs))

    def environment(self, url: str) -> dict[str, str]:
        return {
            "FERRYMAN_DATABASE_URL": url,
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "6000",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
            "FERRYMAN_PAYMENTS__MODE": "literal",
            "FERRYMAN_PAYMENTS__INTERNAL_URL": self.http.url,
            "FERRYMAN_PAYMENTS__INTERNAL_TOKEN": TOKEN,
        }


def one(db: Database, query: str, *parameters: object) -> Any:
    row = db.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def stop(launched: Launched) -> None:
    launched.send(signal.SIGTERM)
    assert launched.wait() == 0, launched.transcript()


@pytest.fixture
def chancepay(ferryman: Launcher, ferryman_kafka: str, ferryman_postgres: str) -> Iterator[ChancePay]:
    if COMMANDS not in AdminClient({"bootstrap.servers": ferryman_kafka}).list_topics(timeout=10).topics:
        create(ferryman_kafka, COMMANDS, partitions=3)
    names = [f"ferryman_{each}_{secrets.token_hex(6)}" for each in ("literal", "wallet")]
    urls = [house.new_database(ferryman_postgres, name) for name in names]
    for url in urls:
        house.migrate(url)
    use_schemas()
    with (
        psycopg.connect(urls[0], autocommit=True) as ours,
        psycopg.connect(urls[1], autocommit=True) as theirs,
        Receiver() as http,
    ):
        yield ChancePay(ferryman, ferryman_kafka, urls[0], urls[1], ours, theirs, http)
    active.forget()
    ferryman.close()
    for name in names:
        house.drop_database(ferryman_postgres, name)


def test_a_payment_is_deducted_and_its_request_is_told(chancepay: ChancePay) -> None:
    """Sections 1 and 4: no result leaves by Kafka."""
    of = chancepay.open(500)
    paid, refused = chancepay.pay(500, of), chancepay.pay(1, of)
    chancepay.send()
    assert chancepay.row(paid) == ("PUBLISHED", 0)
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(paid) and chancepay.puts(refused), "both answers")
    said_of = {"wallet_id": str(of), "currency": "EUR"}
    assert chancepay.puts(paid) == [{"status": "SUCCEEDED", "reason": None, "amount": 500, **said_of}]
    assert chancepay.puts(refused) == [
        {"status": "FAILED", "reason": "INSUFFICIENT_FUNDS", "amount": 1, **said_of},
    ]
    stop(wallet)
    assert chancepay.balance(of) == 0
    assert one(chancepay.wallet, "SELECT count(*) FROM ferryman.outbox") == 0


def test_five_failed_publishes_leave_the_row_pending_and_it_is_never_tried_again(chancepay: ChancePay) -> None:
    """Section 2: `try_count < 5`, then a terminal PENDING case. Kafka is away all the time."""
    (chancepay.ferryman.folder / "ferryman.toml").write_text(QUICKLY)
    uuid = chancepay.pay(1, uuid4())
    relay = chancepay.relay(
        FERRYMAN_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:9", FERRYMAN_KAFKA__TIMEOUT_SECONDS="0.5",
        FERRYMAN_RELAY__DEADLINE_SECONDS="2",
    )  # fmt: skip
    relay.until(lambda: chancepay.row(uuid)[1] == 5, "five attempts")
    assert stays(lambda: chancepay.row(uuid) == ("PENDING", 5), 1.0)
    error = one(chancepay.payments, "SELECT last_error FROM payments.outbox WHERE uuid = %s", uuid)
    assert "never settled" not in error, error
    assert chancepay.status(uuid) == "PENDING"
    stop(relay)
    chancepay.send()  # Kafka is there again, and nobody cares
    assert chancepay.row(uuid) == ("PENDING", 5)
    assert chancepay.copies(uuid) == []
    assert [each["given_up"] for each in said(relay, "publishing failed")] == [0, 0, 0, 0, 1]


def test_a_handlers_exception_leaves_an_error_log_and_the_message_is_not_redelivered(chancepay: ChancePay) -> None:
    """Section 3: at most once."""
    of = chancepay.open(500)
    vanishing = chancepay.pay(100, of)
    chancepay.wallet.execute(
        f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a bug'; END $$;"
        f"CREATE TRIGGER fail BEFORE INSERT ON wallet.ledger FOR EACH ROW "
        f"WHEN (NEW.request_id = '{vanishing}') EXECUTE FUNCTION fail()"
    )
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: said(wallet, "vanished"), "the error log")
    [told] = said(wallet, "vanished")
    assert (told["level"], told["id"]) == ("error", str(vanishing))
    chancepay.wallet.execute("DROP TRIGGER fail ON wallet.ledger")
    after = chancepay.pay(50, of)
    chancepay.send()
    wallet.until(lambda: chancepay.puts(after), "the next payment")
    stop(wallet)
    again = chancepay.start()  # and not after a restart either
    again.until(lambda: readyz(again) == "ready", "readiness")
    last = chancepay.pay(25, of)
    chancepay.send()
    again.until(lambda: chancepay.puts(last), "the payment after that")
    stop(again)
    assert chancepay.balance(of) == 500 - 50 - 25
    assert (chancepay.puts(vanishing), chancepay.status(vanishing)) == ([], "PENDING")


def test_when_the_put_fails_a_warning_is_logged_nothing_is_retried_and_the_deduction_stays(
    chancepay: ChancePay,
) -> None:
    """Sections 4 and 6: it remains PENDING until somebody reconciles it."""
    of = chancepay.open(500)
    untold = chancepay.pay(100, of)
    chancepay.http.answer = lambda request: Answer(503 if request.path.endswith(str(untold)) else 204)
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: said(wallet, "payment not told"), "the warning")
    [told] = said(wallet, "payment not told")
    assert (told["level"], told["request_id"]) == ("warning", str(untold))
    after = chancepay.pay(100, of)
    chancepay.send()
    wallet.until(lambda: chancepay.puts(after), "the next payment")
    stop(wallet)
    assert len(chancepay.puts(untold)) == 1
    assert TOKEN not in wallet.stderr
    assert (chancepay.balance(of), chancepay.status(untold)) == (300, "PENDING")


def test_a_replayed_message_has_no_effect_and_is_not_answered(chancepay: ChancePay) -> None:
    """Section 5: no double deduct."""
    of = chancepay.open(500)
    uuid = chancepay.pay(100, of)
    chancepay.send()
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(uuid), "the answer")
    chancepay.payments.execute("UPDATE payments.outbox SET status = 'PENDING'")
    after = chancepay.pay(50, of)
    chancepay.send()
    wallet.until(lambda: chancepay.puts(after), "the payment behind it")
    stop(wallet)
    copies = chancepay.copies(uuid)
    assert len(copies) == 2
    assert len(set(copies)) == 1
    assert len(chancepay.puts(uuid)) == 1
    assert chancepay.balance(of) == 350


def test_two_relays_publish_each_row_once(chancepay: ChancePay) -> None:
    relays = [chancepay.relay(), chancepay.relay()]
    for relay in relays:
        relay.until(lambda relay=relay: readyz(relay) == "ready", "readiness")  # type: ignore[misc]
    uuids = [chancepay.pay(1, uuid4()) for _ in range(300)]
    pending = "SELECT count(*) FROM payments.outbox WHERE status = 'PENDING'"
    relays[0].until(lambda: one(chancepay.payments, pending) == 0, "the last of them")
    for relay in relays:
        stop(relay)
    ids = [each.id for each in read_topic(chancepay.kafka, COMMANDS)]
    assert [ids.count(str(uuid)) for uuid in uuids] == [1] * 300


def test_a_relay_killed_between_publish_and_settle_publishes_again_with_the_same_id_and_key(
    chancepay: ChancePay,
) -> None:
    """N1, N3: its lease expires, and another takes over."""
    of = chancepay.open(500)
    uuid = chancepay.pay(100, of)
    killed = chancepay.relay(KillAt("ferryman.relay.described.store:Table.settle", "before"))
    assert killed.wait() == -signal.SIGKILL
    assert chancepay.row(uuid) == ("PENDING", 1)
    chancepay.send()
    assert chancepay.row(uuid) == ("PENDING", 1), "its lease is not over"
    chancepay.payments.execute("UPDATE payments.outbox SET last_attempt_at = last_attempt_at - interval '1 h'")
    chancepay.send()
    assert chancepay.row(uuid) == ("PUBLISHED", 1)
    copies = chancepay.copies(uuid)
    assert len(copies) == 2
    assert {key for key, _ in copies} == {str(of)}
    assert len(set(copies)) == 1
    wallet = chancepay.start()
    wallet.until(lambda: chancepay.puts(uuid), "the answer")
    stop(wallet)
    assert chancepay.balance(of) == 400


def test_a_table_that_is_misdescribed_is_refused_with_the_ddl(chancepay: ChancePay) -> None:
    chancepay.payments.execute("ALTER TABLE payments.outbox DROP COLUMN last_error")
    relay = chancepay.relay()
    assert relay.wait() == 3, relay.transcript()
    assert "ALTER TABLE payments.outbox ADD COLUMN last_error text;" in relay.stderr


def test_a_payment_goes_all_the_way_by_http_and_kafka(chancepay: ChancePay) -> None:
    """Sections 1 to 5, with the true API at both ends: POST, outbox, Kafka, wallet, PUT."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    api = chancepay.ferryman.start(
        "run", "api",
        env={
            **chancepay.environment(chancepay.ours), "FERRYMAN_API__PORT": "0", "FERRYMAN_HEALTH__PORT": "0",
            "FERRYMAN_API__TOKENS__SHOP__SHA256": digest,
            "FERRYMAN_API__TOKENS__SHOP__SCOPES": '["payments:write", "payments:read", "internal:results"]',
        },
    )  # fmt: skip
    url = api.until(lambda: said(api, "listening"), "its address")[0]["url"]
    of, uuid = chancepay.open(900), uuid4()
    asked = {"uuid": str(uuid), "wallet_id": str(of), "amount": 500, "currency": "EUR"}
    assert http("POST", f"{url}/payments", asked)[0] == 201
    status, problem = http("POST", f"{url}/payments", {**asked, "uuid": str(uuid4()), "fulfil": True})
    assert (status, problem["errors"][0]["field"]) == (422, "fulfil")
    chancepay.send()
    wallet = chancepay.ferryman.start(
        "run", "wallet-literal",
        env={**chancepay.environment(chancepay.theirs), "FERRYMAN_PAYMENTS__INTERNAL_URL": url},
    )  # fmt: skip
    wallet.until(lambda: http("GET", f"{url}/payments/{uuid}")[1]["status"] == "SUCCEEDED", "the outcome")
    assert chancepay.balance(of) == 400
    assert http("POST", f"{url}/payments", asked)[0] == 200
    stop(wallet)
    stop(api)


def http(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    asked = Request_(url, None if body is None else json.dumps(body).encode(), headers, method=method)
    try:
        with urlopen(asked, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)
