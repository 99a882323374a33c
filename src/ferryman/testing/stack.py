"""Start PostgreSQL, Kafka and a registry together, for `ferryman up` and demos, and create databases on a server."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import conninfo, sql

from ferryman.migrations import chains
from ferryman.runtime.settings import Kafka, Settings
from ferryman.testing import kafka, postgres, registry
from ferryman.testing.parts import Climb, Part, Reach

DATABASE = "ferryman"


@dataclass(frozen=True, slots=True)
class RunningParts:
    """The servers that were started, and their addresses."""

    database_url: str
    kafka: Part
    registry: Part | None
    climbs: tuple[Climb, ...]

    @property
    def settings(self) -> Settings:
        """The settings of a process that uses these servers."""
        return Settings(
            database_url=self.database_url,
            registry_url=self.registry.url if self.registry else None,
            kafka=Kafka(bootstrap_servers=self.kafka.url),
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment by which a `ferryman` process finds these servers."""
        urls = {"FERRYMAN_DATABASE_URL": self.database_url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka.url}
        return urls | ({"FERRYMAN_REGISTRY_URL": self.registry.url} if self.registry else {})


@contextmanager
def open_stack(*, reach: Reach, registry_too: bool, owners: Sequence[str] = (chains.ENGINE,)) -> Iterator[RunningParts]:
    """Start the servers in parallel, create a database migrated for these owners, and stop everything at the end."""
    with ExitStack() as closing:
        with ThreadPoolExecutor() as pool:
            servers = pool.submit(_postgres, reach, owners, closing)
            broker = pool.submit(_kept, kafka.find, reach, closing)
            schemas = pool.submit(_kept, registry.find, reach, closing) if registry_too else None
        url, first = servers.result()
        kafka_part, second = broker.result()
        registry_part, *third = schemas.result() if schemas else (None,)
        yield RunningParts(url, kafka_part, registry_part, (first, second, *third))


def _postgres(reach: Reach, owners: Sequence[str], closing: ExitStack) -> tuple[str, Climb]:
    """Start PostgreSQL and migrate a database, while the other servers are still starting."""
    server, climb = _kept(postgres.find, reach, closing)
    url = new_database(server.url, DATABASE)
    migrate(url, owners)
    return url, climb


def _kept(find: Callable[..., tuple[Part, Climb]], reach: Reach, closing: ExitStack) -> tuple[Part, Climb]:
    """Find a server, and close it at the end, even if another one fails to start."""
    part, climb = find(reach=reach)
    closing.callback(part.close)
    return part, climb


def new_database(server_url: str, name: str, template: str | None = None) -> str:
    """Create a database, and return its URL."""
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template:
        statement += sql.SQL(" TEMPLATE {} STRATEGY file_copy").format(sql.Identifier(template))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)
    return database_url(server_url, name)


@contextmanager
def temporary_database(server_url: str, name: str, template: str | None = None) -> Iterator[str]:
    """Give the URL of a new database, and drop it at the end."""
    url = new_database(server_url, name, template)
    try:
        yield url
    finally:
        drop_database(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    """Drop a database, with the connections to it."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def database_url(server_url: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    return _url({**conninfo.conninfo_to_dict(server_url), "dbname": name})


def name_of(url: str) -> str:
    """Return the name of the database that a URL leads to."""
    return str(conninfo.conninfo_to_dict(url)["dbname"])


def _url(parts: Mapping[str, Any]) -> str:
    login = f"{parts.get('user', 'postgres')}:{parts.get('password', '')}"
    return f"postgresql://{login}@{parts.get('host', '127.0.0.1')}:{parts.get('port', 5432)}/{parts['dbname']}"


def login(url: str, name: str, *roles: str) -> str:
    """Create a login for this database with these roles, or with none. Return its URL."""
    parts, password = conninfo.conninfo_to_dict(url), secrets.token_hex(8)
    user = f"{name}_{parts['dbname']}"[:63]
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(user), sql.Literal(password))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(create)
        for role in roles:
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(user)))
    return _url({**parts, "user": user, "password": password})


def migrate(url: str, owners: Sequence[str] | None = None) -> None:
    """Migrate a database as `ferryman migrate --for` does: for these owners, or for all."""
    chains.upgrade(lambda: psycopg.connect(url), owners or chains.owners())
