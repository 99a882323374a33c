"""Rows of a described table that leave by HTTP: real receivers, a real database."""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from ferryman import Courier, Message, Post, Refused
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Answer, Receiver
from support.hooks import SECRET, HookTable
from support.published import poll_until


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Connection) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def test_due_rows_are_posted_signed_and_settled_with_their_time(hooks: HookTable, receiver: Receiver) -> None:
    """N1: the id of the row is what the receiver dedupes by."""
    ids = hooks.write(receiver.url, receiver.url)
    with hooks.courier() as courier:
        assert courier.until_quiet() == 2
    assert hooks.rows() == [("SENT", 0, None)] * 2
    assert hooks.attempts() == [("delivered", None)] * 2
    assert {each.headers["webhook-id"] for each in receiver.requests} == set(map(str, ids))
    for request in receiver.requests:
        assert set(Webhook(SECRET).verify(request.body, dict(request.headers))) == {"n"}
        assert json.loads(request.body)["n"] in (0, 1)
    assert hooks.db.execute("SELECT count(*) FROM shop.hooks WHERE done_at IS NOT NULL").fetchone() == (2,)


def test_each_failure_counts_until_the_row_is_given_up(hooks: HookTable, receiver: Receiver) -> None:
    """N8."""
    receiver.answer = lambda _: Answer(500)
    hooks.write(receiver.url)
    with hooks.courier() as courier:
        while not receiver.requests[2:]:
            courier.run_once()
        courier.until_quiet()
    [(status, attempts, _)] = hooks.rows()
    assert (status, attempts, len(receiver.requests)) == ("DEAD", 3, 3)
    assert hooks.attempts() == [("failed", "SERVER_FAILED")] * 3
    assert len({(each.headers["webhook-id"], each.body) for each in receiver.requests}) == 1


def test_a_courier_prepares_each_post_and_reports_each_end_once(hooks: HookTable, receiver: Receiver) -> None:
    """N1, N6: the report is appended in the transaction that settles the row."""
    own = Courier("worker", outbox="hooks")

    @own.prepare
    def posts(db: Connection, rows: Sequence[Any]) -> list[Post | Refused]:
        assert db.execute("SELECT count(*) FROM shop.hooks WHERE status = 'SENDING'").fetchone() == (3,)
        return [
            Refused("NO_ENDPOINT", reported("refused", row)) if row.destination == "nowhere"
            else Post(row.destination, b"made of " + row.content)
            for row in rows
        ]  # fmt: skip

    @own.settled
    def report(_: Connection, ended: Sequence[Any]) -> list[Message]:
        return [reported("delivered" if end.delivered else "failed", end.row) for end in ended]

    receiver.answer = lambda request: Answer(410 if request.path == "/gone" else 200)
    ids = hooks.write(receiver.url + "/here", receiver.url + "/gone", "nowhere")
    with hooks.courier(own) as courier:
        assert courier.until_quiet() == 1
    assert [status for status, *_ in hooks.rows()] == ["SENT", "DEAD", "DEAD"]
    assert {each.body for each in receiver.requests} == {b'made of {"n": 0}', b'made of {"n": 1}'}
    told = hooks.db.execute("SELECT type, key FROM ferryman.outbox ORDER BY type, key").fetchall()
    sent, gone, refused = map(str, ids)
    assert told == sorted([("delivered", sent), ("failed", gone), ("failed", refused), ("refused", refused)])


def reported(kind: str, row: Any) -> Message:
    return Message(kind, {}, key=row.id, topic="hooks.results")


def test_a_bug_in_prepare_costs_its_own_row_an_attempt_and_no_other(hooks: HookTable, receiver: Receiver) -> None:
    """N10."""
    own = Courier("worker", outbox="hooks")

    @own.prepare
    def posts(db: Connection, rows: Sequence[Any]) -> list[Post]:
        for row in rows:
            if row.content == b'{"n": 1}':
                db.execute("SELECT 1 / 0")
        return [Post(row.destination, row.content, row.id) for row in rows]

    hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as courier:
        courier.run_once()
        courier.until_quiet()
    assert [status for status, *_ in hooks.rows()] == ["SENT", "PENDING", "SENT"]
    assert hooks.rows()[1][1] >= 1


def test_a_bug_in_settled_costs_its_report_and_sends_nothing_twice(hooks: HookTable, receiver: Receiver) -> None:
    """N10: the row is settled without it."""
    own = Courier("worker", outbox="hooks")

    @own.settled
    def report(_: Connection, ended: Sequence[Any]) -> list[Message]:
        if any(end.row.content == b'{"n": 1}' for end in ended):
            raise KeyError("a bug")
        return [reported("delivered", end.row) for end in ended]

    hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as courier:
        assert courier.until_quiet() == 3
    assert hooks.rows() == [("SENT", 0, None)] * 3
    assert hooks.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (2,)
    assert len(receiver.requests) == 3


