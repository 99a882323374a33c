"""Entries that fail, wait, are paused or replayed: which are held back, for how long, and the order they come out in.

The publisher is in memory (`support.relay`); a trigger refuses every change of an exception whose lane is not held.
"""

import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from ferryman import Message, append_many
from ferryman.relay.lanes import LaneWorker, Turn
from ferryman.relay.model import LANES, Entry, payload_of, topic_of
from ferryman.relay.policy import Retries
from ferryman.relay.store import claims as store
from ferryman.relay.store import exceptions
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.settings_relay import RelaySource
from support.relay import lane_worker, some_cluster, unlimited

Database = psycopg.Connection[tuple[Any, ...]]

OWN = ("UNKNOWN", "the broker does not like it")
UNFIT = ("INVALID_RECORD", "the broker refuses it")
REFUSED = ("TOPIC_AUTHORIZATION_FAILED", "not allowed")
AWAY = ("_ALL_BROKERS_DOWN", "nobody answers")
SOON = Backoff(base_seconds=0.001, cap_seconds=0.001)
LATE = Backoff(base_seconds=60, cap_seconds=3600)

# Every change of an exception is written down, and refused where the session does not hold the lane.
GUARD = """
CREATE TABLE writes (act text, status text, position bigint);
CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT lane FROM changed EXCEPT
        SELECT objid::integer FROM pg_locks
        WHERE locktype = 'advisory' AND classid = 1178948178 AND pid = pg_backend_pid() AND granted
    ) THEN
        RAISE 'an exception was changed whose lane is not held';
    END IF;
    INSERT INTO writes SELECT TG_OP, status, position FROM changed;
    RETURN NULL;
END $$;
CREATE TRIGGER guard_inserted AFTER INSERT ON ferryman.outbox_exception
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION guard();
CREATE TRIGGER guard_updated AFTER UPDATE ON ferryman.outbox_exception
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION guard();
CREATE TRIGGER guard_deleted AFTER DELETE ON ferryman.outbox_exception
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION guard();
"""


