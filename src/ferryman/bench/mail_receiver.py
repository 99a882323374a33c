"""An SMTP server in a process of its own, which accepts every mail, at once or after a while.

It costs as little as possible: clients that are compared share the processors with it. At SIGTERM it prints how many
mails it had.
"""

import asyncio
import json
import signal
import sys
from typing import Any

_END = b"\r\n.\r\n"
_REPLIES = {b"EHLO": b"250-bench\r\n250 SIZE 10485760\r\n", b"DATA": b"354 go on\r\n", b"QUIT": b"221 bye\r\n"}
_ACCEPTED = b"250 2.0.0 accepted\r\n"


class _CountingConnection(asyncio.Protocol):
    """A connection of a client that waits for each reply."""

    mails = 0
    """The number of mails so far, on all connections."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._buffer = b""
        self._in_mail = False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(b"220 bench\r\n")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(_END if self._in_mail else b"\r\n"):
            return
        command, self._buffer = self._buffer[:4].upper(), b""
        if self._in_mail:
            self._in_mail = False
            _CountingConnection.mails += 1
            if self._seconds:
                asyncio.get_running_loop().call_later(self._seconds, self._transport.write, _ACCEPTED)
                return
            command = b""
        self._in_mail = command == b"DATA"
        self._transport.write(_REPLIES.get(command, _ACCEPTED))


async def receive(port: int, milliseconds: float) -> None:
    """Take mails until SIGTERM. Each is accepted so long after its end."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    server = await loop.create_server(lambda: _CountingConnection(milliseconds / 1000), "127.0.0.1", port, backlog=1024)
    async with server:
        await stopping.wait()


if __name__ == "__main__":
    task = json.load(sys.stdin)
    asyncio.run(receive(task["port"], task["milliseconds"]))
    print(json.dumps({"mails": _CountingConnection.mails}))
