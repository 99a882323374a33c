"""The durable dispatcher in processes of its own, and the verdict on what its receiver got."""

import json
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ferryman.runtime.postgres import Connection
from ferryman.services.runner.events import enqueue
from ferryman.testing.receiver import ReceivedRequest, Receiver
from support.launch import KillAt, Launched, Launcher
from support.published import PAYLOAD, poll_until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Dispatch:
    """Events of `runner.event_outbox`, dispatchers of them, and the receiver that judges."""

    ferryman: Launcher
    database_url: str
    db: Connection
    receiver: Receiver
    env: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def start(self, kill_at: KillAt | None = None, **more: str) -> Launched:
        env = {
            "FERRYMAN_DATABASE_URL": self.database_url,
            "FERRYMAN_RUNNER__URL": self.receiver.url + "/events",
            "FERRYMAN_RUNNER__SECRET": SECRET,
            "FERRYMAN_RUNNER__BASE_SECONDS": "0.05",
            "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]',
        }
        return self.ferryman.start("run", "runner", env={**env, **self.env, **more}, kill_at=kill_at)

    def write(self, count: int) -> list[str]:
        first = len(self.events)
        made = [
            str(enqueue(self.db, "file.uploaded", f"file-{n}", {"file": n, "text": PAYLOAD}))
            for n in range(first, first + count)
        ]
        self.events += made
        return made

    def statuses(self) -> Counter[str]:
        return Counter(status for (status,) in self.db.execute("SELECT status FROM runner.event_outbox").fetchall())

    def in_doubt(self) -> set[str]:
        """Return the events that may have been sent: they are claimed, and nobody settled them."""
        query = "SELECT uuid::text FROM runner.event_outbox WHERE status = 'SENDING'"
        return {event for (event,) in self.db.execute(query).fetchall()}

    def expire(self) -> None:
        """Set each lease back by an hour."""
        self.db.execute("UPDATE runner.event_outbox SET claimed_at = claimed_at - interval '1 h'")

    def await_delivery(self, by: Launched, seconds: float = 60) -> None:
        by.until(lambda: self.statuses() == {"DELIVERED": len(self.events)}, "delivery", seconds)

    def stop(self, *running: Launched) -> None:
        for each in running:
            poll_until(lambda: '"started"' in each.stderr, "start")  # noqa: B023 - called before the next
            each.send(signal.SIGTERM)
        for each in running:
            assert each.wait() == 0, each.transcript()
            assert SECRET not in each.transcript()  # N14
            assert PAYLOAD not in each.transcript()

    def doubled(self) -> set[str]:
        """Return the events that came more than once, after checking that all came, unaltered, and no other."""
        bodies: dict[str, list[bytes]] = defaultdict(list)
        for request in self.receiver.requests:
            assert json.loads(request.body)["event_id"] == request.headers["webhook-id"]
            bodies[request.headers["webhook-id"]].append(request.body)
        assert bodies.keys() == set(self.events)
        assert all(len(set(each)) == 1 for each in bodies.values()), "a duplicate differs from the first"
        return {event for event, each in bodies.items() if len(each) > 1}

    def miscounted(self) -> list[tuple[object, ...]]:
        """Return (event, attempts, attempts in the log, of them delivered) where these do not add up.

        An attempt that did not deliver is counted in its row, and is in the log.
        """
        return self.db.execute(
            """
            SELECT * FROM (
                SELECT e.uuid, e.attempt_count, count(a.row_id) AS logged,
                       count(*) FILTER (WHERE a.outcome = 'delivered') AS delivered
                FROM runner.event_outbox e
                LEFT JOIN ferryman.outbox_attempt a ON a.outbox = 'runner' AND a.row_id = e.uuid::text
                GROUP BY e.uuid
            ) counted WHERE delivered <> 1 OR attempt_count <> logged - 1
            """
        ).fetchall()

    def await_requests(self, count: int) -> list[ReceivedRequest]:
        poll_until(lambda: len(self.receiver.requests) >= count, f"{count} requests")
        return self.receiver.requests
