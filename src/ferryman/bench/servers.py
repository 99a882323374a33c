"""One run of a bench: its amounts, and its servers with databases and topics of its own for each measurement.

Our own servers have the ordinary settings of PostgreSQL and Kafka, and their data on disk: nothing is measured that a
user would not have. On given servers, every database and topic is created for the run and dropped after it.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median_low
from typing import TypeVar

import psutil
import psycopg

from ferryman.bench import meters
from ferryman.runtime import kafka as runtime_kafka
from ferryman.runtime import postgres as runtime_postgres
from ferryman.runtime.errors import Misconfigured, env_name
from ferryman.runtime.settings import Kafka, Settings
from ferryman.testing import java, kafka, postgres, stack
from ferryman.testing.parts import Local, Part

T = TypeVar("T")

KEYS = 10_000
PARTITIONS = 6
PAYLOAD_BYTES = 200
STEADY_RATE = 1000

_QUICK = 100
_DISTURBED_SHARE = 0.05
"""The share of all cores from which on others disturb. A desktop's own programs stay below it."""
_MOST_TIMES = 3

_COUNTER_EXISTS = """\
-- bench.counter_exists
SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'
"""
_COUNTER_ANSWERS = "-- bench.counter_answers\nSELECT count(*) FROM pg_stat_statements"
_PRELOAD = "-- bench.preload\nALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'"
_CREATE_COUNTER = "-- bench.create_counter\nCREATE EXTENSION IF NOT EXISTS pg_stat_statements"


