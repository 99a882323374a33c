"""A receiver of posts in a process of its own: `POST /20` is answered with 200 after 20 ms.

It costs as little as possible: clients that are compared share the processors with it. At SIGTERM it prints how many
requests it had, and the time at which each id arrived for the first time.
"""

import asyncio
import json
import re
import signal
import sys
import time
from typing import Any

_WAIT = re.compile(rb"POST /(\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ID = re.compile(rb"\r\nwebhook-id: *(\S+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class CountedPosts:
    """The requests so far."""

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed
        self.requests = 0
        self.arrived: dict[str, float] = {}

    def take(self, head: bytes) -> None:
        self.requests += 1
        if self.timed and (found := _ID.search(head)):
            self.arrived.setdefault(found[1].decode(), time.monotonic())


class _OneConnection(asyncio.Protocol):
    """A connection of a client that waits for each answer."""

    def __init__(self, posts: CountedPosts) -> None:
        self._posts = posts
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end]
        length = _LENGTH.search(head)
        if len(self._buffer) < end + 4 + int(length[1] if length else 0):
            return
        self._buffer = b""
        self._posts.take(head)
        wait = _WAIT.match(head)
        if wait and (milliseconds := int(wait[1])):
            asyncio.get_running_loop().call_later(milliseconds / 1000, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        self._transport.write(_ANSWER)


async def receive(port: int, posts: CountedPosts) -> None:
    """Take posts until SIGTERM."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    server = await loop.create_server(lambda: _OneConnection(posts), "127.0.0.1", port, backlog=1024)
    async with server:
        await stopping.wait()


if __name__ == "__main__":
    task = json.load(sys.stdin)
    counted = CountedPosts(timed=task["timed"])
    asyncio.run(receive(task["port"], counted))
    print(json.dumps({"requests": counted.requests, "arrived": counted.arrived}))
