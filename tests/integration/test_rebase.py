"""Restores: into another server, by an upgrade, to an earlier point in time. Nothing that still waited is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ferryman.relay.rebase import Rebased, identify, rebase
from ferryman.relay.ring import RingKeeper, Space
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.testing import house
from ferryman.testing.ladder import NotHere
from ferryman.testing.part import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries, from_wheel
from support.plain import Database, Place, Publisher, append, one

AT_ONCE = Space(rotate_seconds=0, retention_seconds=0)
_BURN = "DO $$ BEGIN FOR n IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
_ROLES = "CREATE ROLE {0} NOLOGIN"
_XIDS = "SELECT array_agg(xid::text ORDER BY position) FROM ferryman.outbox"
_PENDING = "SELECT count(*) FROM ferryman.outbox_entries WHERE status = 'PENDING'"
_TOLD_OTHERWISE = "UPDATE ferryman.outbox_state SET system_identifier = 1"


@pytest.fixture
def db(ferryman_database_url: str) -> Iterator[Database]:
    """Not in autocommit mode, as the relay and the command line connect."""
    with psycopg.connect(ferryman_database_url) as connection:
        yield connection


@pytest.fixture
def publisher(ferryman_database_url: str) -> Iterator[Publisher]:
    with psycopg.connect(ferryman_database_url) as connection:
        yield Publisher(connection)


def rebased(db: Database, *, kept_xids: bool = False, force: bool = False) -> Rebased:
    return rebase(db, who="operator", reason="a test", kept_xids=kept_xids, force=force)


def every_kind(url: str, db: Database, publisher: Publisher) -> list[Place]:
    """Settled, failed, late, half walked and new entries; returns those that still wait, in their order."""
    publisher.failing.add("dead")
    with psycopg.connect(url) as late:
        append(db, "early", *range(10))
        append(late, "late", 1)
        append(db, "dead", 7)
        publisher.drain()
        append(db, "half", *range(120))
        publisher.turn()
        late.commit()
    published = [number for key, number in publisher.published if key == "half"]
    assert published == list(range(len(published)))
    assert 0 < len(published) < 120
    append(db, "new", *range(5))
    return [("late", 1), *(("half", n) for n in range(len(published), 120)), *(("new", n) for n in range(5))]


def by_key(places: list[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, number in places:
        found.setdefault(key, []).append(number)
    return found


class Copy(LocalPostgres):
    """A server that a database was restored into."""

    @property
    def tools(self) -> Path:
        return self._binaries


def burn(server: LocalPostgres, count: int) -> None:
    """Moves the server's transaction numbers on."""
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(_BURN.format(count))


@pytest.fixture(scope="module")
def origin() -> Iterator[Copy]:
    server = started(Copy(binaries(), FAST))
    yield server
    server.close()


def wheel() -> Path:
    try:
        return from_wheel()
    except NotHere as why:
        pytest.skip(str(why))


