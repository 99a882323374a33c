"""Acts on the outbox by hand, on prepared states: lists, stories, replays, discards, pauses."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from ferryman import Message, append_many
from ferryman.relay.admin import discard_entries, entries, replay
from ferryman.relay.admin.entries import STATUSES, EntrySelection
from ferryman.relay.admin.entry_story import look
from ferryman.relay.store import backlog, claims, exceptions
from ferryman.runtime.desk import WHOLE_OUTBOX, Act, Desk, change_pause
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.settings import Database as Limits
from support.pace import in_time

Database = psycopg.Connection[tuple[Any, ...]]
ACT = Act("ann@desk", "because")

PUBLISH_ALL = """
WITH w AS (
    INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
    SELECT pg_current_snapshot(), coalesce((SELECT max(position) FROM ferryman.outbox), 0), pg_current_xact_id()
    RETURNING id
)
INSERT INTO ferryman.outbox_cursor (lane, generation, done, position, settled)
SELECT l.lane, l.generation + 1, w.id, 0, l.settled FROM ferryman.outbox_lanes l, w
"""


def appended(db: Database, count: int, *, keys: int = 10, topic: str = "orders") -> None:
    with db.transaction():
        append_many(db, [Message("t", b"%d" % n, key=f"k{n % keys}", topic=topic) for n in range(count)])


def published(db: Database, count: int, **how: Any) -> None:
    """Append entries that count as published: a window that has them, and cursors past it."""
    appended(db, count, **how)
    db.execute(PUBLISH_ALL)


def fail(db: Database, status: str, *positions: int) -> None:
    db.execute(
        "INSERT INTO ferryman.outbox_exception (position, lane, topic, key, status, attempts, next_attempt_at, error) "
        "SELECT position, lane, topic, key, %(status)s, CASE %(status)s WHEN 'PARKED' THEN 0 ELSE 3 END, "
        "CASE WHEN %(status)s IN ('RETRYING', 'REPLAYING') THEN now() + interval '1 hour' END, 'refused' "
        "FROM ferryman.outbox WHERE position = ANY (%(positions)s)",
        {"status": status, "positions": list(positions)},
    )


def parked_key(db: Database, key: str) -> list[int]:
    """Park all entries of the key behind the first. Return their positions."""
    rows = db.execute("SELECT position FROM ferryman.outbox WHERE key = %s ORDER BY 1", (key,)).fetchall()
    positions = [int(position) for (position,) in rows]
    fail(db, "RETRYING", positions[0])
    fail(db, "PARKED", *positions[1:])
    db.execute("INSERT INTO ferryman.outbox_parked_key SELECT DISTINCT lane, topic, key FROM ferryman.outbox_exception")
    return positions


def standings(db: Database) -> dict[int, str]:
    rows = db.execute("SELECT position, status FROM ferryman.outbox_exception ORDER BY 1").fetchall()
    return {int(position): str(status) for position, status in rows}


def count(db: Database, table: str) -> int:
    row = db.execute(f"SELECT count(*) FROM ferryman.{table}").fetchone()
    assert row is not None
    return int(row[0])


def listed(desk: Desk, selection: EntrySelection, *, after: int = 0, limit: int = 50) -> list[int]:
    page = entries.page(desk, selection, after=after, limit=limit, seconds=10)
    assert page.complete
    return [entry.position for entry in page.entries]


def statistics(desk: Desk) -> dict[str, Any]:
    with desk.reading() as connection:
        return backlog.statistics(connection)


def ignore(_: object) -> None:
    """Ignore the progress."""


def opened(url: str, **limits: float) -> Desk:
    return Desk(psycopg.connect(url, autocommit=True, prepare_threshold=None), Limits(**limits))


@pytest.fixture
def desk(ferryman_database_url: str) -> Iterator[Desk]:
    made = opened(ferryman_database_url)
    yield made
    made.connection.close()


def as_role(url: str, role: str) -> str:
    return conninfo.make_conninfo(url, options=f"-c role={role}")


def test_listing_by_status_matches_the_view(ferryman_db: Database, desk: Desk) -> None:
    """N13"""
    published(ferryman_db, 100)
    appended(ferryman_db, 20)
    for n, status in enumerate(("RETRYING", "PARKED", "FAILED", "DISCARDED", "REPLAYING"), 1):
        fail(ferryman_db, status, n, n + 10)
    for status in STATUSES:
        rows = ferryman_db.execute(
            "SELECT position FROM ferryman.outbox_entries WHERE status = %s ORDER BY 1", (status,)
        )
        assert listed(desk, EntrySelection(statuses=(status,)), limit=1000) == [
            position for (position,) in rows.fetchall()
        ]
    assert len(listed(desk, EntrySelection(), limit=1000)) == 120
    assert listed(desk, EntrySelection(statuses=("PENDING", "FAILED")), limit=3) == [3, 13, 101]


def test_pages_follow_one_another_without_a_gap(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 30)
    appended(ferryman_db, 25)
    for asked, there in (
        (EntrySelection(), 55),
        (EntrySelection(statuses=("PENDING",)), 25),
        (EntrySelection(key="k3"), 6),
    ):
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = entries.page(desk, asked, after=after, limit=4, seconds=10)
            seen += [entry.position for entry in page.entries]
            after = page.next
        assert len(seen) == there
        assert seen == sorted(set(seen))


def test_entry_that_commits_late_is_listed_as_pending(
    ferryman_database_url: str, ferryman_db: Database, desk: Desk
) -> None:
    with psycopg.connect(ferryman_database_url) as late:
        append_many(late, [Message("t", b"late", key="late", topic="orders")])
        published(ferryman_db, 10)
        late.commit()
    assert listed(desk, EntrySelection(statuses=("PENDING",))) == [1]
    seen = look(desk, 1)
    assert seen is not None
    assert seen.entry.status == "PENDING"


def test_entries_are_found_by_their_age_however_many_are_older(ferryman_db: Database, desk: Desk) -> None:
    ferryman_db.execute(
        "INSERT INTO ferryman.outbox (topic, key, type, payload, created_at) "
        "SELECT 'orders', 'k', 't', '', now() - (5000 - n) * interval '1 minute' FROM generate_series(1, 5000) n"
    )
    now = desk.now()
    hour = timedelta(hours=1)
    assert listed(desk, EntrySelection(since=now - hour), limit=100) == list(range(4941, 5001))
    assert listed(desk, EntrySelection(until=now - 83 * hour), limit=100) == list(range(1, 21))
    assert entries.at_time(desk, now - hour) == 4940


def test_id_that_was_used_twice_is_found_twice_newest_first(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    row = ferryman_db.execute("SELECT id FROM ferryman.outbox WHERE position = 4").fetchone()
    assert row is not None
    with ferryman_db.transaction():
        append_many(ferryman_db, [Message("t", b"", key="k", topic="orders", id=row[0])])
    assert entries.find(desk, [row[0]], since=None, seconds=10) == ([11, 4], None)


def test_replay_queues_each_published_and_failed_entry_once(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 50)
    appended(ferryman_db, 5)
    fail(ferryman_db, "FAILED", 1, 2)
    fail(ferryman_db, "RETRYING", 3)
    fail(ferryman_db, "PARKED", 4)
    fail(ferryman_db, "DISCARDED", 5)
    asked = EntrySelection(topic="orders")
    counted = entries.count(desk, asked, seconds=10)
    assert counted.entries == {"FAILED": 2, "RETRYING": 1, "PARKED": 1, "DISCARDED": 1, "PUBLISHED": 45, "PENDING": 5}
    started = replay.start(desk, asked, ACT, rate=None, expected=47)
    replay.run(desk, started, ignore)
    assert started.entries == 47
    assert standings(ferryman_db) == {
        position: {3: "RETRYING", 4: "PARKED", 5: "DISCARDED"}.get(position, "REPLAYING") for position in range(1, 51)
    }
    rows = ferryman_db.execute(
        "SELECT DISTINCT attempts, error, replay FROM ferryman.outbox_exception WHERE status = 'REPLAYING'"
    ).fetchall()
    assert rows == [(0, None, started.id)]
    assert replay.load(desk, started.id).finished_at is not None
    audit = ferryman_db.execute("SELECT act, who, reason, filter, entries FROM ferryman.outbox_audit").fetchall()
    assert audit == [
        ("replay", "ann@desk", "because", {"replay": started.id, "topic": "orders", "last_position": 55}, 47)
    ]


def test_discarded_entries_are_replayed_only_by_name(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    fail(ferryman_db, "DISCARDED", 3, 4)
    for asked, expected in ((EntrySelection(positions=(3,)), 1), (EntrySelection(statuses=("DISCARDED",)), 1)):
        started = replay.start(desk, asked, ACT, rate=None, expected=expected)
        replay.run(desk, started, ignore)
        assert started.entries == expected
    assert standings(ferryman_db) == {3: "REPLAYING", 4: "REPLAYING"}


def test_replay_continues_where_it_was_stopped(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that were queued and published meanwhile are not queued again."""
    monkeypatch.setattr(replay, "CHUNK", 7)
    published(ferryman_db, 50)
    started = replay.start(desk, EntrySelection(topic="orders"), ACT, rate=None, expected=50)

    def stop(current: replay.Replay) -> None:
        if current.entries >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.run(desk, started, stop)
    first = set(standings(ferryman_db))
    assert len(first) == 21
    ferryman_db.execute("DELETE FROM ferryman.outbox_exception")
    again = replay.load(desk, started.id)
    replay.run(desk, again, ignore)
    assert again.entries == 50
    assert set(standings(ferryman_db)) == set(range(1, 51)) - first