class Scene:
    """An outbox, a worker, a Kafka with faults that can be set, and the published entries in order."""

    def __init__(self, url: str, db: Database, worker: Database) -> None:
        self.url, self.db, self._connection = url, db, worker
        self.now = 0.0
        self.cluster = some_cluster(lambda: self.now)
        self.faults: dict[str, tuple[str, str]] = {}
        """Faults by an entry's payload (`key:number`), by its topic, or for all under ''."""
        self.out: list[str] = []
        self.tried: Counter[str] = Counter()
        self.appended: Counter[str] = Counter()
        db.execute(GUARD)

    def append(self, *keys: str, topic: str = "orders", times: int = 1) -> None:
        """Append the next number of each key, so many times; all in one transaction."""
        messages = []
        for key in [key for _ in range(times) for key in keys]:
            self.appended[key] += 1
            messages.append(Message("t", f"{key}:{self.appended[key]}".encode(), key=key, topic=topic))
        with self.db.transaction():
            append_many(self.db, messages)

    def worker(self, connection: Database | None = None, **settings: Any) -> LaneWorker:
        quick = {"tenure_seconds": 0.0001, "pause_seconds": 0.0001, "retries": Retries(3, SOON)}
        wanted = unlimited(**{**quick, **settings})
        return lane_worker(
            connection or self._connection, self._publish, wanted, failing=self._failing, cluster=self.cluster
        )

    def drain(self, worker: LaneWorker, quiet: int = 8) -> list[Turn]:
        """Take turns until nothing comes any more; after each, check that sums and statuses agree (N13)."""
        turns: list[Turn] = []
        while len(turns) < quiet or not all(turn.quiet for turn in turns[-quiet:]):
            tally = Counter((turn.retried, turn.published, turn.failed, turn.unknown) for turn in turns)
            assert len(turns) < 2000 + self.appended.total(), f"it never comes to rest: {tally}"
            turns.append(worker.run_once())
            if not turns[-1].quiet:
                self.agree()
        return turns

    def agree(self) -> None:
        """Check that the view of entries, the sums of the backlog and the rows themselves agree (N13)."""
        with self.db.transaction():
            by_topic: dict[str, Counter[str]] = defaultdict(Counter)
            for topic, status, count in self.db.execute(
                "SELECT topic, status, count(*) FROM ferryman.outbox_entries GROUP BY 1, 2"
            ).fetchall():
                by_topic[topic][status] = count
            sums = self.db.execute("SELECT topic, pending, retrying, parked, failed FROM ferryman.backlog").fetchall()
        shown = {topic: (c["PENDING"], c["RETRYING"] + c["REPLAYING"], c["PARKED"], c["FAILED"])
                 for topic, c in by_topic.items()}  # fmt: skip
        assert {topic: sums for topic, *sums in sums} == {t: list(s) for t, s in shown.items() if any(s)}

    def statuses(self, where: str = "true") -> dict[str, int]:
        query = f"SELECT status, count(*) FROM ferryman.outbox_entries WHERE {where} GROUP BY 1"
        return dict(self.db.execute(query).fetchall())

    def exception(self, what: str) -> tuple[str, int, str | None]:
        row = self.db.execute(
            "SELECT e.status, e.attempts, e.error FROM ferryman.outbox_exception e "
            "JOIN ferryman.outbox o USING (position) WHERE o.payload = %s",
            (what.encode(),),
        ).fetchone()
        assert row is not None, f"{what} has no exception"
        return row[0], row[1], row[2]

    def count(self, what: str) -> int:
        row = self.db.execute(f"SELECT count(*) FROM {what}").fetchone()
        assert row is not None
        return int(row[0])

    def wait_until_due(self) -> None:
        """Wait until every entry that is tried again within a second is due."""
        soon = "next_attempt_at > clock_timestamp() AND next_attempt_at < clock_timestamp() + interval '1 s'"
        while self.count(f"ferryman.outbox_exception WHERE {soon}"):
            time.sleep(0.001)

    def position(self, what: str) -> int:
        row = self.db.execute("SELECT position FROM ferryman.outbox WHERE payload = %s", (what.encode(),)).fetchone()
        assert row is not None
        return int(row[0])

    def of(self, key: str) -> list[int]:
        """Return the numbers of a key, in the order in which they were first published."""
        firsts = (each.partition(":") for each in dict.fromkeys(self.out))
        return [int(number) for name, _, number in firsts if name == key]

    def in_order(self) -> bool:
        """Return True if the first occurrences of every key are in order (N4)."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for each in dict.fromkeys(self.out):
            key, _, number = each.partition(":")
            numbers[key].append(int(number))
        return all(each == sorted(each) for each in numbers.values())

    def _publish(self, entries: Sequence[Entry]) -> None:
        self.out.extend((payload_of(entry) or b"").decode() for entry in entries)

    def _failing(self, entry: Entry) -> tuple[str, str] | None:
        what = (payload_of(entry) or b"").decode()
        self.tried[what] += 1
        return next((self.faults[name] for name in ("", topic_of(entry), what) if name in self.faults), None)


@pytest.fixture
def scene(ferryman_database_url: str, ferryman_db: Database) -> Iterator[Scene]:
    with psycopg.connect(ferryman_database_url) as connection:
        yield Scene(ferryman_database_url, ferryman_db, connection)


def in_one_lane(db: Database, count: int, like: str) -> list[str]:
    """Return so many keys of the same lane as this key."""
    rows = db.execute(
        "SELECT 'k' || n FROM generate_series(1, 10000) n "
        "WHERE ferryman.outbox_lane('k' || n) = ferryman.outbox_lane(%s) LIMIT %s",
        (like, count),
    )
    return [key for (key,) in rows.fetchall()]


# An entry that fails for a reason of its own


def test_failing_entry_is_tried_again_later_while_only_its_key_waits(scene: Scene) -> None:
    """N10: it is RETRYING with its error and wait, later ones of the key are PARKED, all others published."""
    scene.faults["a:1"] = OWN
    scene.append("a", "b", "a", "c", "a", "b")
    worker = scene.worker(retries=Retries(3, LATE))
    scene.drain(worker)
    assert sorted(scene.out) == ["b:1", "b:2", "c:1"]
    assert scene.exception("a:1") == ("RETRYING", 1, "Kafka: the broker does not like it (UNKNOWN)")
    assert scene.exception("a:2")[:2] == scene.exception("a:3")[:2] == ("PARKED", 0)
    assert scene.count("ferryman.outbox_exception WHERE next_attempt_at BETWEEN now() + '50 s' AND now() + '60 s'") == 1
    scene.append("a", "b")
    scene.drain(worker)
    assert scene.out[-1] == "b:3"
    assert scene.statuses() == {"PUBLISHED": 4, "RETRYING": 1, "PARKED": 3}


def test_entry_that_succeeds_is_followed_by_its_key_in_order(scene: Scene) -> None:
    """N4, N11: nothing is left of the failure, and all entries are PUBLISHED."""
    scene.faults["a:1"] = OWN
    scene.append("a", "a", "b")
    worker = scene.worker(retries=Retries(1000, SOON))
    for _ in range(6):
        worker.run_once()
    scene.append("a", "a")
    for _ in range(6):
        worker.run_once()
    assert scene.exception("a:4")[0] == "PARKED"
    del scene.faults["a:1"]
    scene.wait_until_due()
    scene.drain(worker)
    assert scene.of("a") == [1, 2, 3, 4]
    assert scene.count("ferryman.outbox_exception") == scene.count("ferryman.outbox_parked_key") == 0
    assert scene.statuses() == {"PUBLISHED": 5}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_entry_past_its_limit_fails_and_its_key_continues_in_order(scene: Scene, limit: int) -> None:
    """N8, N4."""
    scene.faults["a:2"] = OWN
    scene.append("a", times=6)
    scene.drain(scene.worker(retries=Retries(limit, Backoff(base_seconds=0.000001, cap_seconds=0.000001))))
    assert scene.exception("a:2") == ("FAILED", limit, "Kafka: the broker does not like it (UNKNOWN)")
    assert scene.of("a") == [1, 3, 4, 5, 6]
    assert scene.statuses() == {"PUBLISHED": 5, "FAILED": 1}
    assert scene.count("ferryman.outbox_parked_key") == 0


def test_rejected_entry_fails_at_once_and_holds_nobody_back(scene: Scene) -> None:
    scene.faults["a:2"] = UNFIT
    scene.append("a", "b", times=4)
    scene.drain(scene.worker())
    assert scene.exception("a:2") == ("FAILED", 1, "Kafka: the broker refuses it (INVALID_RECORD)")
    assert (scene.of("a"), scene.of("b")) == ([1, 3, 4], [1, 2, 3, 4])


def test_a_source_publishes_to_its_topics_only_and_nobody_waits(scene: Scene) -> None:
    """N10: an entry for another topic is FAILED with the reason, and the others of its key are published."""
    scene.append("a", topic="wallet.results")
    scene.append("a", "b", topic="wallet.commands")
    scene.append("a", topic="wallet.results.dlt")
    source = RelaySource(database_url=SecretStr(scene.url), topics=["wallet.results", "wallet.*.dlt"])
    scene.drain(scene.worker(sources={"": source}))
    assert scene.out == ["a:1", "a:3"]
    found = scene.db.execute("SELECT topic, status, error FROM ferryman.outbox_exception ORDER BY position").fetchall()
    assert [each[:2] for each in found] == [("wallet.commands", "FAILED")] * 2
    assert "may not publish to the topic wallet.commands" in found[0][2]


def test_two_failing_entries_of_one_key_are_each_tried_up_to_the_limit(scene: Scene) -> None:
    scene.faults |= {"a:1": OWN, "a:3": OWN}
    scene.append("a", times=4)
    scene.drain(scene.worker(retries=Retries(3, Backoff(base_seconds=0.000001, cap_seconds=0.000001))))
    assert scene.exception("a:1")[:2] == scene.exception("a:3")[:2] == ("FAILED", 3)
    assert scene.of("a") == [2, 4]


def test_more_failing_keys_than_delivery_rounds_are_all_found(scene: Scene) -> None:
    """N10, N11: each costs a producer; however many there are, every turn makes progress."""
    keys = [f"k{n}" for n in range(30)]
    scene.append("first", *keys, "first", times=2)
    scene.faults |= {f"{key}:1": UNFIT for key in keys}
    scene.drain(scene.worker())
    assert scene.statuses() == {"FAILED": 30, "PUBLISHED": 34}
    assert scene.in_order()


def test_failing_entry_in_an_unordered_topic_lets_later_ones_of_its_key_pass(scene: Scene) -> None:
    scene.faults["a:1"] = OWN
    scene.append("a", times=4)
    worker = scene.worker(retries=Retries(3, LATE), unordered_topics=["orders"])
    scene.drain(worker)
    assert scene.of("a") == [2, 3, 4]
    assert scene.count("ferryman.outbox_parked_key") == 0
    assert scene.statuses() == {"PUBLISHED": 3, "RETRYING": 1}


def test_twenty_thousand_parked_entries_are_published_in_order_before_newer_ones(scene: Scene) -> None:
    """N4, N12: no turn takes more than a batch."""
    scene.faults["a:1"] = OWN
    scene.append("a", times=20_000)
    worker = scene.worker(retries=Retries(1000, SOON))
    while scene.statuses().get("PENDING"):
        worker.run_once()
    assert scene.statuses() == {"RETRYING": 1, "PARKED": 19_999}
    del scene.faults["a:1"]
    scene.wait_until_due()
    largest = 0
    while len(scene.out) < 25_000:
        if scene.appended["a"] < 25_000:
            scene.append("a", times=500)
        before = len(scene.out)
        worker.run_once()
        largest = max(largest, len(scene.out) - before)
    scene.drain(worker)
    assert scene.of("a") == list(range(1, 25_001))
    assert largest == 1000
    assert scene.count("ferryman.outbox_parked_key") == 0


def test_many_keys_freed_at_once_are_released_in_bounded_steps(scene: Scene) -> None:
    """N12: however many keys waited, a turn makes at most a batch of entries due, and they stay in order."""
    keys = in_one_lane(scene.db, 50, "a")
    scene.faults |= {f"{key}:1": OWN for key in keys}
    scene.append(*keys, times=100)
    worker = scene.worker(retries=Retries(1000, SOON), batch_entries=200)
    while scene.statuses().get("PENDING"):
        worker.run_once()
    scene.faults.clear()
    scene.wait_until_due()
    most = 0
    while scene.statuses() != {"PUBLISHED": 5000}:
        worker.run_once()
        most = max(most, scene.count("ferryman.outbox_exception WHERE status = 'RETRYING'"))
    assert most <= 200 + len(keys)
    assert scene.in_order()


# A topic that refuses everything


def test_topic_that_refuses_everything_parks_its_entries_and_charges_no_attempt(scene: Scene) -> None:
    """N8, N10, N11, N4: others flow, at most a row per entry and lane is written, then all are published."""
    scene.faults["sick"] = REFUSED
    keys = [f"s{n}" for n in range(40)]
    scene.append(*keys, topic="sick", times=10)
    scene.append("w1", "w2", topic="well", times=5)
    worker = scene.worker()
    scene.drain(worker)
    assert sorted(scene.out) == sorted(f"{key}:{n}" for key in ("w1", "w2") for n in range(1, 6))
    assert scene.statuses("topic = 'sick'") == {"PARKED": 400}
    assert scene.count("ferryman.outbox_exception WHERE attempts > 0") == 0
    assert scene.count("writes") == 400
    assert scene.count("ferryman.outbox_parked_topic") == LANES
    scene.append(*keys, topic="sick")
    scene.drain(worker)
    assert scene.count("writes") == 440
    del scene.faults["sick"]
    scene.now += 60
    scene.append(*keys, topic="sick")
    scene.drain(worker)
    assert scene.in_order()
    assert scene.statuses() == {"PUBLISHED": 490}
    assert scene.count("ferryman.outbox_parked_topic") == scene.count("ferryman.outbox_exception") == 0


def test_newer_entries_of_a_recovered_topic_follow_those_that_waited(scene: Scene) -> None:
    """N4: even while thousands are still being released."""
    scene.faults["sick"] = REFUSED
    scene.append("a", "b", topic="sick", times=2000)
    worker = scene.worker(batch_entries=100)
    while scene.statuses().get("PENDING"):
        worker.run_once()
    scene.faults.clear()
    scene.now += 60
    while scene.statuses() != {"PUBLISHED": sum(scene.appended.values())}:
        if scene.appended["a"] < 2100:
            scene.append("a", "b", topic="sick")
        worker.run_once()
    assert scene.of("a") == scene.of("b") == list(range(1, 2101))


def test_refused_topic_is_probed_with_one_entry_first(scene: Scene) -> None:
    """On probation, a topic that still refuses costs one entry's try, not all."""
    scene.faults["sick"] = REFUSED
    scene.append(*in_one_lane(scene.db, 20, "a"), topic="sick")
    worker = scene.worker()
    scene.drain(worker)
    for _ in range(3):
        scene.now += 60
        scene.tried.clear()
        scene.drain(worker)
        assert scene.tried.total() == 1
        assert scene.statuses() == {"PARKED": 20}
    del scene.faults["sick"]
    scene.now += 60
    scene.drain(worker)
    assert scene.statuses() == {"PUBLISHED": 20}


