"""A server that answers with any bytes, and posts to it through the HTTP channel."""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from ferryman.channels.http.client import HttpChannel
from ferryman.channels.model import Post
from ferryman.channels.outcome import Outcome
from ferryman.runtime.settings_http import Http

LOCAL = Http(allow=["127.0.0.0/8"], timeout_seconds=10, connect_timeout_seconds=5)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """One connection, from the server's side. `number` counts the connections from 1."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.connection = connection
        self.number = number
        self._read = connection.makefile("rb")

    def request(self) -> bytes | None:
        """Read a request with its body, and return its head; None if the client has left."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._read.readline()
            if not line:
                return None
            head += line
        length = next((line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0")
        self._read.read(int(length))
        return head

    def say(self, words: bytes) -> None:
        self.connection.sendall(words)

    def reset(self) -> None:
        """Close with a reset instead of an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


class RawServer:
    """A server that calls `serve` with each connection, in a thread of its own, and closes the connection after it."""

    def __init__(self, serve: Callable[[Peer], object]) -> None:
        self.connections = 0
        self.requests = 0
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.add(connection)
                threading.Thread(target=self._talk, args=(Peer(connection, self.connections),), daemon=True).start()

    def _talk(self, peer: Peer) -> None:
        with suppress(OSError):
            self._serve(peer)
        self._open.discard(peer.connection)
        peer._read.close()
        peer.connection.close()


def answers(*words: bytes, wait: threading.Event | None = None) -> Callable[[Peer], None]:
    """Serve every request of a connection with these bytes, then close unless told to wait."""

    def serve(peer: Peer) -> None:
        for each in words:
            peer.request()
            peer.say(each)
        if wait is not None:
            wait.wait(30)

    return serve


def keeps_answering(words: bytes = OK) -> Callable[[Peer], None]:
    """Serve every request with these bytes until the client leaves."""

    def serve(peer: Peer) -> None:
        while peer.request() is not None:
            peer.say(words)

    return serve


def post(url: str, body: bytes = b"{}", **more: Any) -> Post:
    return Post(url, body, "evt-1", **more)


def sent(*posts: Post, settings: Http = LOCAL, **more: Any) -> list[Outcome]:
    """Send posts one after the other by one channel, and return their outcomes."""

    async def send() -> list[Outcome]:
        channel = HttpChannel(settings, **more)
        await channel.open()
        try:
            return [await channel.send(each) for each in posts]
        finally:
            await channel.close()

    return asyncio.run(send())


def addresses(*hosts: str) -> Callable[..., list[Any]]:
    """Return a lookup that knows these addresses for every name."""

    def lookup(_host: str, port: int, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    return lookup


def outcome_of(outcomes: Sequence[Outcome]) -> Outcome:
    [only] = outcomes
    return only
