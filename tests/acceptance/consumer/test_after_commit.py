"""`@consumer.after_commit` in a real process: it gets committed messages once, and its failure has no effect."""

import signal
from typing import Any

import psycopg
import pytest

from support.consuming import Shop
from support.launch import Launcher
from support.published import said

Database = psycopg.Connection[tuple[Any, ...]]

TELL = """
@wallet.after_commit
def tell(handled):
    for message, outcome in handled:
        print("told", message.id, type(outcome).__name__, flush=True)
        if message.data.get("then") == "fail":
            raise ValueError("nobody listens")
"""


@pytest.fixture
def shop(ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Shop:
    made = Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db, partitions=1)
    with (ferryman.folder / "shop.py").open("a") as module:
        module.write(TELL)
    return made


@pytest.mark.parametrize("mode", ["effectively_once", "at_most_once"])
def test_the_function_gets_committed_messages_and_no_duplicates_or_failures(shop: Shop, mode: str) -> None:
    """When the function fails, nothing is undone and nothing is tried again."""
    done = shop.send(1)
    failing = shop.send(1, then="fail")
    shop.send(1, id=done)
    bug = shop.send(1, do="raise")
    refused = shop.send(10_000_000)
    shop.flush()
    process = shop.start(SHOP_MODE=mode, FERRYMAN_CONSUMER__TRIES="1")
    process.until(lambda: str(refused) in process.stdout, "the last of them")
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.transcript()
    told = [line.split()[1:] for line in process.stdout.splitlines() if line.startswith("told")]
    expected = [[str(done), "Done"], [str(failing), "Done"], [str(refused), "Refused"]]
    assert sorted(told) == sorted(expected)
    assert str(bug) not in process.stdout
    [warning] = said(process, "not told")
    assert "nobody listens" in warning["error"]
    assert shop.one("SELECT count(*) FROM effect") == 3
