"""The turns of a courier when rows are lost, when its connection breaks, and when it stops."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.relay.described.couriers import courier
from ferryman.relay.described.table import Table
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Answer, Receiver
from support.hooks import HookTable
from support.published import poll_until


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Connection) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.mark.parametrize("limit", [3, 1])
def test_a_row_under_way_is_not_lost_when_its_lease_expires(hooks: HookTable, receiver: Receiver, limit: int) -> None:
    """N2: the database was away for longer than the lease. It is neither sent twice nor given up."""
    answered = threading.Event()
    receiver.answer = lambda _: (answered.wait(10), Answer(200))[1]
    hooks.described |= {"retry": {"limit": limit, "base_seconds": 0.05}}
    hooks.http |= {"timeout_seconds": 10}
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        while not receiver.requests:
            turns.run_once()
        hooks.expire()
        turns.service.lost_at = 0.0
        turns.run_once()
        answered.set()
        assert turns.until_quiet() == 1
    assert (hooks.rows(), len(receiver.requests)) == ([("SENT", 0, None)], 1)
    assert hooks.attempts() == [("delivered", None)]


def test_rows_that_were_lost_keep_to_the_slots_of_their_destination(hooks: HookTable, receiver: Receiver) -> None:
    """N10: the rows of one slow destination do not fill the process, where their leases would expire again."""
    answered = threading.Event()
    receiver.answer = lambda request: Answer(200 if request.path == "/well" or answered.wait(10) else 500)
    hooks.described |= {"slots_per_destination": 2}
    hooks.http |= {"timeout_seconds": 10}
    hooks.write(*[receiver.url] * 40)
    hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING', attempts = 1, claimed_at = now() - interval '1 h'")
    with hooks.courier() as turns:
        turns.run_once()
        turns.service.lost_at = 0.0
        turns.run_once()
        assert turns.service.way.under_way == 2
        hooks.write(receiver.url + "/well")
        while turns.run_once().published == 0:
            assert turns.service.way.under_way <= 3
        answered.set()
        began = time.monotonic()
        turns.until_quiet()
        assert time.monotonic() - began < 10  # it does not wait a second for each two of them
    assert hooks.rows() == [("SENT", 1, None)] * 40 + [("SENT", 0, None)]


def test_a_due_row_waits_for_one_row_that_was_lost_twice(hooks: HookTable, receiver: Receiver) -> None:
    """N10: rows that go alone, one by one, let due rows go between them."""
    receiver.answer = lambda request: Answer(200 if request.path == "/well" else 500)
    hooks.described |= {"retry": {"limit": 9, "base_seconds": 60}}
    hooks.write(*[receiver.url] * 5)
    with hooks.courier() as turns:
        turns.table.claim(5)
        for _ in range(2):
            hooks.expire()
            turns.table.claim_lost(5)
        hooks.expire()
    hooks.write(*[receiver.url + "/well"] * 2)
    assert courier("hooks", hooks.settings).drain(threading.Event(), lambda _: None) == 5
    assert [request.path for request in receiver.requests].index("/well") == 1
    assert [status for status, *_ in hooks.rows()] == ["PENDING"] * 5 + ["SENT"] * 2
    assert len(receiver.requests) == 7


def test_a_stop_as_the_connection_breaks_settles_what_was_sent(hooks: HookTable, receiver: Receiver) -> None:
    """N2, N16: a courier that stops connects once more, so that its rows are not sent again."""
    answered = threading.Event()
    receiver.answer = lambda _: Answer(200 if answered.wait(10) else 500)
    hooks.http |= {"timeout_seconds": 10}
    hooks.write(*[receiver.url] * 4)
    life = Life("hooks")
    thread = threading.Thread(target=courier("hooks", hooks.settings).run, args=(life,), daemon=True)
    thread.start()
    poll_until(lambda: len(receiver.requests) == 4, "the requests")
    hooks.db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                     "WHERE application_name = 'ferryman outbox hooks' AND datname = current_database()")  # fmt: skip
    life.stopping.set()
    answered.set()
    thread.join(20)
    assert hooks.rows() == [("SENT", 0, None)] * 4


def test_a_courier_is_ready_once_a_turn_has_succeeded(hooks: HookTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """N12: /readyz does not say ready while every claim fails, though each connection succeeds."""
    claims, ready = list[int](), list[int]()
    real = Table.claim_fair

    def claim(table: Table, *values: Any) -> Any:
        claims.append(1)
        if len(claims) <= 3:
            raise Unreachable("the table is locked")
        return real(table, *values)

    monkeypatch.setattr(Table, "claim_fair", claim)
    life = Life("hooks")
    monkeypatch.setattr(life, "ready", lambda: ready.append(len(claims)))
    thread = threading.Thread(target=courier("hooks", hooks.settings).run, args=(life,), daemon=True)
    thread.start()
    poll_until(lambda: bool(ready), "readiness")
    life.stopping.set()
    thread.join(20)
    assert ready[0] > 3


def test_old_attempts_are_deleted_while_the_count_of_the_backlog_fails(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backlog(_: Table) -> Any:
        raise Unreachable("it takes too long")

    monkeypatch.setattr(Table, "backlog", backlog)
    hooks.db.execute("INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, ended_at, outcome) "
                     "VALUES ('hooks', 'x', now() - interval '1 y', now() - interval '1 y', 'failed')")  # fmt: skip
    service = courier("hooks", hooks.settings)
    with service.opened() as table, pytest.raises(Unreachable):
        service.housekeeping.run_once(table)
    assert hooks.attempts() == []


@pytest.mark.parametrize("created", ["-infinity", "infinity"])
def test_the_backlog_is_counted_with_a_row_of_an_infinite_age(hooks: HookTable, created: str) -> None:
    hooks.write("http://later")
    hooks.db.execute("UPDATE shop.hooks SET created_at = %s, next_attempt_at = now() + interval '1 day'", (created,))
    assert courier("hooks", hooks.settings).drain(threading.Event(), lambda _: None) == 1