def test_two_processes_cannot_both_continue_one_replay(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK", 10)
    published(ferryman_db, 50)
    one = replay.start(desk, EntrySelection(topic="orders"), ACT, rate=None, expected=50)
    with pytest.raises(FerrymanError, match="another process"):
        replay.run(desk, one, lambda _: replay.run(desk, replay.load(desk, one.id), ignore))
    assert count(ferryman_db, "outbox_exception") == 50


def test_replay_paces_itself(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 60)
    started = replay.start(desk, EntrySelection(topic="orders"), ACT, rate=50, expected=60)
    began = time.monotonic()
    replay.run(desk, started, ignore)
    took = time.monotonic() - began
    assert took > 1.0
    assert in_time(took, 3)
    assert started.entries == 60


def test_replay_waits_for_its_lanes_and_says_when_it_does_not_get_them(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    published(ferryman_db, 5)
    desk = opened(ferryman_database_url, lock_timeout_seconds=0.1)
    started = replay.start(desk, EntrySelection(topic="orders"), ACT, rate=None, expected=5)
    with psycopg.connect(ferryman_database_url) as relay:
        claims.hold(relay, range(8), wait_seconds=1)
        with pytest.raises(Transient):
            replay.run(desk, started, ignore)
        assert count(ferryman_db, "outbox_exception") == 0
    replay.run(desk, started, ignore)
    assert started.entries == 5
    desk.connection.close()


def gone(desk: Desk, asked: EntrySelection) -> int:
    chunks = discard_entries.discard(desk, asked, ACT, last=discard_entries.plan(desk, asked).last)
    return sum(entries for entries, _ in chunks)


def test_discarding_the_head_of_a_parked_key_tries_the_next_entry(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    assert gone(desk, EntrySelection(positions=(positions[0],))) == 1
    expected = ["DISCARDED", "RETRYING", "PARKED", "PARKED", "PARKED"]
    assert standings(ferryman_db) == dict(zip(positions, expected, strict=True))
    due = ferryman_db.execute(
        "SELECT position, attempts FROM ferryman.outbox_exception WHERE next_attempt_at <= clock_timestamp()"
    ).fetchall()
    assert due == [(positions[1], 0)]
    assert count(ferryman_db, "outbox_parked_key") == 1


def test_discarding_a_waiting_entry_keeps_the_head(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    gone(desk, EntrySelection(positions=(positions[2],)))
    assert list(standings(ferryman_db).values()) == ["RETRYING", "PARKED", "DISCARDED", "PARKED", "PARKED"]


def test_discarding_all_of_a_parked_key_frees_it(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in chunks: none of the entries is released while others of them are still to be discarded."""
    monkeypatch.setattr(discard_entries, "CHUNK", 2)
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    seen: list[int] = []
    release = exceptions.release_keys

    def watched(connection: Database, keys: Sequence[tuple[int, str, str]], most: int) -> None:
        seen.append(len(heads(ferryman_db)))
        release(connection, keys, most)

    monkeypatch.setattr(exceptions, "release_keys", watched)
    assert gone(desk, EntrySelection(key="k3")) == 5
    assert standings(ferryman_db) == dict.fromkeys(positions, "DISCARDED")
    assert count(ferryman_db, "outbox_parked_key") == 0
    assert seen == [1, 1, 1]
    rows = ferryman_db.execute("SELECT act, filter->>'key', entries FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert rows == [("discard", "k3", 2), ("discard", "k3", 2), ("discard", "k3", 1)]


def heads(db: Database) -> list[int]:
    return [position for position, status in standings(db).items() if status == "RETRYING"]


def test_entries_waiting_for_a_topic_can_be_discarded_and_it_stays_parked(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    fail(ferryman_db, "PARKED", 1, 2, 3)
    ferryman_db.execute("INSERT INTO ferryman.outbox_parked_topic (lane, topic, reason) VALUES (0, 'orders', 'gone')")
    gone(desk, EntrySelection(positions=(1, 2)))
    assert standings(ferryman_db) == {1: "DISCARDED", 2: "DISCARDED", 3: "PARKED"}
    assert count(ferryman_db, "outbox_parked_topic") == 1


def test_discard_leaves_entries_without_an_exception(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    appended(ferryman_db, 1)
    fail(ferryman_db, "REPLAYING", 2)
    plan = discard_entries.plan(desk, EntrySelection(positions=(1, 2, 11)))
    assert (plan.entries, plan.others) == (0, {"PUBLISHED": 1, "REPLAYING": 1, "PENDING": 1})


def test_pausing_twice_changes_nothing_and_is_audited_once(ferryman_db: Database, desk: Desk) -> None:
    assert change_pause(desk, "pause", "topic", "orders", ACT)
    assert not change_pause(desk, "pause", "topic", "orders", Act("bob", "me too"))
    assert change_pause(desk, "pause", "topic", WHOLE_OUTBOX, ACT)
    assert change_pause(desk, "resume", "topic", "orders", ACT)
    assert not change_pause(desk, "resume", "topic", "orders", ACT)
    rows = ferryman_db.execute("SELECT act, filter->>'topic', who FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert rows == [("pause", "orders", "ann@desk"), ("pause", "", "ann@desk"), ("resume", "orders", "ann@desk")]
    assert [each["name"] for each in statistics(desk)["paused"]] == ["outbox"]


def test_stats_have_the_sums_of_the_view(ferryman_db: Database, desk: Desk) -> None:
    """N13"""
    published(ferryman_db, 30)
    appended(ferryman_db, 7, topic="users")
    fail(ferryman_db, "FAILED", 1, 2)
    fail(ferryman_db, "RETRYING", 3)
    fail(ferryman_db, "PARKED", 4)
    found = statistics(desk)
    assert {name: found[name] for name in ("pending", "retrying", "parked", "failed")} == {
        "pending": 7, "retrying": 1, "parked": 1, "failed": 2,
    }  # fmt: skip
    assert [each["topic"] for each in found["topics"]] == ["orders", "users"]
    assert [each["name"] for each in found["segments"] if each["current"]] == ["outbox_0"]
    assert len(found["lanes"]) == 8
    assert 0 < found["oldest_age_seconds"] < 60


def test_every_act_works_with_the_rights_of_a_relay(ferryman_db: Database, ferryman_database_url: str) -> None:
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    desk = opened(as_role(ferryman_database_url, "ferryman_relay"))
    assert change_pause(desk, "pause", "topic", "orders", ACT)
    assert change_pause(desk, "resume", "topic", "orders", ACT)
    assert gone(desk, EntrySelection(positions=(positions[0],))) == 1
    started = replay.start(desk, EntrySelection(topic="orders"), ACT, rate=None, expected=0)
    replay.run(desk, started, ignore)
    assert started.entries == 45
    assert look(desk, positions[0], payload=True) is not None
    assert statistics(desk)["replays"][0]["waiting"] == 45
    desk.connection.close()


def test_monitor_role_can_look_and_change_nothing(ferryman_db: Database, ferryman_database_url: str) -> None:
    published(ferryman_db, 50)
    appended(ferryman_db, 1)
    parked_key(ferryman_db, "k3")
    desk = opened(as_role(ferryman_database_url, "ferryman_monitor"))
    relay = psycopg.connect(ferryman_database_url, application_name="ferryman relay")
    assert statistics(desk)["parked"] == 4
    assert listed(desk, EntrySelection(statuses=("PARKED",))) == [14, 24, 34, 44]
    assert len(listed(desk, EntrySelection(statuses=("PENDING",)))) == 1
    seen = look(desk, 51)
    assert seen is not None
    assert "the relay has not read it yet" in seen.story.reason
    assert "no relay is connected" not in seen.story.reason
    with pytest.raises(FerrymanError, match="permission denied"):
        change_pause(desk, "pause", "topic", "orders", ACT)
    relay.close()
    desk.connection.close()