@dataclass(frozen=True, slots=True)
class Scale:
    """The amounts of one run: those of the goals, or a hundredth to see that everything works."""

    quick: bool
    entries: int
    retained: int
    """The entries that a journal retains: 5,000,000 for 1,000,000."""
    commands: int
    """The commands for one run of a consumer: 100,000 for 1,000,000."""
    windows: int
    """The windows that are written before a claim is measured: 20,000 for 1,000,000."""
    rounds: int
    """The number of rounds in which compared things take turns."""
    steady_seconds: float
    warm_seconds: float
    idle_seconds: float
    quiet_seconds: float
    """The time without WAL before a relay counts as idle.

    The server logs its running transactions up to 25 s after its last WAL: the relay does not cause that.
    """
    trials: int
    """The number of first entries after idleness."""
    transactions: int
    """The number of single-row transactions of each kind."""

    @classmethod
    def of(cls, entries: int, *, quick: bool) -> "Scale":
        """Return the scale of a run with so many entries. Times are shorter only in a quick run."""
        if quick:
            entries = max(1000, entries // _QUICK)
        counts = (entries, 5 * entries, max(2000, entries // 10), max(200, entries // 50))
        if quick:
            return cls(quick, *counts, 1, 1.5, 0.5, 2, 0.5, 3, 200)
        return cls(quick, *counts, 3, 30, 5, 20, 26, 20, 5000)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: its scale, where it says how far it is, and its servers if it needs any."""

    scale: Scale
    kafka: Kafka
    environment: Callable[..., Mapping[str, str]]
    say: Callable[[str], None]
    servers: Mapping[str, Part] = field(default_factory=dict)
    kafka_version: str = ""
    template: str = ""
    counts_statements: bool = False
    """True if the server has pg_stat_statements."""

    @property
    def owns_all(self) -> bool:
        """True if we started all servers, so that their CPU time is ours."""
        return all(isinstance(each, Local) for each in self.servers.values())

    @property
    def server_url(self) -> str | None:
        """The URL of the PostgreSQL server."""
        return self.servers["PostgreSQL"].url if self.servers else None

    def servers_cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of each server that we started, by its name."""
        ours = {name: each.pid for name, each in self.servers.items() if isinstance(each, Local)}
        return {name: meters.cpu_seconds(psutil.Process(pid)) for name, pid in ours.items() if pid is not None}

    def database(self) -> AbstractContextManager[str]:
        """Give the URL of a migrated database that nothing else writes to."""
        name = f"ferryman_bench_{secrets.token_hex(4)}"
        return stack.temporary_database(self.servers["PostgreSQL"].url, name, self.template)

    @contextmanager
    def topic(self, **config: str) -> Iterator[str]:
        """Give the name of a topic that nothing else writes to."""
        name = f"ferryman-bench-{secrets.token_hex(4)}"
        self.create_topics(name, **config)
        yield name
        admin = runtime_kafka.admin(self.kafka, "bench")
        for future in admin.delete_topics([name]).values():
            future.result(self.kafka.timeout_seconds)

    @contextmanager
    def journal(self) -> Iterator[tuple[str, str, meters.Connection]]:
        """Give a topic, the URL of a database, and an autocommit connection to it."""
        with self.topic() as topic, self.database() as url, psycopg.connect(url, autocommit=True) as connection:
            yield topic, url, connection

    def create_topics(self, *names: str, **config: str) -> None:
        """Create topics unless they exist."""
        from confluent_kafka.admin import NewTopic

        wanted = [NewTopic(name, PARTITIONS, 1, config=config) for name in names]
        runtime_kafka.create_topics(runtime_kafka.admin(self.kafka, "bench"), wanted, self.kafka.timeout_seconds)

    def kafka_settings(self) -> dict[str, str | None]:
        """Return the `kafka` section of the settings of a process."""
        return {"bootstrap_servers": self.kafka.bootstrap_servers, **self.kafka.properties}

    def ferryman_environment(self, database_url: str, **more: str) -> Mapping[str, str]:
        """Return the environment by which a `ferryman` process finds the servers."""
        properties = {env_name(f"kafka.{name}"): value for name, value in self.kafka.properties.items()}
        urls = {
            "FERRYMAN_DATABASE_URL": database_url,
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers or "",
            "FERRYMAN_KAFKA__COMPRESSION_TYPE": "lz4",
        }
        return self.environment(**{**properties, **urls, **more})

    def quietest(self, take: Callable[[], T], rounds: int) -> tuple[Sequence[T], list[float]]:
        """Measure in rounds, and again for each round that others disturbed.

        Return the values of the least disturbed rounds, and how many cores others kept busy during each. Rounds are
        only repeated on servers of our own: the work of a given server looks like that of others.
        """
        taken: list[tuple[float, T]] = []
        quiet = 0
        most = _MOST_TIMES * rounds if self.owns_all and not self.scale.quick else rounds
        while quiet < rounds and len(taken) < most:
            before = _usage()
            value = take()
            others = _others(before, _usage())
            taken.append((others, value))
            quiet += others <= _DISTURBED_SHARE * (os.cpu_count() or 1)
        best = sorted(taken, key=lambda each: each[0])[:rounds]
        return [value for _, value in best], [others for others, _ in best]

    def compared(self, **ways: Callable[[], float]) -> tuple[dict[str, list[float]], list[float]]:
        """Measure in rounds in which the ways take turns, so that all of them meet the same machine.

        Return the values of each way, and how many cores others kept busy during each round.
        """

        def take() -> dict[str, float]:
            values = {name: way() for name, way in ways.items()}
            self.say(", ".join(f"{name} {value:,.4g}" for name, value in values.items()))
            return values

        rounds, others = self.quietest(take, self.scale.rounds)
        return {name: [each[name] for each in rounds] for name in ways}, others


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of two ways, round by round."""
    return median_low([value / other for value, other in zip(values, others, strict=True)])


def _others(before: tuple[float, float], after: tuple[float, float]) -> float:
    return max(0.0, after[1] - before[1]) / (after[0] - before[0])


def _usage() -> tuple[float, float]:
    """Return the time, and the CPU time that others have used so far."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
    others = busy - getattr(times, "guest_nice", 0.0) - meters.cpu_seconds(psutil.Process())
    return time.monotonic(), others


@contextmanager
def open_bench(
    settings: Settings, scale: Scale, environment: Callable[..., Mapping[str, str]], say: Callable[[str], None],
    *, with_kafka: bool = True,
) -> Iterator[Bench]:  # fmt: skip
    """Start the servers that no setting names, and migrate the database that every measurement copies."""
    url = runtime_postgres.required_url(settings) if settings.database_url else None
    brokers, version, parts = settings.kafka, "", dict[str, Part]()
    with ExitStack() as closing:
        if with_kafka:
            broker, version = _broker(brokers.bootstrap_servers, say)
            closing.callback(broker.close)
            brokers, parts = brokers.model_copy(update={"bootstrap_servers": broker.url}), {"Kafka": broker}
        server, climb = postgres.find(url, reach="anywhere" if url else "machine")
        closing.callback(server.close)
        say(str(climb))
        counts = _counts_statements(server)
        template = f"ferryman_bench_template_{secrets.token_hex(4)}"
        migrated = closing.enter_context(stack.temporary_database(server.url, template))
        stack.migrate(migrated)
        if counts:
            with psycopg.connect(migrated, autocommit=True) as connection:
                connection.execute(_CREATE_COUNTER)
        yield Bench(scale, brokers, environment, say, {"PostgreSQL": server, **parts}, version, template, counts)


def _broker(brokers: str | None, say: Callable[[str], None]) -> tuple[Part, str]:
    """Find a broker, or start one. Return it and its version."""
    broker, climb = kafka.find(brokers, reach="anywhere" if brokers else "machine")
    if isinstance(broker, kafka.BuiltInKafka):
        broker.close()
        raise Misconfigured(
            f"a bench needs a real broker, and this machine has none ({climb})",
            setting="kafka.bootstrap_servers", remedy="name one, or install Java 17 and Maven",
        )  # fmt: skip
    say(str(climb))
    return broker, f"Apache Kafka {java.version('kafka')}" if isinstance(broker, kafka.LocalKafka) else climb.took


def _counts_statements(server: Part) -> bool:
    """Return True if pg_stat_statements counts. On a server of our own it is switched on if it is installed."""
    if isinstance(server, Local):
        with psycopg.connect(server.url, autocommit=True) as connection:
            if not meters.row(connection, _COUNTER_EXISTS)[0]:
                return False
            connection.execute(_PRELOAD)
        server.restart()
    try:
        with psycopg.connect(server.url) as connection, connection.transaction(force_rollback=True):
            connection.execute(_CREATE_COUNTER)
            connection.execute(_COUNTER_ANSWERS)
    except psycopg.Error:
        return False
    return True
