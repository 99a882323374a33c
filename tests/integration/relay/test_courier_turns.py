"""The turns of a courier when rows are lost, when its connection breaks, and when it stops."""

import threading
import time
from typing import Any

import pytest

from ferryman.relay.admin.described_rows import open_rows
from ferryman.relay.admin.row_facts import statistics
from ferryman.relay.described.couriers import courier
from ferryman.relay.described.table import Table
from ferryman.relay.described.way_out import Room
from ferryman.runtime.desk import Act, Desk, change_pause
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.life import Life
from ferryman.testing.receiver import Answer, Receiver
from support.hooks import HookTable
from support.pace import in_time
from support.published import poll_until


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


@pytest.mark.parametrize("together", [True, False], ids=["one url", "own destinations"])
def test_row_under_way_that_is_set_back_by_sql_is_sent_once(
    hooks: HookTable, receiver: Receiver, *, together: bool
) -> None:
    """N2: it is due by its status, and was claimed and sent again; the end of its first send then ended the process."""
    answered = threading.Event()
    receiver.answer = lambda _: (answered.wait(10), Answer(200))[1]
    hooks.described |= {"url": receiver.url} if together else {}
    hooks.http |= {"timeout_seconds": 10}
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        while not receiver.requests:
            turns.run_once()
        hooks.db.execute("UPDATE shop.hooks SET status = 'PENDING', attempts = 0, error = NULL")
        turns.run_once()
        assert turns.service.way.under_way == 1
        answered.set()
        assert turns.until_quiet() == 1
    assert ([status for status, *_ in hooks.rows()], len(receiver.requests)) == (["SENT"], 1)


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
        assert in_time(time.monotonic() - began, 10)  # it does not wait a second for each two of them
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
    left = courier("hooks", hooks.settings).drain(threading.Event(), lambda _: None)
    assert sum(each.waiting for each in left) == 5
    assert [request.path for request in receiver.requests].index("/well") == 1
    assert [status for status, *_ in hooks.rows()] == ["PENDING"] * 5 + ["SENT"] * 2
    assert len(receiver.requests) == 7


@pytest.mark.parametrize("times", [1, 2])
def test_rows_of_a_paused_destination_are_not_taken_over(hooks: HookTable, receiver: Receiver, times: int) -> None:
    """This holds for rows that were lost once, and for those that were lost twice running."""
    hooks.write(receiver.url + "/paused", receiver.url)
    with hooks.courier() as turns:
        turns.table.claim(2)
        for _ in range(times - 1):
            hooks.expire()
            assert len(turns.table.claim_lost(2)) == 2
        hooks.expire()
        desk, act = Desk(hooks.db, hooks.settings.database), Act("ann", "theirs is down")
        change_pause(desk, "pause", "outbox", "hooks", act, destination=receiver.url + "/paused")
        for sent in (1, 0):
            turns.service.lost_at = 0.0
            assert turns.until_quiet() == sent
    assert [(request.path) for request in receiver.requests] == ["/"]
    assert [status for status, *_ in hooks.rows()] == ["SENDING", "SENT"]


def test_claims_with_little_room_go_on_behind_the_last_destination(hooks: HookTable) -> None:
    """N10: else the rows of the first destination would keep all others from their turn."""
    hooks.write(*["a"] * 9, *["b"] * 3, "c")
    with hooks.courier() as turns:
        claimed, after = [], None
        for _ in range(4):
            rows, after = turns.table.claim_fair(Room(2, each=2), after)
            claimed.append(([row.destination for row in rows], after))
    assert claimed == [(["a", "a"], "a"), (["b", "b"], "b"), (["c"], None), (["a", "a"], "a")]


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


def test_a_process_with_its_housekeeping_counts_as_one_courier(hooks: HookTable) -> None:
    connected = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name ~ '^ferryman .*outbox hooks' AND datname = current_database()"
    )
    rows = open_rows(Desk(hooks.db, hooks.settings.database), "hooks", "hooks", hooks.settings.outbox["hooks"])
    with hooks.running():
        poll_until(lambda: hooks.db.execute(connected).fetchone() == (2,), "both connections")
        assert statistics(rows)["couriers"] == 1
    poll_until(lambda: statistics(rows)["couriers"] == 0, "the end of the connections")


@pytest.mark.parametrize("created", ["-infinity", "infinity"])
def test_the_backlog_is_counted_with_a_row_of_an_infinite_age(hooks: HookTable, created: str) -> None:
    hooks.write("http://later")
    hooks.db.execute("UPDATE shop.hooks SET created_at = %s, next_attempt_at = now() + interval '1 day'", (created,))
    left = courier("hooks", hooks.settings).drain(threading.Event(), lambda _: None)
    assert sum(each.waiting for each in left) == 1
