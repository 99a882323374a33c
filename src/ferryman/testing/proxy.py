"""A TCP proxy that breaks what passes through it: faults on the wire, between any client and any server.

with FaultProxy("127.0.0.1:5432") as proxy:
    ...                                      # connect to proxy.address
    proxy.faults = Faults(latency_seconds=0.2)
    proxy.heal()
"""

import asyncio
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Self

_CHUNK = 65536
_MOST_CHUNKS = 1024  # under way, each way of each connection: then the sender has to wait
_PIECE_SECONDS = 0.01  # a slow wire delivers so often, in pieces as small as that makes them
_BURST_SECONDS = 0.02  # what our own late waking up may catch up
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, drop what was not sent

Direction = Literal["to_server", "to_client"]
Chunks = asyncio.Queue[tuple[float, bytes | OSError]]  # when it was sent; b"" is the sender's end, an error its reset


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the wire at this moment; assign another to `FaultProxy.faults` at any time."""

    latency_seconds: float = 0.0  # each way
    bytes_per_second: float = inf  # each way, of each connection
    black_hole: bool = False  # what is sent arrives nowhere, until the wire heals
    slow_close_seconds: float = 0.0  # the other side learns so late that one side closed
    cut_after_bytes: int | None = None  # so many pass each connection from now on, and the next one resets it
    cut_direction: Direction | None = None  # which way is counted; both together when None

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0:
            raise ValueError("bytes_per_second is above 0: a wire that passes nothing is a black_hole")


class _Wire:
    """The faults of now, and the wait for others; they may be set from any thread."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._others = asyncio.Event()

    def changed(self) -> None:
        self._others.set()
        self._others = asyncio.Event()

    async def clear(self, due: Callable[[Faults], float] = lambda _: 0) -> Faults:
        """The faults of now, once they are no black hole and what is due with them is due."""
        now = asyncio.get_running_loop().time
        while (wait := inf if (faults := self.faults).black_hole else due(faults) - now()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._others.wait()
        return faults


class _Connection:
    """One client's connection and its counterpart to the server."""

    def __init__(self, wire: _Wire, client: socket.socket) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._ends = [client]
        self._ended = False
        self._free_at: dict[Direction, float] = {"to_server": 0, "to_client": 0}
        self._passed: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self._passed_under = wire.faults

    async def carry(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        try:
            self._ends.append(socket.socket())
            client, server = self._ends
            for end in self._ends:
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._wire.clear()
            await self._loop.sock_connect(server, (host, int(port)))
            out, back = Chunks(_MOST_CHUNKS), Chunks(_MOST_CHUNKS)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(client, out))
                tasks.create_task(self._deliver(out, server, "to_server"))
                tasks.create_task(self._receive(server, back))
                tasks.create_task(self._deliver(back, client, "to_client"))
            self._ended = True
        except* OSError:
            pass  # one side was reset, or does not take any more, or this was the cut: `close` tells both

    def close(self, _: object) -> None:
        """In order when both sides have ended and have what the other sent; with a reset otherwise."""
        for end in self._ends:
            if not self._ended:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()

    async def _receive(self, source: socket.socket, chunks: Chunks) -> None:
        """Reads as fast as the source sends, so that latency does not eat bandwidth."""
        data: bytes | OSError = b"?"
        while isinstance(data, bytes) and data:
            try:
                data = await self._loop.sock_recv(source, _CHUNK)
            except OSError as reset:
                data = reset
            await chunks.put((self._loop.time(), data))
            await asyncio.sleep(0)  # a socket that always has more would let nobody else have a turn

    async def _deliver(self, chunks: Chunks, sink: socket.socket, way: Direction) -> None:
        """Returns once the source's end is delivered; raises when the connection is to be reset."""
        while data := await self._next(chunks):
            await self._pass_on(memoryview(data), sink, way)
        sink.shutdown(socket.SHUT_WR)

    async def _next(self, chunks: Chunks) -> bytes:
        """What was sent next, when it is due."""
        sent_at, data = await chunks.get()
        last = not data or isinstance(data, OSError)
        await self._wire.clear(lambda faults: sent_at + faults.latency_seconds + last * faults.slow_close_seconds)
        if isinstance(data, OSError):
            raise data
        return data

    async def _pass_on(self, data: memoryview, sink: socket.socket, way: Direction) -> None:
        while data:
            faults = await self._wire.clear(lambda faults: self._free_at[way] if faults.bytes_per_second < inf else 0)
            piece = int(min(len(data), max(1, faults.bytes_per_second * _PIECE_SECONDS)))
            size = min(piece, self._room(faults, way))
            if not size:
                await _arrived(sink)
                raise ConnectionResetError
            self._passed[way] += size
            begun = max(self._free_at[way], self._loop.time() - _BURST_SECONDS)
            self._free_at[way] = begun + size / faults.bytes_per_second
            await self._loop.sock_sendall(sink, data[:size])
            data = data[size:]

    def _room(self, faults: Faults, way: Direction) -> int:
        """How many bytes may still pass before the cut."""
        if faults is not self._passed_under:
            self._passed_under, self._passed = faults, dict.fromkeys(self._passed, 0)
        if faults.cut_after_bytes is None or faults.cut_direction not in (None, way):
            return _CHUNK
        return faults.cut_after_bytes - (self._passed[way] if faults.cut_direction else sum(self._passed.values()))


async def _arrived(sink: socket.socket) -> None:
    """Waits until the other side's machine has all that was sent: a reset would drop the rest."""
    while any(fcntl.ioctl(sink, termios.TIOCOUTQ, bytes(4))):
        await asyncio.sleep(0.001)


class FaultProxy:
    """Listens on loopback and passes everything on to `target`, as `faults` allows; any thread may call it."""

    def __init__(self, target: str = "", port: int = 0) -> None:
        self.target = target  # may be named later, until somebody connects
        self.port = port
        self._wire = _Wire()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = False
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def faults(self) -> Faults:
        return self._wire.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._wire.faults = faults
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(self._wire.changed)

    def heal(self) -> None:
        self.faults = Faults()

    def __enter__(self) -> Self:
        self._socket = self._bound()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
        self._socket.close()

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
        assert self._loop is not None, "this works inside `with FaultProxy(...)`"
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(timeout=10)

    def _bound(self) -> socket.socket:
        """The port stays ours also while nobody listens on it."""
        bound = socket.socket()
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self.port))
        self.port = bound.getsockname()[1]
        return bound

    async def _listen(self) -> None:
        if not self._listening:
            self._socket.listen(512)
            asyncio.get_running_loop().add_reader(self._socket, self._accept)
            self._listening = True

    async def _close(self) -> None:
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = self._bound()
            self._listening = False
        await self._reset()

    async def _reset(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:  # it has gone again, or no file descriptor is left for it now
            return
        connection = _Connection(self._wire, client)
        task = asyncio.get_running_loop().create_task(connection.carry(self.target))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(connection.close)
