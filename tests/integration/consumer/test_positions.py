"""A consumer goes on at the smaller of its database's and Kafka's offset, and in a new topic at its first record."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman.consumer.kafka import topic_ids
from support.groups import Group, owned, verdicts
from support.published import poll_until
from support.topics import create

pytestmark = pytest.mark.real_kafka

Database = psycopg.Connection[tuple[Any, ...]]
BEHIND = "the database is behind Kafka"


KEPT = ("inbox", "inbox_start")
SESSIONS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'ferryman feed-%'"


@contextmanager
def restored(db: Database) -> Iterator[None]:
    """Give the database back as it was at the beginning of the block, in one transaction."""
    for table in KEPT:
        db.execute(f"CREATE TABLE {table}_then AS SELECT * FROM ferryman.{table}")
    yield
    with db.transaction():
        for table in KEPT:
            db.execute(f"LOCK ferryman.{table}")  # batches are in front of it or behind it
        for table in KEPT:
            db.execute(f"DELETE FROM ferryman.{table}")
            db.execute(f"INSERT INTO ferryman.{table} SELECT * FROM {table}_then")
            db.execute(f"DROP TABLE {table}_then")


def run_until(group: Group, db: Database, many: int) -> list[Any]:
    """Run the consumer until it has so many verdicts. Return what it logged."""
    with capture_logs() as logs, group.running():
        poll_until(lambda: verdicts(db) == many, f"{many} verdicts")
    return logs


def said(logs: list[Any], event: str) -> list[Any]:
    return [each["partitions"] for each in logs if each["event"].startswith(event)]


def test_messages_that_a_restored_database_has_lost_take_effect_again(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N9: Kafka's offsets were past them, and nothing said so."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(10, partition=1)
    run_until(group, ferryman_db, 10)
    with restored(ferryman_db):
        group.send(20, partition=1)
        assert not said(run_until(group, ferryman_db, 30), BEHIND)
    assert said(run_until(group, ferryman_db, 30), BEHIND) == [{f"{group.topic}[1]": {"database": 10, "kafka": 30}}]
    assert not said(run_until(group, ferryman_db, 30), BEHIND)


@pytest.mark.parametrize("many", [4, 25])
def test_a_topic_made_anew_while_its_consumer_was_away_is_read_from_its_start(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, many: int
) -> None:
    """N1, N9: with more records than the old topic had, the first ones were skipped in silence."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(10, partition=1)
    run_until(group, ferryman_db, 10)
    group.recreate()
    group.set_offset(10)  # a commit that came late, or a cluster that kept them
    group.send(many, partition=1)
    logs = run_until(group, ferryman_db, 10 + many)
    [places] = said(logs, "topic made anew")
    assert places[f"{group.topic}[1]"] == {"was_at": 10}


