"""The ring: space is bounded, needed entries stay, and no writer is ever stopped for it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman.relay import metrics
from ferryman.relay.model import SEGMENTS
from ferryman.relay.ring import Housekeeper, RingKeeper, RingTurn, alarm_texts, must_rotate, next_segment
from ferryman.relay.source import SourceDatabase
from ferryman.relay.store import segments
from ferryman.relay.store.segments import RingState
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_relay import RelayRing
from support.journal import Stress
from support.plain import Database, Place, Publisher, append, one

ring: Callable[..., RelayRing] = RelayRing.model_construct
"""Settings that may be beyond the limits of the settings file."""


def at_once() -> RingKeeper:
    """Return a keeper with which everything may go as soon as it is settled."""
    return RingKeeper(
        ring(rotate_seconds=0, retention_seconds=0, key_retention_seconds=0), tidy_seconds=0, longest_pause_seconds=0,
        alarm_seconds=0,
    )  # fmt: skip


_STATE = """
SELECT ARRAY[(SELECT to_jsonb(s) FROM ferryman.outbox_state s),
             (SELECT jsonb_agg(o ORDER BY position) FROM ferryman.outbox o),
             (SELECT jsonb_agg(e) FROM ferryman.outbox_exception e)]
"""
_WINDOWS = """
INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon) SELECT '3:3:', 0, '3' FROM generate_series(1, 20000)
"""
_INDEX_READS = """
SELECT coalesce(sum(idx_tup_read + idx_tup_fetch), 0) FROM pg_stat_user_indexes WHERE relname = 'outbox_window'
"""


def kept(keeper: RingKeeper, connection: Database, until: Callable[[RingTurn], object], runs: int = 40) -> RingTurn:
    """Turn the ring until the condition holds."""
    for _ in range(runs):
        done = keeper.run_once(connection)
        if until(done):
            return done
    raise AssertionError("it never came")


@pytest.fixture
def connections(ferryman_database_url: str) -> Iterator[Callable[[], Database]]:
    opened: list[Database] = []

    def connect() -> Database:
        opened.append(psycopg.connect(ferryman_database_url))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def relay(connections: Callable[[], Database]) -> Database:
    """Give a connection like a relay's: with the relay's role and nothing else."""
    connection = connections()
    connection.execute("SET ROLE ferryman_relay")
    connection.commit()
    return connection


@pytest.fixture
def publisher(connections: Callable[[], Database]) -> Publisher:
    return Publisher(connections())


def test_ring_turns_by_age_and_by_size_while_half_of_it_is_empty() -> None:
    settings = ring(rotate_seconds=3600, rotate_bytes=100, retention_seconds=6 * 3600)
    empty = (False, *(True,) * 7)
    assert not must_rotate(RingState(0, 3599, (99,) * 8, empty), settings)
    assert must_rotate(RingState(0, 3600, (99,) * 8, empty), settings)
    assert must_rotate(RingState(0, 1, (100,) * 8, empty), settings)
    assert not must_rotate(RingState(0, 1, (100,) * 8, (*(False,) * 5, True, True, True)), settings)
    assert not must_rotate(RingState(1, 9999, (0,) * 8, empty), settings)
    assert not must_rotate(RingState(0, 3600, (99,) * 8, empty), ring(retention_seconds=86_400))


def test_next_segment_is_the_first_empty_one_after_the_current() -> None:
    assert next_segment(RingState(6, 0, (0,) * 8, (False, True, *(False,) * 6))) == 1
    assert next_segment(RingState(6, 0, (0,) * 8, (*(False,) * 6, True, False))) is None


def test_settled_entries_past_their_retention_are_truncated_by_the_relay_role(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    keeper = at_once()
    append(ferryman_db, "a", *range(120))
    assert keeper.run_once(relay).rotated == (0, 1)
    append(ferryman_db, "a", 120)
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_1") == 1
    assert kept(keeper, relay, lambda done: done.rotated is None).truncated is None
    publisher.drain()
    done = kept(keeper, relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert (done.truncated.segment, done.truncated.entries, done.moved) == (0, 120, 0)
    assert one(ferryman_db, "SELECT pg_relation_size('ferryman.outbox_0')") == 0
    assert one(ferryman_db, "SELECT truncated[1] FROM ferryman.outbox_state") == 120
    assert [number for _, number in publisher.published] == list(range(121))


def test_ring_goes_round_many_times_and_the_counts_stay_right(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    keeper = at_once()
    for number in range(18):
        append(ferryman_db, f"k{number}", *range(number, number + 3))
        publisher.drain()
        keeper.run_once(relay)
    assert len(publisher.published) == 54
    assert one(ferryman_db, "SELECT max(truncated[n]) FROM ferryman.outbox_state, generate_series(1, 8) n") == 6 + 3
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") <= 9


def test_entries_within_their_retention_stay(ferryman_db: Database, relay: Database, publisher: Publisher) -> None:
    append(ferryman_db, "a", 1)
    at_once().run_once(relay)
    publisher.drain()
    keeper = RingKeeper(ring(rotate_seconds=0, retention_seconds=3600), tidy_seconds=0)
    for _ in range(3):
        assert keeper.run_once(relay).truncated is None
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == 1


def test_segment_is_left_with_an_alarm_while_the_counts_differ(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    """An entry that no cursor counted may be unread (N1)."""
    append(ferryman_db, "a", 1, 2, 3)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 1")
    keeper = at_once()
    done = kept(keeper, relay, lambda done: done.alarm)
    assert done.alarm is not None
    assert (done.alarm.segment, done.alarm.entries, done.alarm.settled) == (0, 3, 2)
    problem, remedy = alarm_texts(done.alarm)
    assert "holds 3 entries, the cursors settled 2" in problem
    assert "ferryman outbox replay" in remedy
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == 3
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 0")
    kept(keeper, relay, lambda done: done.truncated)


def test_alarm_is_raised_once_in_a_while_and_other_segments_continue(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    append(ferryman_db, "a", 1, 2, 3)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 1")
    now = [0.0]
    keeper = RingKeeper(ring(rotate_seconds=0, retention_seconds=0), tidy_seconds=0, clock=lambda: now[0])
    found = []
    for number in range(12):
        append(ferryman_db, "a", number)
        publisher.drain()
        now[0] += 100
        found.append(keeper.run_once(relay))
    assert 2 <= sum(done.alarm is not None for done in found) <= 3
    assert sum(done.truncated is not None for done in found) > 6
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 4


def test_failed_entry_is_held_unchanged_while_its_segment_is_truncated(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    """N10: one entry does not stop the ring, and it can still be listed, replayed and discarded."""
    publisher.failing.add("dead")
    append(ferryman_db, "a", *range(20))
    append(ferryman_db, "dead", 7)
    append(ferryman_db, "b", *range(20))
    publisher.drain()
    query = "SELECT to_jsonb(o) - 'segment' FROM ferryman.outbox o WHERE key = 'dead'"
    before = one(ferryman_db, query)
    done = kept(at_once(), relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert (done.truncated.entries, done.moved) == (41, 1)
    assert one(ferryman_db, query) == before
    assert one(ferryman_db, "SELECT array_agg(DISTINCT segment) FROM ferryman.outbox") == [8]
    shown = "SELECT status || payload_bytes FROM ferryman.outbox_entries"
    assert one(ferryman_db, shown) == "FAILED1"
    keeper = at_once()
    assert keeper.run_once(relay).held == 0
    ferryman_db.execute("UPDATE ferryman.outbox_exception SET status = 'DISCARDED'")
    assert keeper.run_once(relay).held == 1
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == 0
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_exception") == 0


def test_discarded_exceptions_are_deleted_with_their_segment(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    publisher.failing.add("dead")
    append(ferryman_db, "dead", 7, 8)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_exception SET status = 'DISCARDED'")
    done = kept(at_once(), relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert done.moved == 0
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_exception") == 0


def test_segment_with_too_many_waiting_entries_to_move_raises_an_alarm(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    publisher.failing.add("dead")
    append(ferryman_db, "dead", 7, 8, 9)
    publisher.drain()
    keeper = RingKeeper(ring(rotate_seconds=0, retention_seconds=0), most_moved=2)
    done = kept(keeper, relay, lambda done: done.alarm)
    assert done.alarm is not None
    assert "3 of its entries wait" in alarm_texts(done.alarm)[0]
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 3


def test_replay_under_way_keeps_the_segments_it_has_not_read(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = RingKeeper(ring(rotate_seconds=0, retention_seconds=1.5), tidy_seconds=0)
    time.sleep(1)
    ferryman_db.execute(
        "INSERT INTO ferryman.outbox_replay (who, reason, filter, last_position) VALUES ('me', 'r', '{}', 1)"
    )
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert keeper.run_once(relay).truncated is None
        time.sleep(0.05)
    ferryman_db.execute("UPDATE ferryman.outbox_replay SET finished_at = now()")
    deadline = time.monotonic() + 5
    while keeper.run_once(relay).truncated is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_writer_with_the_old_segment_number_writes_there_and_is_published(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """N1: also if the segment was truncated meanwhile."""
    writer = connections()
    writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    writer.execute("SELECT 1")
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = at_once()
    kept(keeper, relay, lambda done: done.truncated)
    append(writer, "old", 2)
    assert keeper.run_once(relay).truncated is None
    writer.commit()
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 1
    assert keeper.run_once(relay).truncated is None
    publisher.drain()
    assert publisher.published == [("a", 1), ("old", 2)]
    kept(keeper, relay, lambda done: done.truncated and done.truncated.segment == 0)


def test_entry_written_between_count_and_lock_saves_its_segment(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    """N1: also if the publisher has settled it already, because the count is no longer right."""
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = at_once()
    keeper.run_once(relay)
    late = ["late"]

    def write_first(step: str) -> None:
        if step == "lock segment" and late:
            ferryman_db.execute(
                "INSERT INTO ferryman.outbox (segment, lane, topic, key, type, payload) "
                "VALUES (0, 0, 'orders', %s, 't', '2')",
                (late.pop(),),
            )

    keeper.before = write_first
    assert keeper.run_once(relay).truncated is None
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 2
    publisher.drain()
    kept(keeper, relay, lambda done: done.truncated)
    assert publisher.published == [("a", 1), ("late", 2)]


def test_reader_of_a_segment_delays_its_truncation_and_stops_no_writer(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = at_once()
    keeper.run_once(relay)
    reader = connections()
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT count(*) FROM ferryman.outbox")
    seconds, stop = list[float](), threading.Event()
    old = "INSERT INTO ferryman.outbox (segment, topic, key, type, payload) VALUES (0, 'orders', 'old', 't', '2')"

    def write_with_the_old_number(db: Database) -> None:
        while not stop.is_set():
            began = time.monotonic()
            db.execute(old)
            seconds.append(time.monotonic() - began)
            db.rollback()
            time.sleep(0.002)

    writers = [threading.Thread(target=write_with_the_old_number, args=(connections(),)) for _ in range(3)]
    for thread in writers:
        thread.start()
    busy = [keeper.run_once(relay).busy for _ in range(20)]
    stop.set()
    for thread in writers:
        thread.join()
    assert busy == [0] * 20
    assert len(seconds) > 100
    assert sorted(seconds)[-3] < 0.1
    reader.rollback()
    kept(keeper, relay, lambda done: done.truncated)


def test_segment_that_a_forgotten_transaction_uses_is_reported_with_its_name(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """N13: the ring would fill up, and nothing would say why."""
    append(ferryman_db, "a", 1)
    publisher.drain()
    name = f"forgotten {ferryman_db.info.dbname}"
    forgetful, reader = connections(), connections()
    forgetful.execute("SELECT count(*) FROM ferryman.outbox")
    forgetful.execute(f"PREPARE TRANSACTION '{name}'")
    reader.execute("SET application_name = 'a report'; SELECT count(*) FROM ferryman.outbox")
    now = [0.0]
    keeper = RingKeeper(ring(rotate_seconds=0, retention_seconds=0), tidy_seconds=0, clock=lambda: now[0])
    kept(keeper, relay, lambda done: done.busy == 0 and not done.in_use_by)
    now[0] += 601
    used = kept(keeper, relay, lambda done: done.busy == 0)
    assert used.in_use_by == f"prepared transaction {name}, session {reader.info.backend_pid} of a report"
    housekeeper = Housekeeper(SourceDatabase("busy", "/busy", Settings()), keeper, threading.Event())
    with capture_logs() as logs:
        housekeeper._report(used)
        housekeeper._report(used)
    assert [each["event"] for each in logs] == ["segment kept"]
    assert metrics.RING_ALARMS.labels("busy")._value.get() == 1
    reader.rollback()
    ferryman_db.execute(f"ROLLBACK PREPARED '{name}'")
    now[0] += 61
    housekeeper._report(kept(keeper, relay, lambda done: done.truncated))
    assert metrics.RING_ALARMS.labels("busy")._value.get() == 0


def test_backlog_gauges_say_when_they_were_measured() -> None:
    """N13: gauges that stand still look like a backlog that does."""
    metrics.backlog("measured", [])
    assert abs(metrics.MEASURED.labels("measured")._value.get() - time.time()) < 60


def test_full_ring_never_stops_a_writer(ferryman_db: Database, relay: Database) -> None:
    """Nothing is published: the ring fills, then its current segment grows."""
    keeper = at_once()
    for number in range(SEGMENTS + 3):
        append(ferryman_db, "a", number)
        done = keeper.run_once(relay)
        assert done.full == (number >= SEGMENTS - 1)
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_7") == 4
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == SEGMENTS + 3


def test_only_one_of_two_ring_keepers_works(
    ferryman_db: Database, relay: Database, connections: Callable[[], Database]
) -> None:
    append(ferryman_db, "a", 1)
    with segments.keeping(relay):
        assert at_once().run_once(connections()) == RingTurn()
    assert at_once().run_once(connections()).rotated == (0, 1)


@pytest.mark.parametrize("verb", ["LOCK", "DELETE", "INSERT", "TRUNCATE", "UPDATE"])
def test_ring_keeper_that_dies_at_any_step_of_a_truncation_changes_nothing(
    verb: str, ferryman_db: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """N1: its connection is ended after the statement, before the commit."""
    publisher.failing.add("dead")
    append(ferryman_db, "a", 1, 2)
    append(ferryman_db, "dead", 3)
    publisher.drain()
    relay, doomed = connections(), connections()
    at_once().run_once(relay)
    execute = doomed.execute

    def execute_and_die(query: Any, *values: Any, **options: Any) -> Any:
        cursor = execute(query, *values, **options)
        text = query if isinstance(query, str) else query.as_string(None)
        if verb in text.split()[2:3] and ("outbox_0" in text or "truncated" in text):
            ferryman_db.execute("SELECT pg_terminate_backend(%s, 5000)", (doomed.info.backend_pid,))
        return cursor

    before = one(ferryman_db, _STATE)
    doomed.execute = execute_and_die  # type: ignore[method-assign]
    with pytest.raises(psycopg.OperationalError):
        at_once().run_once(doomed)
    assert one(ferryman_db, _STATE) == before
    done = kept(at_once(), relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert (done.truncated.entries, done.moved) == (3, 1)


def test_unnamed_windows_and_expired_idempotency_keys_are_deleted(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    for number in range(7):
        append(ferryman_db, "k", number)
        publisher.drain()
    ferryman_db.execute("SELECT ferryman.outbox_append('orders', 'x', 't', '1', idempotency_key => 'x')")
    named = "SELECT count(DISTINCT w) FROM ferryman.outbox_cursor c, LATERAL (VALUES (done), (target)) v (w)"
    windows = one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_window")
    small = RingKeeper(ring(), batch=3, tidy_seconds=0)
    assert 1 <= small.run_once(relay).windows <= 3
    for _ in range(8):
        assert small.run_once(relay).keys == 0
    left = one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_window")
    assert left == one(ferryman_db, named) < windows
    assert at_once().run_once(relay).keys == 1
    publisher.drain()
    assert [key for key, _ in publisher.published] == [*["k"] * 7, "x"]


def test_deleting_windows_stays_cheap_while_a_snapshot_keeps_dead_ones(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """It does not read deleted rows again."""
    append(ferryman_db, "a", 1)
    publisher.drain()
    ferryman_db.execute(_WINDOWS)
    append(ferryman_db, "a", 2)
    publisher.drain()
    holder = connections()
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1 FROM ferryman.outbox_window LIMIT 1")
    keeper = RingKeeper(ring(), tidy_seconds=0)
    deleted = 0
    while deleted < 20_000:
        deleted += keeper.run_once(relay).windows
    relay.close()
    other = connections()
    before = settled_statistic(ferryman_db, _INDEX_READS)
    for _ in range(10):
        keeper.run_once(other)
    other.close()
    assert settled_statistic(ferryman_db, _INDEX_READS) - before < 1000


def settled_statistic(db: Database, query: str) -> int:
    """Return a statistic once it is final: sessions report when they end, or after a second."""
    value, same = -1, 0
    while same < 15:
        db.execute("SELECT pg_stat_clear_snapshot()")
        now = int(one(db, query))
        same = same + 1 if now == value else 0
        value = now
        time.sleep(0.02)
    return value


class Load:
    """Writers of all kinds, a publisher and a ring keeper side by side; committed entries are remembered."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._seed = seed
        self._stop = threading.Event()
        self._drained = threading.Event()
        self.errors: list[BaseException] = []
        self.published: list[Place] = []
        self.kept: list[RingTurn] = []
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE counters (key text PRIMARY KEY, number bigint NOT NULL DEFAULT 0)")
            db.execute("CREATE TABLE written (key text, number bigint)")
            db.execute("INSERT INTO counters (key) SELECT 'k' || n FROM generate_series(1, 20) n")

    def run(self, seconds: float) -> Counter[Place]:
        """Run for so long, and on a busy machine until the ring has turned enough to prove something."""
        writers = [self._thread(self._write, random.Random(f"{self._seed} {n}")) for n in range(6)]
        others = [self._thread(self._publish), self._thread(self._publish), self._thread(self._turn)]
        began = time.monotonic()
        while time.monotonic() < began + seconds or (self._truncations() < 5 and time.monotonic() < began + 30):
            time.sleep(0.05)
        self._stop.set()
        for thread in writers:
            thread.join(20)
        with psycopg.connect(self._url, autocommit=True) as db:
            deadline = time.monotonic() + 20
            while db.execute("SELECT FROM ferryman.backlog").fetchone() and time.monotonic() < deadline:
                time.sleep(0.02)
            self._drained.set()
            for thread in others:
                thread.join(20)
            rows = db.execute("SELECT key, number FROM written").fetchall()
        return Counter((str(key), int(number)) for key, number in rows)

    def _truncations(self) -> int:
        return sum(done.truncated is not None for done in self.kept)

    def _thread(self, body: Callable[..., None], *values: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                with psycopg.connect(self._url) as connection:
                    body(connection, *values)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _write(self, db: Database, dice: random.Random) -> None:
        while not self._stop.is_set():
            repeatable = dice.random() < 0.4
            if repeatable:
                db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                db.execute("SELECT segment FROM ferryman.outbox_state")
                time.sleep(dice.random() * 0.4)
            try:
                for key in sorted(dice.sample(range(1, 21), dice.choice([1, 2, 3]))):
                    count = "UPDATE counters SET number = number + 1 WHERE key = %s RETURNING number"
                    number = one(db, count, f"k{key}")
                    append(db, f"k{key}", number)
                    db.execute("INSERT INTO written VALUES (%s, %s)", (f"k{key}", number))
                    if dice.random() < 0.05:
                        time.sleep(dice.random() * 0.3)
                db.rollback() if dice.random() < 0.1 else db.commit()
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                db.rollback()

    def _publish(self, db: Database) -> None:
        publisher = Publisher(db)
        publisher.published = self.published  # turns of the two exclude one another
        while not self._drained.is_set():
            if not publisher.turn():
                time.sleep(0.005)

    def _turn(self, db: Database) -> None:
        keeper = at_once()
        while not self._drained.is_set():
            self.kept.append(keeper.run_once(db))
            time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, pytest.param(6, marks=pytest.mark.prove)])