def test_topic_that_fails_again_during_its_release_keeps_the_order(scene: Scene) -> None:
    """N4: entries that were released and not tried yet go back behind those that were tried."""
    scene.faults["sick"] = REFUSED
    keys = [f"k{n}" for n in range(12)]
    scene.append(*keys, topic="sick", times=60)
    worker = scene.worker(batch_entries=40)
    while scene.statuses().get("PENDING"):
        worker.run_once()
    for rounds in range(1, 40):
        scene.faults.clear()
        scene.now += 60
        for _ in range(rounds % 7 + 1):
            worker.run_once()
        scene.faults["sick"] = REFUSED
        for _ in range(5):
            worker.run_once()
            scene.agree()
        assert scene.in_order()
    scene.faults.clear()
    scene.now += 60
    scene.drain(worker)
    assert scene.in_order()
    assert scene.statuses() == {"PUBLISHED": 720}


def test_key_that_fails_while_its_topic_fails_is_published_in_the_end(scene: Scene) -> None:
    """N11: the head of a parked key that meets a refusal of the topic is not forgotten, nor are its attempts."""
    scene.faults["a:1"] = OWN
    scene.append("a", "b", topic="sick", times=3)
    worker = scene.worker(retries=Retries(10, SOON))
    worker.run_once()
    worker.run_once()
    attempts = scene.exception("a:1")[1]
    scene.faults = {"sick": REFUSED}
    scene.wait_until_due()
    scene.drain(worker)
    assert scene.exception("a:1")[1] >= attempts
    scene.append("a", topic="sick")
    scene.drain(worker)
    scene.faults.clear()
    scene.now += 60
    scene.wait_until_due()
    scene.drain(worker)
    assert scene.of("a") == [1, 2, 3, 4]
    assert scene.statuses() == {"PUBLISHED": 7}
    assert scene.count("ferryman.outbox_parked_key") == scene.count("ferryman.outbox_parked_topic") == 0


