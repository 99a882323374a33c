"""A saga's time counts only while everybody listens; a gap puts off what was on its way, and nothing else."""

from typing import Any

import psycopg
import pytest

from ferryman import Message, append
from ferryman.runtime.settings import Settings
from ferryman.saga.timeouts import DueLoop
from support.deliveries import TABLES, sagas

Database = psycopg.Connection[tuple[Any, ...]]
ASKED = """
INSERT INTO hooks.webhook_delivery_sagas (updated_at, next_attempt_at)
VALUES (now() - %s::interval, now() - %s::interval)
"""
LISTENED = "UPDATE ferryman.saga_clock SET heard_at = now() - %s::interval"


@pytest.fixture
def db(ferryman_db: Database) -> Database:
    ferryman_db.execute(TABLES)
    return ferryman_db


@pytest.fixture
def loop(db: Database) -> DueLoop:
    """Return a loop that has heard everybody once, while a saga was on its way."""
    loop = DueLoop(sagas(), Settings())
    db.execute(ASKED, ("1 s", "-1 day"))
    assert loop.turn(db) == 0
    return loop


def test_saga_that_was_on_its_way_in_a_silence_is_due_that_much_later(db: Database, loop: DueLoop) -> None:
    """It was asked 10 s before a silence of 600 s, and would be due 50 s after its beginning."""
    db.execute(LISTENED, ("600 s",))
    db.execute(ASKED, ("610 s", "550 s"))
    assert loop.turn(db) == 0
    db.execute("UPDATE ferryman.saga_silence SET until = until - interval '51 s'")
    assert loop.turn(db) == 1


def test_saga_that_was_asked_in_a_silence_has_all_of_its_time_behind_it(db: Database, loop: DueLoop) -> None:
    db.execute(LISTENED, ("600 s",))
    db.execute(ASKED, ("300 s", "240 s"))
    assert loop.turn(db) == 0
    db.execute("UPDATE ferryman.saga_silence SET until = until - interval '61 s'")
    assert loop.turn(db) == 1


def test_saga_that_is_asked_after_a_silence_is_due_on_time(db: Database, loop: DueLoop) -> None:
    db.execute(LISTENED, ("600 s",))
    assert loop.turn(db) == 0
    db.execute(ASKED, ("0 s", "0 s"))
    assert loop.turn(db) == 1


def test_time_without_any_saga_on_its_way_is_no_silence(db: Database, loop: DueLoop) -> None:
    db.execute("UPDATE hooks.webhook_delivery_sagas SET next_attempt_at = 'infinity'")
    assert loop.turn(db) == 0
    db.execute(LISTENED, ("600 s",))
    db.execute(ASKED, ("10 s", "0 s"))
    assert loop.turn(db) == 1
    assert db.execute("SELECT count(*) FROM ferryman.saga_silence").fetchone() == (0,)


def test_time_stands_still_while_commands_wait_to_be_published(db: Database, loop: DueLoop) -> None:
    with db.transaction():
        append(db, Message("webhook.attempt", {}, key="1", topic="webhooks.jobs"))
    db.execute("UPDATE ferryman.outbox SET created_at = created_at - interval '10 s'")
    db.execute(LISTENED, ("4 s",))
    db.execute(ASKED, ("10 s", "0 s"))
    assert loop.turn(db) == 0
    db.execute("DELETE FROM ferryman.outbox")
    assert loop.turn(db) == 0
    db.execute("DELETE FROM ferryman.saga_silence")
    assert loop.turn(db) == 1


def test_time_stands_still_while_a_topic_of_commands_is_parked(db: Database) -> None:
    engine = sagas()
    engine.participants["webhooks.jobs"] = "worker"
    loop = DueLoop(engine, Settings())
    db.execute(ASKED, ("10 s", "0 s"))
    assert loop.turn(db) == 1
    db.execute("INSERT INTO ferryman.outbox_parked_topic (lane, topic, reason) VALUES (0, 'webhooks.jobs', 'refused')")
    db.execute(LISTENED, ("4 s",))
    db.execute(ASKED, ("10 s", "0 s"))
    assert loop.turn(db) == 0


def test_a_consumer_may_advance_the_clock_and_read_no_entry_by_it(db: Database, loop: DueLoop) -> None:
    db.execute("GRANT SELECT, UPDATE ON hooks.webhook_delivery_sagas TO ferryman_consumer")
    db.execute("GRANT USAGE ON SCHEMA hooks TO ferryman_consumer")
    db.execute(ASKED, ("10 s", "0 s"))
    db.execute("SET ROLE ferryman_consumer")
    assert loop.turn(db) == 1
