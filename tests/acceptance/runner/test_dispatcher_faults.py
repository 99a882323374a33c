"""Dispatchers whose receiver, database or endpoint fails: every event arrives, and bounds are kept."""

import re
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from psycopg import conninfo

from ferryman.testing.proxy import FaultProxy
from ferryman.testing.receiver import Answer, ReceivedRequest
from support.dispatching import Dispatch
from support.hooks import DDL
from support.launch import Launched
from support.published import poll_until
from support.rawhttp import OK, Peer, RawServer

FAILED = b"HTTP/1.1 503 Service Unavailable\r\n"
GIGABYTE = 1 << 30


def test_receiver_that_accepts_and_cuts_gets_each_event_again_unaltered(dispatch: Dispatch) -> None:
    """N1, N3: it may have handled what it did not answer."""
    seen: Counter[str] = Counter()

    def answer(request: ReceivedRequest) -> Answer:
        seen[request.headers["webhook-id"]] += 1
        if seen[request.headers["webhook-id"]] < 3:
            raise ConnectionError
        return Answer(200)

    dispatch.receiver.answer = answer
    dispatch.write(20)
    running = dispatch.start()
    dispatch.await_delivery(running)
    dispatch.stop(running)
    assert dispatch.doubled() == set(dispatch.events)
    assert dispatch.miscounted() == []


def drip(peer: Peer, over: threading.Event) -> None:
    for each in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
        peer.say(bytes([each]))
        if over.wait(1):
            return


