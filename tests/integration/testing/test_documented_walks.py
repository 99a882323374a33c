"""One relay turn and one consumer batch call functions of the very files that docs/architecture.md names."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ferryman import Message, append
from ferryman.cli import wiring
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Kafka, Settings
from support.topics import create
from support.walks import PAGE, TOPIC, WALKS, Walk, documented, traced

PUBLISHED = "SELECT coalesce(sum(pending), 0) = 0 FROM ferryman.backlog"
HANDLED = "SELECT count(*) >= {} FROM ferryman.inbox"


@contextmanager
def running(name: str, settings: Settings) -> Iterator[None]:
    """Run a service in a thread of this process while the block runs."""
    [service] = wiring.services([name], settings)
    life = Life(name)
    thread = threading.Thread(target=service.run, args=(life,))
    thread.start()
    try:
        yield
    finally:
        life.stopping.set()
        thread.join(30)


def until(db: psycopg.Connection[Any], question: str) -> None:
    """Wait until the query answers True."""
    deadline = time.monotonic() + 30
    while not (answer := db.execute(question).fetchone()) or not answer[0]:
        assert time.monotonic() < deadline, question
        time.sleep(0.05)


def reached_by_a_turn(walk: Walk, first_file: str, db: psycopg.Connection[Any], settings: Settings) -> set[str]:
    """Return the files of the relay that are reached while an entry is published."""
    topic = f"{TOPIC}-relay"
    create(settings.kafka.bootstrap_servers or "", topic)
    append_one(settings, topic)
    with traced(walk, first_file) as files, running("relay", settings):
        until(db, PUBLISHED)
    return files


def reached_by_a_batch(
    walk: Walk, documented_files: set[str], first_file: str, db: psycopg.Connection[Any], settings: Settings
) -> set[str]:
    """Return the files of the consumer that are reached while one message is handled, once it has joined its group."""
    create(settings.kafka.bootstrap_servers or "", TOPIC)
    append_one(settings, TOPIC)
    with running("relay", settings), traced(walk, first_file) as files, running("support.walks:consumer", settings):
        for handled in range(1, 5):
            until(db, HANDLED.format(handled))
            deadline = time.monotonic() + 2
            while not files >= documented_files and time.monotonic() < deadline:
                time.sleep(0.05)  # the turn goes on after its COMMIT
            if handled == 4 or (handled > 1 and files <= documented_files):
                break
            files.clear()  # joining the group belongs to no batch, and a batch that failed is another walk
            append_one(settings, TOPIC)
    return files


def append_one(settings: Settings, topic: str) -> None:
    assert settings.database_url
    with psycopg.connect(settings.database_url.get_secret_value()) as db:
        append(db, Message("walk.taken", {"number": 1}, key="k", topic=topic))


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.heading)
def test_walk_reaches_only_documented_files(
    walk: Walk, ferryman_db: psycopg.Connection[Any], ferryman_database_url: str, ferryman_kafka: str
) -> None:
    files = documented(PAGE.read_text(), walk)
    assert files, f"docs/architecture.md has no section {walk.heading!r}"
    settings = Settings.model_validate(
        {"database_url": ferryman_database_url, "kafka": Kafka(bootstrap_servers=ferryman_kafka)}
    )
    if walk.room == "relay":
        found = reached_by_a_turn(walk, files[0], ferryman_db, settings)
    else:
        found = reached_by_a_batch(walk, set(files), files[0], ferryman_db, settings)
    assert sorted(found) == sorted(files)
