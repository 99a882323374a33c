"""What people do to the outbox by hand, on states that are made here: lists, stories, replays, discards, pauses."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from ferryman import Message, append_many
from ferryman.relay.operator import discard, listing, pausing, replay, standing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.looking import look
from ferryman.relay.operator.selection import STATUSES, Selection
from ferryman.relay.store import exceptions, lanes
from ferryman.relay.store import listing as store
from ferryman.runtime.desk import Act
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.settings import Database as Limits

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
    """Entries that a relay has published: a window that has them, and cursors that are past it."""
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
    """All entries of the key wait behind the first; their positions."""
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


def listed(desk: Desk, selection: Selection, *, after: int = 0, limit: int = 50) -> list[int]:
    page = listing.page(desk, selection, after=after, limit=limit, seconds=10)
    assert page.complete
    return [entry.position for entry in page.entries]


def ignore(_: object) -> None:
    """Progress that nobody looks at."""


def opened(url: str, **limits: float) -> Desk:
    return Desk(psycopg.connect(url, autocommit=True, prepare_threshold=None), Limits(**limits))


@pytest.fixture
def desk(ferryman_database_url: str) -> Iterator[Desk]:
    made = opened(ferryman_database_url)
    yield made
    made.connection.close()


def as_role(url: str, role: str) -> str:
    return conninfo.make_conninfo(url, options=f"-c role={role}")


def test_each_status_lists_exactly_the_entries_that_the_view_gives_it(ferryman_db: Database, desk: Desk) -> None:
    """N13"""
    published(ferryman_db, 100)
    appended(ferryman_db, 20)
    for n, status in enumerate(("RETRYING", "PARKED", "FAILED", "DISCARDED", "REPLAYING"), 1):
        fail(ferryman_db, status, n, n + 10)
    for status in STATUSES:
        rows = ferryman_db.execute(
            "SELECT position FROM ferryman.outbox_entries WHERE status = %s ORDER BY 1", (status,)
        )
        assert listed(desk, Selection(statuses=(status,)), limit=1000) == [position for (position,) in rows.fetchall()]
    assert len(listed(desk, Selection(), limit=1000)) == 120
    assert listed(desk, Selection(statuses=("PENDING", "FAILED")), limit=3) == [3, 13, 101]


def test_pages_follow_one_another_without_a_gap(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 30)
    appended(ferryman_db, 25)
    for asked, there in ((Selection(), 55), (Selection(statuses=("PENDING",)), 25), (Selection(key="k3"), 6)):
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = listing.page(desk, asked, after=after, limit=4, seconds=10)
            seen += [entry.position for entry in page.entries]
            after = page.next
        assert len(seen) == there
        assert seen == sorted(set(seen))


def test_an_entry_that_commits_late_is_listed_as_pending(
    ferryman_database_url: str, ferryman_db: Database, desk: Desk
) -> None:
    with psycopg.connect(ferryman_database_url) as late:
        append_many(late, [Message("t", b"late", key="late", topic="orders")])
        published(ferryman_db, 10)
        late.commit()
    assert listed(desk, Selection(statuses=("PENDING",))) == [1]
    seen = look(desk, 1)
    assert seen is not None
    assert seen.entry.status == "PENDING"


def test_entries_are_found_by_their_age_however_many_are_older(ferryman_db: Database, desk: Desk) -> None:
    ferryman_db.execute(
        "INSERT INTO ferryman.outbox (topic, key, type, payload, created_at) "
        "SELECT 'orders', 'k', 't', '', now() - (5000 - n) * interval '1 minute' FROM generate_series(1, 5000) n"
    )
    with desk.acting() as connection:
        now = store.now(connection)
    hour = timedelta(hours=1)
    assert listed(desk, Selection(since=now - hour), limit=100) == list(range(4941, 5001))
    assert listed(desk, Selection(until=now - 83 * hour), limit=100) == list(range(1, 21))
    assert listing.at_time(desk, now - hour) == 4940


def test_an_id_that_was_used_twice_is_found_twice_newest_first(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    row = ferryman_db.execute("SELECT id FROM ferryman.outbox WHERE position = 4").fetchone()
    assert row is not None
    with ferryman_db.transaction():
        append_many(ferryman_db, [Message("t", b"", key="k", topic="orders", id=row[0])])
    assert listing.find(desk, [row[0]], since=None, seconds=10) == ([11, 4], None)


def test_a_replay_queues_each_published_and_failed_entry_once(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 50)
    appended(ferryman_db, 5)
    fail(ferryman_db, "FAILED", 1, 2)
    fail(ferryman_db, "RETRYING", 3)
    fail(ferryman_db, "PARKED", 4)
    fail(ferryman_db, "DISCARDED", 5)
    asked = Selection(topic="orders")
    counted = replay.count(desk, asked, seconds=10)
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


def test_what_was_discarded_is_replayed_only_by_name(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    fail(ferryman_db, "DISCARDED", 3, 4)
    for asked, expected in ((Selection(positions=(3,)), 1), (Selection(statuses=("DISCARDED",)), 1)):
        started = replay.start(desk, asked, ACT, rate=None, expected=expected)
        replay.run(desk, started, ignore)
        assert started.entries == expected
    assert standings(ferryman_db) == {3: "REPLAYING", 4: "REPLAYING"}


def test_a_replay_goes_on_where_it_was_stopped(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was queued and published meanwhile is not queued again."""
    monkeypatch.setattr(replay, "CHUNK", 7)
    published(ferryman_db, 50)
    started = replay.start(desk, Selection(topic="orders"), ACT, rate=None, expected=50)

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