def test_destinations_that_are_held_are_not_tried(hooks: HookTable, receiver: Receiver) -> None:
    own = Courier("worker", outbox="hooks")
    own.held(lambda _: [receiver.url + "/held"])
    hooks.write(receiver.url + "/held", receiver.url)
    with hooks.courier(own) as courier:
        assert courier.until_quiet() == 1
    assert hooks.rows() == [("PENDING", 0, None), ("SENT", 0, None)]


def test_a_thousand_rows_of_a_slow_destination_delay_no_other(hooks: HookTable, receiver: Receiver) -> None:
    """N10: each destination has at most its own slots, however many rows wait for it."""
    let_go = threading.Event()
    receiver.answer = lambda request: Answer(200 if request.path == "/quick" or let_go.wait(1.5) else 500)
    hooks.write(*[receiver.url + "/slow"] * 1000, receiver.url + "/quick")
    with hooks.courier() as courier:
        while hooks.rows()[-1][0] != "SENT":
            courier.run_once()
        under_way = hooks.db.execute("SELECT count(*) FROM shop.hooks WHERE status = 'SENDING'").fetchone()
        assert under_way is not None
        assert 0 < under_way[0] <= 8
        let_go.set()


def test_rows_that_were_lost_once_go_out_together(hooks: HookTable, receiver: Receiver) -> None:
    """N1: kill -9 of a courier costs its rows one lease, and no more."""
    hooks.write(*[receiver.url] * 5)
    with hooks.courier() as dead:
        assert len(dead.table.claim(10)) == 5
    hooks.expire()
    with hooks.courier() as heir:
        assert heir.until_quiet() == 5
    assert [attempts for _, attempts, _ in hooks.rows()] == [1] * 5
    assert Counter(hooks.attempts()) == {("lost", None): 5, ("delivered", None): 5}


def test_a_row_that_was_lost_twice_running_goes_with_nothing_beside_it(hooks: HookTable, receiver: Receiver) -> None:
    """N10: it may be what ends its courier."""
    hooks.write(receiver.url, receiver.url)
    with hooks.courier() as dead:
        dead.table.claim(10)
        hooks.expire()
        assert len(dead.table.claim_lost(10)) == 2
        hooks.expire()
    hooks.write(receiver.url)
    with hooks.courier() as heir:
        heir.service.lost_at = 0.0
        first = heir.service._claim(heir.table)
        assert [row.lost for row in first] == [True]
    assert [each[0] for each in hooks.attempts()] == ["lost"] * 3


def test_a_row_lost_too_often_is_given_up_and_reported(hooks: HookTable, receiver: Receiver) -> None:
    own = Courier("worker", outbox="hooks")
    ends: list[Any] = []
    own.settled(lambda _, ended: ends.extend(ended))
    hooks.write(receiver.url)
    with hooks.courier(own) as courier:
        courier.table.claim(1)
        for _ in range(2):
            hooks.expire()
            assert courier.table.claim_lost(1) or courier.table.claim_lost(1, twice=True)
        hooks.expire()
        courier.until_quiet()
    [(status, attempts, _)] = hooks.rows()
    assert (status, attempts) == ("DEAD", 3)
    assert [(end.delivered, end.code) for end in ends] == [(False, "WORKER_LOST")]
    assert not receiver.requests


def test_without_a_limit_no_row_is_ever_given_up(hooks: HookTable, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(404)
    hooks.described |= {"retry": {"limit": 0, "base_seconds": 0.01, "cap_seconds": 0.02},
                        "words": {"pending": ["PENDING", "FAILED"], "claimed": "SENDING", "done": "SENT"}}  # fmt: skip
    hooks.write(receiver.url)
    with hooks.courier() as courier:
        while len(receiver.requests) < 8:
            courier.run_once()
        courier.until_quiet()
    [(status, attempts, _)] = hooks.rows()
    assert status == "FAILED"
    assert attempts >= 8


def test_a_failure_ends_a_row_that_is_sent_once(hooks: HookTable, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(503)
    hooks.described |= {"retry": {"limit": 5, "once": True}}
    hooks.write(receiver.url)
    with hooks.courier() as courier:
        courier.until_quiet()
    assert hooks.rows()[0][:2] == ("DEAD", 1)
    assert len(receiver.requests) == 1


def test_rows_that_only_wait_are_released_when_the_courier_stops(hooks: HookTable, receiver: Receiver) -> None:
    """N16: sends in flight end and are settled; what waits behind them is as it was."""
    answered = threading.Event()
    receiver.answer = lambda _: Answer(200 if answered.wait(5) else 500)
    hooks.described |= {"slots": 2, "slots_per_destination": 2}
    hooks.write(*[receiver.url] * 6)
    with hooks.courier() as courier:
        courier.run_once()
        poll_until(lambda: len(receiver.requests) == 2, "requests in flight")
        courier.stopping.set()
        threading.Timer(0.2, answered.set).start()
        courier.service._finish(courier.table, lambda _: None)
    assert Counter(hooks.rows()) == {("SENT", 0, None): 2, ("PENDING", 0, None): 4}
