"""The ring: space is bounded, nothing that is still needed goes, and no writer is ever stopped for it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from ferryman.relay.model import SEGMENTS
from ferryman.relay.ring import Kept, RingKeeper, Space, must_rotate, next_segment
from ferryman.relay.store import ring
from ferryman.relay.store.ring import Ring
from support.journal import Stress
from support.plain import Database, Place, Publisher, append, one

# Everything may go as soon as it is settled.
AT_ONCE = Space(
    rotate_seconds=0, retention_seconds=0, key_retention_seconds=0, tidy_seconds=0, longest_pause_seconds=0,
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


def kept(keeper: RingKeeper, connection: Database, until: Callable[[Kept], object], runs: int = 40) -> Kept:
    """Runs until that is so."""
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
    """As a relay connects: with the relay's role and nothing else."""
    connection = connections()
    connection.execute("SET ROLE ferryman_relay")
    connection.commit()
    return connection


@pytest.fixture
def publisher(connections: Callable[[], Database]) -> Publisher:
    return Publisher(connections())


def test_a_ring_turns_by_age_over_what_is_retained_and_by_size_while_half_of_it_is_empty() -> None:
    space = Space(rotate_seconds=3600, rotate_bytes=100, retention_seconds=6 * 3600)
    empty = (False, *(True,) * 7)
    assert not must_rotate(Ring(0, 3599, (99,) * 8, empty), space)
    assert must_rotate(Ring(0, 3600, (99,) * 8, empty), space)
    assert must_rotate(Ring(0, 1, (100,) * 8, empty), space)
    assert not must_rotate(Ring(0, 1, (100,) * 8, (*(False,) * 5, True, True, True)), space)
    assert not must_rotate(Ring(1, 9999, (0,) * 8, empty), space)
    assert not must_rotate(Ring(0, 3600, (99,) * 8, empty), Space(retention_seconds=86_400))


def test_the_next_segment_is_the_first_empty_one_behind_the_current() -> None:
    assert next_segment(Ring(6, 0, (0,) * 8, (False, True, *(False,) * 6))) == 1
    assert next_segment(Ring(6, 0, (0,) * 8, (*(False,) * 6, True, False))) is None


