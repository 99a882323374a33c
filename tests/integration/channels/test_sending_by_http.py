"""The whole channel from a synchronous thread: what hangs, drips or is slow holds its own slot only (N10, N16)."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferryman.channels.http import http_channel
from ferryman.channels.http.client import HttpChannel
from ferryman.channels.outcome import Code, Delivered, Retry
from ferryman.channels.sending import Item, Sending
from support.pace import in_time
from support.rawhttp import LOCAL, OK, Peer, RawServer, addresses, keeps_answering, post
from support.sending import collect


@contextmanager
def sending(channel: HttpChannel, **settings: Any) -> Iterator[Sending]:
    with Sending(channel, **{"slots": 64, "deadline_seconds": 20.0, **settings}) as made:
        yield made


def items(url: str, keys: range, destination: str) -> list[Item]:
    return [Item(key, post(url), destination) for key in keys]


def test_64_slots_with_a_destination_that_never_answers_delay_no_other() -> None:
    wait = threading.Event()

    def silent(peer: Peer) -> None:
        peer.request()
        wait.wait(60)

    patient = LOCAL.model_copy(update={"timeout_seconds": 6.0})
    with RawServer(silent) as dead, RawServer(keeps_answering()) as well, sending(HttpChannel(patient), each=8) as way:
        way.begin(items(dead.url, range(8), "dead"))
        for first in range(100, 600, 50):
            way.begin(items(well.url, range(first, first + 50), "well"))
            found = collect(way, 50)
            assert all(each.outcome == Delivered(excerpt="ok", http_status=200) for each in found.values())
        assert way.busy() == {"dead": 8}
        found = collect(way, 8, seconds=30)
        assert {each.outcome for each in found.values()} == {Retry("no answer within 6 s", Code.TIMED_OUT)}
        wait.set()


def test_names_that_hang_delay_no_other_name_and_no_end() -> None:
    """More names hang than the default executor of asyncio has threads."""
    wait = threading.Event()

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        if host.startswith("hangs"):
            wait.wait(60)
        return addresses("127.0.0.1")(host, port, **more)

    quick = LOCAL.model_copy(update={"connect_timeout_seconds": 3.0})
    with RawServer(keeps_answering()) as server, sending(HttpChannel(quick, lookup=lookup)) as way:
        way.begin([Item(key, post(f"http://hangs-{key}.example/"), f"hangs-{key}") for key in range(50)])
        began = time.monotonic()
        way.begin(items(f"http://well.example:{server.port}/", range(100, 105), "well"))
        found = collect(way, 5)
        assert in_time(time.monotonic() - began, 2)
        assert set(found) == set(range(100, 105))
        assert {each.outcome for each in collect(way, 50).values()} == {
            Retry("no connection within 3 s", Code.CONNECTION_TIMED_OUT)
        }
    assert in_time(time.monotonic() - began, 10)
    wait.set()


def test_threads_for_names_are_bounded() -> None:
    """N12: further lookups wait for a thread, and go on when one is free."""
    wait = threading.Event()
    now = [0, 0]
    lock = threading.Lock()

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        with lock:
            now[0] += 1
            now[1] = max(now)
        wait.wait(60)
        with lock:
            now[0] -= 1
        return addresses("127.0.0.1")(host, port, **more)

    with RawServer(keeps_answering()) as server, sending(HttpChannel(LOCAL, slots=1, lookup=lookup), slots=30) as way:
        way.begin([Item(key, post(f"http://name-{key}.example:{server.port}/")) for key in range(30)])
        assert way.ended(1) == []
        assert now == [8, 8]
        wait.set()
        assert {each.outcome for each in collect(way, 30).values()} == {Delivered(excerpt="ok", http_status=200)}


def test_close_lets_requests_in_flight_end() -> None:
    """N16."""
    arrived, go_on = threading.Event(), threading.Event()

    def serve(peer: Peer) -> None:
        peer.request()
        arrived.set()
        go_on.wait(30)
        peer.say(OK)

    with RawServer(serve) as server:
        way = Sending(http_channel(LOCAL, 64), deadline_seconds=20)
        way.open()
        way.begin(items(server.url, range(1), "x"))
        assert arrived.wait(10)
        closing = threading.Thread(target=way.close)
        closing.start()
        go_on.set()
        closing.join(10)
        assert [each.outcome for each in way.ended(0)] == [Delivered(excerpt="ok", http_status=200)]


def test_bad_item_is_a_bug_of_the_caller_and_stops_nothing() -> None:
    with RawServer(keeps_answering()) as server, sending(HttpChannel(LOCAL)) as way:
        way.begin([Item("bad", "not a post"), Item("good", post(server.url))])
        found = collect(way, 2)
    assert isinstance(found["bad"].outcome, Retry)
    assert found["bad"].outcome.code == Code.CHANNEL_BUG
    assert found["good"].outcome == Delivered(excerpt="ok", http_status=200)


def test_thousand_destinations_keep_few_connections() -> None:
    """N12."""
    peers: set[int] = set()
    most = 0
    lock = threading.Lock()

    def serve(peer: Peer) -> None:
        nonlocal most
        with lock:
            peers.add(peer.number)
            most = max(most, len(peers))
        keeps_answering()(peer)
        with lock:
            peers.discard(peer.number)

    with RawServer(serve) as server, sending(HttpChannel(LOCAL, lookup=addresses("127.0.0.1"))) as way:
        for first in range(0, 1000, 50):
            keys = range(first, first + 50)
            way.begin([Item(key, post(f"http://name-{key}.example:{server.port}/")) for key in keys])
            assert {each.outcome for each in collect(way, 50).values()} == {Delivered(excerpt="ok", http_status=200)}
    assert 200 < most < 700  # a slow server sees late that a connection was closed
