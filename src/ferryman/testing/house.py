"""All the parts of a running system, brought up side by side: what `up`, `demo`, benches and tests live in."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg import conninfo, sql

from ferryman.migrations import chains
from ferryman.runtime.settings import Kafka, Settings
from ferryman.testing import kafka, postgres, registry
from ferryman.testing.ladder import Climb
from ferryman.testing.part import Part

DATABASE = "ferryman"


@dataclass(frozen=True, slots=True)
class House:
    """What came up, and how to reach it."""

    database_url: str
    kafka: Part
    registry: Part | None
    climbs: tuple[Climb, ...]

    @property
    def settings(self) -> Settings:
        return Settings(
            database_url=self.database_url,
            registry_url=self.registry.url if self.registry else None,
            kafka=Kafka(bootstrap_servers=self.kafka.url),
        )

    @property
    def environment(self) -> dict[str, str]:
        """The names by which any process of ours finds the parts."""
        urls = {"FERRYMAN_DATABASE_URL": self.database_url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka.url}
        return urls | ({"FERRYMAN_REGISTRY_URL": self.registry.url} if self.registry else {})


@contextmanager
def open_house(*, embedded: bool, registry_too: bool) -> Iterator[House]:
    """Brings up the parts side by side, makes a migrated database, and ends everything at the end."""
    with ExitStack() as closing:
        with ThreadPoolExecutor() as pool:
            servers = pool.submit(_postgres, embedded, closing)
            broker = pool.submit(_kept, partial(kafka.find, embedded=embedded), closing)
            schemas = pool.submit(_kept, partial(registry.find, embedded=embedded), closing) if registry_too else None
        url, first = servers.result()
        kafka_part, second = broker.result()
        registry_part, *third = schemas.result() if schemas else (None,)
        yield House(url, kafka_part, registry_part, (first, second, *third))


def _postgres(embedded: bool, closing: ExitStack) -> tuple[str, Climb]:
    """The database of the house, migrated while the other parts still come up."""
    server, climb = _kept(partial(postgres.find, embedded=embedded), closing)
    url = new_database(server.url, DATABASE)
    migrate(url)
    return url, climb


def _kept(find: Callable[[], tuple[Part, Climb]], closing: ExitStack) -> tuple[Part, Climb]:
    """A part that is closed with the house, also when another one fails to come up."""
    part, climb = find()
    closing.callback(part.close)
    return part, climb


def new_database(server_url: str, name: str, template: str | None = None) -> str:
    """Creates a database and gives its URL."""
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template:
        statement += sql.SQL(" TEMPLATE {} STRATEGY file_copy").format(sql.Identifier(template))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)
    return database_url(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def database_url(server_url: str, name: str) -> str:
    """The URL of another database on the same server."""
    parts = conninfo.conninfo_to_dict(server_url)
    login = f"{parts.get('user', 'postgres')}:{parts.get('password', '')}"
    return f"postgresql://{login}@{parts.get('host', '127.0.0.1')}:{parts.get('port', 5432)}/{name}"


def migrate(url: str) -> None:
    """Every chain, as `ferryman migrate --for all`."""
    from ferryman.migrations.upgrade import upgrade

    upgrade(lambda: psycopg.connect(url), chains.owners())
