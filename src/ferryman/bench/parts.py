"""What a measurement is given: servers, databases and topics of its own, and how much to measure.

Servers of our own have PostgreSQL's and Kafka's ordinary settings, and their data on disk: nothing is measured that a
user would not have. On servers that are given, every database and topic is made for the run and dropped after it.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import psutil
import psycopg

from ferryman.bench.scale import PARTITIONS, Scale
from ferryman.runtime import kafka as runtime_kafka
from ferryman.runtime import postgres as runtime_postgres
from ferryman.runtime.errors import Misconfigured, env_name
from ferryman.runtime.settings import Kafka, Settings
from ferryman.testing import house, java, kafka, postgres
from ferryman.testing.part import Given, Local

_COUNTER_EXISTS = """\
-- bench.counter_exists
SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'
"""
_COUNTER_ANSWERS = "-- bench.counter_answers\nSELECT count(*) FROM pg_stat_statements"
_PRELOAD = "-- bench.preload\nALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'"
_CREATE_COUNTER = "-- bench.create_counter\nCREATE EXTENSION IF NOT EXISTS pg_stat_statements"


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: every measurement has databases and topics of its own on the same servers."""

    scale: Scale
    server_url: str
    template: str
    kafka: Kafka
    kafka_version: str
    counts_statements: bool
    owns_all: bool
    environment: Callable[..., Mapping[str, str]]
    say: Callable[[str], None]
    servers: Mapping[str, Callable[[], int | None]] = field(default_factory=dict)
    """The process numbers of those that are ours."""

    def servers_cpu_seconds(self) -> dict[str, float]:
        """Of each server with all that it started, also what has ended since."""
        return {name: _cpu_seconds(number) for name, pid in self.servers.items() if (number := pid()) is not None}

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a migrated database that nothing else writes to."""
        name = f"ferryman_bench_{secrets.token_hex(4)}"
        yield house.new_database(self.server_url, name, self.template)
        house.drop_database(self.server_url, name)

    @contextmanager
    def topic(self, **config: str) -> Iterator[str]:
        """A topic that nothing else writes to."""
        from confluent_kafka.admin import NewTopic

        name = f"ferryman-bench-{secrets.token_hex(4)}"
        admin = runtime_kafka.admin(self.kafka, "bench")
        runtime_kafka.create_topics(admin, [NewTopic(name, PARTITIONS, 1, config=config)], self.kafka.timeout_seconds)
        yield name
        for future in admin.delete_topics([name]).values():
            future.result(self.kafka.timeout_seconds)

    def relay_environment(self, database_url: str, **more: str) -> Mapping[str, str]:
        """What a process of ours finds the servers by."""
        properties = {env_name(f"kafka.{name}"): value for name, value in self.kafka.properties.items()}
        urls = {
            "FERRYMAN_DATABASE_URL": database_url,
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers or "",
            "FERRYMAN_KAFKA__COMPRESSION_TYPE": "lz4",
        }
        return self.environment(**{**properties, **urls, **more})


@contextmanager
def open_bench(
    settings: Settings, scale: Scale, environment: Callable[..., Mapping[str, str]], say: Callable[[str], None]
) -> Iterator[Bench]:
    """Brings up what no URL names, and makes the migrated database that every measurement copies."""
    url = runtime_postgres.required_url(settings) if settings.database_url else None
    with ExitStack() as closing:
        broker, climb = kafka.find(settings.kafka.bootstrap_servers, embedded=not settings.kafka.bootstrap_servers)
        closing.callback(broker.close)
        if isinstance(broker, kafka.BuiltInKafka):
            raise Misconfigured(
                f"a bench needs a real broker, and this machine has none ({climb})",
                setting="kafka.bootstrap_servers", remedy="name one, or install Java 17 and Maven",
            )  # fmt: skip
        say(str(climb))
        server, climb = postgres.find(url, embedded=url is None)
        closing.callback(server.close)
        say(str(climb))
        counts = _counter_runs(server.url, None if isinstance(server, Given) else server.restart)
        template = f"ferryman_bench_template_{secrets.token_hex(4)}"
        migrated = house.new_database(server.url, template)
        closing.callback(house.drop_database, server.url, template)
        house.migrate(migrated)
        if counts:
            with psycopg.connect(migrated, autocommit=True) as connection:
                connection.execute(_CREATE_COUNTER)
        ours = settings.kafka.model_copy(update={"bootstrap_servers": broker.url})
        version = f"Apache Kafka {java.version('kafka')}" if isinstance(broker, kafka.LocalKafka) else climb.took
        owns_all = not isinstance(server, Given) and not isinstance(broker, Given)
        own = {
            name: partial(getattr, part.process, "pid")
            for name, part in (("PostgreSQL", server), ("Kafka", broker)) if isinstance(part, Local)
        }  # fmt: skip
        yield Bench(scale, server.url, template, ours, version, counts, owns_all, environment, say, own)


def open_without_servers(
    settings: Settings, scale: Scale, environment: Callable[..., Mapping[str, str]], say: Callable[[str], None]
) -> Bench:
    """For what is measured in this process alone."""
    return Bench(scale, "", "", settings.kafka, "", False, True, environment, say)


def _cpu_seconds(number: int) -> float:
    root, used = psutil.Process(number), 0.0
    for each in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):  # what it took is then its parent's to tell
            used += sum(each.cpu_times()[:4])
    return used


def _counter_runs(url: str, restart: Callable[[], None] | None) -> bool:
    """Whether pg_stat_statements counts; on a server of our own it is switched on where its build has it."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_COUNTER_EXISTS).fetchone()
        if row is None or not row[0]:
            return False
        if restart is not None:
            connection.execute(_PRELOAD)
    if restart is not None:
        restart()
        return True
    try:
        with psycopg.connect(url) as connection:
            connection.execute(_CREATE_COUNTER)
            connection.execute(_COUNTER_ANSWERS)
            connection.rollback()
    except psycopg.Error:
        return False
    return True