def flood(peer: Peer) -> None:
    peer.say(FAILED + b"Content-Length: %d\r\n\r\n" % GIGABYTE)
    part = bytes(1 << 16)
    for _ in range(GIGABYTE // len(part)):
        peer.say(part)


def test_receiver_that_drips_floods_or_is_silent_delays_no_other_event(dispatch: Dispatch) -> None:
    """N1, N10, N12: the first attempts meet a byte a second, a gigabyte, or nothing."""
    over = threading.Event()
    came: Counter[str] = Counter()
    faults: tuple[Callable[[Peer], object], ...] = (lambda peer: drip(peer, over), flood, lambda _: over.wait(30))
    events = dispatch.write(60)
    fault_of = dict(zip(events[:30], faults * 10, strict=True))

    def serve(peer: Peer) -> None:
        while head := peer.request():
            found = re.search(rb"webhook-id: (\S+)", head, re.IGNORECASE)
            assert found
            came[event := found[1].decode()] += 1
            if came[event] == 1 and event in fault_of:
                fault_of[event](peer)
                return
            peer.say(OK)

    with RawServer(serve) as server:
        running = dispatch.start(
            FERRYMAN_RUNNER__URL=server.url, FERRYMAN_HTTP__TIMEOUT_SECONDS="1",
            FERRYMAN_HTTP__CONNECT_TIMEOUT_SECONDS="1",
        )  # fmt: skip
        dispatch.await_delivery(running)
        assert most_memory(running) < 300 << 20
        over.set()
        dispatch.stop(running)
    assert came == {event: 2 if event in fault_of else 1 for event in events}
    assert dispatch.miscounted() == []


def most_memory(running: Launched) -> int:
    with open(f"/proc/{running.pid}/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def test_database_that_is_away_between_send_and_mark_doubles_nothing(dispatch: Dispatch) -> None:
    """N3, N11: outcomes wait in memory until it is back, and nothing is sent meanwhile."""
    parts = conninfo.conninfo_to_dict(dispatch.database_url)
    with FaultProxy(f"{parts['host']}:{parts['port']}") as wire:

        def answer(_: ReceivedRequest) -> Answer:
            wire.down()
            return Answer(200)

        dispatch.database_url = conninfo.make_conninfo(dispatch.database_url, host="127.0.0.1", port=wire.port)
        dispatch.receiver.answer = answer
        dispatch.write(20)
        running = dispatch.start()
        dispatch.await_requests(20)
        running.until(lambda: '"interrupted"' in running.stderr, "outage")
        dispatch.receiver.answer = lambda _: Answer(200)
        wire.up()
        dispatch.await_delivery(running)
        dispatch.stop(running)
    assert dispatch.doubled() == set()
    assert dispatch.miscounted() == []


def test_sigterm_while_the_database_is_away_ends_in_time_and_loses_nothing(dispatch: Dispatch) -> None:
    """N1, N3, N16: what could not be marked comes again."""
    parts = conninfo.conninfo_to_dict(dispatch.database_url)
    with FaultProxy(f"{parts['host']}:{parts['port']}") as wire:

        def answer(_: ReceivedRequest) -> Answer:
            wire.down()
            return Answer(200)

        direct, dispatch.receiver.answer = dispatch.database_url, answer
        dispatch.database_url = conninfo.make_conninfo(direct, host="127.0.0.1", port=wire.port)
        dispatch.write(5)
        ending = dispatch.start()
        ending.until(lambda: '"interrupted"' in ending.stderr, "outage")
        dispatch.stop(ending)
    dispatch.receiver.answer, dispatch.database_url = lambda _: Answer(200), direct
    dispatch.expire()
    heir = dispatch.start()
    dispatch.await_delivery(heir)
    dispatch.stop(heir)
    assert dispatch.doubled() == set(dispatch.events)
    assert dispatch.miscounted() == []


def test_endpoint_that_is_down_for_hours_loses_no_event_and_is_asked_ever_less(dispatch: Dispatch) -> None:
    """N1, N8: the waits double up to the cap. The rows' times are moved, so that nobody waits for them."""
    down = True
    dispatch.receiver.answer = lambda _: Answer(503 if down else 200)
    dispatch.write(5)
    running = dispatch.start(FERRYMAN_RUNNER__BASE_SECONDS="60", FERRYMAN_RUNNER__CAP_SECONDS="3600")
    for failures in range(1, 9):
        in_time = "SELECT count(*) FROM runner.event_outbox WHERE status = 'FAILED' AND attempt_count = %s"
        running.until(lambda: dispatch.db.execute(in_time, (failures,)).fetchone() == (5,), f"failure {failures}")  # noqa: B023 - called before the next
        waits = dispatch.db.execute(
            "SELECT extract(epoch FROM next_attempt_at - updated_at)::float8 FROM runner.event_outbox"
        ).fetchall()
        assert [wait for (wait,) in waits] == [pytest.approx(min(3600, 60 * 2**failures), abs=1)] * 5
        down = failures < 8
        dispatch.db.execute("UPDATE runner.event_outbox SET next_attempt_at = now()")
    dispatch.await_delivery(running)
    dispatch.stop(running)
    assert Counter(each.headers["webhook-id"] for each in dispatch.receiver.requests) == dict.fromkeys(
        dispatch.events, 9
    )
    assert dispatch.doubled() == set(dispatch.events)
    assert dispatch.miscounted() == []


def test_endpoint_at_a_private_address_gets_no_request_before_it_is_allowed(dispatch: Dispatch) -> None:
    """N15, and N1: the event waits for the setting."""
    dispatch.write(3)
    refused = dispatch.start(FERRYMAN_HTTP__ALLOW="[]")
    errors = "SELECT DISTINCT last_error FROM runner.event_outbox WHERE status = 'FAILED'"
    found = refused.until(lambda: dispatch.db.execute(errors).fetchall(), "refusal")
    assert "http.allow" in found[0][0]
    dispatch.stop(refused)
    assert dispatch.receiver.requests == []
    allowed = dispatch.start()
    dispatch.await_delivery(allowed)
    dispatch.stop(allowed)
    assert dispatch.doubled() == set()


HOOKS = """
[outbox.hooks]
table   = "shop.hooks"
channel = "http"
secrets = ["whsec_c2VjcmV0"]
words   = { pending = ["PENDING"], claimed = "SENDING", done = "SENT", dead = "DEAD" }
"""


def test_ten_thousand_rows_of_a_dead_endpoint_delay_no_row_of_another(dispatch: Dispatch) -> None:
    """N10, N12: the dead one has its slots, and no more."""
    over = threading.Event()
    (dispatch.ferryman.folder / "ferryman.toml").write_text(HOOKS)
    dispatch.db.execute(DDL)
    write = """
        INSERT INTO shop.hooks (id, destination, payload)
        SELECT gen_random_uuid(), %s, jsonb_build_object('n', n) FROM generate_series(1, %s) n
    """
    with RawServer(lambda _: over.wait(60)) as dead:
        dispatch.db.execute(write, (dead.url, 10_000))
        env = {"FERRYMAN_DATABASE_URL": dispatch.database_url, "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]'}
        running = dispatch.ferryman.start("run", "hooks", env=env)
        poll_until(lambda: dead.connections == 8, "sends to the dead endpoint")
        for count in range(1, 11):
            dispatch.db.execute(write, (dispatch.receiver.url, 20))
            running.until(lambda: len(dispatch.receiver.requests) == 20 * count, "healthy rows", 3)  # noqa: B023 - called before the next
        assert dead.connections == 8
        under_way = "SELECT count(*) FROM shop.hooks WHERE status = 'SENDING' AND destination = %s"
        assert dispatch.db.execute(under_way, (dead.url,)).fetchone() == (8,)
        over.set()
        dispatch.stop(running)
    ids = Counter(each.headers["webhook-id"] for each in dispatch.receiver.requests)
    assert (len(ids), ids.total()) == (200, 200)
