"""Described outboxes in this process: a table of the test, and workers that claim from it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.described.table import Table
from ferryman.relay.service import JournalRelay
from ferryman.runtime.postgres import Connection
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
    """A table and its relays; `db` is a connection beside them."""

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
        [outbox] = JournalRelay(self.settings).described
        return outbox

    @contextmanager
    def relay(self, stopping: threading.Event | None = None) -> Iterator["Turns"]:
        outbox = self.outbox
        with closing(outbox.way), outbox.opened() as table:
            yield Turns(outbox, table, stopping or threading.Event())

    def write(self, *keys: str, topic: str = "") -> list[UUID]:
        ids = [uuid4() for _ in keys]
        for n, (identity, key) in enumerate(zip(ids, keys, strict=True)):
            self.db.execute("INSERT INTO shop.memos (id, key, topic, payload) VALUES (%s, %s, %s, %s)",
                            (identity, key, topic or self.topic, f'{{"n": {n}}}'))  # fmt: skip
        return ids

    def rows(self) -> list[tuple[Any, ...]]:
        """Return (status, attempts, error) of each row, in the order of writing."""
        return self.db.execute(
            "SELECT status, retry_count, error_message FROM shop.memos ORDER BY created_at"
        ).fetchall()

    def expire(self) -> None:
        """Set each lease back by an hour."""
        self.db.execute("UPDATE shop.memos SET last_attempt_at = last_attempt_at - interval '1 h'")


@dataclass
class Turns:
    outbox: DescribedOutbox
    table: Table
    stopping: threading.Event

    def run_once(self, *, lost: bool = True) -> Any:
        self.outbox.lost_at = 0.0 if lost else float("inf")
        return self.outbox.run_once(self.table, self.stopping)
