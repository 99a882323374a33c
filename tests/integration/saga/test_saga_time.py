"""A saga's time counts only while everybody listens; a gap puts off what was on its way, and nothing else."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pydantic import SecretStr

from ferryman import Message, append
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.settings import Settings
from ferryman.saga.ddl import table
from ferryman.saga.listening import ParticipantOutbox
from ferryman.saga.timeouts import DueLoop
from ferryman.testing import stack
from support import orders
from support.deliveries import TABLES, sagas

Database = psycopg.Connection[tuple[Any, ...]]
ASKED = """
INSERT INTO hooks.webhook_delivery_sagas (updated_at, next_attempt_at)
VALUES (now() - %s::interval, now() - %s::interval)
"""
PARKED = "INSERT INTO ferryman.outbox_parked_topic (lane, topic, reason) VALUES (0, %s, 'refused')"
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
    """A saga that is due after the command was appended is not moved, although the clock was asked all the time."""
    with db.transaction():
        append(db, Message("webhook.attempt", {}, key="1", topic="webhooks.jobs"))
    db.execute(ASKED, ("0 s", "0 s"))
    assert loop.turn(db) == 0
    db.execute("DELETE FROM ferryman.outbox")
    assert loop.turn(db) == 1


def test_time_stands_still_while_a_topic_of_commands_is_parked(db: Database, loop: DueLoop) -> None:
    loop.sagas.saga.participants["webhooks.jobs"] = "worker"
    db.execute(PARKED, ("webhooks.jobs",))
    db.execute(ASKED, ("0 s", "0 s"))
    assert loop.turn(db) == 0
    db.execute("DELETE FROM ferryman.outbox_parked_topic")
    assert loop.turn(db) == 1


def test_time_stands_still_while_the_sagas_own_commands_are_parked(ferryman_db: Database) -> None:
    """No participant has to be named for that."""
    saga = orders.declared()
    ferryman_db.execute(table(saga))
    with ferryman_db.transaction():
        saga.start(ferryman_db, orders.Order(uuid4(), "book", 1))
    loop = DueLoop(saga.engine, Settings())
    assert loop.turn(ferryman_db) == 0
    ferryman_db.execute("DELETE FROM ferryman.outbox")
    ferryman_db.execute(PARKED, ("shop.commands",))
    ferryman_db.execute("UPDATE shop.orders SET due_at = now()")
    assert loop.turn(ferryman_db) == 0
    ferryman_db.execute("DELETE FROM ferryman.outbox_parked_topic")
    assert loop.turn(ferryman_db) == 1


def test_time_counts_while_only_other_topics_are_parked(db: Database, loop: DueLoop) -> None:
    loop.sagas.saga.participants["webhooks.jobs"] = "worker"
    db.execute(PARKED, ("others",))
    db.execute(ASKED, ("0 s", "0 s"))
    assert loop.turn(db) == 1


@pytest.fixture
def outbox(db: Database, ferryman_database_url: str) -> Iterator[ParticipantOutbox]:
    """Give a participant's outbox, asked with a login that may only monitor."""
    db.execute("DELETE FROM ferryman.outbox")
    monitor = stack.login(ferryman_database_url, f"saga_{uuid4().hex[:8]}", "ferryman_monitor")
    with closing(ParticipantOutbox("webhooks.results", SecretStr(monitor), Settings())) as made:
        yield made


def test_a_participants_outbox_tells_how_long_a_result_waits(db: Database, outbox: ParticipantOutbox) -> None:
    assert outbox.waiting_seconds() == 0
    with db.transaction():
        append(db, Message("webhook.attempt-succeeded", {}, key="1", topic="webhooks.results"))
    db.execute("UPDATE ferryman.outbox SET created_at = created_at - interval '100 s'")
    assert 100 <= outbox.waiting_seconds() < 200
    db.execute("DELETE FROM ferryman.outbox")
    assert outbox.waiting_seconds() == 0


def test_a_participants_parked_results_wait(db: Database, outbox: ParticipantOutbox) -> None:
    db.execute(PARKED, ("others",))
    assert outbox.waiting_seconds() == 0
    db.execute(PARKED, ("webhooks.results",))
    assert outbox.waiting_seconds() > 0


def test_a_participants_outbox_is_asked_again_after_its_session_was_lost(
    db: Database, outbox: ParticipantOutbox
) -> None:
    assert outbox.waiting_seconds() == 0
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ferryman saga'")
    with pytest.raises(Unreachable):
        outbox.waiting_seconds()
    assert outbox.waiting_seconds() == 0


def test_a_consumer_may_advance_the_clock_and_read_no_entry_by_it(db: Database, loop: DueLoop) -> None:
    db.execute("GRANT SELECT, UPDATE ON hooks.webhook_delivery_sagas TO ferryman_consumer")
    db.execute("GRANT USAGE ON SCHEMA hooks TO ferryman_consumer")
    db.execute(ASKED, ("10 s", "0 s"))
    db.execute("SET ROLE ferryman_consumer")
    assert loop.turn(db) == 1
