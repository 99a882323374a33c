"""Functions of a courier that fail for one row: timeouts, lost connections and bugs cost no other row anything."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman import Courier, Message, Misconfigured, Post, Refused
from ferryman.relay.described.couriers import courier, drain
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Answer, Receiver
from support.hooks import HookTable
from support.published import poll_until


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
    [(status, attempts, error), *others] = hooks.rows()
    assert (status, attempts, others) == ("PENDING", 1, [("SENT", 0, None)] * 4)
    assert "QueryCanceled" in error
    assert "test_courier_hooks.py:" in error


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
        turns.service.held.next_at = 0.0
        turns.until_quiet()
    assert hooks.rows() == [("PENDING", 0, None), ("SENT", 0, None)]


def test_settled_that_times_out_for_a_row_is_tried_again_while_others_go_on(
    hooks: HookTable, receiver: Receiver
) -> None:
    """N1, N3, N10: the row keeps its slot, and its report is not lost."""
    own = Courier("worker", outbox="hooks")
    reported: list[str] = []
    bad, *others = map(str, hooks.write(*[receiver.url] * 3))
    locked = [True]

    @own.settled
    def report(db: Connection, ended: Sequence[Any]) -> None:
        if locked and any(end.row.id == bad for end in ended):
            time_out(db)
        reported.extend(end.row.id for end in ended)

    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 2
        assert sorted(reported) == sorted(others)
        assert [row[0] for row in hooks.rows()] == ["SENDING", "SENT", "SENT"]
        hooks.expire()
        others.append(*map(str, hooks.write(receiver.url)))
        poll_until(lambda: turns.run_once() and sorted(reported) == sorted(others), "the report of a later row")
        locked.clear()
        poll_until(lambda: turns.run_once().published, "the report of the first row")
    assert hooks.rows() == [("SENT", 0, None)] * 4
    assert sorted(reported) == sorted([bad, *others])
    assert len(receiver.requests) == 4


def test_settled_without_a_right_is_tried_again_until_it_is_granted(hooks: HookTable, receiver: Receiver) -> None:
    """N1: no row is sent twice, no report is lost, and no other row is claimed meanwhile."""
    own = Courier("worker", outbox="hooks")

    calls: list[int] = []

    @own.settled
    def report(db: Connection, ended: Sequence[Any]) -> list[Message]:
        calls.append(len(ended))
        db.execute("SELECT 1 FROM shop.reports")
        return [Message("ended", {}, key=end.row.id, topic="hooks.results") for end in ended]

    first = hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as turns:
        turns.until_quiet()
        later = hooks.write(receiver.url)
        poll_until(lambda: turns.run_once() and len(calls) > 4, "a second attempt")
        assert [row[0] for row in hooks.rows()] == ["SENDING"] * 3 + ["PENDING"]
        problem = turns.service.reports.problem
        assert isinstance(problem, Misconfigured)
        assert "shop.reports" in str(problem)
        assert "test_courier_hooks.py:" in str(problem)
        assert "migrate" not in str(problem)
        hooks.db.execute("CREATE TABLE shop.reports ()")
        poll_until(lambda: turns.run_once() and hooks.rows() == [("SENT", 0, None)] * 4, "the reports")
    keys = hooks.db.execute("SELECT key FROM ferryman.outbox").fetchall()
    assert sorted(keys) == sorted((str(each),) for each in [*first, *later])
    assert len(receiver.requests) == 4


def test_lost_row_whose_report_must_wait_is_given_up_later(hooks: HookTable) -> None:
    """N1."""
    own = Courier("worker", outbox="hooks")

    @own.settled
    def report(db: Connection, ended: Sequence[Any]) -> list[Message]:
        db.execute("SELECT 1 FROM shop.reports")
        return [Message("ended", {}, key=end.row.id, topic="hooks.results") for end in ended]

    [lost] = hooks.write("lost")
    hooks.db.execute("UPDATE shop.hooks SET status = 'SENDING', attempts = 3, claimed_at = now() - interval '1 h'")
    with hooks.courier(own) as turns:
        turns.run_once()
        assert [row[0] for row in hooks.rows()] == ["SENDING"]
        hooks.db.execute("CREATE TABLE shop.reports ()")
        poll_until(lambda: turns.run_once() and hooks.rows()[0][0] == "DEAD", "the end of the row")
    assert hooks.db.execute("SELECT key FROM ferryman.outbox").fetchall() == [(str(lost),)]


def test_stop_without_a_connection_reports_what_was_sent_on_a_new_one(hooks: HookTable, receiver: Receiver) -> None:
    """N3: its rows need not be sent again."""
    own = Courier("worker", outbox="hooks")
    fails, stopping = [True], threading.Event()

    @own.settled
    def report(db: Connection, ended: Sequence[Any]) -> list[Message]:
        if fails:
            db.execute("SELECT 1 FROM shop.reports")
        return [Message("ended", {}, key=end.row.id, topic="hooks.results") for end in ended]

    hooks.write(receiver.url)
    service = courier("hooks", hooks.settings, own)
    with service.opened() as table:
        assert service.way.why_not() is None
        poll_until(lambda: [service.run_once(table, stopping)] and service.reports.unreported, "a failed report")
    fails.clear()
    stopping.set()
    service.run(Life("worker", stopping))
    assert hooks.rows() == [("SENT", 0, None)]
    assert hooks.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (1,)


def test_drain_whose_reports_fail_says_why(hooks: HookTable, receiver: Receiver) -> None:
    own = Courier("worker", outbox="hooks")
    own.settled(lambda db, _: db.execute("SELECT 1 FROM shop.reports"))
    hooks.write(receiver.url)
    with pytest.raises(Misconfigured, match=r"shop\.reports"):
        drain(courier("hooks", hooks.settings, own), threading.Event())


def test_settled_that_swallows_an_error_of_the_database_costs_its_report(hooks: HookTable, receiver: Receiver) -> None:
    """It is a bug of the hook: nothing would change if it was tried again."""
    own = Courier("worker", outbox="hooks")

    @own.settled
    def report(db: Connection, _: Sequence[Any]) -> None:
        with suppress(psycopg.Error):
            db.execute("SELECT 1 / 0")

    hooks.write(receiver.url)
    with hooks.courier(own) as turns, capture_logs() as logs:
        assert turns.until_quiet() == 1
    assert "settled caught an error" in str([each["error"] for each in logs if each["log_level"] == "error"])
    assert hooks.rows() == [("SENT", 0, None)]


def test_login_that_may_not_append_is_refused_at_the_start_if_settled_returns_messages(
    hooks: HookTable, login: Callable[..., str]
) -> None:
    hooks.db.execute("GRANT USAGE ON SCHEMA shop TO ferryman_courier")
    hooks.db.execute("GRANT SELECT, UPDATE ON shop.hooks TO ferryman_courier")
    own, silent = Courier("worker", outbox="hooks"), Courier("worker", outbox="hooks")
    own.settled(lambda _, ended: [Message("ended", {}, key=end.row.id, topic="hooks.results") for end in ended])

    @silent.settled
    def note(_: Connection, ended: Sequence[Any]) -> None: ...

    hooks.url = login("ferryman_courier")
    with pytest.raises(Misconfigured, match="GRANT ferryman_writer TO test_"), hooks.courier(own):
        pass
    with hooks.courier(silent), hooks.courier():
        pass
    hooks.url = login("ferryman_courier", "ferryman_writer")
    with hooks.courier(own):
        pass


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "prepare returned None: return a list with a Post or a Refused"),
        ([], "prepare returned 0 items for 1 row: "),
        ([None], "prepare returned None for a row"),
        (["http://one/"], "prepare returned a str for a row"),
        ("http://one/", "prepare returned a str: return a list"),
    ],
)
def test_prepare_that_returns_no_post_says_what_to_return(hooks: HookTable, answer: Any, said: str) -> None:
    own = Courier("worker", outbox="hooks")
    own.prepare(lambda *_: answer)
    hooks.write("http://one/")
    with hooks.courier(own) as turns:
        turns.run_once()
    [(status, attempts, error)] = hooks.rows()
    assert (status, attempts) == ("PENDING", 1)
    assert said in error
    assert "test_courier_hooks.py:" in error


def test_prepare_that_misses_a_table_costs_no_attempt_and_names_its_line(hooks: HookTable) -> None:
    """Every row would fail of it: no row is to blame, and none is given up."""
    own = Courier("worker", outbox="hooks")

    @own.prepare
    def posts(db: Connection, _: Sequence[Any]) -> list[Post]:
        db.execute("SELECT url FROM shop.endpoints")
        return []

    ids = hooks.write(*"abc")
    with hooks.courier(own) as turns:
        for _ in range(2):
            with pytest.raises(Misconfigured) as raised:
                turns.run_once()
            said = str(raised.value)
            assert "shop.endpoints" in said
            assert "posts" in said
            assert any(str(each) in said for each in ids)
            assert "migrate" not in said
        turns.service._settle(turns.table, turns.service._unsettled)
    assert hooks.rows() == [("PENDING", 0, None)] * 3


@pytest.mark.parametrize("answer", ["http://one/", [("http://one/",)], 7, {"http://one/": True}])
def test_held_that_returns_no_destinations_says_so_once(hooks: HookTable, receiver: Receiver, answer: Any) -> None:
    own = Courier("worker", outbox="hooks")
    own.held(lambda _: answer)
    hooks.write(receiver.url)
    with hooks.courier(own) as turns, capture_logs() as logs:
        assert turns.until_quiet() == 1
        turns.service.held.next_at = 0.0
        turns.run_once()
    [logged] = [each for each in logs if each["event"].startswith("held failed")]
    assert "test_courier_hooks.py:" in logged["error"]


def test_held_destinations_are_logged_once_and_counted(hooks: HookTable) -> None:
    own = Courier("worker", outbox="hooks")
    answers = [["http://one/"], ["http://one/"], []]
    own.held(lambda _: answers.pop(0))
    with hooks.courier(own) as turns, capture_logs() as logs:
        held = []
        for _ in range(3):
            turns.service.held.next_at = 0.0
            turns.run_once()
            held.append(REGISTRY.get_sample_value("ferryman_relay_held_destinations", {"source": "hooks"}))
    assert held == [1, 1, 0]
    told = [(each["more"], each["released"]) for each in logs if each["event"] == "held by the courier"]
    assert told == [(["http://one/"], []), ([], ["http://one/"])]


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


def test_rows_that_fail_for_different_reasons_are_logged_apart(hooks: HookTable, receiver: Receiver) -> None:
    receiver.answer = lambda request: Answer(404 if request.path == "/gone" else 500)
    ids = list(map(str, hooks.write(receiver.url + "/gone", receiver.url + "/a", receiver.url + "/b")))
    hooks.described |= {"retry": {"limit": 3, "base_seconds": 60}}
    with hooks.courier() as turns, capture_logs() as logs:
        poll_until(lambda: turns.run_once() and all(each[2] for each in hooks.rows()), "the ends")
        poll_until(lambda: turns.run_once() and not turns.service.way.under_way, "the last end")
    failed = [each for each in logs if each["event"] == "sending failed"]
    assert {each["code"] for each in failed} == {"NOT_FOUND", "SERVER_FAILED"}
    assert sum(each["rows"] for each in failed) == 3
    assert {each["row"] for each in failed} <= set(ids)


def test_refused_row_that_is_tried_for_ever_is_reported_once_for_each_reason(hooks: HookTable) -> None:
    """N6: with no limit and no word for dead it never ends, so `settled` is not told of it."""
    own = Courier("worker", outbox="hooks")
    told: list[Any] = []
    own.settled(lambda _, ended: told.extend(ended))
    reasons = ["NO", "NO", "NEITHER", "NO"]

    @own.prepare
    def refuse(_: Connection, rows: Sequence[Any]) -> list[Refused]:
        reason = reasons[rows[0].attempts - 1]
        return [Refused(reason, Message("refused", {"why": reason}, key=row.id, topic="hooks.results")) for row in rows]

    hooks.described |= {
        "words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT"},
        "retry": {"limit": 0, "base_seconds": 0.01},
    }
    hooks.write("nowhere")
    reports = "SELECT convert_from(payload, 'UTF8')::json ->> 'why' FROM ferryman.outbox ORDER BY position"
    found = []
    with hooks.courier(own) as turns:
        for number in range(1, 5):
            poll_until(lambda: bool(turns.run_once()) and hooks.rows()[0][1] == number, "an attempt")  # noqa: B023
            found.append([why for (why,) in hooks.db.execute(reports).fetchall()])
    assert found == [["NO"], ["NO"], ["NO", "NEITHER"], ["NO", "NEITHER"]]
    assert told == []
