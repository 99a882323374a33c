"""Rows that leave by HTTP: a table of the test, and the services that deliver them in this process."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from ferryman.channels.outcome import Delivered, Outcome
from ferryman.relay.described.courier import Courier
from ferryman.relay.described.couriers import courier
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.described.table import Table
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DDL = """
CREATE SCHEMA shop;
CREATE TABLE shop.hooks (
    id uuid PRIMARY KEY, destination text NOT NULL, payload jsonb NOT NULL, status text NOT NULL DEFAULT 'PENDING',
    attempts integer NOT NULL DEFAULT 0, error text, claimed_at timestamptz,
    next_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), done_at timestamptz
);
CREATE INDEX ON shop.hooks (destination, next_attempt_at, created_at, id) WHERE status = 'PENDING';
CREATE INDEX ON shop.hooks (claimed_at) WHERE status = 'SENDING';
"""


@dataclass
class HookTable:
    """A table whose rows are posted to the destination that each names."""

    url: str
    db: Connection
    described: dict[str, Any] = field(default_factory=dict)
    http: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.db.execute(DDL)

    @property
    def settings(self) -> Settings:
        words = {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}
        described = {"table": "shop.hooks", "channel": "http", "words": words, "secrets": [SECRET],
                     "poll_seconds": 0.05, "retry": {"limit": 3, "base_seconds": 0.05}}  # fmt: skip
        http = {"allow": ["127.0.0.0/8"], "timeout_seconds": 2, "connect_timeout_seconds": 1}
        return Settings.model_validate(
            {"database_url": self.url, "http": http | self.http, "outbox": {"hooks": described | self.described}}
        )

    @property
    def description(self) -> dict[str, Any]:
        """The settings under [outbox.hooks], with its secrets, as JSON has them."""
        outbox = self.settings.outbox["hooks"]
        shown = outbox.model_dump(mode="json", exclude_unset=True, exclude={"secrets"})
        return shown | {"secrets": [each.get_secret_value() for each in outbox.secrets]}

    def write(self, *destinations: str) -> list[UUID]:
        ids = [uuid4() for _ in destinations]
        for number, (identity, destination) in enumerate(zip(ids, destinations, strict=True)):
            self.db.execute("INSERT INTO shop.hooks (id, destination, payload) VALUES (%s, %s, %s)",
                            (identity, destination, f'{{"n": {number}}}'))  # fmt: skip
        return ids

    def rows(self) -> list[tuple[Any, ...]]:
        """Return (status, attempts, error) of each row, in the order of writing."""
        return self.db.execute("SELECT status, attempts, error FROM shop.hooks ORDER BY created_at").fetchall()

    def expire(self) -> None:
        """Set each lease back by an hour."""
        self.db.execute("UPDATE shop.hooks SET claimed_at = claimed_at - interval '1 h'")

    def attempts(self) -> list[tuple[Any, ...]]:
        """Return (outcome, code) of each recorded attempt."""
        return self.db.execute("SELECT outcome, code FROM ferryman.outbox_attempt ORDER BY number").fetchall()

    @contextmanager
    def courier(self, own: Courier | None = None) -> Iterator["CourierTurns"]:
        service = courier("hooks", self.settings, own)
        with closing(service.way), service.opened() as table:
            assert service.way.why_not() is None
            yield CourierTurns(service, table)

    @contextmanager
    def running(self) -> Iterator[Life]:
        """Run the courier as `ferryman run` does, until the block ends."""
        life = Life("hooks")
        thread = threading.Thread(target=courier("hooks", self.settings).run, args=(life,), daemon=True)
        thread.start()
        try:
            yield life
        finally:
            life.stopping.set()
            thread.join(20)
        assert not thread.is_alive()


class Letters:
    """A channel of a user's own, with nothing but `send`."""

    async def send(self, item: Claimed) -> Outcome:
        return Delivered(reference=f"letter-{item.destination}", excerpt="thank you")


@dataclass
class CourierTurns:
    service: DescribedOutbox
    table: Table
    stopping: threading.Event = field(default_factory=threading.Event)

    def run_once(self) -> Any:
        return self.service.run_once(self.table, self.stopping)

    def until_quiet(self) -> int:
        """Take turns until nothing is due or under way. Return how many rows were sent."""
        sent = 0
        while True:
            turn = self.run_once()
            sent += int(turn.published)
            if turn.quiet and not self.service.way.under_way:
                return sent
