"""A relay in this process, between a database of the test and topics with settings of their own."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ferryman import Message, append_many
from ferryman.relay.service import DrainResult, JournalRelay, drain
from ferryman.runtime.kafka import create_topics
from ferryman.runtime.settings import Settings
from support.pace import in_time
from support.published import Record, read_topic


def some_name() -> str:
    return f"relay-{uuid4().hex[:12]}"


def create(kafka: str, name: str = "", partitions: int = 1, **config: str | int) -> str:
    """Create a topic with this configuration (underscores for dots), and wait until the broker knows it."""
    name = name or some_name()
    dotted = {each.replace("_", "."): str(value) for each, value in config.items()}
    create_topics(AdminClient({"bootstrap.servers": kafka}), [NewTopic(name, partitions, 1, config=dotted)], 10)
    return name


@dataclass
class Crossing:
    """A database with a relay, and the topics that it publishes to."""

    database_url: str
    kafka: str
    relay: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    count: int = 0

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(
            {
                "database_url": self.database_url,
                "kafka": {"bootstrap_servers": self.kafka, **self.properties},
                "relay": {"deadline_seconds": 3, "idle_seconds": 0.02, "retry": {"base_seconds": 0.05}, **self.relay},
            }
        )

    def append(self, topic: str, keys: Sequence[str], payload: bytes = b"") -> None:
        """Append a numbered entry per key (`number payload`), all in one transaction."""
        messages = []
        for key in keys:
            self.count += 1
            messages.append(Message("t", b"%d %s" % (self.count, payload), key=key, topic=topic))
        with self.database() as db, db.transaction():
            append_many(db, messages)

    def drain(self) -> DrainResult:
        return drain(self.settings, threading.Event())

    @contextmanager
    def relaying(self, workers: int = 2) -> Iterator[JournalRelay]:
        """Run workers in threads until the end of the block; raise there what they raise."""
        relay, stopping = JournalRelay(self.settings), threading.Event()
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                relay.worker(relay.sources[0], number, stopping).run()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
        for thread in threads:
            thread.start()
        try:
            yield relay
        finally:
            stopping.set()
            for thread in threads:
                thread.join(30)
        if errors:
            raise errors[0]

    @contextmanager
    def database(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            yield connection

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.database() as db:
            return db.execute(statement, parameters).fetchall()

    def statuses(self, topic: str = "%") -> dict[str, int]:
        rows = self.query("SELECT status, count(*) FROM ferryman.outbox_entries WHERE topic LIKE %s GROUP BY 1", topic)
        return dict(rows)

    def most_attempts(self) -> int:
        """Return the most attempts of any entry; 0 if none was charged (N8)."""
        return int(self.query("SELECT coalesce(max(attempts), 0) FROM ferryman.outbox_exception")[0][0])

    def await_statuses(self, expected: dict[str, int], topic: str = "%", seconds: float = 60) -> None:
        began = time.monotonic()
        while (found := self.statuses(topic)) != expected:
            assert in_time(time.monotonic() - began, seconds), f"{found} instead of {expected} after {seconds} s"
            time.sleep(0.02)

    def arrived(self, topic: str) -> list[Record]:
        return read_topic(self.kafka, topic)

    def assert_arrived(self, topic: str, count: int, *, doubles: bool = False) -> list[Record]:
        """Check N1 to N4: all entries, unchanged, in each key's order; doubled only after a fault."""
        records = self.arrived(topic)
        firsts: dict[str, Record] = {}
        for record in records:
            assert firsts.setdefault(record.id, record).value == record.value
        appended = dict(
            self.query("SELECT id::text, payload FROM ferryman.outbox_entries JOIN ferryman.outbox USING (id) "
                       "WHERE outbox.topic = %s AND status = 'PUBLISHED'", topic)
        )  # fmt: skip
        assert {identity: record.value for identity, record in firsts.items()} == appended
        assert len(firsts) == count
        numbers: dict[str, list[int]] = defaultdict(list)
        for record in firsts.values():
            numbers[record.key].append(record.number)
        assert all(each == sorted(each) for each in numbers.values())
        if not doubles:
            assert len(records) == count
        return list(firsts.values())