def test_what_is_settled_and_past_its_retention_goes_with_the_rights_of_the_relay_alone(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    keeper = RingKeeper(AT_ONCE)
    append(ferryman_db, "a", *range(120))
    assert keeper.run_once(relay).rotated == (0, 1)
    append(ferryman_db, "a", 120)
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_1") == 1
    assert kept(keeper, relay, lambda done: done.rotated is None).truncated is None
    publisher.drain()
    done = kept(keeper, relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert (done.truncated.segment, done.truncated.entries, done.truncated.moved) == (0, 120, 0)
    assert one(ferryman_db, "SELECT pg_relation_size('ferryman.outbox_0')") == 0
    assert one(ferryman_db, "SELECT truncated[1] FROM ferryman.outbox_state") == 120
    assert [number for _, number in publisher.published] == list(range(121))


def test_the_ring_goes_round_many_times_and_the_counts_stay_right(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    keeper = RingKeeper(AT_ONCE)
    for number in range(18):
        append(ferryman_db, f"k{number}", *range(number, number + 3))
        publisher.drain()
        keeper.run_once(relay)
    assert len(publisher.published) == 54
    assert one(ferryman_db, "SELECT max(truncated[n]) FROM ferryman.outbox_state, generate_series(1, 8) n") == 6 + 3
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") <= 9


def test_what_is_not_past_its_retention_stays(ferryman_db: Database, relay: Database, publisher: Publisher) -> None:
    append(ferryman_db, "a", 1)
    RingKeeper(AT_ONCE).run_once(relay)
    publisher.drain()
    keeper = RingKeeper(Space(rotate_seconds=0, retention_seconds=3600, tidy_seconds=0))
    for _ in range(3):
        assert keeper.run_once(relay).truncated is None
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == 1


def test_a_segment_is_left_with_an_alarm_while_the_counts_differ(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    """An entry that no cursor counted may be one that nobody read (N1)."""
    append(ferryman_db, "a", 1, 2, 3)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 1")
    keeper = RingKeeper(AT_ONCE)
    done = kept(keeper, relay, lambda done: done.alarm)
    assert done.alarm is not None
    assert (done.alarm.segment, done.alarm.entries, done.alarm.settled) == (0, 3, 2)
    assert "holds 3 entries, the cursors settled 2" in done.alarm.message
    assert "ferryman outbox replay" in done.alarm.remedy
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == 3
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 0")
    kept(keeper, relay, lambda done: done.truncated)


def test_an_alarm_is_raised_once_in_a_while_and_the_other_segments_go_on(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    append(ferryman_db, "a", 1, 2, 3)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 1")
    now = [0.0]
    keeper = RingKeeper(Space(rotate_seconds=0, retention_seconds=0, tidy_seconds=0), clock=lambda: now[0])
    found = []
    for number in range(12):
        append(ferryman_db, "a", number)
        publisher.drain()
        now[0] += 100
        found.append(keeper.run_once(relay))
    assert 2 <= sum(done.alarm is not None for done in found) <= 3
    assert sum(done.truncated is not None for done in found) > 6
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 4


def test_a_dead_entry_is_held_with_all_it_has_while_its_segment_goes(
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
    done = kept(RingKeeper(AT_ONCE), relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert (done.truncated.entries, done.truncated.moved) == (41, 1)
    assert one(ferryman_db, query) == before
    assert one(ferryman_db, "SELECT array_agg(DISTINCT segment) FROM ferryman.outbox") == [8]
    shown = "SELECT status || payload_bytes FROM ferryman.outbox_entries"
    assert one(ferryman_db, shown) == "FAILED1"
    keeper = RingKeeper(AT_ONCE)
    assert keeper.run_once(relay).held == 0
    ferryman_db.execute("UPDATE ferryman.outbox_exception SET status = 'DISCARDED'")
    assert keeper.run_once(relay).held == 1
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == 0
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_exception") == 0


def test_what_was_discarded_is_forgotten_with_its_segment(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    publisher.failing.add("dead")
    append(ferryman_db, "dead", 7, 8)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_exception SET status = 'DISCARDED'")
    done = kept(RingKeeper(AT_ONCE), relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert done.truncated.moved == 0
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_exception") == 0


def test_a_segment_with_more_waiting_entries_than_may_move_at_once_is_left_with_an_alarm(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    publisher.failing.add("dead")
    append(ferryman_db, "dead", 7, 8, 9)
    publisher.drain()
    space = Space(rotate_seconds=0, retention_seconds=0, most_moved=2)
    done = kept(RingKeeper(space), relay, lambda done: done.alarm)
    assert done.alarm is not None
    assert "3 of its entries wait" in done.alarm.message
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 3


def test_a_replay_that_is_under_way_keeps_what_it_has_not_read(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    space = Space(rotate_seconds=0, retention_seconds=1.5, tidy_seconds=0)
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = RingKeeper(space)
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


def test_a_writer_that_still_holds_the_old_number_writes_into_the_old_segment_and_is_published(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """N1: also when the segment was truncated meanwhile."""
    writer = connections()
    writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    writer.execute("SELECT 1")
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = RingKeeper(AT_ONCE)
    kept(keeper, relay, lambda done: done.truncated)
    append(writer, "old", 2)
    assert keeper.run_once(relay).truncated is None
    writer.commit()
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 1
    assert keeper.run_once(relay).truncated is None
    publisher.drain()
    assert publisher.published == [("a", 1), ("old", 2)]
    kept(keeper, relay, lambda done: done.truncated and done.truncated.segment == 0)


def test_an_entry_written_between_the_count_and_the_lock_saves_its_segment(
    ferryman_db: Database, relay: Database, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: also when the publisher has settled it already, for the count is not that of what is there."""
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = RingKeeper(AT_ONCE)
    keeper.run_once(relay)
    lock, late = ring.lock, [True]

    def write_first(connection: Database, segment: int, *, wait_seconds: float) -> None:
        if late.pop() if late else False:
            ferryman_db.execute(
                "INSERT INTO ferryman.outbox (segment, lane, topic, key, type, payload) "
                "VALUES (%s, 0, 'orders', 'late', 't', '2')",
                (segment,),
            )
        lock(connection, segment, wait_seconds=wait_seconds)

    monkeypatch.setattr(ring, "lock", write_first)
    assert keeper.run_once(relay).truncated is None
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_0") == 2
    publisher.drain()
    kept(keeper, relay, lambda done: done.truncated)
    assert publisher.published == [("a", 1), ("late", 2)]


def test_a_reader_that_uses_a_segment_delays_its_truncation_and_stops_no_writer(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    append(ferryman_db, "a", 1)
    publisher.drain()
    keeper = RingKeeper(AT_ONCE)
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


def test_a_full_ring_never_stops_a_writer(ferryman_db: Database, relay: Database) -> None:
    """Nothing is published: the ring fills, then its current segment grows."""
    keeper = RingKeeper(AT_ONCE)
    for number in range(SEGMENTS + 3):
        append(ferryman_db, "a", number)
        done = keeper.run_once(relay)
        assert done.full == (number >= SEGMENTS - 1)
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_7") == 4
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox") == SEGMENTS + 3


def test_of_two_keepers_one_keeps(ferryman_db: Database, relay: Database, connections: Callable[[], Database]) -> None:
    append(ferryman_db, "a", 1)
    with relay.transaction():
        assert ring.keep(relay, lock_seconds=1, statement_seconds=1)
        assert RingKeeper(AT_ONCE).run_once(connections()) == Kept()
    assert RingKeeper(AT_ONCE).run_once(connections()).rotated == (0, 1)


@pytest.mark.parametrize("verb", ["LOCK", "DELETE", "INSERT", "TRUNCATE", "UPDATE"])
def test_a_keeper_that_dies_at_any_step_of_a_truncation_changed_nothing(
    verb: str, ferryman_db: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """N1: its session is ended behind the statement, before it commits."""
    publisher.failing.add("dead")
    append(ferryman_db, "a", 1, 2)
    append(ferryman_db, "dead", 3)
    publisher.drain()
    relay, doomed = connections(), connections()
    RingKeeper(AT_ONCE).run_once(relay)
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
        RingKeeper(AT_ONCE).run_once(doomed)
    assert one(ferryman_db, _STATE) == before
    done = kept(RingKeeper(AT_ONCE), relay, lambda done: done.truncated)
    assert done.truncated is not None
    assert (done.truncated.entries, done.truncated.moved) == (3, 1)


def test_windows_that_no_cursor_names_and_keys_past_their_time_are_forgotten(
    ferryman_db: Database, relay: Database, publisher: Publisher
) -> None:
    for number in range(7):
        append(ferryman_db, "k", number)
        publisher.drain()
    ferryman_db.execute("SELECT ferryman.outbox_append('orders', 'x', 't', '1', idempotency_key => 'x')")
    named = "SELECT count(DISTINCT w) FROM ferryman.outbox_cursor c, LATERAL (VALUES (done), (target)) v (w)"
    windows = one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_window")
    small = RingKeeper(Space(batch=3, tidy_seconds=0))
    assert 1 <= small.run_once(relay).windows <= 3
    for _ in range(8):
        assert small.run_once(relay).keys == 0
    left = one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_window")
    assert left == one(ferryman_db, named) < windows
    assert RingKeeper(AT_ONCE).run_once(relay).keys == 1
    publisher.drain()
    assert [key for key, _ in publisher.published] == [*["k"] * 7, "x"]


def test_tidying_stays_cheap_while_an_open_snapshot_keeps_the_dead_windows(
    ferryman_db: Database, relay: Database, publisher: Publisher, connections: Callable[[], Database]
) -> None:
    """It does not read again what it deleted."""
    append(ferryman_db, "a", 1)
    publisher.drain()
    ferryman_db.execute(_WINDOWS)
    append(ferryman_db, "a", 2)
    publisher.drain()
    holder = connections()
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1 FROM ferryman.outbox_window LIMIT 1")
    keeper = RingKeeper(Space(tidy_seconds=0))
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
    """Sessions report when they end, or after a second."""
    value, same = -1, 0
    while same < 15:
        db.execute("SELECT pg_stat_clear_snapshot()")
        now = int(one(db, query))
        same = same + 1 if now == value else 0
        value = now
        time.sleep(0.02)
    return value


class Load:
    """Writers of all kinds, a publisher and a keeper side by side; what is committed is written down beside it."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._seed = seed
        self._stop = threading.Event()
        self._drained = threading.Event()
        self.errors: list[BaseException] = []
        self.published: list[Place] = []
        self.kept: list[Kept] = []
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE counters (key text PRIMARY KEY, number bigint NOT NULL DEFAULT 0)")
            db.execute("CREATE TABLE written (key text, number bigint)")
            db.execute("INSERT INTO counters (key) SELECT 'k' || n FROM generate_series(1, 20) n")

    def run(self, seconds: float) -> Counter[Place]:
        """For that long, and on a busy machine until the ring has turned enough to prove something."""
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
        keeper = RingKeeper(AT_ONCE)
        while not self._drained.is_set():
            self.kept.append(keeper.run_once(db))
            time.sleep(0.02)


@pytest.mark.slow
def test_a_ring_that_turns_all_the_time_loses_doubles_and_inverts_nothing(
    ferryman_database_url: str, seed: int
) -> None:
    """N1 to N4: under writers that hold old segment numbers, long ones and rollbacks. Slow on a busy machine."""
    load = Load(ferryman_database_url, seed)
    committed = load.run(6)
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
def test_workers_and_writers_of_every_kind_under_a_ring_that_turns_lose_double_and_invert_nothing(
    ferryman_database_url: str, ferryman_db: Database, seed: int
) -> None:
    """N1 to N4, with the relay's own workers. Slow, because many interleavings are needed."""
    stress, stop, done = Stress(ferryman_database_url, seed, writers=8, workers=2), threading.Event(), list[Kept]()

    def turn() -> None:
        keeper = RingKeeper(AT_ONCE)
        with psycopg.connect(ferryman_database_url) as connection:
            while not stop.wait(0.05):
                done.append(keeper.run_once(connection))

    thread = threading.Thread(target=turn)
    verdict = stress.run(8, thread.start)
    stop.set()
    thread.join()
    assert stress.errors == []
    assert (verdict.missing, verdict.doubled, verdict.inverted) == (set(), 0, [])
    numbers = "SELECT array_agg(key || ' ' || n ORDER BY key, n) FROM counters, generate_series(1, number) n"
    assert one(ferryman_db, numbers) == [f"{key} {number}" for key, number in sorted(verdict.published)]
    assert [each.alarm for each in done if each.alarm] == []
    assert len([each for each in done if each.truncated]) >= 2
