"""Clients that request payments by the Python API, as a process of their own: they note when each was committed."""

import json
import random
import sys
import time
from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg

from ferryman import use_schemas
from ferryman.bench.commands import random_uuid, wallet_id
from ferryman.bench.meters import Connection, pace
from ferryman.runtime.service import collect_less
from ferryman.services.payments import requests
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request


def request_payments(task: dict[str, Any]) -> dict[str, Any]:
    """Request all payments on several connections, each with its share. A rate of 0 is as fast as possible.

    Return when that began, the CPU time, and each payment's commit if there is a rate.
    """
    many, alone = task["connections"], task["per_transaction"] == 1  # the statement that records it is its transaction
    shares = [_share(task, number) for number in range(many)]
    with ExitStack() as closing, ThreadPoolExecutor(many) as threads:
        connections = [
            closing.enter_context(psycopg.connect(task["database_url"], autocommit=alone)) for _ in range(many)
        ]
        began, cpu = time.time(), time.process_time()
        committed = list(threads.map(partial(_send, task), connections, shares))
    return {"began": began, "cpu_seconds": time.process_time() - cpu, "committed": dict(ChainMap(*committed))}


def _share(task: dict[str, Any], number: int) -> list[Request]:
    dice = random.Random(f"{task['database_url']} {number}")
    payments = range(number, task["payments"], task["connections"])
    return [Request(random_uuid(dice), wallet_id(dice.randrange(task["wallets"])), 1, "EUR") for _ in payments]


def _send(task: dict[str, Any], connection: Connection, share: list[Request]) -> dict[str, float]:
    """Return when each payment was committed, if there is a rate."""
    rules, size, began = Rules(PaymentsSettings(events=task["events"])), task["per_transaction"], time.monotonic()
    rate = task["per_second"] / task["connections"]
    committed: dict[str, float] = {}
    for first in range(0, len(share), size):
        if rate:
            pace(began, first, rate)
        batch = share[first : first + size]
        requests.record(connection, batch, rules)
        connection.commit()
        if rate:
            now = time.time()
            committed.update((str(each.uuid), now) for each in batch)
    return committed


if __name__ == "__main__":
    use_schemas()
    collect_less()
    print(json.dumps(request_payments(json.load(sys.stdin))))
