"""`ferryman outbox`, `pause` and `resume`, as an operator runs them: what they print, change and exit with."""

import json
import os
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from ferryman import Message, append_many
from support.launch import Launcher
from support.operating import Operator, quickest

Database = psycopg.Connection[tuple[Any, ...]]

PUBLISH_ALL = """
WITH w AS (
    INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
    SELECT pg_current_snapshot(), coalesce((SELECT max(position) FROM ferryman.outbox), 0), pg_current_xact_id()
    RETURNING id
)
INSERT INTO ferryman.outbox_cursor (lane, generation, done, position, settled)
SELECT l.lane, l.generation + 1, w.id, 0, l.settled FROM ferryman.outbox_lanes l, w
"""
BULK = """
INSERT INTO ferryman.outbox (segment, lane, topic, key, type, payload)
SELECT 0, ferryman.outbox_lane((n %% 1000)::text), 'orders', (n %% 1000)::text, 'placed', 'SECRET-PAYLOAD'
FROM generate_series(1, %(count)s::integer) n
"""
FAILED = """
INSERT INTO ferryman.outbox_exception (position, lane, topic, key, status, attempts, error)
SELECT position, lane, topic, key, 'FAILED', 5, 'too large' FROM ferryman.outbox WHERE position = ANY (%s)
"""


@pytest.fixture
def operator(ferryman: Launcher, ferryman_database_url: str) -> Operator:
    return Operator(ferryman, FERRYMAN_DATABASE_URL=ferryman_database_url)


@pytest.fixture
def outbox(ferryman_db: Database) -> Database:
    """Append a hundred published entries, of which the seventh failed, and then five pending ones."""
    ferryman_db.execute(BULK, {"count": 100})
    ferryman_db.execute(PUBLISH_ALL)
    ferryman_db.execute(FAILED, ([7],))
    ferryman_db.execute(BULK, {"count": 5})
    return ferryman_db


@pytest.fixture(params=[30_000, pytest.param(300_000, marks=pytest.mark.prove)])
def retained(ferryman_db: Database, request: pytest.FixtureRequest) -> int:
    """Append so many published entries, some failed, a few pending. Return the position of a failed one."""
    half = int(request.param) // 2
    ferryman_db.execute(BULK, {"count": 2 * half})
    ferryman_db.execute(PUBLISH_ALL)
    ferryman_db.execute(FAILED, ([1000, half, 2 * half - 1000],))
    ferryman_db.execute(BULK, {"count": 20})
    return half


def one(db: Database, query: str) -> Any:
    row = db.execute(query).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.usefixtures("outbox")
def test_stats_print_waiting_entries_and_what_holds_them_up(operator: Operator) -> None:
    operator.run("pause orders --reason moving")
    found = operator.run("outbox stats --json").json
    assert {name: found[name] for name in ("pending", "retrying", "parked", "failed")} == {
        "pending": 5, "retrying": 0, "parked": 0, "failed": 1,
    }  # fmt: skip
    assert found["topics"][0]["topic"] == "orders"
    assert set(found["topics"][0]) == {"topic", "pending", "oldest_age_seconds", "retrying", "parked", "failed"}
    assert [each["reason"] for each in found["paused"]] == ["moving"]
    assert {"parked_topics", "segments", "lanes", "replays"} < set(found)
    printed = operator.run("outbox stats").stdout
    assert "ferryman resume orders" in printed


@pytest.mark.usefixtures("outbox")
def test_list_has_every_column_and_says_where_to_go_on(operator: Operator) -> None:
    found = operator.run("outbox list --json --limit 2").json
    assert found["next"] == 2
    assert [entry["position"] for entry in found["entries"]] == [1, 2]
    assert set(found["entries"][0]) == {
        "id", "position", "topic", "key", "type", "status", "attempts", "next_attempt_at", "error", "created_at",
        "lane", "payload_bytes",
    }  # fmt: skip
    last = operator.run("outbox list --json --after 104").json
    assert [entry["position"] for entry in last["entries"]] == [105]
    assert last["next"] is None
    failed = operator.run("outbox list --status failed --json").json["entries"]
    assert [(entry["position"], entry["error"]) for entry in failed] == [(7, "too large")]
    assert len(operator.run("outbox list --topic orders --key 7 --type placed --json").json["entries"]) == 1
    assert operator.run("outbox list --older-than 1h --json").json["entries"] == []
    assert len(operator.run("outbox list --younger-than 1h --status PENDING --json").json["entries"]) == 5


