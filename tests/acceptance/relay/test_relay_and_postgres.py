"""The relay on the oldest and the newest PostgreSQL, and through a pooler."""

import signal
from collections.abc import Iterator

import pytest

from ferryman.testing import stack
from ferryman.testing.parts import NotHere, started
from ferryman.testing.postgres import FAST, LocalPostgres, from_wheel
from support.launch import Launcher
from support.pgbouncer import LocalPgBouncer, program
from support.published import Ferry, poll_until


@pytest.fixture(scope="module", params=[16, 18])
def wheels_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Create a migrated database on a server of this version; all other tests use the machine's own server."""
    server = started(LocalPostgres(from_wheel(request.param), FAST))
    url = stack.new_database(server.url, "ferry")
    stack.migrate(url)
    yield url
    server.close()


def cross(ferry: Ferry) -> None:
    relay = ferry.relay()
    with ferry.writers() as writers:
        poll_until(lambda: writers.commits > 150, "commits")
    assert ferry.assert_kept().doubled == 0
    relay.send(signal.SIGTERM)
    assert relay.wait() == 0


def test_relay_works_on_older_and_newer_servers(ferryman: Launcher, wheels_database: str, ferryman_kafka: str) -> None:
    """N1 to N4, N16."""
    cross(Ferry(ferryman, wheels_database, ferryman_kafka))


def test_relay_works_through_pgbouncer_in_transaction_mode(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str
) -> None:
    """N1 to N4, N16, with fewer sessions than connections."""
    try:
        pooler = started(LocalPgBouncer(ferryman_database_url, program(), pool_size=2))
    except NotHere as why:
        pytest.skip(str(why))
    try:
        ferry = Ferry(ferryman, ferryman_database_url, ferryman_kafka)
        ferry.environment["FERRYMAN_DATABASE_URL"] = pooler.url
        cross(ferry)
    finally:
        pooler.close()
