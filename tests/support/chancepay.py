"""The literal mode: the orchestrator's database, the wallet's, and the receiver of its reports."""

import hashlib
import json
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen
from uuid import UUID, uuid4

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.services.payments import requests
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing import stack
from ferryman.testing.receiver import Receiver
from support.launch import KillAt, Launched, Launcher
from support.published import read_end, read_topic, said
from support.topics import create
from support.town import damage

COMMANDS = "payments.commands"
TOKEN = "a-token-that-nobody-knows"
Database = psycopg.Connection[tuple[Any, ...]]

# The roles of each login, by the owner of its database.
LOGINS = {
    "payments": {
        "relay": ["ferryman_relay"],
        "api": ["ferryman_payments_api", "ferryman_payments_reports"],
        "desk": ["ferryman_monitor", "ferryman_payments", "ferryman_relay"],
    },
    "wallet": {"wallet": ["ferryman_wallet"], "desk_wallet": ["ferryman_monitor", "ferryman_relay"]},
}

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
    """The two databases, and the reports that the wallet sends by HTTP."""

    ferryman: Launcher
    kafka: str
    logins: Mapping[str, str]
    """The URL of each process, with a login that has the roles of that process alone."""
    payments: Database
    wallet: Database
    http: Receiver

    def pay(self, amount: int, of: UUID) -> UUID:
        request = Request(uuid4(), of, amount, "EUR")
        with self.payments.transaction():
            requests.record(self.payments, [request], Rules(PaymentsSettings(mode="literal")))
        return request.uuid

    def open(self, balance: int) -> UUID:
        identity = uuid4()
        self.wallet.execute("SELECT wallet.open(%s, 'EUR', %s)", (identity, balance))
        return identity

    def balance(self, of: UUID) -> int:
        return int(one(self.wallet, "SELECT balance FROM wallet.wallets WHERE id = %s", of))

    def row(self, uuid: UUID) -> tuple[str, int]:
        """Return the status and try_count of a row."""
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
        """Run the relay once for what is due."""
        drained = self.ferryman.run("drain", "relay", env=self.environment("relay"))
        assert drained.wait() == 0, drained.transcript()

    def relay(self, kill_at: KillAt | None = None, **more: str) -> Launched:
        return self.ferryman.start("run", "relay", env={**self.environment("relay"), **more}, kill_at=kill_at)

    def start(self, kill_at: KillAt | None = None, **more: str) -> Launched:
        env = {**self.environment("wallet"), **more}
        return self.ferryman.start("run", "wallet-literal", env=env, kill_at=kill_at)

    def api(self, kill_at: KillAt | None = None) -> Launched:
        """Start the API with one token that may do everything."""
        env = {
            **self.environment("api"), "FERRYMAN_API__PORT": "0", "FERRYMAN_HEALTH__PORT": "0",
            "FERRYMAN_API__TOKENS__SHOP__SHA256": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "FERRYMAN_API__TOKENS__SHOP__SCOPES": '["payments:write", "payments:read", "internal:results"]',
        }  # fmt: skip
        return self.ferryman.start("run", "api", env=env, kill_at=kill_at)

    def reconcile(self, *arguments: str, code: int) -> Any:
        """Return what reconcile says of all pending payments, however young."""
        return self._looked("reconcile", "payments", "--older", "0s", *arguments, code=code)

    def audit(self, *, code: int) -> Any:
        """Audit all payments as if they were older, because an audit leaves out the newest."""
        with damage(self.payments):
            self.payments.execute("UPDATE payments.requests SET created_at = created_at - interval '10 s'")
        return self._looked("audit", code=code)

    def trace(self, uuid: UUID) -> Any:
        return self._looked("trace", str(uuid), "--no-kafka", code=0)

    def printed(self, uuid: UUID) -> tuple[str, str]:
        """Return the reason and the next command, as `trace` prints them."""
        text = self._ran("trace", str(uuid), "--no-kafka", code=0).stdout
        said = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("Why", "Next")))
        return said["Why"], said["Next"]

    def _looked(self, *arguments: str, code: int) -> Any:
        return self._ran(*arguments, "--json", code=code).json

    def _ran(self, *arguments: str, code: int) -> Launched:
        env = {
            **self.environment("desk"), "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL": self.logins["desk_wallet"],
            "FERRYMAN_PAYMENTS__ANSWER_SECONDS": "0.001",
        }  # fmt: skip
        ran = self.ferryman.run(*arguments, env=env)
        assert ran.wait() == code, ran.transcript()
        return ran

    def environment(self, name: str) -> dict[str, str]:
        return {
            "FERRYMAN_DATABASE_URL": self.logins[name],
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


def listening(api: Launched) -> str:
    """Return the address of the API, once the log names it."""
    found: str = api.until(lambda: said(api, "listening"), "its address")[0]["url"]
    return found


def stop(launched: Launched) -> None:
    launched.send(signal.SIGTERM)
    assert launched.wait() == 0, launched.transcript()


def http(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    asked = HttpRequest(url, None if body is None else json.dumps(body).encode(), headers, method=method)
    try:
        with urlopen(asked, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def _pass_over(kafka: str) -> None:
    """Skip messages of other tests; a killed member of the group counts until its session ends."""
    group, until = Consumer({"bootstrap.servers": kafka, "group.id": "wallet"}), time.monotonic() + 60
    try:
        while True:
            known = group.list_topics(COMMANDS, 10).topics[COMMANDS].partitions
            places = [TopicPartition(COMMANDS, each) for each in known]
            ends = [TopicPartition(COMMANDS, each.partition, read_end(group, each)) for each in places]
            try:
                group.commit(offsets=ends, asynchronous=False)
            except KafkaException:
                assert time.monotonic() < until, "the group of the wallet does not become empty"
                time.sleep(0.2)
            else:
                return
    finally:
        group.close()


@contextmanager
def new_chancepay(ferryman: Launcher, kafka: str, server: str) -> Iterator[ChancePay]:
    """Create the literal mode on databases of its own."""
    if COMMANDS not in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics:
        create(kafka, COMMANDS, partitions=3)
    _pass_over(kafka)
    names = [f"ferryman_{each}_{secrets.token_hex(6)}" for each in ("literal", "wallet")]
    urls = [stack.new_database(server, name) for name in names]
    logins: dict[str, str] = {}
    for url, owner in zip(urls, LOGINS, strict=True):
        stack.migrate(url, ["engine", owner])
        logins |= {name: stack.login(url, name, *roles) for name, roles in LOGINS[owner].items()}
    use_schemas()
    with (
        psycopg.connect(urls[0], autocommit=True) as ours,
        psycopg.connect(urls[1], autocommit=True) as theirs,
        Receiver() as http,
    ):
        yield ChancePay(ferryman, kafka, logins, ours, theirs, http)
    active.forget()
    ferryman.close()
    for name in names:
        stack.drop_database(server, name)