def test_entries_that_wait_too_long_for_their_topic_are_failed(scene: Scene) -> None:
    """The error says so; another topic is not touched."""
    scene.faults["sick"] = REFUSED
    scene.append("a", "b", topic="sick", times=3)
    worker = scene.worker(max_outage_seconds=0.2)
    scene.drain(worker)
    assert scene.statuses() == {"PARKED": 6}
    time.sleep(0.25)
    scene.append("w", topic="well")
    scene.now += 60
    scene.drain(worker)
    assert scene.statuses() == {"FAILED": 6, "PUBLISHED": 1}
    status, attempts, error = scene.exception("a:1")
    assert (status, attempts) == ("FAILED", 0)
    assert error == "waited longer than relay.max_outage_seconds: Kafka: not allowed (TOPIC_AUTHORIZATION_FAILED)"
    scene.append("a", topic="sick")
    scene.drain(worker)
    assert scene.exception("a:4")[0] == "PARKED"


def test_key_that_failed_before_its_topics_outage_ran_out_is_free_again(scene: Scene) -> None:
    """N11: its head is FAILED with the others, and nothing else would release what comes after."""
    scene.faults["a:1"] = OWN
    scene.append("a", "a", topic="sick")
    worker = scene.worker(retries=Retries(10, SOON), max_outage_seconds=3000)
    while scene.statuses().get("PENDING"):
        worker.run_once()
    assert scene.count("ferryman.outbox_parked_key") == 1
    scene.faults = {"sick": REFUSED}
    scene.wait_until_due()
    scene.drain(worker)
    scene.db.execute("UPDATE ferryman.outbox_parked_topic SET since = since - interval '1 hour'")
    scene.now += 60
    scene.drain(worker)
    assert scene.statuses() == {"FAILED": 2}
    scene.faults.clear()
    scene.now += 60
    scene.append("a", "b", topic="sick", times=3)
    scene.drain(worker)
    assert (scene.of("a"), scene.of("b")) == ([3, 4, 5], [1, 2, 3])
    assert scene.count("ferryman.outbox_parked_key") == scene.count("ferryman.outbox_parked_topic") == 0


