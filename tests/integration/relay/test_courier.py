"""Rows of a described table that leave by HTTP: real receivers, a real database."""

import itertools
import json
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from standardwebhooks.webhooks import Webhook

from ferryman import Courier, Message, Misconfigured, Post, Refused
from ferryman.channels.http.client import HttpChannel
from ferryman.channels.outcome import Retry
from ferryman.relay.described import couriers, table
from ferryman.relay.described.couriers import courier, courier_service, drain
from ferryman.relay.described.rows import released
from ferryman.relay.described.statements import IN_DOUBT
from ferryman.relay.described.table import Table
from ferryman.relay.described.way_out import SentRow
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.life import Life
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.postgres import Connection
from ferryman.testing import stack
from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver
from support.compose import ROOT
from support.hooks import SECRET, HookTable
from support.pace import in_time
from support.published import poll_until
from support.rawhttp import RawServer, addresses, answers


def test_due_rows_are_posted_signed_and_settled_with_their_time(hooks: HookTable, receiver: Receiver) -> None:
    """N1: the id of the row is what the receiver dedupes by."""
    ids = hooks.write(receiver.url, receiver.url)
    with hooks.courier() as turns:
        assert turns.until_quiet() == 2
    assert hooks.rows() == [("SENT", 0, None)] * 2
    assert hooks.attempts() == [("delivered", None)] * 2
    assert {each.headers["webhook-id"] for each in receiver.requests} == set(map(str, ids))
    for request in receiver.requests:
        assert set(Webhook(SECRET).verify(request.body, dict(request.headers))) == {"n"}
        assert json.loads(request.body)["n"] in (0, 1)
    assert hooks.db.execute("SELECT count(*) FROM shop.hooks WHERE done_at IS NOT NULL").fetchone() == (2,)


def test_the_table_of_the_how_to_fits_its_description(hooks: HookTable) -> None:
    page = (ROOT / "docs" / "couriers.md").read_text()
    ddl, toml = (page.split(f"```{language}\n")[1].split("```")[0] for language in ("sql", "toml"))
    hooks.db.execute("DROP SCHEMA shop CASCADE")
    hooks.db.execute(ddl)
    described = tomllib.loads(toml)
    hooks.described, hooks.http = described["outbox"]["hooks"], described["http"]
    with hooks.courier() as courier:
        assert courier.until_quiet() == 0


def test_each_failure_counts_until_the_row_is_given_up(hooks: HookTable, receiver: Receiver) -> None:
    """N8."""
    receiver.answer = lambda _: Answer(500)
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        while not receiver.requests[2:]:
            turns.run_once()
        turns.until_quiet()
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
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 1
    assert [status for status, *_ in hooks.rows()] == ["SENT", "DEAD", "DEAD"]
    assert {each.body for each in receiver.requests} == {b'made of {"n": 0}', b'made of {"n": 1}'}
    for request in receiver.requests:  # signed with the secrets of its outbox
        Webhook(SECRET).verify(request.body, dict(request.headers), json_parse=False)
    told = hooks.db.execute("SELECT type, key FROM ferryman.outbox ORDER BY type, key").fetchall()
    sent, gone, refused = map(str, ids)
    assert told == sorted([("delivered", sent), ("failed", gone), ("failed", refused), ("refused", refused)])


def reported(kind: str, row: Any) -> Message:
    return Message(kind, {}, key=row.id, topic="hooks.results")


def test_a_channel_of_the_users_own_needs_only_send_and_says_what_the_receiver_calls_a_row(hooks: HookTable) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD COLUMN reference text, ADD COLUMN changed timestamptz")
    hooks.described |= {"channel": "support.hooks:Letters", "secrets": [], "columns": {"updated_at": "changed"}}
    hooks.write("a", "b")
    with hooks.courier() as turns:
        assert turns.until_quiet() == 2
    rows = hooks.db.execute("SELECT status, reference, changed >= claimed_at FROM shop.hooks ORDER BY created_at")
    assert rows.fetchall() == [("SENT", "letter-a", True), ("SENT", "letter-b", True)]
    logged = hooks.db.execute("SELECT reference, excerpt FROM ferryman.outbox_attempt ORDER BY reference").fetchall()
    assert logged == [("letter-a", "thank you"), ("letter-b", "thank you")]


