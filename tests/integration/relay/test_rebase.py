"""Restores: into another server, by an upgrade, to an earlier point in time. No waiting entry is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ferryman.relay.ring import RingKeeper
from ferryman.relay.store.kafka_cluster import check_cluster, forget_cluster
from ferryman.relay.store.rebase import Rebased, identify, rebase
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.settings_relay import RelayRing
from ferryman.testing import stack
from ferryman.testing.parts import NotHere, started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries, from_wheel
from support.plain import Database, Place, Publisher, append, one

AT_ONCE = RelayRing.model_construct(rotate_seconds=0, retention_seconds=0)
_BURN = "DO $$ BEGIN FOR n IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
_ROLES = "CREATE ROLE {0} NOLOGIN"
_XIDS = "SELECT array_agg(xid::text ORDER BY position) FROM ferryman.outbox"
_PENDING = "SELECT count(*) FROM ferryman.outbox_entries WHERE status = 'PENDING'"
_TOLD_OTHERWISE = "UPDATE ferryman.outbox_state SET system_identifier = 1"


@pytest.fixture
def db(ferryman_database_url: str) -> Iterator[Database]:
    """Give a connection that is not in autocommit mode."""
    with psycopg.connect(ferryman_database_url) as connection:
        yield connection


@pytest.fixture
def publisher(ferryman_database_url: str) -> Iterator[Publisher]:
    with psycopg.connect(ferryman_database_url) as connection:
        yield Publisher(connection)


def rebased(db: Database, *, kept_xids: bool = False, force: bool = False) -> Rebased:
    return rebase(db, who="operator", reason="a test", kept_xids=kept_xids, force=force)


def every_kind(url: str, db: Database, publisher: Publisher) -> list[Place]:
    """Append settled, failed, late, half walked and new entries. Return those that still wait, in order."""
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
    """Advance the server's transaction numbers."""
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
    """Restore with pg_dump of the old server and psql of the new one."""
    with psycopg.connect(origin.url) as before, psycopg.connect(target.url, autocommit=True) as db:
        for (role,) in before.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'ferryman%'").fetchall():
            db.execute(_ROLES.format(role))
    copy = stack.new_database(target.url, "copy")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP EXTENSION IF EXISTS pgcrypto")  # the other server may not have it
    dumped = subprocess.run([origin.tools / "pg_dump", "-d", url], capture_output=True, check=True)
    command = [str(target.tools / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", copy]
    done = subprocess.run(command, input=dumped.stdout, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(("version", "origin_ahead"), [("the same", True), ("the same", False), ("the wheel's", True)])
def test_entries_waiting_in_a_dump_are_published_by_the_restored_server(
    version: str, origin_ahead: bool, origin: Copy
) -> None:
    """N1, N3 and N4: exactly those, in order, whichever server's transaction numbers are ahead.

    Slow, because a server is started and a dump restored.
    """
    name = f"source_{version.split()[1][:3]}_{origin_ahead}".lower().replace("'", "")
    url = stack.new_database(origin.url, name)
    stack.migrate(url)
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
        assert done.exceptions == 1
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
    """Check that entries settled before and after the restore are counted together."""
    entries = one(db, "SELECT count(*) FROM ferryman.outbox")
    keeper = RingKeeper(AT_ONCE)
    keeper.run_once(relay)
    done = keeper.run_once(relay)
    assert done.truncated is not None
    assert (done.truncated.entries, done.moved) == (entries, 1)


def test_relay_role_can_tell_whose_transaction_numbers_the_journal_has(db: Database) -> None:
    db.execute("SET ROLE ferryman_relay")
    db.commit()
    assert identify(db).warning is None
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_needless_rebase_is_refused_and_changes_nothing(ferryman_db: Database, db: Database) -> None:
    append(ferryman_db, "a", 1)
    before = one(ferryman_db, _XIDS)
    with pytest.raises(Misconfigured, match="there is nothing to do"):
        rebased(db)
    assert one(ferryman_db, _XIDS) == before


def test_dry_run_counts_and_changes_nothing(
    ferryman_database_url: str, ferryman_db: Database, db: Database, publisher: Publisher
) -> None:
    waiting = every_kind(ferryman_database_url, ferryman_db, publisher)
    ferryman_db.execute(_TOLD_OTHERWISE)
    before = one(ferryman_db, _XIDS)
    done = rebase(db, who="me", reason="r", dry_run=True)
    assert (done.pending, done.dry_run) == (len(waiting), True)
    published = one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_entries WHERE status = 'PUBLISHED'")
    assert (done.settled - done.exceptions, done.exceptions) == (published, 1)
    assert one(ferryman_db, _XIDS) == before
    with pytest.raises(Misconfigured):
        identify(db)


def test_forced_rebase_can_be_repeated_and_publishes_each_entry_once(
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


def test_rebase_waits_for_writers_for_a_while_and_then_gives_up(
    ferryman_database_url: str, ferryman_db: Database, db: Database
) -> None:
    append(ferryman_db, "a", 1)
    before = one(ferryman_db, _XIDS)
    with psycopg.connect(ferryman_database_url) as writer:
        append(writer, "a", 2)
        with pytest.raises(Transient, match="did not end their transactions"):
            rebase(db, who="me", reason="r", force=True, wait_seconds=0.1)
    assert one(ferryman_db, _XIDS)[:1] == before


def test_relay_role_may_not_rebase(ferryman_db: Database, db: Database) -> None:
    ferryman_db.execute(_TOLD_OTHERWISE)
    db.execute("SET ROLE ferryman_relay")
    db.commit()
    with pytest.raises(Misconfigured, match="owner of the schema"):
        rebased(db)


def test_upgrade_that_kept_the_numbers_renumbers_nothing(
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


def test_rebase_refuses_kept_numbers_that_this_server_never_gave(ferryman_db: Database, db: Database) -> None:
    append(ferryman_db, "a", 1)
    ferryman_db.execute("UPDATE ferryman.outbox SET xid = '1000000000'")
    ferryman_db.execute(_TOLD_OTHERWISE)
    with pytest.raises(Misconfigured, match="without --kept-xids"):
        rebased(db, kept_xids=True)


def test_recounting_releases_a_segment_that_was_kept(ferryman_db: Database, db: Database, publisher: Publisher) -> None:
    """The ring's alarm names this as the last resort; it reports by how much the counts were off."""
    append(ferryman_db, "a", 1, 2, 3)
    publisher.drain()
    ferryman_db.execute("UPDATE ferryman.outbox_state SET truncated[1] = 2")
    keeper = RingKeeper(AT_ONCE, alarm_seconds=0)
    keeper.run_once(db)
    assert keeper.run_once(db).alarm is not None
    assert rebased(db, kept_xids=True, force=True).corrected == (-2, *(0,) * 7)
    assert keeper.run_once(db).truncated is not None


def test_sequence_that_was_not_restored_is_moved_past_existing_values(
    ferryman_db: Database, db: Database, publisher: Publisher
) -> None:
    append(ferryman_db, "a", 1, 2, 3)
    ferryman_db.execute("SELECT setval('ferryman.outbox_position_seq', 1, false)")
    ferryman_db.execute(_TOLD_OTHERWISE)
    assert rebased(db).mended_sequences == ("ferryman.outbox_position_seq",)
    append(ferryman_db, "a", 4)
    publisher.drain()
    assert publisher.published == [("a", n) for n in (1, 2, 3, 4)]


def test_rebase_refuses_positions_that_were_taken_twice(ferryman_db: Database, db: Database) -> None:
    append(ferryman_db, "a", 1, 2, 3)
    ferryman_db.execute("SELECT setval('ferryman.outbox_position_seq', 1, false)")
    append(ferryman_db, "a", 4)
    ferryman_db.execute(_TOLD_OTHERWISE)
    with pytest.raises(Misconfigured, match="1 positions were taken twice"):
        rebased(db)


class Recoverable(LocalPostgres):
    """A server that archives its log, and can return to a named point in it."""

    def __init__(self) -> None:
        super().__init__(binaries(), {**FAST, "archive_mode": "on", "archive_command": "cp %p ../archive/%f"})
        self._do("mkdir", self.folder / "archive")

    def back_up(self) -> None:
        """Copy the data of the stopped server."""
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
def test_recovery_to_an_earlier_point_loses_no_waiting_entry_and_warns() -> None:
    """N1: entries that the database lost stay in Kafka; those that waited at that point, and newer ones, are published.

    Slow, because a server is started three times.
    """
    server = started(Recoverable())
    try:
        url = stack.new_database(server.url, "ferryman")
        stack.migrate(url)
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
            assert found.recorded_timeline == 1
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


def test_outbox_belongs_to_the_first_real_cluster_until_somebody_lets_it_go(
    ferryman_db: Database, db: Database
) -> None:
    """Two relays on two clusters would each publish a part of the entries, and nobody would notice."""
    db.execute("SET ROLE ferryman_relay")
    db.commit()
    check_cluster(db, "mockCluster7f00")
    check_cluster(db, "")
    check_cluster(db, "first")
    check_cluster(db, "first")
    for other in ("second", "mockCluster7f00"):
        with pytest.raises(Misconfigured, match=f"the Kafka cluster first, and this is the cluster {other}") as refused:
            check_cluster(db, other)
        assert "rebase --new-cluster" in str(refused.value)
    act = {"who": "operator", "reason": "we move"}
    assert forget_cluster(db, **act, dry_run=True) == "first"
    with pytest.raises(Misconfigured):
        check_cluster(db, "second")
    assert forget_cluster(db, **act, dry_run=False) == "first"
    check_cluster(db, "second")
    assert one(ferryman_db, "SELECT kafka_cluster FROM ferryman.outbox_state") == "second"
    audited = "SELECT act, who, reason, filter FROM ferryman.outbox_audit"
    assert ferryman_db.execute(audited).fetchall() == [("rebase", "operator", "we move", {"kafka_cluster": "first"})]
