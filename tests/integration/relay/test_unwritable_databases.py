"""A database that can be read and not written to: what is published there could never be settled."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from ferryman.relay.store import claims
from ferryman.runtime import postgres
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.settings import Settings
from support.mockcluster import MockCluster
from support.published import poll_until, stays
from support.topics import Crossing, some_name

Database = psycopg.Connection[tuple[Any, ...]]
TOPIC = some_name()


@pytest.fixture
def crossing(ferryman_database_url: str) -> Iterator[Crossing]:
    with MockCluster() as mock:
        mock.create(TOPIC)
        yield Crossing(ferryman_database_url, mock.url)


def read_only(db: Database, *, now: bool) -> None:
    """Switch the database as its administrator does: sessions that exist keep what they had, so they are ended."""
    name = db.info.dbname
    db.execute(f"ALTER DATABASE {name} {'SET' if now else 'RESET'} default_transaction_read_only{' = on' * now}")
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
               "AND application_name LIKE 'ferryman%'")  # fmt: skip


@pytest.mark.parametrize("attributes", ["", "any"], ids=["by default", "any server will do"])
def test_relay_publishes_nothing_while_its_database_takes_no_writes(
    crossing: Crossing, ferryman_db: Database, attributes: str
) -> None:
    """N3, N11, N12: it is asked before anything is published, and found again by itself."""
    crossing.append(TOPIC, [f"k{n % 100}" for n in range(5000)])
    if attributes:
        crossing.database_url = conninfo.make_conninfo(crossing.database_url, target_session_attrs=attributes)
    read_only(ferryman_db, now=True)
    with crossing.relaying() as relay:
        poll_until(lambda: "takes no writes" in (relay.sources[0].problem or ""), "the reason")
        assert stays(lambda: "takes no writes" in (relay.sources[0].problem or ""), 1)
        assert crossing.arrived(TOPIC) == []
        read_only(ferryman_db, now=False)
        crossing.await_statuses({"PUBLISHED": 5000})
    crossing.assert_arrived(TOPIC, 5000)


def test_running_worker_claims_nothing_once_the_server_is_read_only(ferryman_db: Database) -> None:
    """N3: sessions that exist follow a server's setting, and a standby, from their next transaction on."""
    with ferryman_db.transaction():
        ferryman_db.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            claims.claim(ferryman_db, range(8), 8, idle_seconds=1)


REFUSALS = {
    "a full disk": "RAISE 'no space left' USING ERRCODE = 'disk_full'",
    "a revoked privilege": "RAISE 'permission denied' USING ERRCODE = 'insufficient_privilege'",
}


def refuse(db: Database, table: str, refusal: str) -> None:
    db.execute(
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {REFUSALS[refusal]}; END $$;"
        f"CREATE TRIGGER refusing BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
    )


@pytest.mark.parametrize("refusal", REFUSALS)
def test_entries_that_cannot_be_settled_are_published_once(
    crossing: Crossing, ferryman_db: Database, refusal: str
) -> None:
    """N3, N11, N12: each new connection tries the write before it publishes, until the database is mended."""
    crossing.append(TOPIC, ["first"])
    with crossing.relaying(workers=4):
        crossing.await_statuses({"PUBLISHED": 1})
        refuse(ferryman_db, "ferryman.outbox_cursor", refusal)
        crossing.append(TOPIC, [f"k{n % 100}" for n in range(2000)])
        assert stays(lambda: crossing.statuses() == {"PUBLISHED": 1, "PENDING": 2000}, 3)
        assert len(crossing.arrived(TOPIC)) - 1 <= 2 * 2000  # a worker may be in its last turn when another one fails
        ferryman_db.execute("DROP TRIGGER refusing ON ferryman.outbox_cursor")
        crossing.await_statuses({"PUBLISHED": 2001})
    crossing.assert_arrived(TOPIC, 2001, doubles=True)


def test_entry_whose_failure_cannot_be_written_is_not_tried_at_full_speed(
    crossing: Crossing, ferryman_db: Database
) -> None:
    """N3, N12: the waits grow, although other workers find nothing to do."""
    with crossing.relaying(workers=4):
        refuse(ferryman_db, "ferryman.outbox_exception", "a full disk")
        crossing.append(TOPIC, ["one"])
        crossing.await_statuses({"PUBLISHED": 1})
        crossing.append("not.there", ["one"])
        crossing.append(TOPIC, ["one"])
        assert stays(lambda: crossing.statuses() == {"PUBLISHED": 1, "PENDING": 2}, 3)
        # Waits of 0.1, 0.2, 0.4, 0.8 and 1.6 seconds leave room for six tries of each worker in these three seconds.
        assert len(crossing.arrived(TOPIC)) - 1 <= 24
        ferryman_db.execute("DROP TRIGGER refusing ON ferryman.outbox_exception")


def test_connection_that_must_write_is_refused_by_a_database_that_cannot(
    ferryman_database_url: str, ferryman_db: Database
) -> None:
    read_only(ferryman_db, now=True)
    settings = Settings(database_url=ferryman_database_url)
    postgres.connect(settings, "test").close()
    with pytest.raises(Unreachable, match=r"takes no writes.*connect to the primary"):
        postgres.connect(settings, "test", writes=True)
