"""A client of payments: it sends again what failed, with the same uuid, and knows what it has sent."""

import random
import threading
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg

from ferryman.services.payments import requests
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request

WALLETS, BALANCE = 50, 100_000
_OPEN = "-- demo.open_wallet\nSELECT wallet.open(%s, 'EUR', %s)"


def open_wallets(database_url: str) -> list[UUID]:
    """Some with plenty, a few with next to nothing."""
    opened = [uuid4() for _ in range(WALLETS)]
    with psycopg.connect(database_url) as db:
        for number, wallet in enumerate(opened):
            db.execute(_OPEN, (wallet, 500 if number % 10 == 0 else BALANCE))
    return opened


@dataclass
class Client:
    """Pays until it is told to stop."""

    database_url: str
    wallets: list[UUID]
    rules: Rules
    per_second: int
    dice: random.Random
    sent: int = 0
    cents: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self.database_url) as db:
                while not self.stopping.wait(0.05):
                    self._send(db, [self._some() for _ in range(max(1, self.per_second // 20))])
        except BaseException as error:  # it is raised again where the demo ends
            self.error = error

    def _send(self, db: psycopg.Connection[tuple[object, ...]], batch: list[Request]) -> None:
        requests.record(db, batch, self.rules)
        db.commit()
        self.sent += len(batch)
        self.cents += sum(each.amount for each in batch)

    def _some(self) -> Request:
        return Request(uuid4(), self.dice.choice(self.wallets), self.dice.randrange(1, 200), "EUR")
