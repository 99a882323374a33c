"""The gate bounds what clients can hold: bodies in bytes and time, and the number of requests at once (N12)."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from ferryman.console import gate
from ferryman.console.gate import Caller, Gate, Keyring, Place
from support.asking import sha256, token

Sent = list[dict[str, Any]]

KEYRING = Keyring({sha256(name): Caller(name, frozenset({name})) for name in ("shop", "auditor")})
PLACES = [
    Place("/docs", re.compile("/docs$"), {}, public=True),
    Place("/x", re.compile("/x$"), {"POST": "shop", "GET": "auditor"}),
]
POST, GET = ("POST", "shop"), ("GET", "auditor")


def ask(
    *messages: Message,
    path: str = "/x",
    by: Sequence[tuple[str, str]] = (POST,),
    query: str = "",
    headers: Sequence[tuple[bytes, bytes]] = ((b"transfer-encoding", b"chunked"),),
    refused_first: int = 0,
) -> tuple[Sent, list[bytes]]:
    """Return the answers and the bodies that reached the application; a client without further parts is silent.

    The application holds its slots until so many requests have been refused.
    """
    sent: Sent = []
    through: list[bytes] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        through.append((await receive())["body"])
        async with asyncio.timeout(10):
            while len(statuses(sent)) < refused_first:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def scope(method: str, name: str) -> Scope:
        shown = (b"authorization", f"Bearer {token(name)}".encode())
        given = [shown, (b"content-type", b"application/json"), *headers]
        return {"type": "http", "method": method, "path": path, "headers": given, "query_string": query.encode()}

    async def main() -> None:
        made = Gate(app, KEYRING, 10, PLACES)
        await asyncio.gather(*[made(scope(method, name), receiving(messages), sending) for method, name in by])

    async def sending(message: Message) -> None:
        sent.append(dict(message))

    asyncio.run(main())
    return sent, through


def receiving(messages: Sequence[Message]) -> Receive:
    left = list(messages)

    async def receive() -> Message:
        if not left:
            await asyncio.sleep(60)
        return left.pop(0)

    return receive


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def statuses(sent: Sent) -> list[int]:
    return [each["status"] for each in sent if each["type"] == "http.response.start"]


def closing(sent: Sent) -> list[bool]:
    """Return True for each answer that says that it is the connection's last."""
    return [(b"connection", b"close") in each["headers"] for each in sent if "status" in each]


def test_a_body_that_comes_in_parts_reaches_the_route_whole() -> None:
    sent, through = ask(part(b"12345", more=True), part(b"67890"))
    assert (statuses(sent), closing(sent), through) == ([204], [False], [b"1234567890"])


def test_a_body_is_refused_as_soon_as_it_is_too_large() -> None:
    sent, through = ask(part(b"123456", more=True), part(b"78901", more=True), part(b"never asked for"))
    assert (statuses(sent), closing(sent), through) == ([413], [True], [])


def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(gate, "DROP_SECONDS", 0.05)
    sent, through = ask(part(b"1", more=True))
    assert (statuses(sent), closing(sent), through) == ([408], [True], [])


def test_a_client_that_hangs_up_is_answered_nothing() -> None:
    assert ask(part(b"1", more=True), {"type": "http.disconnect"}) == ([], [])


@pytest.mark.parametrize(
    ("path", "by", "headers", "status"),
    [
        ("/x", ("POST", "nobody"), (b"content-length", b"9"), 401),
        ("/nothing", POST, (b"content-length", b"9"), 404),
        ("/x", ("PUT", "shop"), (b"content-length", b"9"), 405),
        ("/x", ("POST", "auditor"), (b"content-length", b"9"), 403),
        ("/x", POST, (b"content-length", b"11"), 413),
        ("/docs", ("GET", "nobody"), (b"content-length", b"9"), 204),
    ],
)
def test_an_answer_without_the_body_is_the_connections_last(
    monkeypatch: pytest.MonkeyPatch, path: str, by: tuple[str, str], headers: tuple[bytes, bytes], status: int
) -> None:
    """N12: otherwise the body would be read for ever. A little of it is dropped, so that the answer can be read."""
    monkeypatch.setattr(gate, "DROP_BYTES", 3)
    monkeypatch.setattr(gate, "LARGE_BYTES", 3)
    endless = [part(b"1", more=True)] * 4
    sent, through = ask(*endless, path=path, by=[by], headers=[headers])
    assert (statuses(sent), closing(sent)) == ([status], [True])
    assert through == ([b""] if path == "/docs" else [])


