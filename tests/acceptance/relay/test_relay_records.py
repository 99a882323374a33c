"""`ferryman drain relay` publishes appended entries, prints the result, and stays small (N1, N12)."""

import json
import time
from pathlib import Path

import psycopg
import pytest

from ferryman import Message, append, append_many
from ferryman.testing import places
from support.launch import Launched, Launcher
from support.published import read_topic
from support.topics import create

MEGABYTE = 1 << 20


@pytest.fixture
def environment(ferryman_database_url: str, ferryman_kafka: str) -> dict[str, str]:
    return {"FERRYMAN_DATABASE_URL": ferryman_database_url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": ferryman_kafka}


def fill(url: str, topic: str, count: int, payload: bytes) -> None:
    with psycopg.connect(url) as db:
        for first in range(0, count, 50):
            batch = range(first, min(first + 50, count))
            append_many(db, [Message("t", payload, key=f"k{n % 20}", topic=topic) for n in batch])
            db.commit()


def most_memory(launched: Launched) -> int:
    """Return the largest resident size that the running process ever had."""
    lines = Path(f"/proc/{launched.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def drain_and_watch(ferryman: Launcher, environment: dict[str, str]) -> tuple[Launched, int]:
    """Drain, and return the largest size of the process, except in its last moments."""
    launched, most = ferryman.start("drain", "relay", "--json", env=environment), 0
    while launched.alive:
        try:
            most = max(most, most_memory(launched))
        except (StopIteration, OSError):  # it ended between the two looks
            break
        time.sleep(0.02)
    assert launched.wait() == 0
    return launched, most


@pytest.mark.real_kafka
@pytest.mark.parametrize("real", [False, True])
def test_drain_says_what_it_published_in_json_and_exits_0(
    ferryman: Launcher, environment: dict[str, str], ferryman_kafka: str, real: bool
) -> None:
    topic = create(ferryman_kafka, partitions=3)
    with psycopg.connect(environment["FERRYMAN_DATABASE_URL"]) as db:
        for number in range(100):
            append(db, Message("order.placed", {"number": number}, key=f"k{number % 7}", topic=topic))
    drained = ferryman.run("drain", "relay", "--json", env=environment, real=real)
    assert drained.wait() == 0
    said = drained.json
    assert said.keys() == {"published", "failed", "held", "waiting", "seconds"}
    assert (said["published"], said["failed"], said["waiting"]) == (100, 0, 0)
    assert 0 < said["seconds"] < 30
    records = read_topic(ferryman_kafka, topic)
    assert sorted(json.loads(record.value)["number"] for record in records) == list(range(100))
    again = ferryman.run("drain", "--json", env=environment)
    assert (again.wait(), again.json["published"]) == (0, 0)
    assert len(read_topic(ferryman_kafka, topic)) == 100


@pytest.mark.real_kafka
def test_drain_counts_failing_and_waiting_entries_and_exits_0(
    ferryman: Launcher, environment: dict[str, str], ferryman_kafka: str
) -> None:
    """N10, N13: one entry is too large, one has no topic, one is fine; the database says the same."""
    topic = create(ferryman_kafka, max_message_bytes=10_000)
    with psycopg.connect(environment["FERRYMAN_DATABASE_URL"]) as db:
        append(db, Message("t", b"x" * 20_000, key="k", topic=topic))
        append(db, Message("t", b"x", key="k", topic=topic))
        append(db, Message("t", b"x", key="k", topic="nobody-made-this"))
    drained = ferryman.run("drain", "relay", "--json", env=environment)
    assert drained.wait() == 0
    assert {**drained.json, "seconds": 0} == {"published": 1, "failed": 1, "held": 0, "waiting": 1, "seconds": 0}
    with psycopg.connect(environment["FERRYMAN_DATABASE_URL"]) as db:
        rows = db.execute("SELECT topic, pending, retrying, parked, failed FROM ferryman.backlog").fetchall()
    assert sorted(rows) == sorted([(topic, 0, 0, 0, 1), ("nobody-made-this", 0, 0, 1, 0)])
    plain = ferryman.run("drain", env=environment)
    assert plain.stdout.startswith("published 0, failed 0, waiting 1, in ")


def test_drain_exits_4_when_kafka_is_away_and_says_so(ferryman: Launcher, environment: dict[str, str]) -> None:
    with psycopg.connect(environment["FERRYMAN_DATABASE_URL"]) as db:
        append(db, Message("t", b"x", key="k", topic="orders"))
    environment["FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"] = f"127.0.0.1:{places.free_port()}"
    environment |= {"FERRYMAN_KAFKA__TIMEOUT_SECONDS": "2", "FERRYMAN_RELAY__DEADLINE_SECONDS": "2"}
    began = time.monotonic()
    drained = ferryman.run("drain", "relay", "--json", env=environment)
    assert drained.wait() == 4
    assert time.monotonic() - began < 15
    assert (drained.json["error"]["exit_code"], drained.json["error"]["setting"]) == (4, "kafka.bootstrap_servers")
    assert "ferryman: Kafka is away" in drained.stderr
    assert "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS" in drained.stderr


def test_drain_exits_4_when_the_database_is_away(ferryman: Launcher, environment: dict[str, str]) -> None:
    environment["FERRYMAN_DATABASE_URL"] = f"postgresql://u:geheim@127.0.0.1:{places.free_port()}/gone"
    drained = ferryman.run("drain", "relay", "--json", env=environment)
    assert drained.wait() == 4
    assert "geheim" not in drained.stderr


@pytest.mark.real_kafka
@pytest.mark.slow
@pytest.mark.parametrize(("count", "length"), [(4000, 64_000), pytest.param(250, 950_000, marks=pytest.mark.prove)])
def test_large_payloads_pass_through_bounded_memory(
    ferryman: Launcher, environment: dict[str, str], ferryman_kafka: str, count: int, length: int
) -> None:
    """N12: two workers and their queues, however much waits. Slow, because hundreds of megabytes are published."""
    topic = create(ferryman_kafka, partitions=3, max_message_bytes=2_000_000)
    small = create(ferryman_kafka)
    fill(environment["FERRYMAN_DATABASE_URL"], small, 100, b"x")
    _, base = drain_and_watch(ferryman, environment)
    fill(environment["FERRYMAN_DATABASE_URL"], topic, count, bytes(length))
    drained, most = drain_and_watch(ferryman, environment)
    assert drained.json["published"] == count
    assert len({record.id for record in read_topic(ferryman_kafka, topic)}) == count
    assert most - base < 220 * MEGABYTE, f"{(most - base) / MEGABYTE:.0f} MB more than for small ones"
