"""The pytest plugin: real servers as fixtures. It loads in milliseconds; a server starts when a test first needs it.

The environment may name servers (FERRYMAN_DATABASE_URL, FERRYMAN_KAFKA__BOOTSTRAP_SERVERS, FERRYMAN_REGISTRY_URL);
others are found or started as `ferryman.testing` says.
"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from ferryman.testing.shared import SharedParts

_PARTS = pytest.StashKey["SharedParts"]()
_ADDRESS = "ferryman_parts"


def _parts(config: pytest.Config) -> "SharedParts":
    """Return the shared servers of the test run: `SharedParts` in the controller, a proxy of it in a worker."""
    from ferryman.testing.shared import SharedParts, remote_parts

    if _PARTS not in config.stash:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        config.stash[_PARTS] = remote_parts(*worker[_ADDRESS]) if worker else SharedParts(os.environ)
    return config.stash[_PARTS]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a new worker of pytest-xdist where the controller's servers are."""
    node.workerinput[_ADDRESS] = _parts(node.config).serve()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers."""
    if _PARTS in config.stash and not hasattr(config, "workerinput"):
        config.stash[_PARTS].close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print which servers the tests used, and why no better ones."""
    if climbs := getattr(config.stash.get(_PARTS, None), "climbs", None):
        terminalreporter.section("servers")
        for climb in climbs:
            terminalreporter.line(str(climb))


@pytest.fixture(scope="session")
def ferryman_postgres(request: pytest.FixtureRequest) -> str:
    """Give the URL of a PostgreSQL server, as a superuser, that the whole run shares."""
    return _parts(request.config).url("postgres")


@pytest.fixture(scope="session")
def ferryman_kafka(request: pytest.FixtureRequest) -> str:
    """Give the bootstrap servers of a Kafka cluster that the whole run shares: use your own topics and groups."""
    return _parts(request.config).url("kafka")


@pytest.fixture(scope="session")
def ferryman_registry(request: pytest.FixtureRequest) -> str:
    """Give the URL of a schema registry that the whole run shares: use your own subjects."""
    return _parts(request.config).url("registry")


@pytest.fixture
def ferryman_new_database(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Give a function that returns the URL of another migrated database. They are dropped after the test."""
    parts, lent = _parts(request.config), list[str]()

    def lend() -> str:
        lent.append(parts.lend_database())
        return lent[-1]

    yield lend
    for url in lent:
        parts.take_back_database(url)


@pytest.fixture
def ferryman_database_url(ferryman_new_database: Callable[[], str]) -> str:
    """Give the URL of a migrated database for this test alone. It is dropped after the test."""
    return ferryman_new_database()


@pytest.fixture
def ferryman_db(ferryman_database_url: str) -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """Give an autocommit connection to a migrated database for this test alone."""
    import psycopg

    with psycopg.connect(ferryman_database_url, autocommit=True) as connection:
        yield connection