@pytest.mark.parametrize("many", [4, 25])
def test_a_topic_made_anew_under_a_running_consumer_is_read_from_its_start(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """N1, N9: it went on at the old topic's position, ready and without a word."""
    monkeypatch.setattr(topic_ids, "_ASK_AGAIN_SECONDS", 0.2)
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(10, partition=1)
    with group.running():
        poll_until(lambda: verdicts(ferryman_db) == 10, "verdicts")
        group.recreate()
        group.send(many, partition=1)
        poll_until(lambda: verdicts(ferryman_db) == 10 + many, "verdicts on the new topic's records")


def test_offsets_that_were_reset_backwards_are_followed(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(10, partition=1)
    run_until(group, ferryman_db, 10)
    ferryman_db.execute("DELETE FROM ferryman.inbox")
    group.set_offset(6)
    run_until(group, ferryman_db, 4)


def test_at_most_once_handles_nothing_again_after_a_restore(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N5: its handler may have acted outside of the database."""
    group = Group(ferryman_kafka, ferryman_database_url, mode="at_most_once")
    group.send(3, partition=1)
    run_until(group, ferryman_db, 3)
    with restored(ferryman_db):
        group.send(2, partition=1)
        run_until(group, ferryman_db, 5)
    group.send(1, partition=1)
    logs = run_until(group, ferryman_db, 4)
    assert said(logs, BEHIND) == [{f"{group.topic}[1]": {"database": 3, "kafka": 5}}]


def test_ignored_messages_move_the_position_too(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """They would come again at each start, as if the database had been restored."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.consumer.handlers["u"] = group.consumer.handlers.pop("t")
    group.send(5, partition=1)
    with group.running():
        poll_until(lambda: positions(ferryman_db) == [0, 5, 0], "the position")


def test_running_consumer_goes_back_when_its_database_is_put_back(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N9: behind a pooler, not even its session ends. The next batch notices it."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(5, partition=1)
    with capture_logs() as logs, group.running():
        poll_until(lambda: verdicts(ferryman_db) == 5, "verdicts")
        with restored(ferryman_db):
            group.send(5, partition=1)
            poll_until(lambda: verdicts(ferryman_db) == 10, "verdicts")
        group.send(1, partition=1)
        poll_until(lambda: verdicts(ferryman_db) == 11, "verdicts on the messages that were lost")
    assert said(logs, BEHIND) == [{f"{group.topic}[1]": {"database": 5, "kafka": 10}}]
    assert positions(ferryman_db) == [0, 11, 0]


@pytest.mark.parametrize("lost", [False, True])
def test_partitions_without_new_messages_go_back_at_the_next_connection(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database, lost: bool
) -> None:
    """N1, N9: also if the database is that of a time before it knew the partitions."""
    group = Group(ferryman_kafka, ferryman_database_url)
    retry = create(ferryman_kafka, f"{group.topic}.retry.{group.consumer.name}")
    with group.running():
        poll_until(lambda: owned(ferryman_db) == 4, "an owner")
        with restored(ferryman_db):
            group.send(5, partition=1)
            group.send(3, topic=retry)
            poll_until(lambda: verdicts(ferryman_db) == 8, "verdicts")
        if lost:
            ferryman_db.execute("DELETE FROM ferryman.inbox_start")
        ferryman_db.execute(f"SELECT pg_terminate_backend(pid) {SESSIONS}")
        poll_until(lambda: verdicts(ferryman_db) == 8, "verdicts on the messages that were lost")


def test_running_at_most_once_goes_on_when_its_database_is_put_back(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N5, N9: it handles nothing again, gives up nothing, and says what was lost."""
    group = Group(ferryman_kafka, ferryman_database_url, mode="at_most_once")
    with capture_logs() as logs, group.running():
        poll_until(lambda: owned(ferryman_db) == 3, "an owner")
        with restored(ferryman_db):
            group.send(2, partition=1)
            poll_until(lambda: verdicts(ferryman_db) == 2, "verdicts")
        group.send(2, partition=1)
        poll_until(lambda: positions(ferryman_db)[1] == 4, "the position")
    assert verdicts(ferryman_db) == 2
    assert said(logs, BEHIND) == [{f"{group.topic}[1]": {"database": 0, "kafka": 2}}]
    assert not [each for each in logs if each["event"] == "vanished"]


def test_members_that_rebalance_while_their_database_is_put_back_lose_nothing(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N1, N9: the partition's next owner goes back, whoever handled what the database has lost."""
    group, sent = Group(ferryman_kafka, ferryman_database_url), 0

    def send() -> None:
        nonlocal sent
        for partition in range(3):
            group.send(10, partition)
        sent += 30

    def handled() -> None:
        poll_until(lambda: verdicts(ferryman_db) == sent, f"verdicts on all {sent} messages")

    def two() -> bool:
        return bool(ferryman_db.execute(f"SELECT count(*) = 2 {SESSIONS}").fetchall()[0][0])

    send()
    with group.running():
        handled()
        with restored(ferryman_db):
            send()
            handled()
            send()
            joins = group.running()
            joins.__enter__()
        try:
            poll_until(two, "the second member")
            send()
            handled()
            with restored(ferryman_db):
                send()
                handled()
        finally:
            joins.__exit__(None, None, None)  # its partitions go back to the first, which has not seen their messages
        send()
        handled()
    assert positions(ferryman_db) == [sent // 3] * 3


def test_quiet_topic_made_anew_is_said_once(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(3, partition=1)
    run_until(group, ferryman_db, 3)
    group.recreate()
    times = []
    for _ in range(2):
        with capture_logs() as logs, group.running():
            poll_until(lambda: owned(ferryman_db) == 3, "an owner")
        times.append(len(said(logs, "topic made anew")))
    assert times == [1, 0]
    assert positions(ferryman_db) == [0, 0, 0]


def test_restored_marks_of_ownership_are_not_deaths(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N11: the backup was made while an owner ran."""
    group = Group(ferryman_kafka, ferryman_database_url)
    with group.running():
        poll_until(lambda: owned(ferryman_db) == 3, "an owner")
        keeping = restored(ferryman_db)
        keeping.__enter__()
        group.send(3, partition=1)
        poll_until(lambda: verdicts(ferryman_db) == 3, "verdicts")
    keeping.__exit__(None, None, None)
    logs = run_until(group, ferryman_db, 3)
    assert said(logs, BEHIND)
    assert not said(logs, "an owner died")


def positions(db: Database) -> list[int]:
    rows = db.execute("SELECT position FROM ferryman.inbox_start WHERE topic NOT LIKE '%%.retry.%%' ORDER BY partition")
    return [position for (position,) in rows.fetchall()]


def test_a_database_that_never_knew_the_group_goes_on_where_kafka_says(
    ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """A group that was taken over must not do everything again. The database may also be a restored one: it is said."""
    group = Group(ferryman_kafka, ferryman_database_url)
    group.send(5, partition=1)
    group.set_offset(3)
    logs = run_until(group, ferryman_db, 2)
    assert said(logs, "this database never knew") == [{f"{group.topic}[1]": {"kafka": 3}}]
