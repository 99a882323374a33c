"""Kafka or PostgreSQL dies under a consumer and comes back: it goes on, and nothing is doubled (N1, N5, N11).

Slow, because real servers are killed and started again.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ferryman.testing import stack
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries
from support.consuming import Shop
from support.launch import Launcher
from support.published import poll_until, readyz

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial("stacks"), pytest.mark.slow]


@contextmanager
def payments(shop: Shop) -> Iterator[None]:
    """Send payments one after another, all the time."""
    over = threading.Event()

    def pay() -> None:
        while not over.wait(0.002):
            shop.send(1, len(shop.sent) % 10)

    thread = threading.Thread(target=pay)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_broker_that_is_killed_and_comes_back_costs_nothing_but_time(
    ferryman: Launcher, ferryman_database_url: str, ferryman_db: Database
) -> None:
    broker = started(LocalKafka())
    try:
        shop = Shop(ferryman, broker.url, ferryman_database_url, ferryman_db)
        with payments(shop):
            wallet = shop.start()
            wallet.until(lambda: shop.settled(100), "verdicts")
            broker.kill()
            wallet.until(lambda: "Kafka is away" in readyz(wallet), "readiness that says why")
            broker.start()
            before = sum(shop.verdicts().values())
            wallet.until(lambda: shop.settled(before + 200), "verdicts after it", 60)
        shop.flush()
        wallet.until(lambda: shop.settled(len(shop.sent)), "all verdicts", 60)
        wallet.until(lambda: readyz(wallet) == "ready", "readiness")
        shop.books_balance()
        assert shop.verdicts() == {"DONE": len(shop.sent)}
    finally:
        broker.close()


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    server = started(LocalPostgres(binaries(), FAST))
    yield server
    server.close()


@pytest.mark.parametrize("mode", ["effectively_once", "at_most_once"])
def test_a_database_that_crashes_again_and_again_doubles_nothing(
    ferryman: Launcher, ferryman_kafka: str, server: LocalPostgres, mode: str
) -> None:
    """With at_most_once, each crash costs the message in hand and no other."""
    url = stack.new_database(server.url, "crashing")
    stack.migrate(url)
    with psycopg.connect(url, autocommit=True) as db:
        shop = Shop(ferryman, ferryman_kafka, url, db)
    with payments(shop):
        wallet = shop.start(SHOP_MODE=mode)
        for _ in range(3):
            poll_until(lambda: settled(shop, url) > 50, "verdicts")
            server.crash()
            wallet.until(lambda: "PostgreSQL" in readyz(wallet), "readiness that says why")
            server.start()
    shop.flush()
    poll_until(lambda: settled(shop, url) == len(shop.sent), "all verdicts", 60)
    with psycopg.connect(url, autocommit=True) as shop.db:
        shop.books_balance()
        lost = shop.verdicts().get("RECEIVED", 0)
        assert shop.verdicts()["DONE"] == len(shop.sent) - lost
        assert lost <= (3 if mode == "at_most_once" else 0)
    assert wallet.alive
    assert server.password not in wallet.stderr + wallet.stdout


def settled(shop: Shop, url: str) -> int:
    with psycopg.connect(url, autocommit=True) as shop.db:
        return sum(shop.verdicts().values())