@pytest.mark.usefixtures("outbox")
def test_show_prints_the_reason_and_the_next_command(operator: Operator) -> None:
    found = operator.run("outbox show 7 --json").json["entries"][0]
    assert found["reason"] == "FAILED after 5 attempts: too large"
    assert "ferryman outbox replay --id 7" in found["next"]
    by_id = operator.run("outbox show", found["id"], "--json").json["entries"]
    assert [entry["position"] for entry in by_id] == [7]
    assert "no relay is connected" in operator.run("outbox show 101").stdout
    operator.run("pause orders --reason moving")
    assert "ferryman resume orders" in operator.run("outbox show 101").stdout


@pytest.mark.usefixtures("outbox")
def test_only_show_payload_prints_a_payload(operator: Operator) -> None:
    """N14"""
    lines = ("outbox list", "outbox show 7", "outbox show 7 --json")
    for line in lines:
        assert "SECRET-PAYLOAD" not in operator.run(line).transcript()
    assert "SECRET-PAYLOAD" in operator.run("outbox show 7 --payload").stdout
    assert operator.run("outbox show 7 --payload --json").json["entries"][0]["payload"] == "SECRET-PAYLOAD"


def test_secret_headers_are_masked(operator: Operator, outbox: Database) -> None:
    """N14"""
    headers = {"authorization": "Bearer geheimnis", "traceparent": "00-1"}
    with outbox.transaction():
        append_many(outbox, [Message("t", b"", key="k", topic="orders", headers=headers)])
    ran = operator.run("outbox show 106 --json")
    assert ran.json["entries"][0]["headers"] == {"authorization": "***", "traceparent": "00-1"}
    assert "geheimnis" not in ran.transcript() + operator.run("outbox show 106").transcript()


def test_replay_without_yes_counts_and_changes_nothing(operator: Operator, outbox: Database) -> None:
    plan = operator.run("outbox replay --topic orders --rate 10 --json").json
    assert plan["dry_run"] is True
    assert (plan["entries"], plan["by_status"]) == (100, {"FAILED": 1, "PUBLISHED": 99})
    assert (plan["skipped"], plan["seconds"]) == ({"PENDING": 5}, 10)
    assert "add --yes and --reason" in operator.run("outbox replay --topic orders").stdout
    assert one(outbox, "SELECT count(*) FROM ferryman.outbox_exception WHERE status = 'REPLAYING'") == 0
    assert one(outbox, "SELECT count(*) FROM ferryman.outbox_audit") == 0


def test_replay_with_yes_queues_and_is_audited(operator: Operator, outbox: Database) -> None:
    done = operator.run("outbox replay --status FAILED --yes --json --who ann --reason asked").json
    assert (done["entries"], done["finished"]) == (1, True)
    assert one(outbox, "SELECT status FROM ferryman.outbox_exception WHERE position = 7") == "REPLAYING"
    story = operator.run("outbox show 7").stdout
    assert f"in replay {done['replay']} by ann (asked)" in story
    assert "replay by ann: asked" in story


