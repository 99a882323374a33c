"""Described outboxes in this process: a table of the test's own, and workers that claim from it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman.relay.described.loop import RowWorker
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.described.store import Connection, Table
from ferryman.relay.service import Relay
from ferryman.runtime.settings import Settings

MEMOS: Mapping[str, Any] = {
    "table": "shop.memos",
    "lease": {"column": "last_attempt_at", "seconds": 60},
    "words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "FAILED"},
    "columns": {"attempts": "retry_count", "error": "error_message", "done_at": "sent_at"},
    "retry": {"limit": 3, "base_seconds": 0.05},
    "type": "memo",
}
DDL = """
CREATE SCHEMA shop;
CREATE TABLE shop.memos (
    id uuid PRIMARY KEY, key text NOT NULL, topic text NOT NULL, payload jsonb NOT NULL,
    status varchar(10) NOT NULL DEFAULT 'PENDING', retry_count smallint NOT NULL DEFAULT 0,
    error_message varchar(60), last_attempt_at timestamp(3), created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at timestamptz
);
"""


@dataclass
class Memos:
    """The table, and relays of it. Statements are run beside them."""

    url: str
    kafka: str
    db: Connection
    topic: str = ""
    described: dict[str, Any] = field(default_factory=lambda: dict(MEMOS))

    def __post_init__(self) -> None:
        self.db.execute(DDL)

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(
            {
                "database_url": self.url,
                "kafka": {"bootstrap_servers": self.kafka, "timeout_seconds": 1},
                "relay": {"deadline_seconds": 2},
                "outbox": {"memos": self.described},
            }
        )

    @property
    def outbox(self) -> DescribedOutbox:
        [outbox] = Relay(self.settings).described
        return outbox

    @contextmanager
    def relay(self, stopping: threading.Event | None = None) -> Iterator["Turns"]:
        outbox = self.outbox
        worker = outbox.worker(stopping or threading.Event())
        try:
            with outbox.connect() as connection:
                yield Turns(worker, connection, outbox.open(connection))
        finally:
            worker.publisher.close()

    def write(self, *keys: str, topic: str = "") -> list[UUID]:
        ids = [uuid4() for _ in keys]
        for n, (identity, key) in enumerate(zip(ids, keys, strict=True)):
            self.db.execute("INSERT INTO shop.memos (id, key, topic, payload) VALUES (%s, %s, %s, %s)",
                            (identity, key, topic or self.topic, f'{{"n": {n}}}'))  # fmt: skip
        return ids

    def rows(self) -> list[tuple[Any, ...]]:
        """(status, attempts, error) in the order in which they were written."""
        return self.db.execute(
            "SELECT status, retry_count, error_message FROM shop.memos ORDER BY created_at"
        ).fetchall()

    def expire(self) -> None:
        """As if each lease had been taken an hour ago."""
        self.db.execute("UPDATE shop.memos SET last_attempt_at = last_attempt_at - interval '1 h'")


@dataclass
class Turns:
    worker: RowWorker
    connection: Connection
    table: Table

    def run_once(self, *, lost: bool = True) -> Any:
        self.worker.lost_at = 0.0 if lost else float("inf")
        return self.worker.run_once(self.connection, self.table)


Database = psycopg.Connection[tuple[Any, ...]]