def test_entries_that_waited_while_no_relay_ran_are_tried_before_they_fail(scene: Scene) -> None:
    """The topic may have been mended hours ago."""
    scene.faults["sick"] = REFUSED
    scene.append("a", topic="sick", times=3)
    scene.drain(scene.worker(max_outage_seconds=600))
    time.sleep(0.15)
    scene.faults.clear()
    scene.cluster = some_cluster()
    scene.drain(scene.worker(max_outage_seconds=0.1))
    assert scene.statuses() == {"PUBLISHED": 3}


# Pauses


def paused(scene: Scene, topic: str) -> None:
    scene.db.execute(
        "INSERT INTO ferryman.outbox_paused (topic, who, reason) VALUES (%s, 'me', 'a test') ON CONFLICT DO NOTHING",
        (topic,),
    )


def test_paused_topic_waits_and_resumes_in_order(scene: Scene) -> None:
    paused(scene, "quiet")
    scene.append("a", topic="quiet", times=50)
    scene.append("b", topic="loud", times=50)
    worker = scene.worker(batch_entries=10)
    scene.drain(worker)
    assert scene.of("b") == list(range(1, 51))
    assert scene.statuses("topic = 'quiet'") == {"PARKED": 50}
    scene.append("a", topic="quiet")
    scene.drain(worker)
    assert scene.tried["a:1"] == 0
    scene.db.execute("DELETE FROM ferryman.outbox_paused")
    scene.append("a", topic="quiet")
    scene.drain(worker)
    assert scene.of("a") == list(range(1, 53))
    assert scene.count("ferryman.outbox_exception") == scene.count("ferryman.outbox_parked_topic") == 0