def test_405_allows_every_method_of_the_path() -> None:
    sent, _ = ask(part(b""), by=[("PUT", "shop")])
    assert dict(sent[0]["headers"])[b"allow"] == b"GET, POST"


def test_two_lengths_of_one_body_are_refused() -> None:
    """RFC 9112, 6.1: what follows could be taken for another request."""
    sent, through = ask(part(b"1"), headers=[(b"content-length", b"1"), (b"transfer-encoding", b"chunked")])
    assert (statuses(sent), closing(sent), through) == ([400], [True], [])


def test_a_repeated_parameter_is_refused_and_named() -> None:
    sent, through = ask(part(b""), query="a=1&b=2&a=1", by=[GET], headers=[])
    assert (statuses(sent), closing(sent), through) == ([422], [False], [])
    assert [each["field"] for each in json.loads(sent[1]["body"])["errors"]] == ["a"]


@pytest.mark.parametrize("body", [b'{"a":1,', "[1]".encode("utf-16"), b"\xff"])
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    sent, through = ask(part(body))
    assert (statuses(sent), through) == ([400], [])


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'[{"b":{"a":1,"a":1}}]'])
def test_a_repeated_key_is_refused_and_named_at_any_depth(body: bytes) -> None:
    """A proxy or a log in front of us may have read the other value."""
    with pytest.raises(HTTPException) as caught:
        gate._check_json(bytearray(body))
    found: Any = caught.value.detail
    assert (caught.value.status_code, found["errors"][0]["field"]) == (400, "a")


def test_more_requests_than_the_limit_wait_and_are_then_answered_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_AT_ONCE", 4)
    sent, through = ask(part(b"1"), by=[POST] * 5)
    assert (statuses(sent), len(through)) == ([204] * 5, 5)
    monkeypatch.setattr(gate, "SLOT_SECONDS", 0.001)
    sent, through = ask(part(b"1"), by=[POST] * 5, refused_first=3)
    assert (sorted(statuses(sent)), len(through)) == ([204, 204, 503, 503, 503], 2)
    again = [dict(each["headers"]) for each in sent if each.get("status") == 503]
    assert all(int(each[b"retry-after"]) > 0 for each in again)


def test_one_token_leaves_half_of_the_slots_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: a token that may only read cannot keep out every payment."""
    monkeypatch.setattr(gate, "MOST_AT_ONCE", 6)
    monkeypatch.setattr(gate, "SLOT_SECONDS", 0.001)
    sent, _ = ask(part(b"1"), by=[*[GET] * 20, *[POST] * 3], refused_first=17)
    assert statuses(sent).count(204) == 6


@pytest.mark.parametrize(("path", "answer", "through"), [("/docs", 204, [b""] * 5), ("/x", 401, [])])
def test_a_request_without_a_token_is_not_read_and_takes_no_slot(
    monkeypatch: pytest.MonkeyPatch, path: str, answer: int, through: list[bytes]
) -> None:
    """N12: otherwise a client without a token could keep out all others."""
    monkeypatch.setattr(gate, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(gate, "DROP_SECONDS", 0.05)
    sent, came = ask(path=path, by=[("POST", "nobody")] * 5)
    assert (statuses(sent), closing(sent), came) == ([answer] * 5, [True] * 5, through)
