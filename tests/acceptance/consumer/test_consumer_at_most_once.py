"""`mode="at_most_once"`: only the message in hand can be lost, which is logged; nothing takes effect twice."""

import signal
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from support.consuming import Shop
from support.launch import Launcher
from support.published import said

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.real_kafka

MODE: dict[str, Any] = {"SHOP_MODE": "at_most_once"}


@pytest.fixture
def shop(ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Shop:
    return Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db)


def test_each_cut_of_the_connection_gives_up_one_message_at_most(shop: Shop) -> None:
    """N1, N5, N11: messages that were not begun wait for the next connection."""
    cuts = 6
    for number in range(600):
        shop.send(1, number % 10)
    shop.flush()
    wallet = shop.start(**MODE)
    for cut in range(1, cuts + 1):
        wallet.until(partial(shop.settled, 60 * cut), "some verdicts")
        shop.db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
            (f"%{shop.name}%"[:50],),
        )
    wallet.until(lambda: shop.settled(600), "verdicts", 60)
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0, wallet.transcript()
    shop.books_balance()
    verdicts = shop.verdicts()
    lost = verdicts.get("RECEIVED", 0)
    assert lost <= cuts
    assert verdicts == {"DONE": 600 - lost} | ({"RECEIVED": lost} if lost else {})
    assert shop.one("SELECT count(*) FROM ferryman.inbox WHERE status = 'RECEIVED' AND error IS NULL") == 0
    assert lost <= len(said(wallet, "vanished")) <= cuts


def test_a_process_that_stops_leaves_messages_not_begun_to_its_successor(shop: Shop) -> None:
    """N1, N16: no message of a slow backlog is lost."""
    for number in range(30):
        shop.send(1, number % 10, do="nap")
    shop.flush()
    wallet = shop.start(**MODE)
    wallet.until(lambda: shop.settled(1), "a verdict")
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0, wallet.transcript()
    assert shop.verdicts().keys() == {"DONE"}
    assert shop.verdicts()["DONE"] < 10
    shop.books_balance()


def test_a_known_id_is_a_duplicate_and_with_other_bytes_a_conflict(shop: Shop) -> None:
    same = uuid4()
    for amount in (5, 5, 6):
        shop.send(amount, 1, id=same)
    shop.send(1, 1)
    shop.flush()
    wallet = shop.start(**MODE)
    wallet.until(lambda: shop.one("SELECT count(*) FROM ferryman.inbox_rejected"), "a rejected record")
    wallet.until(lambda: shop.verdicts() == {"DONE": 2}, "verdicts")
    assert shop.one("SELECT code FROM ferryman.inbox_rejected") == "CONFLICT"
    assert shop.one("SELECT count(*) FROM ferryman.outbox WHERE topic = %s", f"{shop.topic}.dlt") == 1
    shop.books_balance()


def test_a_failure_is_in_the_receipt_and_a_record_that_is_no_message_is_rejected(shop: Shop) -> None:
    failing = shop.send(1, 1, do="raise half a character")
    shop.raw(b"{")
    shop.send(1, 2)
    shop.flush()
    wallet = shop.start(**MODE)
    wallet.until(lambda: shop.verdicts() == {"DONE": 1, "RECEIVED": 1, "REJECTED": 1}, "verdicts")
    wallet.until(lambda: said(wallet, "vanished"), "what is said of it")
    wallet.until(lambda: shop.one("SELECT error FROM ferryman.inbox WHERE id = %s", failing), "its error")
    assert shop.one("SELECT error FROM ferryman.inbox WHERE id = %s", failing) == "ValueError: ?"
    shop.books_balance()