def test_killed_replay_continues_and_queues_each_entry_exactly_once(operator: Operator, ferryman_db: Database) -> None:
    """Entries that the relay published meanwhile are not queued again, and none is left out."""
    ferryman_db.execute(BULK, {"count": 3000})
    ferryman_db.execute(PUBLISH_ALL)
    queued = "SELECT count(*) FROM ferryman.outbox_exception"
    running = operator.start("outbox replay --topic orders --rate 500 --yes --reason lost")
    running.until(lambda: one(ferryman_db, queued) >= 500, "a chunk was queued")
    running.kill()
    first = {
        row[0] for row in ferryman_db.execute("DELETE FROM ferryman.outbox_exception RETURNING position").fetchall()
    }
    assert 500 <= len(first) < 3000
    assert one(ferryman_db, "SELECT entries FROM ferryman.outbox_replay") == len(first)
    assert operator.run("outbox stats --json").json["replays"][0]["id"] == 1
    resumed = operator.run("outbox replay --resume 1 --rate 1000000 --json").json
    assert resumed["entries"] == 3000
    second = {row[0] for row in ferryman_db.execute("SELECT position FROM ferryman.outbox_exception").fetchall()}
    assert first & second == set()
    assert len(first | second) == 3000
    assert operator.run("outbox replay --resume 1 --json").json["entries"] == 3000


def test_replay_with_wait_ends_when_the_relay_has_published_it(operator: Operator, outbox: Database) -> None:
    running = operator.start("outbox replay --id 3 --id 4 --yes --reason asked --wait --json")
    running.until(lambda: one(outbox, "SELECT count(*) FROM ferryman.outbox_exception WHERE replay = 1") == 2, "queued")
    assert running.alive
    outbox.execute("DELETE FROM ferryman.outbox_exception WHERE replay = 1")
    assert running.wait() == 0
    assert running.json["published"] == 2


def test_discarding_needs_yes_and_a_reason(operator: Operator, outbox: Database) -> None:
    assert operator.run("outbox discard --id 7 --json").json["entries"] == 1
    assert "--reason is missing" in operator.run("outbox discard --id 7 --yes", exit_code=2).stderr
    assert one(outbox, "SELECT status FROM ferryman.outbox_exception") == "FAILED"
    assert operator.run("outbox discard --id 7 --yes --json --reason test").json["entries"] == 1
    assert one(outbox, "SELECT status FROM ferryman.outbox_exception") == "DISCARDED"
    assert "DISCARDED by hand" in operator.run("outbox show 7").stdout
    assert operator.run("outbox discard --id 7 --json").json["entries"] == 0


def test_pause_and_resume_say_what_is_paused_now(operator: Operator) -> None:
    operator.run("pause orders --who ann --reason moving")
    again = operator.run("pause orders --who bob --reason too --json").json
    assert again["changed"] is False
    assert [(each["name"], each["who"]) for each in again["paused"]] == [("orders", "ann")]
    assert "the whole outbox" in operator.run("pause relay").stdout
    assert operator.run("resume outbox --json").json["paused"][0]["name"] == "orders"
    assert "nothing is paused" in operator.run("resume orders").stdout
    assert "orders was not paused" in operator.run("resume orders").stdout


def test_topic_may_be_called_outbox(operator: Operator, ferryman_db: Database) -> None:
    operator.run("pause outbox --topic")
    assert one(ferryman_db, "SELECT topic FROM ferryman.outbox_paused") == "outbox"


@pytest.mark.parametrize(
    ("line", "exit_code", "said"),
    [
        ("outbox show 4711", 1, "the outbox has no entry 4711"),
        ("outbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11", 1, "the outbox has no entry 0b8a2c9e"),
        ("outbox show nonsense", 2, "neither an id (a UUID) nor a position"),
        ("outbox list --status NONSENSE", 2, "NONSENSE"),
        ("outbox list --older-than yesterday", 2, "write 90s, 15m"),
        ("outbox list --source elsewhere", 3, "there is no source called elsewhere"),
        ("outbox replay", 2, "say which entries"),
        ("outbox replay --id 4711 --yes --reason r", 1, "the outbox has no entry 4711"),
        ("outbox replay --id 101", 1, "it is PENDING"),
        ("outbox replay --status FAILED --yes", 2, "--reason is missing"),
        ("outbox replay --resume 9", 1, "there is no replay 9"),
        ("outbox replay --resume 9 --topic orders", 2, "--resume continues"),
        ("outbox discard", 2, "say which entries"),
        ("outbox discard --id 101", 1, "pause its topic first"),
        ("outbox discard --id 1", 1, "Kafka has it"),
        ("outbox nonsense", 2, "No such command"),
        ("outbox rebase", 3, "there is nothing to do"),
        ("pause no/topic", 1, "is not a valid topic"),
    ],
)
@pytest.mark.usefixtures("outbox")
def test_mistake_is_reported_with_its_remedy(operator: Operator, line: str, exit_code: int, said: str) -> None:
    ran = operator.run(line, exit_code=exit_code)
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("command", ["stats", "list", "show", "replay", "discard", "rebase"])
def test_every_command_teaches_with_examples(ferryman: Launcher, command: str) -> None:
    helped = ferryman.run("outbox", command, "--help")
    assert helped.wait() == 0
    assert f"  ferryman outbox {command}" in helped.stdout
    assert "--json" in helped.stdout


