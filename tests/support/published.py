"""Relays under load: writers append, relays publish, and the topic is compared with the outbox."""

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ferryman.relay.store import claims
from ferryman.runtime.kafka import create_topics
from support.launch import KillAt, Launched, Launcher

KEYS = 40
PARTITIONS = 3
PAYLOAD = "nobody-reads-this-in-a-log"
FAST = {
    "FERRYMAN_RELAY__DEADLINE_SECONDS": "2",
    "FERRYMAN_RELAY__IDLE_SECONDS": "0.02",
    "FERRYMAN_RELAY__BACKLOG_SECONDS": "1",
}


class Record(NamedTuple):
    """A record as a reader of the topic sees it."""

    partition: int
    offset: int
    at: float
    key: str
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def id(self) -> str:
        return dict(self.headers)["ce_id"].decode()

    @property
    def number(self) -> int:
        """The key's counter, under whose lock the message was appended."""
        return int(self.value.split()[0])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The committed messages by id as (key, payload), and the records of the topic, ordered by partition."""

    committed: Mapping[str, tuple[str, bytes]]
    published: list[Record]

    @property
    def missing(self) -> set[str]:
        return set(self.committed) - {record.id for record in self.published}

    @property
    def ghosts(self) -> set[str]:
        return {record.id for record in self.published} - set(self.committed)

    @property
    def doubled(self) -> int:
        return len(self.published) - len({record.id for record in self.published})

    @property
    def altered(self) -> list[Record]:
        """Records whose bytes differ from what was appended, or from the first record with their id."""
        first: dict[str, Record] = {}
        return [
            record
            for record in self.published
            if (record.key, record.value) != self.committed.get(record.id, (record.key, record.value))
            or (same := first.setdefault(record.id, record))[3:] != record[3:]
            or same.partition != record.partition
        ]

    @property
    def inverted(self) -> dict[str, list[int]]:
        """The keys whose first occurrences are not in order, with their numbers."""
        numbers: dict[str, dict[int, None]] = defaultdict(dict)
        for record in self.published:
            numbers[record.key][record.number] = None
        return {key: list(seen) for key, seen in numbers.items() if list(seen) != sorted(seen)}

    def assert_kept(self) -> None:
        """Check N1 to N4."""
        assert len(self.committed) >= 100, "too little was committed to prove anything"
        assert not self.missing, f"{len(self.missing)} of {len(self.committed)} were lost"
        assert not self.ghosts, f"published, and never committed: {self.ghosts}"
        assert not self.altered, f"not what was appended, or not what was published before: {self.altered}"
        assert not self.inverted, f"out of order: {self.inverted}"


def new_topic(kafka: str, name: str = "") -> str:
    name = name or f"relay-{uuid4().hex[:12]}"
    create_topics(AdminClient({"bootstrap.servers": kafka}), [NewTopic(name, PARTITIONS, 1)], 10)
    return name


def read_topic(kafka: str, topic: str) -> list[Record]:
    """Return all records of the topic at this moment, partition by partition."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid4().hex, "enable.auto.commit": False})
    records: list[Record] = []
    try:
        partitions = [TopicPartition(topic, n, 0) for n in consumer.list_topics(topic, 10).topics[topic].partitions]
        ends = {each.partition: read_end(consumer, each) for each in partitions}
        consumer.assign(partitions)
        until = time.monotonic() + 20
        while any(max(each.offset, 0) < ends[each.partition] for each in consumer.position(partitions)):
            assert time.monotonic() < until, f"the topic {topic} cannot be read to its end"
            records += map(_record, consumer.consume(1000, 0.1))
    finally:
        consumer.close()
    return sorted(records)


_NOT_YET = ("_UNKNOWN_PARTITION", "NOT_LEADER_FOR_PARTITION")


def read_end(consumer: Consumer, place: TopicPartition) -> int:
    """Return the partition's end; wait while the client does not know it, or while it has no leader yet."""
    until = time.monotonic() + 10
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, 10)[1]
        except KafkaException as error:
            if error.args[0].name() not in _NOT_YET or time.monotonic() > until:
                raise
        else:
            return end
        time.sleep(0.05)