def test_a_row_has_headers_and_a_content_type_and_the_outbox_a_token(hooks: HookTable, receiver: Receiver) -> None:
    hooks.db.execute("ALTER TABLE shop.hooks ADD COLUMN headers jsonb, ADD COLUMN content_type text")
    hooks.described |= {"secrets": [], "bearer": "the-token"}
    hooks.write(receiver.url)
    hooks.db.execute("""UPDATE shop.hooks SET headers = '{"X-Shop": "7"}', content_type = 'text/x-shop'""")
    with hooks.courier() as turns:
        assert turns.until_quiet() == 1
    headers = receiver.requests[0].headers
    assert [headers[name] for name in ("authorization", "x-shop", "content-type")] == [
        "Bearer the-token", "7", "text/x-shop",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("http", "lease_seconds", "setting"),
    [
        ({"timeout_seconds": 20}, 60, "http.timeout_seconds"),
        ({"timeout_seconds": 2}, 18.9, "outbox.hooks.lease.seconds"),
    ],
)
def test_times_that_do_not_fit_are_refused_at_the_start(
    hooks: HookTable, http: dict[str, Any], lease_seconds: float, setting: str
) -> None:
    """N3, N16: a send ends before its process must, and is settled before its lease is over."""
    hooks.http = http
    hooks.described |= {"lease": {"seconds": lease_seconds}}
    with pytest.raises(Misconfigured) as refused:
        couriers.courier("hooks", hooks.settings)
    assert refused.value.setting == setting


def test_a_bug_in_prepare_costs_its_own_row_an_attempt_and_no_other(hooks: HookTable, receiver: Receiver) -> None:
    """N10."""
    own = Courier("worker", outbox="hooks")

    @own.prepare
    def posts(db: Connection, rows: Sequence[Any]) -> list[Post]:
        for row in rows:
            if row.content == b'{"n": 1}':
                db.execute("SELECT 1 / 0")
        return [Post(row.destination, row.content, row.id) for row in rows]

    hooks.described |= {"retry": {"limit": 3, "base_seconds": 60}}
    hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 2
    assert [row[:2] for row in hooks.rows()] == [("SENT", 0), ("PENDING", 1), ("SENT", 0)]


def test_a_row_is_told_of_once_however_often_it_is_tried(hooks: HookTable, receiver: Receiver) -> None:
    """N6."""
    told: list[bool] = []
    own = Courier("worker", outbox="hooks")
    own.settled(lambda _, ended: told.extend(end.delivered for end in ended))
    receiver.answer = lambda _: Answer(200 if len(receiver.requests) == 3 else 500)
    hooks.write(receiver.url)
    with hooks.courier(own) as turns:
        while not receiver.requests[2:]:
            turns.run_once()
        turns.until_quiet()
    assert told == [True]


def test_a_bug_in_settled_costs_its_report_and_sends_nothing_twice(hooks: HookTable, receiver: Receiver) -> None:
    """N10: the row is settled without it."""
    own = Courier("worker", outbox="hooks")

    @own.settled
    def report(_: Connection, ended: Sequence[Any]) -> list[Message]:
        if any(end.row.content == b'{"n": 1}' for end in ended):
            raise KeyError("a bug")
        return [reported("delivered", end.row) for end in ended]

    hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 3
    assert hooks.rows() == [("SENT", 0, None)] * 3
    assert hooks.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (2,)
    assert len(receiver.requests) == 3