def restored(origin: Copy, url: str, target: Copy) -> str:
    """By pg_dump of the old server and psql of the new one."""
    with psycopg.connect(target.url, autocommit=True) as db:
        for role in ("writer", "relay", "consumer", "monitor"):
            db.execute(_ROLES.format(f"ferryman_{role}"))
    copy = house.new_database(target.url, "copy")
    dumped = subprocess.run([origin.tools / "pg_dump", "-d", url], capture_output=True, check=True)
    command = [str(target.tools / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", copy]
    done = subprocess.run(command, input=dumped.stdout, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(("version", "origin_ahead"), [("the same", True), ("the same", False), ("the wheel's", True)])
def test_what_waited_when_it_was_dumped_is_published_by_the_server_it_was_restored_into(
    version: str, origin_ahead: bool, origin: Copy
) -> None:
    """N1, N3 and N4: exactly that, in order, whichever server's transaction numbers are ahead.

    Slow, because a server is started and a dump restored.
    """
    name = f"source_{version.split()[1][:3]}_{origin_ahead}".lower().replace("'", "")
    url = house.new_database(origin.url, name)
    house.migrate(url)
    target = started(Copy(binaries() if version == "the same" else wheel(), FAST))
    try:
        burn(origin if origin_ahead else target, 30_000)
        with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url) as reader:
            waiting = every_kind(url, db, Publisher(reader))
        copy = restored(origin, url, target)
        with psycopg.connect(copy, autocommit=True) as db, psycopg.connect(copy) as relay:
            check_the_copy(db, relay, waiting)
    finally:
        target.close()


def check_the_copy(db: Database, relay: Database, waiting: list[Place]) -> None:
    with pytest.raises(Misconfigured, match="ferryman outbox rebase"):
        identify(relay)
    append(db, "new", 5)
    append(db, "since", 1)
    waiting += [("new", 5), ("since", 1)]
    with psycopg.connect(db.info.dsn, password=db.info.password) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        assert rebase(relay, who="me", reason="r", dry_run=True).pending == len(waiting)
        done = rebased(relay)
        assert (done.pending, done.settled, done.corrected) == (len(waiting), one(db, _SETTLED), (0,) * 8)
        append(slow, "slow", 1)
        slow.commit()
    assert identify(relay).warning is None
    publisher = Publisher(relay)
    publisher.drain()
    assert by_key(publisher.published) == by_key([*waiting, ("slow", 1)])
    assert len(publisher.published) == len(waiting) + 1
    shown = "SELECT array_agg(DISTINCT key || ' ' || status) FROM ferryman.outbox_entries WHERE status <> 'PUBLISHED'"
    assert one(db, shown) == ["dead FAILED"]
    audited = "SELECT who || ' ' || act || ' ' || reason || ' ' || entries FROM ferryman.outbox_audit"
    assert one(db, audited) == f"operator rebase a test {len(waiting)}"
    check_the_ring(db, relay)


_SETTLED = "SELECT count(*) FROM ferryman.outbox_entries WHERE status <> 'PENDING'"


def check_the_ring(db: Database, relay: Database) -> None:
    """What was settled before and after the restore is counted as one."""
    entries = one(db, "SELECT count(*) FROM ferryman.outbox")
    keeper = RingKeeper(AT_ONCE)
    keeper.run_once(relay)
    truncated = keeper.run_once(relay).truncated
    assert truncated is not None
    assert (truncated.entries, truncated.moved) == (entries, 1)


def test_the_server_that_the_numbers_are_of_is_known_with_the_rights_of_the_relay(db: Database) -> None:
    db.execute("SET ROLE ferryman_relay")
    db.commit()
    assert identify(db).warning is None
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_rebase_that_is_not_needed_is_refused_and_changes_nothing(ferryman_db: Database, db: Database) -> None:
    append(ferryman_db, "a", 1)
    before = one(ferryman_db, _XIDS)
    with pytest.raises(Misconfigured, match="nothing is to be done"):
        rebased(db)
    assert one(ferryman_db, _XIDS) == before


def test_a_dry_run_counts_and_changes_nothing(
    ferryman_database_url: str, ferryman_db: Database, db: Database, publisher: Publisher
) -> None:
    waiting = every_kind(ferryman_database_url, ferryman_db, publisher)
    ferryman_db.execute(_TOLD_OTHERWISE)
    before = one(ferryman_db, _XIDS)
    done = rebase(db, who="me", reason="r", dry_run=True)
    assert (done.pending, done.dry_run) == (len(waiting), True)
    assert one(ferryman_db, _XIDS) == before
    with pytest.raises(Misconfigured):
        identify(db)


def test_a_forced_rebase_of_the_same_server_can_be_repeated_and_publishes_all_once(
    ferryman_database_url: str, ferryman_db: Database, db: Database, publisher: Publisher
) -> None:
    waiting = every_kind(ferryman_database_url, ferryman_db, publisher)
    publisher.published.clear()
    for _ in range(3):
        assert rebased(db, force=True).pending == len(waiting) == one(ferryman_db, _PENDING)
    publisher.drain()
    assert by_key(publisher.published) == by_key(waiting)
    assert rebased(db, force=True).pending == 0
    publisher.drain()
    assert len(publisher.published) == len(waiting)
    assert one(ferryman_db, "SELECT ferryman.outbox_peek()") is False
    check_the_ring(ferryman_db, db)


def test_a_rebase_waits_for_writers_for_a_while_and_then_says_so(
    ferryman_database_url: str, ferryman_db: Database, db: Database
) -> None:
    append(ferryman_db, "a", 1)
    before = one(ferryman_db, _XIDS)
    with psycopg.connect(ferryman_database_url) as writer:
        append(writer, "a", 2)
        with pytest.raises(Transient, match="did not end their transactions"):
            rebase(db, who="me", reason="r", force=True, wait_seconds=0.1)
    assert one(ferryman_db, _XIDS)[:1] == before


def test_the_relay_may_not_rebase(ferryman_db: Database, db: Database) -> None:
    ferryman_db.execute(_TOLD_OTHERWISE)
    db.execute("SET ROLE ferryman_relay")
    db.commit()
    with pytest.raises(Misconfigured, match="owner of the schema"):
        rebased(db)


def test_an_upgrade_that_kept_the_numbers_renumbers_nothing(
    ferryman_database_url: str, ferryman_db: Database, db: Database, publisher: Publisher
) -> None:
    waiting = every_kind(ferryman_database_url, ferryman_db, publisher)
    publisher.published.clear()
    ferryman_db.execute(_TOLD_OTHERWISE)
    before = one(ferryman_db, _XIDS)
    done = rebased(db, kept_xids=True)
    assert (done.pending, done.renumbered, done.corrected) == (len(waiting), 0, (0,) * 8)
    assert one(ferryman_db, _XIDS) == before
    assert identify(db).warning is None
    publisher.drain()
    assert by_key(publisher.published) == by_key(waiting)
    check_the_ring(ferryman_db, db)


def test_numbers_that_this_server_has_not_given_yet_were_not_kept(ferryman_db: Database, db: Database) -> None:
    append(ferryman_db, "a", 1)
    ferryman_db.execute("UPDATE ferryman.outbox SET xid = '1000000000'")
    ferryman_db.execute(_TOLD_OTHERWISE)
    with pytest.raises(Misconfigured, match="without --kept-xids"):
        rebased(db, kept_xids=True)


def test_counting_anew_mends_what_keeps_a_segment(ferryman_db: Database, db: Database, publisher: Publisher) -> None:
    """What the alarm of the ring names as the last step, with the numbers of how far it was off."""
    append(ferryman_db, "a", 1, 2, 3)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 2")
    keeper = RingKeeper(Space(rotate_seconds=0, retention_seconds=0, alarm_seconds=0))
    keeper.run_once(db)
    assert keeper.run_once(db).alarm is not None
    assert rebased(db, kept_xids=True, force=True).corrected == (-2, *(0,) * 7)
    assert keeper.run_once(db).truncated is not None


def test_a_sequence_that_was_not_restored_is_moved_behind_what_is_there(
    ferryman_db: Database, db: Database, publisher: Publisher
) -> None:
    append(ferryman_db, "a", 1, 2, 3)
    ferryman_db.execute("SELECT setval('ferryman.outbox_position_seq', 1, false)")
    ferryman_db.execute(_TOLD_OTHERWISE)
    assert rebased(db).mended_sequences == ("ferryman.outbox_position_seq",)
    append(ferryman_db, "a", 4)
    publisher.drain()
    assert publisher.published == [("a", n) for n in (1, 2, 3, 4)]


def test_positions_that_were_taken_twice_are_refused(ferryman_db: Database, db: Database) -> None:
    append(ferryman_db, "a", 1, 2, 3)
    ferryman_db.execute("SELECT setval('ferryman.outbox_position_seq', 1, false)")
    append(ferryman_db, "a", 4)
    ferryman_db.execute(_TOLD_OTHERWISE)
    with pytest.raises(Misconfigured, match="1 positions were taken twice"):
        rebased(db)


class Recoverable(LocalPostgres):
    """A server that archives its log, and can go back to a point that was named in it."""

    def __init__(self) -> None:
        super().__init__(binaries(), {**FAST, "archive_mode": "on", "archive_command": "cp %p ../archive/%f"})
        self._do("mkdir", self.folder / "archive")

    def back_up(self) -> None:
        """Of a server that is stopped."""
        self._do("cp", "-a", self._data, self.folder / "backup")

    def recover(self, point: str) -> None:
        self.stop()
        self._do("rm", "-r", self._data)
        self._do("cp", "-a", self.folder / "backup", self._data)
        settings = {
            "restore_command": "cp ../archive/%f %p",
            "recovery_target_name": point,
            "recovery_target_action": "promote",
        }
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        with (self._data / "postgresql.auto.conf").open("a") as settings_file:
            settings_file.write(lines)
        self._do("touch", self._data / "recovery.signal")
        self.start()

    def _do(self, *command: object) -> None:
        subprocess.run([str(word) for word in command], check=True)
        if self._user is not None:
            subprocess.run(["chown", "-R", f"{self._user.pw_uid}", str(self.folder)], check=True)


@pytest.mark.slow
def test_after_a_recovery_to_an_earlier_point_nothing_that_waits_there_is_lost_and_the_relay_is_warned() -> None:
    """N1: what the database lost stays with Kafka, what waited at that point and what comes after it is published.

    Slow, because a server is started three times.
    """
    server = started(Recoverable())
    try:
        url = house.new_database(server.url, "ferryman")
        house.migrate(url)
        server.stop()
        server.back_up()
        server.start()
        with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url) as relay:
            assert identify(relay).warning is None
            waiting = every_kind(url, db, Publisher(relay))
            db.execute("SELECT pg_create_restore_point('before')")
            append(db, "lost", 1)
            publisher = Publisher(relay)
            publisher.drain()
            assert ("lost", 1) in publisher.published
            db.execute("SELECT pg_switch_wal()")
        server.recover("before")
        with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url) as relay:
            await_promotion(db)
            found = identify(relay)
            assert found.previous_timeline == 1
            assert found.timeline == 2
            assert found.warning is not None
            assert "Kafka may hold entries that the database lost" in found.warning
            assert identify(relay).warning is None
            publisher = Publisher(relay)
            append(db, "after", 1)
            publisher.drain()
            assert by_key(publisher.published) == by_key([*waiting, ("after", 1)])
            check_the_ring(db, relay)
    finally:
        server.close()


def await_promotion(db: Database) -> None:
    while one(db, "SELECT pg_is_in_recovery()"):
        db.execute("SELECT pg_sleep(0.05)")