def _record(message: Message) -> Record:
    assert message.error() is None, message.error()
    partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
    assert isinstance(partition, int) and isinstance(offset, int)  # noqa: PT018
    assert isinstance(key, bytes) and isinstance(value, bytes)  # noqa: PT018
    headers: Any = message.headers()
    return Record(partition, offset, message.timestamp()[1] / 1000, key.decode(), value, tuple(headers))


class Writers:
    """Threads that append, some in transactions that roll back; a lost connection is opened again."""

    def __init__(self, url: str, topic: str, seed: int = 1, *, threads: int = 3, pause_seconds: float = 0.005) -> None:
        self._url = url
        self._topic = topic
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.commits = 0
        dice = [random.Random(f"{seed}-{n}") for n in range(threads)]
        self._threads = [threading.Thread(target=self._write, args=(each,), daemon=True) for each in dice]

    def __enter__(self) -> Self:
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute("CREATE TABLE IF NOT EXISTS counters (key text PRIMARY KEY, number bigint NOT NULL DEFAULT 0)")
            keys = "INSERT INTO counters (key) SELECT 'k' || n FROM generate_series(1, %s) n ON CONFLICT DO NOTHING"
            db.execute(keys, (KEYS,))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []

    def await_commits(self, count: int, seconds: float = 60) -> None:
        """Wait for so many more transactions."""
        target = self.commits + count
        poll_until(lambda: self.commits >= target or self.errors, f"{count} commits", seconds)

    def _write(self, dice: random.Random) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with psycopg.connect(self._url, connect_timeout=5) as connection:
                        while not self._stopping.wait(self._pause_seconds):
                            self._transaction(connection, dice)
                except psycopg.OperationalError:  # the server went away; the next connection waits for it
                    self._stopping.wait(0.05)
        except BaseException as error:
            self.errors.append(error)

    def _transaction(self, db: psycopg.Connection[tuple[Any, ...]], dice: random.Random) -> None:
        """Append under the lock of each key's row, so that its messages commit in the order of their numbers."""
        for key in sorted(dice.sample(range(1, KEYS + 1), dice.choice([1, 1, 2, 4]))):
            db.execute(
                "WITH counted AS (UPDATE counters SET number = number + 1 WHERE key = %(key)s RETURNING number) "
                "SELECT ferryman.outbox_append(%(topic)s, %(key)s, 'counted', convert_to(number || %(rest)s, 'UTF8')) "
                "FROM counted",
                {"key": f"k{key}", "topic": self._topic, "rest": f" {PAYLOAD}"},
            )
        if dice.random() < 0.15:
            db.rollback()
        else:
            db.commit()
            self.commits += 1