def test_without_a_database_that_answers_they_exit_4(ferryman: Launcher) -> None:
    away = {"FERRYMAN_DATABASE_URL": "postgresql://u@127.0.0.1:1/d"}
    for line in ("outbox stats", "outbox list", "pause orders"):
        assert ferryman.run(*line.split(), env=away).wait() == 4


def test_without_the_tables_they_name_the_migration(ferryman: Launcher, ferryman_postgres: str) -> None:
    url = conninfo.make_conninfo(ferryman_postgres, dbname="template1")
    ran = ferryman.run("outbox", "stats", env={"FERRYMAN_DATABASE_URL": url})
    assert ran.wait() == 3
    assert "run `ferryman migrate`" in ran.stderr


@pytest.mark.usefixtures("outbox")
def test_source_is_picked_by_its_name(ferryman: Launcher, ferryman_database_url: str) -> None:
    (ferryman.folder / "ferryman.toml").write_text(
        f"[relay.sources.billing]\ndatabase_url = {json.dumps(ferryman_database_url)}\n"
    )
    for line in ("outbox stats --json", "outbox stats --json --source billing"):
        assert ferryman.run(*line.split()).json["failed"] == 1
    refused = ferryman.run("outbox", "stats", "--source", "billling")
    assert refused.wait() == 3
    assert "name one of billing with --source" in refused.stderr


@pytest.mark.parametrize("role", ["ferryman_relay", "ferryman_monitor"])
@pytest.mark.usefixtures("outbox")
def test_looking_needs_no_more_than_the_role_has(ferryman: Launcher, ferryman_database_url: str, role: str) -> None:
    env = {"FERRYMAN_DATABASE_URL": conninfo.make_conninfo(ferryman_database_url, options=f"-c role={role}")}
    for line in (
        "outbox stats",
        "outbox list --status PENDING",
        "outbox list",
        "outbox show 7",
        "outbox replay --id 7",
    ):
        ran = ferryman.run(*line.split(), env=env)
        assert ran.wait() == 0, ran.transcript()
    acting = ferryman.run("pause", "orders", env=env)
    assert acting.wait() == (0 if role == "ferryman_relay" else 3)


@pytest.mark.slow
def test_looking_at_many_retained_entries_takes_less_than_a_second(
    operator: Operator, ferryman_db: Database, retained: int
) -> None:
    """The time beyond the start of a process, and the best of five: a busy machine must not be measured.

    Slow, because on a busy machine each command is tried again.
    """
    entry_id = str(one(ferryman_db, f"SELECT id FROM ferryman.outbox WHERE position = {retained}"))
    lines = (
        "outbox stats --json",
        "outbox list --json --status PENDING",
        "outbox list --json --key nobody",
        "outbox list --json --younger-than 1s",
        f"outbox show {retained} --json",
        f"outbox show {entry_id} --json",
    )
    limit = 1 + quickest(operator, "outbox list --help", below=0)
    slow = {line: seconds for line in lines if (seconds := quickest(operator, line, below=limit)) > limit}
    assert slow == {}, f"limit {limit}, load {os.getloadavg()}"
