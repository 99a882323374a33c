"""Messages of the wrong type in front of every partition: it is found out that their data is to blame, and they go."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from ferryman import Done, Outcome, Received
from support.groups import Group
from support.published import poll_until

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.real_kafka

BAD, GOOD = 7, "w"


@pytest.fixture
def group(ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Group:
    """Give a consumer whose handler compares a text with what the message has."""
    ferryman_db.execute("CREATE TABLE wallets (id text PRIMARY KEY, n int DEFAULT 0)")
    ferryman_db.execute("INSERT INTO wallets VALUES ('w')")
    made = Group(ferryman_kafka, ferryman_database_url, tries=2, retry_seconds=5)
    made.consumer.handlers.clear()

    @made.consumer.handles("t")
    def handle(db: Database, message: Received) -> Outcome:
        wallet = json.loads(message.record.value or b"")["wallet"]
        db.execute("UPDATE wallets SET n = n + 1 WHERE id = %s", (wallet,))
        return Done()

    return made


def send(group: Group, wallet: int | str, many: int) -> None:
    """Send this many messages to each partition."""
    producer = Producer({"bootstrap.servers": group.settings.kafka.bootstrap_servers, "log_level": 0})
    for number in range(3 * many):
        headers: Any = [("ce_type", b"t"), ("ce_id", str(uuid.uuid4()).encode())]
        value = json.dumps({"wallet": wallet}).encode()
        producer.produce(group.topic, value, str(number), number % 3, None, None, 0, headers)
    assert producer.flush(20) == 0


def settled(db: Database) -> Mapping[str, int]:
    return dict(db.execute("SELECT status, count(*)::int FROM ferryman.inbox GROUP BY 1").fetchall())


def test_good_messages_behind_bad_ones_are_fetched_and_tell_whose_fault_it_is(
    group: Group, ferryman_db: Database
) -> None:
    """N10: also if they come when nothing is left that could tell."""
    send(group, BAD, 1)
    with group.running() as life:
        poll_until(lambda: "fails alike" in (life.why_not_ready or ""), "that all fail alike")
        send(group, GOOD, 50)
        poll_until(lambda: settled(ferryman_db) == {"HANDLED": 150, "REJECTED": 3}, "verdicts")
        poll_until(lambda: life.why_not_ready is None, "readiness")


def test_a_flood_of_bad_messages_is_rejected_quickly_once_they_are_known(group: Group, ferryman_db: Database) -> None:
    """N10: the first ones wait between their tries, and the others do not."""
    send(group, GOOD, 10)
    send(group, BAD, 40)
    send(group, GOOD, 10)
    with group.running():
        poll_until(lambda: settled(ferryman_db) == {"HANDLED": 60, "REJECTED": 120}, "verdicts", 60)
