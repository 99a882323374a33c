"""Clients of payments as a process of their own: they record requests by the Python API, and say when each was."""

import json
import random
import sys
import threading
import time
from typing import Any
from uuid import UUID

import psycopg

from ferryman import use_schemas
from ferryman.bench.spending import wallet_id
from ferryman.bench.waiting import pace
from ferryman.runtime.garbage import collect_less
from ferryman.services.payments import requests
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request


class Clients:
    """So many connections, each with its share; `per_second` of 0 is as fast as it goes."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.rules = Rules(events=wanted["events"])
        self.committed: dict[str, float] = {}
        self.errors: list[BaseException] = []

    def run(self) -> dict[str, Any]:
        shares = [self._share(number) for number in range(self.wanted["connections"])]
        ready = threading.Barrier(len(shares) + 1)
        threads = [threading.Thread(target=self._work, args=(share, ready)) for share in shares]
        for each in threads:
            each.start()
        ready.wait()
        began, cpu = time.time(), time.process_time()
        for each in threads:
            each.join()
        if self.errors:
            raise self.errors[0]
        ended = time.time()
        return {
            "began": began, "ended": ended, "cpu_seconds": time.process_time() - cpu,
            "committed": self.committed if self.wanted["per_second"] else {},
        }  # fmt: skip

    def _share(self, number: int) -> list[Request]:
        dice = random.Random(f"{self.wanted['database_url']} {number}")
        many = len(range(number, self.wanted["payments"], self.wanted["connections"]))
        return [
            Request(
                UUID(int=dice.getrandbits(128), version=4), wallet_id(dice.randrange(self.wanted["wallets"])), 1, "EUR"
            )
            for _ in range(many)
        ]

    def _work(self, share: list[Request], ready: threading.Barrier) -> None:
        try:
            alone = self.wanted["per_transaction"] == 1  # then the statement that records it is its transaction
            with psycopg.connect(self.wanted["database_url"], autocommit=alone) as connection:
                ready.wait()
                self._send(connection, share)
        except BaseException as error:
            self.errors.append(error)

    def _send(self, connection: psycopg.Connection[Any], share: list[Request]) -> None:
        size, began = self.wanted["per_transaction"], time.monotonic()
        rate = self.wanted["per_second"] / self.wanted["connections"]
        for first in range(0, len(share), size):
            if rate:
                pace(began, first, rate)
            batch = share[first : first + size]
            requests.record(connection, batch, self.rules)
            connection.commit()
            if rate:
                now = time.time()
                self.committed.update((str(each.uuid), now) for each in batch)


if __name__ == "__main__":
    use_schemas()
    clients = Clients(json.load(sys.stdin))
    collect_less()
    print(json.dumps(clients.run()))
