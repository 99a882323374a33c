"""The payment system end to end: two databases, Kafka and real processes, started and killed by name."""

import random
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import conninfo

from ferryman import use_schemas
from ferryman.services.payments import requests
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing import stack
from support.launch import KillAt, Launched, Launcher
from support.published import poll_until
from support.topics import create

Database = psycopg.Connection[tuple[Any, ...]]

TOPICS = ("payments.commands", "payments.events", "wallet.results", "fulfilments.commands", "fulfilments.results")

# Whoever fulfils is another team's: a consumer on a database of its own. It refuses odd amounts.
FULFILMENT = """
from datetime import UTC, datetime
import psycopg
from ferryman import Consumer, Done, Message, Received, Refused

fulfilment = Consumer("fulfilment", topics=["fulfilments.commands"], connection=psycopg.Connection)

@fulfilment.handles("fulfilment.request", "fulfilment.cancel")
def decide(db, asked: Received):
    data = asked.data
    wanted = "CANCELLED" if asked.type.endswith("cancel") else "ODD" if data["amount"] % 2 else "ACCEPTED"
    db.execute("INSERT INTO fulfilled VALUES (%s, %s) ON CONFLICT DO NOTHING", (data["request_id"], wanted))
    [(outcome,)] = db.execute("SELECT outcome FROM fulfilled WHERE id = %s", (data["request_id"],)).fetchall()
    said = {"request_id": data["request_id"], "step": data["step"], "attempt": data["attempt"]}
    now = datetime.now(UTC)
    if outcome == "ACCEPTED":
        return Done(Message("fulfilment.accepted", {**said, "accepted_at": now}, key=data["request_id"]))
    return Refused(outcome, Message("fulfilment.refused", {**said, "reason": outcome, "refused_at": now},
                                    key=data["request_id"]))
"""
FULFILLED = """
CREATE TABLE fulfilled (id uuid PRIMARY KEY, outcome text NOT NULL);
GRANT SELECT, INSERT ON fulfilled TO ferryman_consumer;
"""

# The number of the database, and the roles in it.
LOGINS: dict[str, tuple[Any, ...]] = {
    "client": (0, "ferryman_payments_api"),
    "payments": (0, "ferryman_payments"),
    "wallet": (1, "ferryman_wallet"),
    "fulfilment": (2, "ferryman_consumer"),
    "relay_payments": (0, "ferryman_relay"),
    "relay_wallet": (1, "ferryman_relay"),
    "relay_fulfilment": (2, "ferryman_relay"),
    "desk_payments": (0, "ferryman_monitor", "ferryman_payments", "ferryman_relay"),
    "desk_wallet": (1, "ferryman_monitor", "ferryman_relay"),
}
TOPICS_OF = {
    "PAYMENTS": '["payments.*", "fulfilments.commands", "*.dlt"]',
    "WALLET": '["wallet.*", "*.dlt"]',
    "FULFILMENT": '["fulfilments.results", "*.dlt"]',
}

COMMANDS = {
    "relay": ("run", "relay"),
    "wallet": ("run", "wallet"),
    "payments": ("run", "payments"),
    "fulfilment": ("run", "shop:fulfilment"),
}


