"""Views, functions, listings and the relay's walk agree on which entries are published."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferryman import Message, append
from ferryman.relay.admin import entries
from ferryman.relay.admin.entries import EntrySelection
from ferryman.relay.lanes import LaneWorker
from ferryman.relay.model import Entry, key_of, position_of
from ferryman.relay.policy import Retries
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.desk import Desk
from ferryman.runtime.settings import Database as Limits
from support.relay import lane_worker, unlimited

Database = psycopg.Connection[tuple[Any, ...]]

WRITERS, BATCHES = 3, (1, 3)
ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, WRITERS - 1), st.sampled_from("abcd")),
    st.tuples(st.sampled_from(["commit", "rollback"]), st.integers(0, WRITERS - 1), st.none()),
    st.tuples(st.just("turn"), st.integers(0, len(BATCHES) - 1), st.none()),
    st.tuples(st.sampled_from(["break", "mend"]), st.none(), st.sampled_from("ab")),
)

# The arithmetic entry by entry.
UNSETTLED = """
SELECT o.position FROM ferryman.outbox o JOIN ferryman.outbox_lanes l USING (lane)
WHERE NOT ferryman.outbox_settled(o.xid, o.position, l.done_snapshot, l.target_snapshot, l.position)
"""
# The walk over what the windows have not done.
UNREAD = """
SELECT u.position FROM ferryman.outbox_places p
CROSS JOIN LATERAL ferryman.outbox_unread(p.lanes, p.done, p.done_at, p.horizon, NULL, 0, NULL) u
WHERE NOT ferryman.outbox_settled(u.xid, u.position, p.done, p.target, p.position)
"""
ANYTHING_ELSE_TO_DO = """
SELECT EXISTS (SELECT FROM ferryman.outbox_exception WHERE next_attempt_at <= statement_timestamp())
    OR EXISTS (SELECT FROM ferryman.outbox_lanes WHERE target IS NOT NULL)
"""


class Journal:
    """Writers with open transactions, two relay workers, and what the workers have published."""

    def __init__(self, db: Database, open_connections: Sequence[Database]) -> None:
        self.db = db
        self.writers, workers = open_connections[:WRITERS], open_connections[WRITERS:]
        self.desk = Desk(db, Limits())
        self.published: set[int] = set()
        self.broken: set[str] = set()
        self.workers = [self._worker(*each) for each in zip(workers, BATCHES, strict=True)]

    def _worker(self, connection: Database, batch: int) -> LaneWorker:
        retries = Retries(2, Backoff(1e-6, 1e-6))
        settings = unlimited(retries, batch_entries=batch, tenure_seconds=0, pause_seconds=1e-6)
        return lane_worker(connection, self._publish, settings, failing=self._failing)

    def _publish(self, batch: Sequence[Entry]) -> None:
        self.published |= set(map(position_of, batch))

    def _failing(self, entry: Entry) -> tuple[str, str] | None:
        return ("UNKNOWN", "refused") if key_of(entry) in self.broken else None

    def act(self, action: str, number: int | None, key: str | None) -> None:
        if action == "append":
            append(self.writers[number or 0], Message("t", b"", key=key or "", topic="orders"))
        elif action == "turn":
            self.workers[number or 0].run_once()
        elif action in ("break", "mend"):
            (self.broken.add if action == "break" else self.broken.discard)(key or "")
        else:
            getattr(self.writers[number or 0], action)()

    def positions(self, query: str) -> list[int]:
        return sorted(position for (position,) in self.db.execute(query).fetchall())

    def assert_agreement(self) -> None:
        found = self.db.execute("SELECT position, status FROM ferryman.outbox_entries").fetchall()
        excepted: dict[int, str] = dict(
            self.db.execute("SELECT position, status FROM ferryman.outbox_exception").fetchall()
        )
        expected = {
            position: excepted.get(position, "PUBLISHED" if position in self.published else "PENDING")
            for position in self.positions("SELECT position FROM ferryman.outbox")
        }
        assert dict(found) == expected
        pending = sorted(position for position, status in expected.items() if status == "PENDING")
        assert [each for each in self.positions(UNSETTLED) if each not in excepted] == pending
        assert self.positions(UNREAD) == pending
        selection = EntrySelection(statuses=("PENDING",))
        page = entries.page(self.desk, selection, after=0, limit=10_000, seconds=10)
        assert [each.position for each in page.entries] == pending
        [(count,)] = self.db.execute("SELECT coalesce(sum(pending), 0) FROM ferryman.backlog").fetchall()
        assert count == len(pending)
        [(peek,)] = self.db.execute("SELECT ferryman.outbox_peek()").fetchall()
        [(more,)] = self.db.execute(ANYTHING_ELSE_TO_DO).fetchall()
        assert peek == (bool(pending) or more)

    def settle_down(self) -> None:
        """Roll back what is open, and publish the rest."""
        self.broken.clear()
        for writer in self.writers:
            writer.rollback()
        while self.db.execute("SELECT FROM ferryman.backlog WHERE pending + retrying + parked > 0").fetchall():
            for worker in self.workers:
                worker.run_once()


@pytest.fixture
def journal(ferryman_database_url: str, ferryman_db: Database) -> Iterator[Journal]:
    with ExitStack() as stack:
        opened = [stack.enter_context(psycopg.connect(ferryman_database_url)) for _ in range(WRITERS + len(BATCHES))]
        yield Journal(ferryman_db, opened)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=5, max_size=25))
def test_everything_agrees_on_which_entries_are_published(journal: Journal, actions: list[Any]) -> None:
    """After each of any sequence of appends, late commits, turns that end mid-window, failures and retries."""
    try:
        for action in actions:
            journal.act(*action)
            journal.assert_agreement()
    finally:
        journal.settle_down()


@pytest.mark.prove
@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=5, max_size=60))
def test_everything_agrees_in_a_thousand_longer_sequences(journal: Journal, actions: list[Any]) -> None:
    """Long, to meet rare combinations."""
    test_everything_agrees_on_which_entries_are_published.hypothesis.inner_test(journal, actions)  # type: ignore[attr-defined]