def test_ring_that_turns_all_the_time_loses_and_doubles_nothing(
    ferryman_database_url: str, seed: int, seconds: float
) -> None:
    """N1 to N4: with old segment numbers, long transactions and rollbacks. Slow on a busy machine."""
    load = Load(ferryman_database_url, seed)
    committed = load.run(seconds)
    assert load.errors == []
    assert len(committed) > 100
    assert Counter(load.published) == committed
    last: dict[str, int] = {}
    for key, number in load.published:
        assert number > last.get(key, 0)
        last[key] = number
    assert [done.alarm for done in load.kept if done.alarm] == []
    truncated = [done.truncated for done in load.kept if done.truncated]
    assert len(truncated) >= 5
    assert sum(each.entries for each in truncated) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(8, marks=pytest.mark.prove)])
def test_workers_and_writers_of_every_kind_lose_nothing_while_the_ring_turns(
    ferryman_database_url: str, ferryman_db: Database, seed: int, seconds: float
) -> None:
    """N1 to N4, with the relay's own workers. Slow on a busy machine."""
    stress, stop, done = Stress(ferryman_database_url, seed, writers=8, workers=2), threading.Event(), list[RingTurn]()

    def turn() -> None:
        keeper = at_once()
        with psycopg.connect(ferryman_database_url) as connection:
            while not stop.wait(0.05):
                done.append(keeper.run_once(connection))

    thread = threading.Thread(target=turn)
    verdict = stress.run(seconds, thread.start)
    stop.set()
    thread.join()
    assert stress.errors == []
    assert (verdict.missing, verdict.doubled, verdict.inverted) == (set(), 0, [])
    numbers = "SELECT array_agg(key || ' ' || n ORDER BY key, n) FROM counters, generate_series(1, number) n"
    assert one(ferryman_db, numbers) == [f"{key} {number}" for key, number in sorted(verdict.published)]
    assert [each.alarm for each in done if each.alarm] == []
    assert len([each for each in done if each.truncated]) >= 2
