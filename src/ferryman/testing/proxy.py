"""A TCP proxy that breaks what passes through it: faults on the wire, between any client and any server.

with FaultProxy("127.0.0.1:5432") as proxy:
    ...                                      # connect to proxy.address
    proxy.faults = Faults(latency_seconds=0.2)
    proxy.heal()
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Self

_CHUNK = 65536
_TICK_SECONDS = 0.01
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, drop what was not sent

Direction = Literal["to_server", "to_client"]
Chunks = asyncio.Queue[tuple[float, bytes]]


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the wire at this moment; assign another to `FaultProxy.faults` at any time."""

    latency_seconds: float = 0.0  # each way
    bytes_per_second: float = float("inf")  # each way, of each connection
    black_hole: bool = False  # what is sent arrives nowhere, until the wire heals
    slow_close_seconds: float = 0.0  # the other side learns so late that one side closed
    cut_after_bytes: int | None = None  # then the connection is reset
    cut_direction: Direction | None = None  # which way is counted; both when None


class _Connection:
    """One client's connection and its counterpart to the server."""

    def __init__(self, proxy: "FaultProxy", client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = (client, server)
        self._passed: dict[Direction, int] = {"to_server": 0, "to_client": 0}

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Direction) -> None:
        """Reads as fast as the source sends, delivers when the faults let it: latency does not eat bandwidth."""
        chunks: Chunks = asyncio.Queue(maxsize=64)
        await asyncio.gather(self._receive(source, chunks), self._deliver(chunks, sink, way))

    async def _receive(self, source: asyncio.StreamReader, chunks: Chunks) -> None:
        now = asyncio.get_running_loop().time
        try:
            while data := await source.read(_CHUNK):
                await chunks.put((now() + self._proxy.faults.latency_seconds, data))
        except OSError:
            self.reset()
        await chunks.put((now() + self._proxy.faults.slow_close_seconds, b""))

    async def _deliver(self, chunks: Chunks, sink: asyncio.StreamWriter, way: Direction) -> None:
        while True:
            due, data = await chunks.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            while self._proxy.faults.black_hole:
                await asyncio.sleep(_TICK_SECONDS)
            if sink.is_closing():
                return
            if not data:
                sink.close()
                return
            allowed = data[: self._room(way)]
            self._passed[way] += len(allowed)
            sink.write(allowed)
            await sink.drain()
            if len(allowed) < len(data):
                self.reset()
                return
            await asyncio.sleep(len(data) / self._proxy.faults.bytes_per_second)

    def _room(self, way: Direction) -> int | None:
        """How many bytes may still pass before the cut; None when there is none."""
        faults = self._proxy.faults
        if faults.cut_after_bytes is None or faults.cut_direction not in (None, way):
            return None
        counted = sum(self._passed.values()) if faults.cut_direction is None else self._passed[way]
        return max(0, faults.cut_after_bytes - counted)

    def reset(self) -> None:
        for writer in self._writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


class FaultProxy:
    """Listens on loopback and passes everything on to `target`, as `faults` allows."""

    def __init__(self, target: str = "", port: int = 0) -> None:
        self.target = target
        self.port = port
        self.faults = Faults()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def heal(self) -> None:
        self.faults = Faults()

    def down(self) -> None:
        """Nobody listens any more, and every connection is reset."""
        self._call(self._close)

    def up(self) -> None:
        """Listens, on the same port as before."""
        self._call(self._listen)

    def reset(self) -> None:
        """Every connection is reset now; new ones are welcome."""
        self._call(self._reset)

    def _call(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(timeout=10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._reset()

    async def _reset(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, up_writer)
        self._connections.add(connection)
        ways: list[Awaitable[None]] = [
            connection.pump(reader, up_writer, "to_server"),
            connection.pump(up_reader, writer, "to_client"),
        ]
        try:
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            connection.reset()