@dataclass
class Pipeline:
    """The addresses of the servers, and the running processes. Lookups here go straight to the databases."""

    ferryman: Launcher
    kafka: str
    orchestrator_url: str
    wallet_url: str
    fulfilment_url: str
    logins: dict[str, str] = field(default_factory=dict)
    """The URL of each process, with a login that has the role of that process alone."""
    env: dict[str, str] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    running: dict[str, Launched] = field(default_factory=dict)
    wallets: list[UUID] = field(default_factory=list)
    wires: dict[str, int] = field(default_factory=dict)
    """The port by which a process reaches its database, if it is not the server's own."""

    def start(self, *names: str, kill_at: KillAt | None = None) -> None:
        for name in names:
            self.running[name] = self.ferryman.start(*COMMANDS[name], env=self.environment(name), kill_at=kill_at)

    def start_another(self, name: str) -> None:
        """Start another process beside the running one, in place of an earlier one."""
        if (before := self.running.get(f"another {name}")) is not None:
            before.kill()
        self.running[f"another {name}"] = self.ferryman.start(*COMMANDS[name], env=self.environment(name))

    def kill_others(self) -> None:
        """Kill the processes that were started beside others."""
        for name in [each for each in self.running if each.startswith("another ")]:
            self.running.pop(name).kill()

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self.running[name].kill()

    def stop(self, *names: str) -> None:
        """Stop processes with SIGTERM, and assert that each exits 0 (N16)."""
        for name in names:
            self.running[name].send(signal.SIGTERM)
        for name in names:
            assert self.running[name].wait() == 0, self.running[name].transcript()

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment of a process: its own database, and no other."""
        ours = {
            "relay": {
                f"FERRYMAN_RELAY__SOURCES__{source}__{setting}": value
                for source, topics in TOPICS_OF.items()
                for setting, value in (("DATABASE_URL", self.logins[f"relay_{source.lower()}"]), ("TOPICS", topics))
            },
            "wallet": {"FERRYMAN_DATABASE_URL": self._by_wire("wallet")},
            "payments": {"FERRYMAN_DATABASE_URL": self._by_wire("payments")},
            "fulfilment": {
                "FERRYMAN_DATABASE_URL": self.logins["fulfilment"],
                "FERRYMAN_SCHEMAS__PATH": _our_catalogue(),
            },
        }
        return {
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "2000",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
            "FERRYMAN_HEALTH__PORT": "0",
            "FERRYMAN_RELAY__RETRY__BASE_SECONDS": "0.05",
            "FERRYMAN_RELAY__DEADLINE_SECONDS": "3",
            **self.env,
            **ours[name],
        }

    def _by_wire(self, name: str) -> str:
        """Return the URL of a process, through its proxy if it has one."""
        url = self.logins[name]
        if name not in self.wires:
            return url
        return conninfo.make_conninfo(url, host="127.0.0.1", port=self.wires[name])

    def both(self) -> dict[str, str]:
        """Return the environment of commands that read both databases."""
        return {
            "FERRYMAN_DATABASE_URL": self.logins["desk_payments"],
            "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL": self.logins["desk_wallet"],
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
        }

    def open_wallets(self, many: int, balance: int = 1_000_000) -> list[UUID]:
        opened = [uuid4() for _ in range(many)]
        with psycopg.connect(self.wallet_url) as db:
            for each in opened:
                db.execute("SELECT wallet.open(%s, 'EUR', %s)", (each, balance))
        self.wallets += opened
        return opened

    def pay(self, *asked: Request) -> None:
        with psycopg.connect(self.logins["client"]) as db:
            requests.record(db, asked, self.rules)

    def statuses(self) -> dict[str, int]:
        """Count payments by status, and by reason if there is one."""
        with psycopg.connect(self.orchestrator_url) as db:
            rows = db.execute("SELECT coalesce(reason, status), count(*) FROM payments.requests GROUP BY 1").fetchall()
        return dict(rows)

    def pending(self) -> int:
        with psycopg.connect(self.orchestrator_url) as db:
            row = db.execute("SELECT count(*) FROM payments.requests WHERE status = 'PENDING'").fetchone()
        assert row is not None
        return int(row[0])

    def until_over(self, seconds: float = 120) -> None:
        """Return True if every payment is over."""
        poll_until(lambda: self.pending() == 0, "end of every payment", seconds)

    def assert_money_moved_once(self) -> None:
        """Assert N5 over both databases: succeeded payments were taken once, failed ones not kept."""
        with psycopg.connect(self.orchestrator_url) as db:
            asked = {
                row[0]: row[1:] for row in db.execute("SELECT uuid, status, amount, wallet_id FROM payments.requests")
            }
        with psycopg.connect(self.wallet_url) as db:
            moved: dict[UUID, int] = dict(
                db.execute("SELECT request_id, sum(amount) FROM wallet.ledger WHERE kind <> 'OPEN' GROUP BY 1")
            )
            assert db.execute("SELECT * FROM wallet.unbalanced").fetchall() == []
        assert moved.keys() <= asked.keys()
        for uuid, (status, amount, _) in asked.items():
            assert status in ("SUCCEEDED", "FAILED"), uuid
            assert moved.get(uuid, 0) == (-amount if status == "SUCCEEDED" else 0), uuid

    @contextmanager
    def load(self, seed: int, pause_seconds: float = 0.01) -> Iterator["Load"]:
        """Request payments of every kind all the time, as one client that continues when its database is away."""
        load = Load(self, random.Random(seed), pause_seconds)
        thread = threading.Thread(target=load.run)
        thread.start()
        try:
            yield load
        finally:
            load.over.set()
            thread.join()


@dataclass
class Load:
    """Request a payment like a client, which repeats failed requests with the same uuid."""

    pipeline: Pipeline
    dice: random.Random
    pause_seconds: float
    sent: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.over.wait(self.pause_seconds):
            batch = [self._some() for _ in range(self.dice.randrange(1, 20))]
            while True:
                try:
                    self.pipeline.pay(*batch)
                    break
                except psycopg.Error:
                    if self.over.wait(0.05):
                        return
            self.sent += len(batch)

    def _some(self) -> Request:
        """Return a request from a wallet with or without enough money, or sometimes from one that does not exist."""
        amount = self.dice.choice((1, 2, 3, 500, 10_000_000))
        of = self.dice.choice(self.pipeline.wallets) if self.dice.random() < 0.95 else uuid4()
        return Request(uuid4(), of, amount, "EUR", self.dice.random() < 0.3)

    def await_sent(self, more: int, seconds: float = 60) -> None:
        wanted = self.sent + more
        poll_until(lambda: self.sent >= wanted, f"{more} more payments", seconds)


@contextmanager
def new_pipeline(ferryman: Launcher, kafka: str, orchestrators: str, wallets: str) -> Iterator[Pipeline]:
    """Create the pipeline with its own databases on these servers, and with the topics of the catalogue."""
    (ferryman.folder / "shop.py").write_text(FULFILMENT)
    known = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
    for name in set(TOPICS) - set(known):
        create(kafka, name, partitions=3)
    suffix = uuid4().hex[:10]
    urls = [
        stack.new_database(server, f"{name}_{suffix}")
        for server, name in ((orchestrators, "payments"), (wallets, "wallet"), (wallets, "fulfilment"))
    ]
    for url, owners in zip(urls, (["engine", "payments"], ["engine", "wallet"], ["engine"]), strict=True):
        stack.migrate(url, owners)
    with psycopg.connect(urls[2]) as db:
        db.execute(FULFILLED)
    use_schemas()
    logins = {name: stack.login(urls[which], name, *roles) for name, (which, *roles) in LOGINS.items()}
    yield Pipeline(ferryman, kafka, urls[0], urls[1], urls[2], logins)


def _our_catalogue() -> str:
    from ferryman.schemas import OURS

    return str(OURS)