@dataclass
class Ferry:
    """A database, a topic, and the relays between them: the start of all fault tests."""

    ferryman: Launcher
    database_url: str
    kafka: str
    environment: dict[str, str] = field(default_factory=dict)
    topic: str = ""

    def __post_init__(self) -> None:
        self.topic = new_topic(self.kafka)
        urls = {"FERRYMAN_DATABASE_URL": self.database_url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka}
        self.environment = {**FAST, **urls, **self.environment}

    def start(self, kill_at: KillAt | None = None, env: Mapping[str, str] | None = None) -> Launched:
        """Start a relay, and do not wait for it."""
        return self.ferryman.start("run", "relay", env={**self.environment, **(env or {})}, kill_at=kill_at)

    def relay(self, env: Mapping[str, str] | None = None) -> Launched:
        """Start a relay, and wait until it is ready."""
        relay = self.start(env=env)
        relay.until(lambda: readyz(relay) == "ready", "readiness")
        return relay

    def writers(self, seed: int = 1, **how: Any) -> Writers:
        return Writers(self.database_url, self.topic, seed, **how)

    @contextmanager
    def database(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            yield connection

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.database() as connection:
            return connection.execute(statement, parameters).fetchall()

    def await_published(self, seconds: float = 60) -> None:
        """Wait until nothing is left to do."""
        with self.database() as connection:
            left = "SELECT * FROM ferryman.backlog"
            poll_until(lambda: not connection.execute(left).fetchall(), "an empty backlog", seconds)

    def statuses(self) -> set[str]:
        return {status for (status,) in self.query("SELECT DISTINCT status FROM ferryman.outbox_entries")}

    def verdict(self) -> Verdict:
        rows = self.query("SELECT id::text, key, payload FROM ferryman.outbox WHERE topic = %s", self.topic)
        published = read_topic(self.kafka, self.topic)
        return Verdict({identity: (key, bytes(payload)) for identity, key, payload in rows}, published)

    def assert_kept(self) -> Verdict:
        """Check N1 to N4 once everything is published, and that no attempt was charged."""
        self.await_published()
        assert self.statuses() == {"PUBLISHED"}, self.statuses()
        self.assert_nothing_charged()
        verdict = self.verdict()
        assert not verdict.missing, self._lost(verdict)
        verdict.assert_kept()
        return verdict

    def _lost(self, verdict: Verdict) -> str:
        """Return what is needed to find out who lost entries: the database, the relay, or the reader of the topic."""
        entries = (
            "SELECT o.position, o.xid, o.created_at, l.* "
            "FROM ferryman.outbox o JOIN ferryman.outbox_lanes l USING (lane) WHERE o.id = ANY (%s::uuid[])"
        )
        rows = self.query(entries, sorted(verdict.missing))
        again = len(self.verdict().missing)
        return f"{len(rows)} of {len(verdict.committed)} were lost, {again} at a second look: {rows[:3]}"

    def assert_nothing_charged(self) -> None:
        """Check N8: no attempt was charged, nothing failed and nothing is parked.

        A topic is freed in the turn after the one that published the last entry that waited for it.
        """
        assert self.query("SELECT * FROM ferryman.outbox_exception") == []
        poll_until(lambda: not self.query("SELECT * FROM ferryman.outbox_parked_topic"), "end of the parked topics")
        assert self.query("SELECT * FROM ferryman.outbox_parked_key") == []

    def claims(self) -> tuple[int, int]:
        """Return how many lanes are locked, and how many relay connections sit in an open transaction.

        Those of housekeeping last for a moment only, and are not counted.
        """
        [row] = self.query(
            "SELECT (SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
            "        WHERE locktype = 'advisory' AND classid = %s AND datname = current_database()), "
            "       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "        AND application_name = 'ferryman relay' AND state LIKE 'idle in transaction%%' "
            "        AND xact_start < clock_timestamp() - interval '200 ms')",
            claims.LOCK_CLASS,
        )
        return int(row[0]), int(row[1])


def poll_until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"no {what} within {seconds} s"
        time.sleep(0.02)
    return value


def stays(condition: Callable[[], bool], seconds: float) -> bool:
    """Return True if the condition held at every look, for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not condition():
            return False
        time.sleep(0.05)
    return True


def events(launched: Launched) -> list[dict[str, Any]]:
    """Return the lines of its log."""
    return [json.loads(line) for line in launched.stderr.splitlines() if line.startswith("{") and line.endswith("}")]


def said(launched: Launched, event: str) -> list[dict[str, Any]]:
    return [each for each in events(launched) if each["event"] == event]


def ask(launched: Launched, path: str) -> tuple[int, str]:
    """Return the health endpoint's status and text; 0 before it listens."""
    if not (started := said(launched, "started")):
        return 0, ""
    try:
        with urllib.request.urlopen(f"{started[0]['health']}/{path}", timeout=5) as answer:
            return int(answer.status), answer.read().decode().strip()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode().strip()
    except OSError:
        return 0, ""


def readyz(launched: Launched) -> str:
    return ask(launched, "readyz")[1]


def metric(launched: Launched, name: str) -> float:
    """Return the sum over all labels."""
    lines = (line.rpartition(" ") for line in ask(launched, "metrics")[1].splitlines())
    return sum(float(value) for sample, _, value in lines if sample.partition("{")[0] == name)
