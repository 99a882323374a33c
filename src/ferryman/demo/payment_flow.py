"""The flow of the payments demo: a client requests payments while one process after another is killed."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg

from ferryman.runtime.sources import CONFIG_VARIABLE, DEFAULT_FILE
from ferryman.services.payments import requests
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing import stack
from ferryman.testing.process import FERRYMAN, Process

NAMES = ("relay", "wallet", "payments")
ROLES = {
    ("relay", "payments"): "ferryman_relay", ("relay", "wallet"): "ferryman_relay",
    ("wallet", "wallet"): "ferryman_wallet", ("payments", "payments"): "ferryman_payments",
    ("api", "payments"): "ferryman_payments_api",
    ("audit", "payments"): "ferryman_monitor", ("audit", "wallet"): "ferryman_monitor",
}  # fmt: skip
"""The role of each process in each database that it knows; the client has that of the API."""
SECONDS = 20.0
PER_SECOND = 200
KILL_EVERY_SECONDS = 3.0
WALLETS, BALANCE = 50, 100_000

_LOOK_SECONDS = 0.25
_DEAD_SECONDS = 0.7
_SETTLE_SECONDS = 25.0
_OPEN = "-- demo.open_wallet\nSELECT wallet.open(%s, 'EUR', %s)"
_STATUSES = "-- demo.statuses\nSELECT status, count(*) FROM payments.requests GROUP BY status"


@dataclass(frozen=True, slots=True)
class DemoServers:
    """The addresses of the demo's servers, and of its databases with a process's own login."""

    orchestrator_url: str
    wallet_url: str
    kafka: str
    logins: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The URLs by process and database; without one, a process has the database's own."""

    @classmethod
    def with_logins(cls, orchestrator_url: str, wallet_url: str, kafka: str) -> "DemoServers":
        """Create a login for each process, with the role of that process alone."""
        urls = {"payments": orchestrator_url, "wallet": wallet_url}
        logins = {(name, of): stack.login(urls[of], name, role) for (name, of), role in ROLES.items()}
        return cls(orchestrator_url, wallet_url, kafka, logins)

    def url(self, name: str, of: str) -> str:
        """Return the URL by which a process reaches the database of `payments` or `wallet`."""
        return self.logins.get((name, of), self.wallet_url if of == "wallet" else self.orchestrator_url)

    def environment(self, name: str) -> dict[str, str]:
        """Return the settings of a process: it knows its own database and no other."""
        databases = {
            "relay": {
                "FERRYMAN_RELAY__SOURCES__PAYMENTS__DATABASE_URL": self.url("relay", "payments"),
                "FERRYMAN_RELAY__SOURCES__PAYMENTS__TOPICS": '["payments.*", "fulfilments.commands", "*.dlt"]',
                "FERRYMAN_RELAY__SOURCES__WALLET__DATABASE_URL": self.url("relay", "wallet"),
                "FERRYMAN_RELAY__SOURCES__WALLET__TOPICS": '["wallet.*", "*.dlt"]',
            },
            "wallet": {"FERRYMAN_DATABASE_URL": self.url("wallet", "wallet")},
            "payments": {"FERRYMAN_DATABASE_URL": self.url("payments", "payments")},
        }
        return {
            **databases[name],
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "1500",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
            "FERRYMAN_CONSUMER__INSTANCE_ID": f"demo-{name}",
            "FERRYMAN_HEALTH__ENABLED": "false",
            "FERRYMAN_PAYMENTS__ANSWER_SECONDS": "20",
            "FERRYMAN_PAYMENTS__AGAIN_SECONDS": "2",
        }