def test_two_who_go_on_with_one_replay_do_not_both(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK", 10)
    published(ferryman_db, 50)
    one = replay.start(desk, Selection(topic="orders"), ACT, rate=None, expected=50)
    with pytest.raises(FerrymanError, match="another process"):
        replay.run(desk, one, lambda _: replay.run(desk, replay.load(desk, one.id), ignore))
    assert count(ferryman_db, "outbox_exception") == 50


def test_a_replay_paces_itself(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 60)
    started = replay.start(desk, Selection(topic="orders"), ACT, rate=50, expected=60)
    began = time.monotonic()
    replay.run(desk, started, ignore)
    assert 1.0 < time.monotonic() - began < 3
    assert started.entries == 60


def test_a_replay_waits_for_the_lanes_it_changes_and_says_when_they_are_not_given(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    published(ferryman_db, 5)
    desk = opened(ferryman_database_url, lock_timeout_seconds=0.1)
    started = replay.start(desk, Selection(topic="orders"), ACT, rate=None, expected=5)
    with psycopg.connect(ferryman_database_url) as relay:
        lanes.hold(relay, range(8), wait_seconds=1)
        with pytest.raises(Transient):
            replay.run(desk, started, ignore)
        assert count(ferryman_db, "outbox_exception") == 0
    replay.run(desk, started, ignore)
    assert started.entries == 5
    desk.connection.close()


def gone(desk: Desk, asked: Selection) -> discard.Progress:
    done = discard.Progress()
    discard.discard(desk, asked, ACT, last=discard.plan(desk, asked).last, progress=done)
    return done


def test_when_the_head_of_a_parked_key_is_discarded_the_next_is_tried(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    assert gone(desk, Selection(positions=(positions[0],))).entries == 1
    expected = ["DISCARDED", "RETRYING", "PARKED", "PARKED", "PARKED"]
    assert standings(ferryman_db) == dict(zip(positions, expected, strict=True))
    due = ferryman_db.execute(
        "SELECT position, attempts FROM ferryman.outbox_exception WHERE next_attempt_at <= clock_timestamp()"
    ).fetchall()
    assert due == [(positions[1], 0)]
    assert count(ferryman_db, "outbox_parked_key") == 1


def test_when_one_that_waits_is_discarded_the_head_stays(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    gone(desk, Selection(positions=(positions[2],)))
    assert list(standings(ferryman_db).values()) == ["RETRYING", "PARKED", "DISCARDED", "PARKED", "PARKED"]


def test_when_all_of_a_parked_key_is_discarded_the_key_is_free(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks too: none of its entries is let go while others of them are still to be discarded."""
    monkeypatch.setattr(discard, "CHUNK", 2)
    published(ferryman_db, 50)
    positions = parked_key(ferryman_db, "k3")
    seen: list[int] = []
    release = exceptions.release_keys

    def watched(connection: Database, keys: Sequence[tuple[int, str, str]], most: int) -> None:
        seen.append(len(heads(ferryman_db)))
        release(connection, keys, most)

    monkeypatch.setattr(exceptions, "release_keys", watched)
    assert gone(desk, Selection(key="k3")).entries == 5
    assert standings(ferryman_db) == dict.fromkeys(positions, "DISCARDED")
    assert count(ferryman_db, "outbox_parked_key") == 0
    assert seen == [1, 1, 1]
    rows = ferryman_db.execute("SELECT act, filter->>'key', entries FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert rows == [("discard", "k3", 2), ("discard", "k3", 2), ("discard", "k3", 1)]


def heads(db: Database) -> list[int]:
    return [position for position, status in standings(db).items() if status == "RETRYING"]


def test_what_waits_for_a_whole_topic_is_discarded_and_the_topic_stays_parked(
    ferryman_db: Database, desk: Desk
) -> None:
    published(ferryman_db, 10)
    fail(ferryman_db, "PARKED", 1, 2, 3)
    ferryman_db.execute("INSERT INTO ferryman.outbox_parked_topic (lane, topic, reason) VALUES (0, 'orders', 'gone')")
    gone(desk, Selection(positions=(1, 2)))
    assert standings(ferryman_db) == {1: "DISCARDED", 2: "DISCARDED", 3: "PARKED"}
    assert count(ferryman_db, "outbox_parked_topic") == 1


def test_a_discard_leaves_what_is_not_an_exception(ferryman_db: Database, desk: Desk) -> None:
    published(ferryman_db, 10)
    appended(ferryman_db, 1)
    fail(ferryman_db, "REPLAYING", 2)
    plan = discard.plan(desk, Selection(positions=(1, 2, 11)))
    assert (plan.entries, plan.others) == (0, {"PUBLISHED": 1, "REPLAYING": 1, "PENDING": 1})


def test_pausing_twice_changes_nothing_and_is_audited_once(ferryman_db: Database, desk: Desk) -> None:
    assert pausing.pause(desk, "orders", ACT)
    assert not pausing.pause(desk, "orders", Act("bob", "me too"))
    assert pausing.pause(desk, pausing.EVERYTHING, ACT)
    assert pausing.resume(desk, "orders", ACT)
    assert not pausing.resume(desk, "orders", ACT)
    rows = ferryman_db.execute("SELECT act, filter->>'topic', who FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert rows == [("pause", "orders", "ann@desk"), ("pause", "", "ann@desk"), ("resume", "orders", "ann@desk")]
    assert [each["name"] for each in standing.gather(desk)["paused"]] == ["outbox"]


def test_the_sums_are_those_of_the_view(ferryman_db: Database, desk: Desk) -> None:
    """N13"""
    published(ferryman_db, 30)
    appended(ferryman_db, 7, topic="users")
    fail(ferryman_db, "FAILED", 1, 2)
    fail(ferryman_db, "RETRYING", 3)
    fail(ferryman_db, "PARKED", 4)
    found = standing.gather(desk)
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
    assert pausing.pause(desk, "orders", ACT)
    assert pausing.resume(desk, "orders", ACT)
    assert gone(desk, Selection(positions=(positions[0],))).entries == 1
    started = replay.start(desk, Selection(topic="orders"), ACT, rate=None, expected=0)
    replay.run(desk, started, ignore)
    assert started.entries == 45
    assert look(desk, positions[0], payload=True) is not None
    assert standing.gather(desk)["replays"][0]["waiting"] == 45
    desk.connection.close()


def test_looking_works_with_the_rights_of_a_monitor_which_changes_nothing(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    published(ferryman_db, 50)
    appended(ferryman_db, 1)
    parked_key(ferryman_db, "k3")
    desk = opened(as_role(ferryman_database_url, "ferryman_monitor"))
    relay = psycopg.connect(ferryman_database_url, application_name="ferryman relay")
    assert standing.gather(desk)["parked"] == 4
    assert listed(desk, Selection(statuses=("PARKED",))) == [14, 24, 34, 44]
    assert len(listed(desk, Selection(statuses=("PENDING",)))) == 1
    seen = look(desk, 51)
    assert seen is not None
    assert "the relay has not read it yet" in seen.story.reason
    assert "no relay is connected" not in seen.story.reason
    with pytest.raises(FerrymanError, match="permission denied"):
        pausing.pause(desk, "orders", ACT)
    relay.close()
    desk.connection.close()
