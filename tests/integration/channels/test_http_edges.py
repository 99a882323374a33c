"""Answers and addresses at the edge: servers that repeat requests, lookups that do not start, answers without end."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ferryman.channels.lookup import DaemonLookups
from ferryman.channels.outcome import Code, Delivered, Retry
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.described.table import Table
from ferryman.relay.described.way_out import SentRow
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Receiver
from support.hooks import HookTable
from support.pace import in_time
from support.published import poll_until
from support.rawhttp import LOCAL, OK, Peer, RawServer, addresses, keeps_answering, outcome_of, post, sent


@pytest.fixture
def hooks(ferryman_database_url: str, ferryman_db: Connection) -> HookTable:
    return HookTable(ferryman_database_url, ferryman_db)


def test_answer_that_repeats_the_request_shows_nothing_of_it() -> None:
    """N14: the path of a URL may be a secret."""

    def serve(peer: Peer) -> None:
        peer.say(peer.request() or b"")

    with RawServer(serve) as server:
        found = outcome_of(sent(post(f"{server.url}/services/T00/geheim", bearer="t0ken")))
    assert isinstance(found, Retry)
    assert found.code == Code.ANSWER_INVALID
    assert not [word for word in ("POST", "services", "geheim", "t0ken") if word in repr(found)]


def test_lookup_whose_thread_cannot_start_leaves_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_no_lookup(thread: threading.Thread) -> None:
        if thread.name.startswith("resolve-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def look_up() -> list[Any]:
        lookups = DaemonLookups(1, addresses("127.0.0.1"))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_no_lookup)
            with pytest.raises(RuntimeError):
                await lookups.find("a.test", 80)
        return await asyncio.wait_for(lookups.find("b.test", 80), 10)

    assert asyncio.run(look_up())


def test_lookup_that_was_cancelled_leaves_its_room_when_it_ends() -> None:
    looking, go_on = threading.Event(), threading.Event()

    def lookup(host: str, port: int, **_: object) -> list[Any]:
        if host == "hangs.test":
            looking.set()
            go_on.wait(10)
        return addresses("127.0.0.1")(host, port)

    async def look_up() -> list[Any]:
        lookups = DaemonLookups(1, lookup)
        hanging = asyncio.create_task(lookups.find("hangs.test", 80))
        await asyncio.to_thread(looking.wait, 10)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        with pytest.raises(TimeoutError):  # the thread of the first still counts
            await asyncio.wait_for(lookups.find("b.test", 80), 0.05)
        go_on.set()
        return await asyncio.wait_for(lookups.find("b.test", 80), 10)

    assert asyncio.run(look_up())


def test_endless_interim_answers_are_cut_off_at_once() -> None:
    def serve(peer: Peer) -> None:
        peer.request()
        while True:
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with RawServer(serve) as server:
        began = time.monotonic()
        found = outcome_of(sent(post(server.url)))
    assert isinstance(found, Retry)
    assert found.code == Code.ANSWER_INVALID
    assert in_time(time.monotonic() - began, LOCAL.timeout_seconds / 2)


def test_some_interim_answers_are_no_failure() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 9
    with RawServer(keeps_answering(interim + OK)) as server:
        assert sent(*[post(server.url)] * 5) == [Delivered(excerpt="ok", http_status=200)] * 5
        assert server.connections == 1


def test_body_that_is_too_large_is_rejected_without_being_read(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    begin = DescribedOutbox._begin

    def seen(service: DescribedOutbox, table: Table, rows: Sequence[Claimed]) -> list[SentRow]:
        read.extend(len(row.content) for row in rows)
        return begin(service, table, rows)

    monkeypatch.setattr(DescribedOutbox, "_begin", seen)
    with Receiver() as receiver:
        hooks.http = {"max_body_bytes": 1024}
        hooks.write(*[receiver.url] * 3)
        hooks.db.execute("UPDATE shop.hooks SET payload = to_jsonb(repeat('x', (payload->>'n')::int + 1021))")
        with hooks.courier() as turns:
            turns.until_quiet()
        assert [len(each.body) for each in receiver.requests] in ([1023, 1024], [1024, 1023])
    assert sorted(read) == [0, 1023, 1024]
    assert hooks.rows()[2] == ("DEAD", 1, "the body has 1025 bytes, and http.max_body_bytes allows 1024")
    assert ("rejected", "BODY_TOO_LARGE") in hooks.attempts()


def test_many_dead_destinations_leave_slots_to_those_that_answer(hooks: HookTable) -> None:
    hooks.described = {"slots": 8, "slots_per_destination": 4, "retry": {"limit": 9, "base_seconds": 0.05}}
    hooks.http = {"timeout_seconds": 0.5, "connect_timeout_seconds": 0.5}
    silent = threading.Event()
    with RawServer(lambda _: silent.wait(60)) as dead, Receiver() as receiver, hooks.courier() as turns:
        for number in range(5):
            hooks.write(*[f"{dead.url}/{number}"] * 40)
        poll_until(lambda: turns.run_once() and len(turns.service.way.room().busy) == 5, "look at each destination")
        poll_until(lambda: turns.run_once() and min(turns.service.way.room().busy.values()) >= 3, "silence of all")
        hooks.write(*[receiver.url] * 40)
        began = time.monotonic()
        poll_until(lambda: turns.run_once() and len(receiver.requests) == 40, "delivery of the others")
        took = time.monotonic() - began
        silent.set()
    assert in_time(took, 6)