def test_pause_is_not_an_outage_however_long_it_lasts(scene: Scene) -> None:
    """relay.max_outage_seconds does not fail entries that a person holds back."""
    paused(scene, "quiet")
    scene.append("a", topic="quiet", times=3)
    worker = scene.worker(max_outage_seconds=0.1)
    scene.drain(worker)
    time.sleep(0.15)
    scene.db.execute("DELETE FROM ferryman.outbox_paused")
    scene.drain(worker)
    assert scene.of("a") == [1, 2, 3]


def test_failing_entry_of_a_paused_topic_is_not_tried_until_it_resumes(scene: Scene) -> None:
    scene.faults["a:1"] = OWN
    scene.append("a", topic="quiet", times=3)
    worker = scene.worker(retries=Retries(10, SOON))
    worker.run_once()
    worker.run_once()
    paused(scene, "quiet")
    tried = scene.tried["a:1"]
    scene.wait_until_due()
    scene.drain(worker)
    assert scene.tried["a:1"] == tried
    scene.faults.clear()
    scene.db.execute("DELETE FROM ferryman.outbox_paused")
    scene.wait_until_due()
    scene.drain(worker)
    assert scene.of("a") == [1, 2, 3]


def test_paused_outbox_publishes_nothing_and_claims_nothing(scene: Scene) -> None:
    scene.faults["a:1"] = OWN
    scene.append("a", "b")
    worker = scene.worker()
    while scene.statuses().get("PENDING"):
        worker.run_once()
    paused(scene, "")
    scene.append("a", "b", "c")
    before = scene.count("ferryman.outbox_cursor"), scene.count("writes"), len(scene.out)
    assert not store.peek(scene.db)
    for _ in range(10):
        turn = worker.run_once()
        assert turn.quiet
        assert not turn.lanes
    assert (scene.count("ferryman.outbox_cursor"), scene.count("writes"), len(scene.out)) == before
    scene.db.execute("DELETE FROM ferryman.outbox_paused")
    scene.faults.clear()
    assert store.peek(scene.db)
    scene.drain(worker)
    assert scene.statuses() == {"PUBLISHED": 5}


# The cluster away: unknown is not failed


def test_losing_the_cluster_settles_exactly_the_prefix_and_charges_no_attempt(scene: Scene) -> None:
    """N1, N3, N8: entries from the first unknown one on are sent again, and none before it."""
    keys = in_one_lane(scene.db, 100, "a")
    scene.append(*keys)
    scene.faults[f"{keys[53]}:1"] = AWAY
    worker = scene.worker()
    for _ in range(4):
        worker.run_once()
        scene.agree()
    first = scene.position(f"{keys[53]}:1")
    assert scene.statuses(f"position < {first}") == {"PUBLISHED": 53}
    assert scene.statuses(f"position >= {first}") == {"PENDING": 47}
    assert scene.out == [f"{key}:1" for key in keys[:53]]
    assert scene.cluster.why_not() is not None
    assert scene.count("writes") == 0
    scene.faults.clear()
    scene.drain(worker)
    assert scene.out == [f"{key}:1" for key in keys]
    assert scene.statuses() == {"PUBLISHED": 100}


def test_retry_that_meets_an_absent_cluster_charges_no_attempt(scene: Scene) -> None:
    scene.faults["a:1"] = OWN
    scene.append("a", "a")
    worker = scene.worker(retries=Retries(5, SOON))
    while scene.statuses().get("PENDING"):
        worker.run_once()
    before = scene.exception("a:1")
    scene.faults = {"": AWAY}
    scene.wait_until_due()
    for _ in range(10):
        worker.run_once()
    assert scene.exception("a:1")[:2] == before[:2]
    scene.faults.clear()
    scene.drain(worker)
    assert scene.of("a") == [1, 2]


# Replays and discards


def replay(scene: Scene, *what: str, number: int = 7) -> None:
    """Queue a replay as the command line does: while the lanes are held."""
    with psycopg.connect(scene.url) as db:
        store.hold(db, range(LANES), wait_seconds=1)
        db.execute(
            "INSERT INTO ferryman.outbox_exception (position, lane, topic, key, status, next_attempt_at, replay) "
            "SELECT position, lane, topic, key, 'REPLAYING', statement_timestamp(), %s FROM ferryman.outbox "
            "WHERE convert_from(payload, 'UTF8') = ANY (%s) "
            "ON CONFLICT (position) DO UPDATE SET status = 'REPLAYING', attempts = 0, replay = excluded.replay, "
            "next_attempt_at = excluded.next_attempt_at, error = NULL",
            (number, list(what)),
        )


