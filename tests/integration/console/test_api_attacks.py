"""Raw sockets against the API on a real port: what a client may hold, and for how long, with a token or without."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from ferryman.console import server
from support.asking import Running, payment, running, settings, token, until
from support.paying import Desk

HOST = b"Host: api\r\n"
POST = b"POST /payments HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"


def bearer(name: str) -> bytes:
    return b"Authorization: Bearer " + token(name).encode() + b"\r\n"


@pytest.fixture
def api(desk: Desk, ferryman_database_url: str) -> Iterator[Running]:  # noqa: ARG001 - it sets the schemas up
    with running(settings(ferryman_database_url, api={"max_connections": 300})) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(api: Running, stack: ExitStack, sent: bytes = b"", *, small: bool = False) -> socket.socket:
    """Return a connection that has sent this; a small one takes little of the answer before it is read."""
    made = stack.enter_context(socket.socket())
    if small:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(60)
    made.connect(("127.0.0.1", urlsplit(api.service.url or "").port))
    made.sendall(sent)
    return made


def whole(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    read = bytearray()
    try:
        while part := connection.recv(65536):
            read += part
    except ConnectionResetError:
        pass
    return bytes(read)


def pushed(connection: socket.socket, most: int) -> int:
    """Send chunks until the server no longer takes them. Return the number of bytes."""
    sent, chunk = 0, b"10000\r\n" + b" " * 65536 + b"\r\n"
    with suppress(OSError):
        while sent < most:
            sent += connection.send(chunk)
    return sent


def problem_of(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert b"connection: close" in head.lower()
    said: dict[str, Any] = json.loads(body)
    assert head.startswith(f"HTTP/1.1 {said['status']} ".encode())
    return said


LARGE_PAGE = b"GET /payments?limit=500 HTTP/1.1\r\n" + HOST + bearer("auditor") + b"\r\n"
PAYMENTS = """
INSERT INTO payments.requests (uuid, wallet_id, amount, currency, due_at)
SELECT gen_random_uuid(), gen_random_uuid(), 1, 'EUR', 'infinity' FROM generate_series(1, 500)
"""


def test_a_reader_that_does_not_read_keeps_out_no_payment(api: Running, sockets: ExitStack, desk: Desk) -> None:
    """N10: a token that may only read asks for large pages, again and again, and takes none of them."""
    desk.db.execute(PAYMENTS)
    for _ in range(210):
        connect(api, sockets, LARGE_PAGE * 30, small=True)
    assert [api.client.post(payment()).status for _ in range(3)] == [201] * 3


def test_slow_bodies_that_a_token_may_not_send_keep_out_no_payment(api: Running, sockets: ExitStack) -> None:
    """N10: the scope is checked before the body."""
    for _ in range(210):
        connect(api, sockets, POST + bearer("auditor") + b"Content-Length: 50\r\n\r\n{")
    assert api.client.post(payment()).status == 201


def test_slow_bodies_of_one_token_keep_out_no_other(api: Running, sockets: ExitStack) -> None:
    """N10: a token has at most half of the slots."""
    for _ in range(210):
        connect(api, sockets, POST + bearer("shop") + b"Content-Length: 50\r\n\r\n{")
    assert api.client.get("/payments?limit=1", by="auditor").status == 200


@pytest.mark.parametrize("by", [b"", bearer("auditor")], ids=["without a token", "without the scope"])
def test_an_endless_body_that_is_refused_ends_the_connection(api: Running, sockets: ExitStack, by: bytes) -> None:
    """N12: the answer can be read, and no more than a little of the body is taken."""
    client = connect(api, sockets, POST + by + b"Transfer-Encoding: chunked\r\n\r\n")
    assert pushed(client, 200_000_000) < 50_000_000
    client = connect(api, sockets, POST + by + b"Content-Length: 10\r\n\r\n")
    assert problem_of(whole(client))["status"] in (401, 403)


def test_an_answer_without_a_token_ends_the_connection(api: Running, sockets: ExitStack) -> None:
    """N12: only who has a token may keep a connection."""
    for path in (b"/docs", b"/payments"):
        answer = whole(connect(api, sockets, b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"))
        assert b"connection: close" in answer


def test_a_connection_without_a_whole_head_is_cut(
    api: Running, sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N12: also one that sends a byte now and then, and one that was answered before."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.3)
    silent, half = connect(api, sockets), connect(api, sockets, b"GET /payments HTTP/1.1\r\n")
    again = connect(api, sockets, b"GET /payments HTTP/1.1\r\n" + HOST + bearer("shop") + b"\r\n")
    assert again.recv(65536).startswith(b"HTTP/1.1 200")
    again.sendall(b"GET /pay")
    assert [whole(each) for each in (silent, half)] == [b"", b""]
    whole(again)


def test_an_answer_that_is_not_taken_is_cut(
    api: Running, sockets: ExitStack, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N12: the deadline is for the whole exchange."""
    monkeypatch.setattr(server, "EXCHANGE_SECONDS", 1)
    desk.db.execute(PAYMENTS)
    connect(api, sockets, LARGE_PAGE * 200, small=True)
    open_now = api.service._server.server_state.connections  # type: ignore[union-attr]
    until(lambda: open_now)
    until(lambda: not open_now)


@pytest.mark.parametrize(
    "sent",
    [
        b"NOT HTTP\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        POST + bearer("shop") + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + bearer("shop") + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        POST + bearer("shop") + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_malformed_http_is_answered_with_a_problem(api: Running, sockets: ExitStack, sent: bytes) -> None:
    """Whatever follows on the connection is not taken for a request."""
    follows = b"GET /payments HTTP/1.1\r\n" + HOST + bearer("shop") + b"\r\n"
    assert problem_of(whole(connect(api, sockets, sent + follows)))["status"] == 400


def test_connections_are_bounded_and_readiness_knows(
    desk: Desk,  # noqa: ARG001 - it sets the schemas up
    ferryman_database_url: str,
    sockets: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N12, N11: when they are cut, or were idle for a while, others get their place."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 3)
    monkeypatch.setattr(server, "CROWDED_IDLE_SECONDS", 1)
    with running(settings(ferryman_database_url, api={"max_connections": 20})) as made:
        until(lambda: made.life.why_not_ready is None)
        kept = connect(made, sockets, b"GET /payments HTTP/1.1\r\n" + HOST + bearer("shop") + b"\r\n")
        answer = kept.recv(65536)
        while not answer.endswith(b"}"):  # its head and its body may come apart
            answer += kept.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        for _ in range(40):
            connect(made, sockets)
        until(lambda: "20 connections" in (made.life.why_not_ready or ""))
        open_now = made.service._server.server_state.connections  # type: ignore[union-attr]
        assert len(open_now) == 20
        assert whole(kept) == b""
        assert made.client.get("/payments").status == 200
        until(lambda: made.life.why_not_ready is None)