def test_a_bug_in_settled_costs_no_report_of_a_refused_row(hooks: HookTable) -> None:
    """N10: its neighbours are settled once more, and what `prepare` said of them is not forgotten."""
    own = Courier("worker", outbox="hooks")
    own.prepare(lambda _, rows: [Refused("NO", reported("refused", row)) if row.destination == "nowhere"
                                 else Post(row.destination, row.content) for row in rows])  # fmt: skip

    @own.settled
    def report(_: Connection, ended: Sequence[Any]) -> list[Message]:
        if any(end.row.content == b'{"n": 1}' for end in ended):
            raise KeyError("a bug")
        return []

    hooks.write("nowhere", "nowhere")
    with hooks.courier(own) as turns:
        turns.until_quiet()
    assert [status for status, *_ in hooks.rows()] == ["DEAD", "DEAD"]
    assert hooks.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (1,)


def test_an_error_that_settled_swallows_does_not_undo_the_settling(hooks: HookTable, receiver: Receiver) -> None:
    """N3: its transaction is rolled back, so each row would be sent at each end of its lease."""
    own = Courier("worker", outbox="hooks")

    @own.settled
    def report(db: Connection, _: Sequence[Any]) -> None:
        with suppress(psycopg.Error):
            db.execute("SELECT 1 / 0")

    hooks.write(receiver.url, receiver.url)
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 2
    assert hooks.rows() == [("SENT", 0, None)] * 2


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_settling_that_the_database_did_not_confirm_is_told_once(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """N3, N6: the connection breaks before COMMIT is sent, or before its answer comes."""
    own = Courier("worker", outbox="hooks")
    own.prepare(lambda _, rows: [Refused("NO", reported("refused", row)) if row.destination == "nowhere"
                                 else Post(row.destination, row.content) for row in rows])  # fmt: skip
    own.settled(lambda _, ended: [reported("delivered" if end.delivered else "failed", end.row) for end in ended])
    receiver.answer = lambda request: Answer(200 if request.path == "/well" else 500)
    hooks.described |= {"retry": {"limit": 1}, "words": {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT"}}
    sent, failed, refused = map(str, hooks.write(receiver.url + "/well", receiver.url, "nowhere"))
    settle: Callable[..., set[str]] = Table.settle
    losses = iter([True])

    def breaking(*arguments: Any) -> set[str]:
        if not next(losses, False):
            return settle(*arguments)
        if lost == "answer":
            settle(*arguments)
        else:
            with suppress(ZeroDivisionError):
                settle(*arguments[:2], lambda ours: arguments[2](ours) or 1 / 0)
        raise Unreachable("the connection is lost")

    with hooks.courier(own) as turns:
        monkeypatch.setattr(Table, "settle", breaking)
        with pytest.raises(Unreachable):
            turns.until_quiet()
        turns.until_quiet()
    assert [row[:2] for row in hooks.rows()] == [("SENT", 0), ("PENDING", 1), ("PENDING", 1)]
    told = hooks.db.execute("SELECT type, key FROM ferryman.outbox ORDER BY type, key").fetchall()
    assert told == sorted([("delivered", sent), ("failed", failed), ("failed", refused), ("refused", refused)])
    assert len(receiver.requests) == 2
    assert len(hooks.attempts()) == 3


def test_an_end_that_came_after_its_lease_is_told_by_the_heir_alone(hooks: HookTable) -> None:
    """N6."""
    told: list[str] = []
    own = Courier("worker", outbox="hooks")
    own.settled(lambda _, ended: told.extend(end.row.id for end in ended))
    hooks.described |= {"retry": {"limit": 1}}
    hooks.write("a", "b")
    with hooks.courier(own) as turns:
        first, second = turns.table.claim(2)
        hooks.db.execute("UPDATE shop.hooks SET claimed_at = clock_timestamp() WHERE id = %s", (first.id,))
        ends = [SentRow(first, Retry("too late"), 0.0), SentRow(second, Retry("in time"), 0.0)]
        turns.service._settle_ended(turns.table, ends)
    assert told == [second.id]


def test_what_could_not_be_settled_is_settled_first_when_the_courier_stops(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N3, N16."""
    settle: Callable[..., set[str]] = Table.settle
    losses = iter([True])

    def breaking(*arguments: Any) -> set[str]:
        if next(losses, False):
            raise Unreachable("the database is away")
        return settle(*arguments)

    monkeypatch.setattr(Table, "settle", breaking)
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        with pytest.raises(Unreachable):
            turns.until_quiet()
        turns.service._finish(turns.table, lambda _: None)
    assert hooks.rows() == [("SENT", 0, None)]


def test_an_outage_while_rows_are_settled_singly_forgets_none(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N3: all were sent, and the hook fails for one."""
    own = Courier("worker", outbox="hooks")

    @own.settled
    def report(_: Connection, ended: Sequence[Any]) -> None:
        if any(end.row.content == b'{"n": 1}' for end in ended):
            raise KeyError("a bug")

    settle: Callable[..., set[str]] = Table.settle
    calls = itertools.count(1)

    def breaking(*arguments: Any) -> set[str]:
        if len(arguments[1]) == 1 and next(calls) == 1:
            raise Unreachable("the database is away")
        return settle(*arguments)

    monkeypatch.setattr(Table, "settle", breaking)
    all_sent = threading.Barrier(3)
    receiver.answer = lambda _: Answer(200 + all_sent.wait(10))  # they end, and are settled, together
    hooks.write(*[receiver.url] * 3)
    with hooks.courier(own) as turns:
        with pytest.raises(Unreachable):
            turns.until_quiet()
        turns.until_quiet()
    assert hooks.rows() == [("SENT", 0, None)] * 3
    assert len(receiver.requests) == 3


def test_destinations_that_are_held_are_not_tried(hooks: HookTable, receiver: Receiver) -> None:
    own = Courier("worker", outbox="hooks")
    own.held(lambda _: [receiver.url + "/held"])
    hooks.write(receiver.url + "/held", receiver.url)
    with hooks.courier(own) as turns:
        assert turns.until_quiet() == 1
    assert hooks.rows() == [("PENDING", 0, None), ("SENT", 0, None)]


def test_a_row_that_its_writer_locks_is_passed_over(hooks: HookTable, receiver: Receiver) -> None:
    """N10."""
    first, _ = hooks.write(receiver.url, receiver.url)
    with psycopg.connect(hooks.url) as writer, hooks.courier() as turns:
        writer.execute("SELECT FROM shop.hooks WHERE id = %s FOR UPDATE", (first,))
        assert turns.until_quiet() == 1
    assert hooks.rows() == [("PENDING", 0, None), ("SENT", 0, None)]


def test_a_thousand_rows_of_a_slow_destination_delay_no_other(hooks: HookTable, receiver: Receiver) -> None:
    """N10: each destination has at most its own slots, however many rows wait for it."""
    let_go = threading.Event()
    receiver.answer = lambda request: Answer(200 if request.path == "/quick" or let_go.wait(1.5) else 500)
    hooks.write(*[receiver.url + "/slow"] * 1000, receiver.url + "/quick")
    with hooks.courier() as turns:
        while hooks.rows()[-1][0] != "SENT":
            turns.run_once()
        under_way = hooks.db.execute("SELECT count(*) FROM shop.hooks WHERE status = 'SENDING'").fetchone()
        assert under_way is not None
        assert 0 < under_way[0] <= 8
        let_go.set()


def test_names_that_hang_delay_no_row_of_another(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N10, N12."""
    over = threading.Event()

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        if host.startswith("hangs"):
            over.wait(20)
        return addresses("127.0.0.1")(host, port, **more)

    monkeypatch.setattr(
        couriers, "http_channel", lambda settings, slots: HttpChannel(settings, slots=slots, lookup=lookup)
    )
    hooks.http = {"connect_timeout_seconds": 10, "timeout_seconds": 10}
    well = receiver.url.replace("127.0.0.1", "well.example")
    hooks.write(*[f"http://hangs-{number}.example/" for number in range(40)], *[well] * 30)
    with hooks.courier() as turns:
        while len(receiver.requests) < 30:
            turns.run_once()
        hanging = "SELECT count(*) FROM shop.hooks WHERE status = 'SENDING' AND destination LIKE '%hangs%'"
        assert hooks.db.execute(hanging).fetchone() == (40,)
        over.set()


def test_drain_reaches_a_row_behind_any_number_of_destinations_that_wait(hooks: HookTable, receiver: Receiver) -> None:
    """N10: a claim walks over a bounded number of destinations."""
    hooks.write(*[f"a-{number}" for number in range(300)], receiver.url)
    hooks.db.execute("UPDATE shop.hooks SET next_attempt_at = now() + interval '1 h' WHERE destination LIKE 'a-%'")
    left = couriers.courier("hooks", hooks.settings).drain(threading.Event(), lambda _: None)
    assert sum(each.waiting for each in left) == 300
    assert len(receiver.requests) == 1


def test_a_row_that_was_lost_twice_does_not_wait_for_a_pause_of_the_others(
    hooks: HookTable, receiver: Receiver
) -> None:
    """N1, N10, N11: something is always under way, and it is sent alone all the same."""
    ending: list[threading.Event] = []
    beside: list[int] = []

    def answer(request: ReceivedRequest) -> Answer:
        if request.path == "/lost":
            beside.append(turns.service.way.under_way)
        else:
            ending.append(mine := threading.Event())
            mine.wait(10)
        return Answer(200)

    receiver.answer = answer
    hooks.write(receiver.url + "/lost")
    with hooks.courier() as turns:
        turns.table.claim(1)
        for _ in range(2):
            hooks.expire()
            turns.table.claim_lost(1)
        hooks.expire()
        turns.service.lost_at = float("inf")
        for number in range(20):  # one more is under way before the one before it ends
            hooks.write(receiver.url)
            turns.run_once()
            if beside or turns.service._lost_twice:
                break
            poll_until(lambda: len(ending) > number, "another send")  # noqa: B023 - called before the next
            turns.service.lost_at = 0.0
            for each in ending[:-1]:
                each.set()
        for each in ending:
            each.set()
        turns.until_quiet()
    assert beside == [1]


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


def test_a_lost_row_that_is_taken_over_and_not_tried_is_lost_as_before(hooks: HookTable, receiver: Receiver) -> None:
    """N1, N11: it waits for no second lease, and one lost attempt is in the log once."""
    hooks.write(receiver.url)
    with hooks.courier() as dead:
        dead.table.claim(1)
    hooks.expire()
    with hooks.courier() as brief:
        brief.table.settle([released(row) for row in brief.table.claim_lost(1)])
    assert hooks.rows() == [("SENDING", 1, IN_DOUBT)]
    with hooks.courier() as heir:
        assert heir.until_quiet() == 1
    assert [attempts for _, attempts, _ in hooks.rows()] == [1]
    assert hooks.attempts() == [("lost", None), ("delivered", None)]


def test_a_row_that_was_lost_twice_running_goes_with_nothing_beside_it(hooks: HookTable, receiver: Receiver) -> None:
    """N10: it may be what ends its courier."""
    hooks.write(receiver.url, receiver.url)
    with hooks.courier() as dead:
        dead.table.claim(10)
        hooks.expire()
        assert len(dead.table.claim_lost(10)) == 2
        hooks.expire()
    hooks.write(receiver.url)
    answered = threading.Event()
    receiver.answer = lambda _: Answer(200 if answered.wait(10) else 500)
    with hooks.courier() as heir:
        heir.run_once()
        heir.run_once()
        assert heir.service.way.under_way == 1
        assert [each[0] for each in hooks.attempts()] == ["lost"] * 3
        answered.set()
        assert heir.until_quiet() == 3


def test_a_row_lost_too_often_is_given_up_and_reported(hooks: HookTable, receiver: Receiver) -> None:
    own = Courier("worker", outbox="hooks")
    ends: list[Any] = []
    own.settled(lambda _, ended: ends.extend(ended))
    labels = {"source": "hooks", "topic": "http"}
    given_up = REGISTRY.get_sample_value("ferryman_relay_failed_total", labels) or 0.0
    hooks.write(receiver.url)
    with hooks.courier(own) as turns:
        turns.table.claim(1)
        for _ in range(2):
            hooks.expire()
            assert turns.table.claim_lost(1) or turns.table.claim_lost(1, twice=True)
        hooks.expire()
        turns.until_quiet()
    [(status, attempts, _)] = hooks.rows()
    assert (status, attempts) == ("DEAD", 3)
    assert [(end.delivered, end.code) for end in ends] == [(False, "WORKER_LOST")]
    assert REGISTRY.get_sample_value("ferryman_relay_failed_total", labels) == given_up + 1
    assert not receiver.requests


def test_without_a_limit_no_row_is_ever_given_up(hooks: HookTable, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(404)
    hooks.described |= {"retry": {"limit": 0, "base_seconds": 0.01, "cap_seconds": 0.02},
                        "words": {"pending": ["PENDING", "FAILED"], "claimed": "SENDING", "done": "SENT"}}  # fmt: skip
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        while len(receiver.requests) < 8:
            turns.run_once()
        turns.until_quiet()
    [(status, attempts, _)] = hooks.rows()
    assert status == "FAILED"
    assert attempts >= 8


def test_a_failure_ends_a_row_that_is_sent_once(hooks: HookTable, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(503)
    hooks.described |= {"retry": {"limit": 5, "once": True}}
    hooks.write(receiver.url)
    with hooks.courier() as turns:
        turns.until_quiet()
    assert hooks.rows()[0][:2] == ("DEAD", 1)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("break_it", "mends"),
    [
        ("DROP TABLE shop.hooks", "CREATE TABLE shop.hooks"),
        ("ALTER TABLE shop.hooks DROP COLUMN payload", "ADD COLUMN payload jsonb;"),
    ],
)  # fmt: skip
def test_table_that_a_courier_cannot_use_is_refused_with_the_ddl_that_mends_it(
    hooks: HookTable, break_it: str, mends: str
) -> None:
    hooks.db.execute(break_it)
    with pytest.raises(Misconfigured) as refused, hooks.courier():
        pass
    assert (refused.value.setting or "").startswith("outbox.hooks.")
    assert mends in (refused.value.remedy or "")
    hooks.db.execute((refused.value.remedy or "").partition(": ")[2])
    with hooks.courier():
        """It is mended."""


def test_a_login_without_the_role_is_told_which(hooks: HookTable) -> None:
    hooks.url = stack.login(hooks.url, "shop")
    with pytest.raises(Misconfigured, match="GRANT ferryman_courier TO shop"), hooks.courier():
        pass


TOO_MANY = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + b"\r\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [(b"HTTP/1.1 abc OK\r\n\r\n", "the answer is not valid HTTP"), (TOO_MANY, "the answer is not valid HTTP")],
    ids=["a broken status line", "10,000 headers"],
)
def test_row_whose_receiver_is_broken_says_why_and_is_tried_again(hooks: HookTable, words: bytes, error: str) -> None:
    with RawServer(answers(words)) as server, hooks.courier() as courier:
        hooks.write(server.url)
        assert poll_until(lambda: courier.run_once().failed, "failed row") == 1
    [(status, attempts, why)] = hooks.rows()
    assert (status, attempts) == ("PENDING", 1)
    assert why.startswith(error)
    assert hooks.attempts() == [("failed", "ANSWER_INVALID")]


def test_row_that_cannot_be_sent_says_why_and_its_secrets_stay_hidden(hooks: HookTable, receiver: Receiver) -> None:
    """N14."""
    hooks.http |= {"max_body_bytes": 1024}
    hooks.write("http://user:geheim@127.0.0.1/", "127.0.0.1/here", receiver.url)
    hooks.db.execute("UPDATE shop.hooks SET payload = to_jsonb(repeat('x', 2000)) WHERE destination = %s",
                     (receiver.url,))  # fmt: skip
    with hooks.courier() as courier:
        courier.until_quiet()
    assert hooks.rows() == [
        ("DEAD", 1, "the URL has a user or a password, which a URL may not have here"),
        ("DEAD", 1, "the URL does not begin with http:// or https://"),
        ("DEAD", 1, "the body has 2002 bytes, and http.max_body_bytes allows 1024"),
    ]
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("http", "described", "setting"),
    [
        ({"timeout_seconds": 20}, {}, "http.timeout_seconds"),
        ({"timeout_seconds": 19}, {"lease": {"seconds": 52}}, "outbox.hooks.lease.seconds"),
        ({}, {"channel": "no_such_module:Channel"}, "outbox.hooks.channel"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_at_the_start(
    hooks: HookTable, http: dict[str, Any], described: dict[str, Any], setting: str
) -> None:
    """N16: a send that outlasts the end of the process, or a lease that does not cover two sends and a settle."""
    hooks.http, hooks.described = http, described
    with pytest.raises(Misconfigured) as refused, hooks.courier():
        pass
    assert refused.value.setting == setting


def test_a_wrong_description_of_a_courier_is_refused_in_one_line(hooks: HookTable) -> None:
    with pytest.raises(Misconfigured, match="the courier mine has a wrong description: url: ") as refused:
        courier_service(Courier("mine", outbox={"table": "t", "url": "http://u:geheim@h/"}), hooks.settings)
    assert "geheim" not in str(refused.value)
    with pytest.raises(Misconfigured) as unknown:
        courier_service(Courier("mine", outbox="gone"), hooks.settings)
    assert unknown.value.setting == "outbox.gone"


def test_rows_that_only_wait_are_released_when_the_courier_stops(hooks: HookTable, receiver: Receiver) -> None:
    """N16: sends in flight end and are settled; what waits behind them is as it was."""
    answered = threading.Event()
    receiver.answer = lambda _: Answer(200 if answered.wait(5) else 500)
    hooks.described |= {"slots": 2, "slots_per_destination": 4}
    hooks.write(*[receiver.url] * 6)
    with hooks.courier() as turns:
        turns.run_once()
        poll_until(lambda: len(receiver.requests) == 2, "requests in flight")
        turns.stopping.set()
        threading.Timer(0.2, answered.set).start()
        turns.service._finish(turns.table, lambda _: None)
    assert Counter(hooks.rows()) == {("SENT", 0, None): 2, ("PENDING", 0, None): 4}


def test_attempts_are_kept_as_long_as_the_outbox_says(hooks: HookTable, receiver: Receiver) -> None:
    """N12: under the role of a courier; those of another outbox stay."""
    hooks.db.execute(
        "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, ended_at, outcome) "
        "SELECT name, n::text, now() - make_interval(mins => n), now(), 'failed' "
        "FROM unnest(ARRAY['hooks', 'others']) name, generate_series(59, 6100) n"
    )
    hooks.db.execute("GRANT USAGE ON SCHEMA shop TO ferryman_courier; "
                     "GRANT SELECT, UPDATE ON shop.hooks TO ferryman_courier")  # fmt: skip
    hooks.url = stack.login(hooks.url, "hooks", "ferryman_courier")
    hooks.described |= {"attempts_retention_seconds": 3600}
    hooks.write(receiver.url)
    drain(courier("hooks", hooks.settings), threading.Event())
    kept = "SELECT row_id FROM ferryman.outbox_attempt WHERE outbox = 'hooks' AND outcome = 'failed'"
    assert hooks.db.execute(kept).fetchall() == [("59",)]
    others = "SELECT count(*) FROM ferryman.outbox_attempt WHERE outbox = 'others'"
    assert hooks.db.execute(others).fetchone() == (6042,)


def test_after_work_a_courier_looks_again_soon(hooks: HookTable, receiver: Receiver) -> None:
    """`poll_seconds` is for quiet times: the second row is written while the courier rests."""
    hooks.described |= {"poll_seconds": 60}
    hooks.write(receiver.url)
    with hooks.running():
        poll_until(lambda: hooks.rows() == [("SENT", 0, None)], "the first row")
        hooks.write(receiver.url)
        poll_until(lambda: len(receiver.requests) == 2, "the second row")


def test_a_backlog_that_takes_long_to_count_delays_no_row(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, counted = threading.Event(), threading.Event()

    def count(_: Table) -> list[Any]:
        counting.set()
        assert counted.wait(30)
        return []

    monkeypatch.setattr(Table, "backlog", count)
    with hooks.running():
        assert counting.wait(20)
        hooks.write(receiver.url)
        poll_until(lambda: hooks.rows() == [("SENT", 0, None)], "the row")
        counted.set()


def test_a_bug_in_the_housekeeping_ends_the_service(hooks: HookTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(_: Table) -> list[Any]:
        raise KeyError("a bug")

    monkeypatch.setattr(Table, "backlog", count)
    life = Life("hooks")
    with pytest.raises(KeyError):
        courier("hooks", hooks.settings).run(life)
    assert life.stopping.is_set()


def test_no_more_sends_begin_in_a_second_than_the_outbox_says(hooks: HookTable, receiver: Receiver) -> None:
    """A drain waits for its turn, and sends everything."""
    hooks.described |= {"per_second": 5}
    hooks.write(*[receiver.url] * 11)
    began: list[float] = []

    def answer(_: Any) -> Answer:
        began.append(time.monotonic())
        return Answer()

    receiver.answer = answer
    assert drain(courier("hooks", hooks.settings), threading.Event()).published == 11
    slack = 0.05  # between the begin of a send and its arrival
    assert all(sixth - first > 1 - slack for first, sixth in zip(began, began[5:], strict=False)), began
    assert in_time(began[-1] - began[0], 4)


def test_sends_are_counted_by_outcome_and_code_and_never_by_destination(hooks: HookTable, receiver: Receiver) -> None:
    receiver.answer = lambda request: Answer(410 if request.path == "/gone" else 200)
    hooks.write(receiver.url + "/here", receiver.url + "/here", receiver.url + "/gone")

    def counted(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(f"ferryman_relay_{name}", {"source": "hooks", **labels}) or 0.0

    def now() -> tuple[float, ...]:
        delivered, gone = {"outcome": "delivered", "code": ""}, {"outcome": "rejected", "code": "GONE"}
        return counted("answers_total", **delivered), counted("answers_total", **gone), counted("send_seconds_count")

    before = now()
    with hooks.courier() as turns:
        turns.until_quiet()
    assert [new - old for new, old in zip(now(), before, strict=True)] == [2, 1, 3]
    assert counted("in_flight") == 0
    labels = {value for metric in REGISTRY.collect() for sample in metric.samples for value in sample.labels.values()}
    assert not [value for value in labels if receiver.url in value]


def test_a_drain_walks_over_all_destinations_however_many(
    hooks: HookTable, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N10: a claim that finds nothing at the first ones is not the last."""
    monkeypatch.setattr(table, "_MOST_PLACES", 2)
    own = Courier("worker", outbox="hooks")
    held = [f"{receiver.url}/{n}" for n in range(5)]
    own.held(lambda _: held)
    hooks.write(*held, receiver.url + "/9")
    assert drain(courier("hooks", hooks.settings, own), threading.Event()).published == 1
