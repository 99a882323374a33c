"""Consumers that are killed at each point of their loop, and messages that kill them."""

import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from support.consuming import Shop
from support.launch import KillAt, Launched, Launcher

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.real_kafka

POINTS = {
    "after poll": KillAt("ferryman.consumer.loop:ConsumerLoop.handle", "before"),
    "after find": KillAt("ferryman.consumer.store.receipts:find", "after"),
    "in handle": KillAt("ferryman.consumer.wire:prepared_reports", "after", 7),
    "after handle": KillAt("ferryman.outbox:append_stored", "before"),
    "after report": KillAt("ferryman.outbox:append_stored", "after"),
    "before commit": KillAt("ferryman.consumer.store.receipts:record", "after"),
    "after commit": KillAt("ferryman.consumer.transaction:BatchTransaction.run", "after"),
    "before offsets": KillAt("ferryman.consumer.kafka.group:GroupMember.commit", "before"),
    "after offsets": KillAt("ferryman.consumer.kafka.group:GroupMember.commit", "after"),
}


@pytest.fixture
def shop(ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Shop:
    return Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_each_message_takes_effect_once(shop: Shop, point: str) -> None:
    """N1, N5, N9, N11: the successor handles what was not committed, and recognizes what was."""
    for number in range(60):
        shop.send(1, number % 10)
    shop.flush()
    killed = shop.start(kill_at=POINTS[point])
    assert killed.wait() == -signal.SIGKILL, killed.transcript()
    successor = shop.start()
    successor.until(lambda: shop.settled(60), "verdicts")
    shop.send(3)
    shop.flush()
    successor.until(lambda: shop.settled(61), "the next verdict")
    shop.books_balance()
    assert shop.verdicts() == {"DONE": 61}
    assert len(set(shop.reports())) == 61
    assert shop.one("SELECT max(starts) FROM ferryman.inbox_start") == 0, "no message was begun alone for one death"
    successor.send(signal.SIGTERM)
    assert successor.wait() == 0


@pytest.mark.parametrize("point", POINTS)
def test_at_most_once_a_message_that_was_begun_is_never_begun_again(shop: Shop, point: str) -> None:
    """Only the message in hand when its process died is lost; nothing is done twice."""
    for number in range(20):
        shop.send(1, number % 10)
    shop.flush()
    killed = shop.start(kill_at=POINTS[point]._replace(place=_AT_MOST_ONCE.get(point, POINTS[point].place)),
                        SHOP_MODE="at_most_once")  # fmt: skip
    assert killed.wait() == -signal.SIGKILL, killed.transcript()
    successor = shop.start(SHOP_MODE="at_most_once")
    last = shop.send(3)
    shop.flush()
    successor.until(lambda: shop.one("SELECT count(*) FROM effect WHERE payment = %s", str(last)), "the last")
    successor.until(lambda: shop.settled(21), "receipts")
    successor.send(signal.SIGTERM)
    assert successor.wait() == 0, successor.transcript()
    shop.books_balance()
    verdicts = shop.verdicts()
    assert verdicts.keys() <= {"DONE", "RECEIVED"}
    assert verdicts["DONE"] == shop.one("SELECT count(*) FROM effect")
    assert verdicts.get("RECEIVED", 0) <= 1


_AT_MOST_ONCE = {"after poll": "ferryman.consumer.at_most_once:AtMostOnce.handle"}


def lived(wallet: Launched, until: Callable[[], bool], seconds: float = 40) -> bool:
    """Wait until the condition holds. Return False if the process died before."""
    deadline = time.monotonic() + seconds
    while not until():
        if not wallet.alive:
            return False
        assert time.monotonic() < deadline, wallet.transcript()
        time.sleep(0.02)
    return True


def test_a_message_that_kills_its_process_is_rejected_and_its_neighbours_go_on(shop: Shop) -> None:
    """N10, N11: it kills once in an unmarked batch, once in a marked one, and three times alone."""
    for number in range(12):
        shop.send(1, number % 10)
    killer = shop.send(1, 3, do="exit")
    for number in range(12):
        shop.send(1, number % 10)
    shop.flush()
    for deaths in range(7):  # noqa: B007
        wallet = shop.start()
        if lived(wallet, lambda: shop.settled(25)):
            break
    assert shop.verdicts() == {"DONE": 24, "REJECTED": 1}
    assert shop.one("SELECT reason FROM ferryman.inbox WHERE id = %s", killer) == "KILLER"
    shop.books_balance()
    assert 2 <= deaths <= 5


def test_a_handler_that_hangs_in_the_database_is_cancelled(shop: Shop) -> None:
    shop.send(1, 1)
    shop.send(1, 2, do="sleep in sql")
    shop.send(1, 3)
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__DEADLINE_SECONDS="0.5", FERRYMAN_CONSUMER__RETRY_SECONDS="1")
    wallet.until(lambda: shop.settled(3), "verdicts")
    assert shop.verdicts() == {"DONE": 2, "REJECTED": 1}
    assert shop.one("SELECT code FROM ferryman.inbox_rejected") == "TIMED_OUT"
    shop.books_balance()


def test_a_handler_that_hangs_ends_its_process_and_is_found_by_the_successors(shop: Shop) -> None:
    shop.send(1, 1)
    hanging = shop.send(1, 2, do="hang")
    shop.flush()
    env: dict[str, Any] = {"FERRYMAN_CONSUMER__DEADLINE_SECONDS": "0.5", "FERRYMAN_CONSUMER__KILLS": "1"}
    for deaths in range(5):  # noqa: B007
        wallet = shop.start(**env)
        if lived(wallet, lambda: shop.settled(2)):
            break
        assert wallet.wait() == 1, wallet.transcript()
    assert deaths == 3
    assert shop.one("SELECT reason FROM ferryman.inbox WHERE id = %s", hanging) == "KILLER"
    shop.books_balance()
