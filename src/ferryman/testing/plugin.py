"""The pytest plugin: real servers as fixtures. Loads in milliseconds; the servers start when a test first asks.

A server is the one that the environment names (FERRYMAN_DATABASE_URL, FERRYMAN_KAFKA__BOOTSTRAP_SERVERS,
FERRYMAN_REGISTRY_URL), or one of its own: see `ferryman.testing`.
"""

import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from ferryman.testing.shared import RemoteParts, SharedParts

_PARTS = pytest.StashKey["SharedParts | RemoteParts"]()
_ADDRESS = "ferryman_parts"


def _parts(config: pytest.Config) -> "SharedParts | RemoteParts":
    """The run's shared servers, from whichever process this is."""
    from ferryman.testing.shared import Given, RemoteParts, SharedParts

    if _PARTS not in config.stash:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        names = ("FERRYMAN_DATABASE_URL", "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS", "FERRYMAN_REGISTRY_URL")
        given = Given(*(os.environ.get(name) for name in names))
        config.stash[_PARTS] = RemoteParts(worker[_ADDRESS]) if worker else SharedParts(given)
    return config.stash[_PARTS]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before pytest-xdist starts a worker: tell it where the controller's servers are."""
    from ferryman.testing.shared import SharedParts

    parts = _parts(node.config)
    assert isinstance(parts, SharedParts)
    node.workerinput[_ADDRESS] = parts.serve()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _PARTS in config.stash:
        config.stash[_PARTS].close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Which servers the tests ran against, and why not better ones."""
    if climbs := getattr(config.stash.get(_PARTS, None), "climbs", None):
        terminalreporter.section("servers")
        for climb in climbs:
            terminalreporter.line(str(climb))


@pytest.fixture(scope="session")
def ferryman_postgres(request: pytest.FixtureRequest) -> str:
    """The URL of a PostgreSQL server, as a superuser, shared by the whole run."""
    return _parts(request.config).url("postgres")


@pytest.fixture(scope="session")
def ferryman_kafka(request: pytest.FixtureRequest) -> str:
    """The bootstrap servers of a Kafka cluster, shared by the whole run: use topics and groups of your own."""
    return _parts(request.config).url("kafka")


@pytest.fixture(scope="session")
def ferryman_registry(request: pytest.FixtureRequest) -> str:
    """The URL of a schema registry, shared by the whole run: use subjects of your own."""
    return _parts(request.config).url("registry")


@pytest.fixture
def ferryman_database_url(request: pytest.FixtureRequest, ferryman_postgres: str) -> Iterator[str]:
    """The URL of a migrated database of the test's own, dropped at its end."""
    from ferryman.testing import house

    name = f"ferryman_test_{secrets.token_hex(6)}"
    template = _parts(request.config).url("template")
    yield house.new_database(ferryman_postgres, name, template)
    house.drop_database(ferryman_postgres, name)


@pytest.fixture
def ferryman_db(ferryman_database_url: str) -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """An autocommit connection to a migrated database of the test's own."""
    import psycopg

    with psycopg.connect(ferryman_database_url, autocommit=True) as connection:
        yield connection