class DemoServices:
    """The processes of the demo: started, killed with SIGKILL, started again, and killed at the end of the block."""

    def __init__(self, servers: DemoServers, folder: Path, inherited: Mapping[str, str]) -> None:
        no_settings = folder / DEFAULT_FILE.name  # a user's own file may name a database whose outbox is not ours
        no_settings.touch()
        common = {**inherited, CONFIG_VARIABLE: str(no_settings)}
        self.killed = Counter(dict.fromkeys(NAMES, 0))
        self.processes = {
            name: Process(
                name, [*FERRYMAN, "run", name], folder / f"{name}.log", env={**common, **servers.environment(name)}
            )
            for name in NAMES
        }

    def __enter__(self) -> Self:
        self.revive()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()

    @property
    def alive(self) -> dict[str, bool]:
        """True for each process that runs, by its name."""
        return {name: process.pid is not None for name, process in self.processes.items()}

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL: it cannot flush or say anything."""
        self.processes[name].kill()
        self.killed[name] += 1

    def revive(self) -> None:
        """Start every process that does not run, as a supervisor would."""
        for process in self.processes.values():
            if process.pid is None:
                process.launch()


@dataclass(frozen=True, slots=True)
class DemoState:
    """The state of the demo at one moment, for a viewer."""

    seconds: float
    act: str
    sent: int
    succeeded: int
    failed: int
    pending: int
    alive: dict[str, bool]
    killed: dict[str, int]
    happened: list[str] = field(default_factory=list)


def open_wallets(database_url: str) -> list[UUID]:
    """Open wallets: most have plenty of money, a few have next to none."""
    opened = [uuid4() for _ in range(WALLETS)]
    with psycopg.connect(database_url) as db:
        for number, wallet in enumerate(opened):
            db.execute(_OPEN, (wallet, 500 if number % 10 == 0 else BALANCE))
    return opened


class PaymentFlow:
    """One run of the demo. `show` is called with its state again and again."""

    def __init__(
        self, services: DemoServices, database_url: str, wallets: list[UUID], show: Callable[[DemoState], None]
    ) -> None:
        self._services = services
        self._database_url = database_url
        self._wallets = wallets
        self._show = show
        self._dice = random.Random()
        self._began = time.monotonic()
        self._stopping = threading.Event()
        self._sent = 0
        self._act = "payments begin to flow"
        self._happened: list[str] = []

    def run(self) -> DemoState:
        """Return the final state: when no payment is pending, or none has ended for too long."""
        with psycopg.connect(self._database_url, autocommit=True) as db:
            with ThreadPoolExecutor(1) as client:
                paying = client.submit(self._pay)
                try:
                    self._kill_in_turns(db, paying)
                finally:
                    self._stopping.set()
                paying.result()
            self._act = "no more payments are requested; the pending ones end"
            self._services.revive()
            deadline = time.monotonic() + _SETTLE_SECONDS
            while (state := self._look(db)).pending and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        return state

    def _kill_in_turns(self, db: psycopg.Connection[Any], paying: Future[None]) -> None:
        victims = itertools.cycle(self._dice.sample(NAMES, len(NAMES)))
        now = time.monotonic()
        end, kill_at, revive_at = now + SECONDS, now + KILL_EVERY_SECONDS, 0.0
        while (now := time.monotonic()) < end and not paying.done():
            if now >= kill_at:
                victim = next(victims)
                self._services.kill(victim)
                self._act = f"kill -9 {victim}"
                self._happened.append(f"{now - self._began:5.1f} s  {self._act}")
                kill_at, revive_at = now + KILL_EVERY_SECONDS, now + _DEAD_SECONDS
            if now >= revive_at:
                self._services.revive()
            self._look(db)
            time.sleep(_LOOK_SECONDS)

    def _pay(self) -> None:
        with psycopg.connect(self._database_url) as db:
            while not self._stopping.wait(0.05):
                batch = [self._request() for _ in range(PER_SECOND // 20)]
                requests.record(db, batch, Rules())
                db.commit()
                self._sent += len(batch)

    def _request(self) -> Request:
        return Request(uuid4(), self._dice.choice(self._wallets), self._dice.randrange(1, 200), "EUR")

    def _look(self, db: psycopg.Connection[Any]) -> DemoState:
        count: dict[str, int] = dict(db.execute(_STATUSES).fetchall())
        state = DemoState(
            time.monotonic() - self._began, self._act, self._sent, count.get("SUCCEEDED", 0), count.get("FAILED", 0),
            count.get("PENDING", 0), self._services.alive, dict(self._services.killed), self._happened[-6:],
        )  # fmt: skip
        self._show(state)
        return state