def test_replayed_entry_is_published_once_more_in_key_order(scene: Scene) -> None:
    scene.append("a", "b", times=5)
    worker = scene.worker(batch_entries=2)
    scene.drain(worker)
    scene.out.clear()
    replay(scene, "a:4", "a:2", "b:1", "a:3")
    scene.agree()
    assert scene.statuses() == {"PUBLISHED": 6, "REPLAYING": 4}
    scene.drain(worker)
    assert (scene.of("a"), scene.of("b")) == ([2, 3, 4], [1])
    assert scene.statuses() == {"PUBLISHED": 10}
    assert scene.count("ferryman.outbox_exception") == 0


def test_replayed_entry_that_fails_holds_back_later_ones_of_its_key(scene: Scene) -> None:
    scene.append("a", "b", times=4)
    worker = scene.worker(retries=Retries(5, SOON))
    scene.drain(worker)
    scene.out.clear()
    scene.faults["a:2"] = OWN
    replay(scene, *(f"{key}:{n}" for key in "ab" for n in range(1, 5)))
    for _ in range(6):
        worker.run_once()
    assert (scene.of("a"), scene.of("b")) == ([1], [1, 2, 3, 4])
    assert scene.exception("a:2")[0] == "RETRYING"
    assert scene.exception("a:3")[0] == "PARKED"
    scene.faults.clear()
    scene.wait_until_due()
    scene.drain(worker)
    assert scene.of("a") == [1, 2, 3, 4]
    assert scene.statuses() == {"PUBLISHED": 8}


def test_failed_entry_can_be_replayed_and_a_discarded_one_stays_away(scene: Scene) -> None:
    scene.faults |= {"a:1": UNFIT, "a:2": UNFIT}
    scene.append("a", times=3)
    worker = scene.worker()
    scene.drain(worker)
    with psycopg.connect(scene.url) as db:
        store.hold(db, range(LANES), wait_seconds=1)
        db.execute("UPDATE ferryman.outbox_exception SET status = 'DISCARDED' WHERE position = %s",
                   (scene.position("a:2"),))  # fmt: skip
    scene.faults.clear()
    replay(scene, "a:1")
    scene.drain(worker)
    assert scene.of("a") == [3, 1]
    assert scene.statuses() == {"PUBLISHED": 2, "DISCARDED": 1}
    assert scene.count("ferryman.backlog") == 0


# Lanes and numbers


def test_exceptions_of_a_lane_that_another_holds_are_left_alone(scene: Scene) -> None:
    scene.faults["a:1"] = OWN
    scene.append("a", "a")
    worker = scene.worker(retries=Retries(5, SOON))
    while scene.statuses().get("PENDING"):
        worker.run_once()
    scene.faults.clear()
    with psycopg.connect(scene.url) as other:
        store.hold(other, range(LANES), wait_seconds=1)
        scene.wait_until_due()
        assert all(worker.run_once().quiet for _ in range(5))
        assert scene.statuses() == {"RETRYING": 1, "PARKED": 1}
    scene.drain(worker)
    assert scene.of("a") == [1, 2]


def parked_by_the_hundred_thousand(scene: Scene) -> None:
    """Park a key of lane 0 whose head waits for an hour, with everything behind it."""
    with psycopg.connect(scene.url) as db:
        store.hold(db, range(LANES), wait_seconds=1)
        db.execute(
            "INSERT INTO ferryman.outbox_exception (position, lane, topic, key, status, attempts, next_attempt_at) "
            "SELECT 1000000 + n, 0, 'orders', 'stuck', CASE WHEN n = 0 THEN 'RETRYING' ELSE 'PARKED' END, 0, "
            "CASE WHEN n = 0 THEN now() + interval '1 hour' END FROM generate_series(0, 199999) n"
        )
        db.execute("INSERT INTO ferryman.outbox_parked_key (lane, topic, key) VALUES (0, 'orders', 'stuck')")
    scene.db.execute("VACUUM ANALYZE ferryman.outbox_exception")


def seconds_of_turns(scene: Scene, worker: LaneWorker) -> float:
    """Return the median duration of turns that publish something in every lane."""
    keys = [f"k{n}" for n in range(50)]
    taken = []
    for _ in range(30):
        scene.append(*keys)
        began = time.perf_counter()
        worker.run_once()
        worker.run_once()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def test_two_hundred_thousand_parked_entries_do_not_slow_the_others_down(scene: Scene) -> None:
    """N10, N12."""
    worker = scene.worker()
    scene.drain(worker)
    alone = seconds_of_turns(scene, worker)
    parked_by_the_hundred_thousand(scene)
    beside = seconds_of_turns(scene, worker)
    assert beside < 3 * alone + 0.01, f"{alone * 1000:.1f} ms alone, {beside * 1000:.1f} ms beside 200,000"


