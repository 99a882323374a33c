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


@pytest.mark.parametrize("refusal", REFUSALS)
def test_entry_that_cannot_be_settled_is_not_published_at_full_speed(
    crossing: Crossing, ferryman_db: Database, refusal: str
) -> None:
    """N3, N11, N12: between publishing and the commit something fails each time, until it is mended."""
    crossing.append(TOPIC, ["first"])
    with crossing.relaying(workers=1):
        crossing.await_statuses({"PUBLISHED": 1})
        ferryman_db.execute(
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {REFUSALS[refusal]}; END $$;"
            "CREATE TRIGGER refusing BEFORE INSERT ON ferryman.outbox_cursor FOR EACH STATEMENT "
            "EXECUTE FUNCTION refuse()"
        )
        crossing.append(TOPIC, ["again"])
        assert stays(lambda: crossing.statuses() == {"PUBLISHED": 1, "PENDING": 1}, 3)
        # Waits of 0.1, 0.2, 0.4, 0.8 and 1.6 seconds leave room for six tries in these three seconds.
        assert 1 <= len(crossing.arrived(TOPIC)) - 1 <= 6
        ferryman_db.execute("DROP TRIGGER refusing ON ferryman.outbox_cursor")
        crossing.await_statuses({"PUBLISHED": 2})
    crossing.assert_arrived(TOPIC, 2, doubles=True)


def test_connection_that_must_write_is_refused_by_a_database_that_cannot(
    ferryman_database_url: str, ferryman_db: Database
) -> None:
    read_only(ferryman_db, now=True)
    settings = Settings(database_url=ferryman_database_url)
    postgres.connect(settings, "test").close()
    with pytest.raises(Unreachable, match=r"takes no writes.*connect to the primary"):
        postgres.connect(settings, "test", writes=True)
