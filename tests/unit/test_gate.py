"""The gate bounds what a client can hold: its body in bytes and in time, and how many come at once (N12)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from ferryman.console import gate
from ferryman.console.gate import Gate
from ferryman.console.tokens import Keyring

Sent = list[dict[str, Any]]


def ask(*messages: Message, path: str = "/x", inside: int = 1, open: bool = True) -> tuple[Sent, list[bytes]]:
    """What is answered, and the bodies that came through; a client that says no more is silent."""
    sent: Sent = []
    through: list[bytes] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        through.append((await receive())["body"])
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def main() -> None:
        made = Gate(app, Keyring({}, open), 10, ["/docs"])
        await asyncio.gather(*[made(scope(path), receiving(messages), sending) for _ in range(inside)])

    async def sending(message: Message) -> None:
        sent.append(dict(message))

    asyncio.run(main())
    return sent, through


def scope(path: str) -> Scope:
    headers = [(b"content-type", b"application/json")]
    return {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "scheme": "http"}


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


def test_a_body_that_comes_in_parts_reaches_the_route_whole() -> None:
    sent, through = ask(part(b"12345", more=True), part(b"67890"))
    assert (statuses(sent), through) == ([204], [b"1234567890"])


def test_a_body_is_refused_as_soon_as_it_is_too_large_and_not_read_on() -> None:
    sent, through = ask(part(b"123456", more=True), part(b"78901", more=True), part(b"never asked for"))
    assert (statuses(sent), through) == ([413], [])


def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    sent, through = ask(part(b"1", more=True))
    assert (statuses(sent), through) == ([408], [])


def test_a_client_that_hangs_up_is_answered_nothing() -> None:
    assert ask(part(b"1", more=True), {"type": "http.disconnect"}) == ([], [])


def test_more_than_it_takes_at_once_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_AT_ONCE", 3)
    sent, through = ask(part(b"1"), inside=5)
    assert (sorted(statuses(sent)), len(through)) == ([204, 204, 204, 503, 503], 3)
    again = [dict(each["headers"]) for each in sent if each.get("status") == 503]
    assert all(int(each[b"retry-after"]) > 0 for each in again)


@pytest.mark.parametrize(("path", "answer", "through"), [("/docs", 204, [b""] * 5), ("/x", 401, [])])
def test_of_a_request_without_a_token_nothing_is_read_and_it_takes_nobodys_place(
    monkeypatch: pytest.MonkeyPatch, path: str, answer: int, through: list[bytes]
) -> None:
    """N12: else whoever reaches the port could keep out everyone who has one."""
    monkeypatch.setattr(gate, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.05)
    sent, came = ask(path=path, inside=5, open=False)
    assert (statuses(sent), came) == ([answer] * 5, through)