def test_due_entries_are_found_by_the_partial_index(scene: Scene) -> None:
    parked_by_the_hundred_thousand(scene)
    with psycopg.connect(scene.url) as db:
        store.hold(db, range(LANES), wait_seconds=1)
        db.execute(
            "UPDATE ferryman.outbox_exception SET status = 'RETRYING', next_attempt_at = now() + interval '1 hour' "
            "WHERE position % 2 = 0"
        )
    scene.db.execute("VACUUM ANALYZE ferryman.outbox_exception")
    parameters = {"lanes": list(range(LANES)), "most": 1000}
    with scene.db.transaction():
        for name in ("enable_seqscan", "enable_bitmapscan", "jit"):
            scene.db.execute(f"SET LOCAL {name} = off")
        plan = scene.db.execute("EXPLAIN (ANALYZE, BUFFERS OFF) " + exceptions._READ_DUE, parameters).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert "outbox_exception_due" in text
    assert "Seq Scan" not in text.replace("Seq Scan on outbox_held", "")
    assert "next_attempt_at <= statement_timestamp()" in text.partition("Index Cond:")[2].partition("\n")[0], text
    assert "Rows Removed by Filter" not in text


# All of it at once

TOPICS = ("red", "green", "blue")


class Trouble:
    """Random events for a scene: appends, faults that come and go, pauses."""

    def __init__(self, scene: Scene, dice: random.Random) -> None:
        self._scene, self._dice = scene, dice
        self._topics = {f"k{n}": dice.choice(TOPICS) for n in range(16)}

    def strikes(self) -> None:
        scene, dice = self._scene, self._dice
        for key in dice.sample(list(self._topics), 3):
            scene.append(key, topic=self._topics[key], times=dice.randint(1, 3))
            if dice.random() < 0.1:
                scene.faults[f"{key}:{scene.appended[key]}"] = dice.choice([OWN, UNFIT])
        if dice.random() < 0.1:
            name, fault = dice.choice([*((topic, REFUSED) for topic in TOPICS), ("", AWAY)])
            scene.faults[name] = fault
        if dice.random() < 0.3 and scene.faults:
            del scene.faults[dice.choice(list(scene.faults))]
        if dice.random() < 0.05:
            scene.db.execute("DELETE FROM ferryman.outbox_paused")
        if dice.random() < 0.03:
            paused(scene, dice.choice([*TOPICS, ""]))
        scene.now += dice.random()

    def is_over(self) -> None:
        """End all faults, except those of single entries."""
        for name in (*TOPICS, ""):
            self._scene.faults.pop(name, None)
        self._scene.db.execute("DELETE FROM ferryman.outbox_paused")


def survives(scene: Scene, dice: random.Random, rounds: int) -> None:
    trouble, most_outage = Trouble(scene, dice), dice.choice([None, 0.01])
    with psycopg.connect(scene.url) as second:
        workers = [
            scene.worker(connection, batch_entries=most, max_outage_seconds=most_outage)
            for connection, most in ((None, 20), (second, 7))
        ]
        for _ in range(rounds):
            trouble.strikes()
            for worker in dice.choices(workers, k=2):
                worker.run_once()
            assert scene.in_order()
        trouble.is_over()
        for worker in workers * 2:
            scene.now += 60
            scene.wait_until_due()
            scene.drain(worker, quiet=20)
    assert scene.in_order()
    failed = scene.statuses().get("FAILED", 0)
    assert scene.statuses() == Counter(PUBLISHED=scene.appended.total() - failed) + Counter(FAILED=failed)
    assert len(set(scene.out)) == scene.appended.total() - failed
    assert scene.count("ferryman.outbox_parked_key") == scene.count("ferryman.outbox_parked_topic") == 0
    assert scene.count("ferryman.outbox_exception WHERE attempts > 3") == 0


@pytest.mark.parametrize("round_", range(2))
def test_random_faults_lose_nothing_and_keep_the_order(scene: Scene, seed: int, round_: int) -> None:
    """N1, N4, N8, N11: entries, keys, topics and the cluster fail and recover at random, with pauses between."""
    survives(scene, random.Random(f"{seed}-{round_}"), 80)


@pytest.mark.prove
def test_random_faults_for_much_longer_lose_nothing(scene: Scene, seed: int) -> None:
    """Long, to meet rare combinations."""
    survives(scene, random.Random(seed), 3000)
