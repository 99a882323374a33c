"""Functions of a courier that fail for one row: timeouts, lost connections and bugs cost no other row anything."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ferryman import Courier, Message, Post, Refused
from ferryman.runtime import postgres
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Receiver
from support.hooks import HookTable
from support.published import poll_until


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Connection) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def time_out(db: Connection) -> None:
    db.execute("SET LOCAL statement_timeout = 20")
    db.execute("SELECT pg_sleep(5)")


def test_prepare_that_times_out_for_a_row_costs_its_neighbours_nothing(hooks: HookTable, receiver: Receiver) -> None:
    """N10."""
    own = Courier("worker", outbox="hooks")
    hooks.described |= {"retry": {"limit": 3, "base_seconds": 60}}
    bad, *_ = map(str, hooks.write(*[receiver.url] * 5))

    @own.prepare
    def posts(db: Connection, rows: Sequence[Any]) -> list[Post]:
        if any(row.id == bad for row in rows):
            time_out(db)
        return [Post(row.destination, row.content) for row in rows]

    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 4
    assert hooks.rows() == [("PENDING", 1, "prepare: Transient"), *[("SENT", 0, None)] * 4]


def test_prepare_that_times_out_for_every_row_holds_the_courier_up_for_few(hooks: HookTable) -> None:
    """N10: with each row tried alone, all leases would end before the last one's turn."""
    own = Courier("worker", outbox="hooks")
    calls: list[int] = []

    @own.prepare
    def posts(db: Connection, rows: Sequence[Any]) -> list[Post]:
        calls.append(len(rows))
        time_out(db)
        return []

    hooks.described |= {"retry": {"limit": 3, "base_seconds": 60}}
    hooks.write(*"abcdef")
    with hooks.courier(own) as turns:
        turns.run_once()
    assert calls == [6, 1, 1]
    assert [row[:2] for row in hooks.rows()] == [("PENDING", 1)] * 2 + [("PENDING", 0)] * 4


def test_rows_whose_prepare_lost_the_connection_are_released_once(hooks: HookTable, receiver: Receiver) -> None:
    """N1, N10: a row that ends each connection waits for its lease."""
    own = Courier("worker", outbox="hooks")
    losses = [True]

    @own.prepare
    def posts(db: Connection, rows: Sequence[Any]) -> list[Post]:
        if losses:
            losses.pop()
            db.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return [Post(row.destination, row.content) for row in rows]

    hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as turns:
        with pytest.raises(Unreachable):
            turns.run_once()
        turns.table.connection.close()
        with turns.service.opened() as turns.table:
            assert turns.until_quiet() == 3
            assert hooks.rows() == [("SENT", 0, None)] * 3
            losses += [True] * 2
            hooks.write(receiver.url)
            with pytest.raises(Unreachable):
                turns.run_once()
        with turns.service.opened() as turns.table, pytest.raises(Unreachable):
            turns.run_once()
        assert turns.service._unsettled == []
    assert [row[:2] for row in hooks.rows()[3:]] == [("SENDING", 1)]
    assert len(hooks.attempts()) == 3


@pytest.mark.parametrize("answer", [None, [None], [None, 7]])
def test_held_without_a_destination_holds_none(hooks: HookTable, receiver: Receiver, answer: Any) -> None:
    """N10: a None among the destinations would hold all of them."""
    own = Courier("worker", outbox="hooks")
    own.held(lambda _: answer)
    hooks.write(receiver.url)
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 1


def test_bug_in_held_keeps_its_former_answer(hooks: HookTable, receiver: Receiver) -> None:
    own = Courier("worker", outbox="hooks")
    answers: list[list[str]] = [[receiver.url + "/held"]]

    @own.held
    def held(db: Connection) -> list[str]:
        if not answers:
            db.execute("SELECT 1 / 0")
        return answers.pop()

    hooks.write(receiver.url + "/held", receiver.url)
    with hooks.courier(own) as turns:
        turns.run_once()
        turns.service.held_at = 0.0
        turns.until_quiet()
    assert hooks.rows() == [("PENDING", 0, None), ("SENT", 0, None)]


def test_settled_that_times_out_for_a_row_costs_its_report_alone(hooks: HookTable, receiver: Receiver) -> None:
    """N3, N10."""
    own = Courier("worker", outbox="hooks")
    told: list[str] = []
    bad, *others = map(str, hooks.write(*[receiver.url] * 3))

    @own.settled
    def report(db: Connection, ended: Sequence[Any]) -> None:
        if any(end.row.id == bad for end in ended):
            with postgres.translated():
                time_out(db)
        told.extend(end.row.id for end in ended)

    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 3
    assert hooks.rows() == [("SENT", 0, None)] * 3
    assert sorted(told) == sorted(others)


def test_bug_in_settled_costs_no_report_of_rows_that_are_given_up_with_it(hooks: HookTable) -> None:
    """N10."""
    own = Courier("worker", outbox="hooks")
    bad, good = map(str, hooks.write("bad", "good"))

    @own.settled
    def report(_: Connection, ended: Sequence[Any]) -> list[Message]:
        if any(end.row.id == bad for end in ended):
            raise KeyError("a bug")
        return [Message("ended", {}, key=end.row.id, topic="hooks.results") for end in ended]

    hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING', attempts = 3, claimed_at = now() - interval '1 h'")
    with hooks.courier(own) as turns:
        turns.until_quiet()
    assert [status for status, *_ in hooks.rows()] == ["DEAD", "DEAD"]
    assert hooks.db.execute("SELECT key FROM ferryman.outbox").fetchall() == [(good,)]


def test_refused_row_is_reported_once_however_often_it_is_tried(hooks: HookTable) -> None:
    """N6: without a word for dead it is tried as often as any other."""
    own = Courier("worker", outbox="hooks")
    own.prepare(lambda _, rows: [Refused("NO", Message("no", {}, key=row.id, topic="hooks.results")) for row in rows])
    hooks.described |= {"words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT"}}
    hooks.write("nowhere")
    counted = "SELECT count(*) FROM ferryman.outbox"
    with hooks.courier(own) as turns:
        turns.run_once()
        assert hooks.db.execute(counted).fetchone() == (0,)
        poll_until(lambda: bool(turns.run_once()) and hooks.rows()[0][1] == 3, "the last attempt")
    assert hooks.db.execute(counted).fetchone() == (1,)
