"""A TCP proxy with faults: delays, slow wires, black holes, resets and cuts between any client and any server.

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
_MOST_CHUNKS = 1024  # in transit in each direction of a connection; then the sender has to wait
_PIECE_SECONDS = 0.01  # a slow wire delivers a piece in this interval
_BURST_SECONDS = 0.02  # the delay of our own event loop that a slow wire may catch up
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, drop what was not sent

Direction = Literal["to_server", "to_client"]
Chunks = asyncio.Queue[tuple[float, bytes | OSError]]  # with the time of sending; b"" is the end, an error is a reset


@dataclass(frozen=True, slots=True)
class Faults:
    """The present faults of the wire; assign others to `FaultProxy.faults` at any time."""

    latency_seconds: float = 0.0  # each way
    bytes_per_second: float = inf  # each way, of each connection
    black_hole: bool = False  # nothing arrives until the wire heals
    slow_close_seconds: float = 0.0  # the delay until the other side sees that one side closed
    cut_after_bytes: int | None = None  # so many bytes pass each connection from now on; the next one resets it
    cut_direction: Direction | None = None  # the direction that is counted; None counts both together

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0:
            raise ValueError("bytes_per_second must be above 0; use black_hole for a wire that passes nothing")


class _Wire:
    """The present faults, and the wait until they change. Any thread may change them."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._others = asyncio.Event()

    def changed(self) -> None:
        """Wake everybody who waits for other faults."""
        self._others.set()
        self._others = asyncio.Event()

    async def clear(self, due: Callable[[Faults], float] = lambda _: 0) -> Faults:
        """Wait until the wire is not a black hole and `due` has passed, and return its faults then."""
        now = asyncio.get_running_loop().time
        while (wait := inf if (faults := self.faults).black_hole else due(faults) - now()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._others.wait()
        return faults


class _Connection:
    """A client's connection and its counterpart to the server."""

    def __init__(self, wire: _Wire, client: socket.socket) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._ends = [client]
        self._ended = False
        self._free_at: dict[Direction, float] = {"to_server": 0, "to_client": 0}
        self._passed: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self._passed_under = wire.faults

    async def carry(self, target: str) -> None:
        """Connect to the target, and pass everything on until both sides have ended."""
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
            pass  # a side was reset or takes no more, or this was the cut: `close` resets both

    def close(self, _: object) -> None:
        """Close both sides: in order if both have ended and received everything, otherwise with a reset."""
        for end in self._ends:
            if not self._ended:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()

    async def _receive(self, source: socket.socket, chunks: Chunks) -> None:
        """Read as fast as the source sends, so that latency costs no bandwidth."""
        data: bytes | OSError = b"?"
        while isinstance(data, bytes) and data:
            try:
                data = await self._loop.sock_recv(source, _CHUNK)
            except OSError as reset:
                data = reset
            await chunks.put((self._loop.time(), data))
            await asyncio.sleep(0)  # a socket that always has more data must not starve the others

    async def _deliver(self, chunks: Chunks, sink: socket.socket, way: Direction) -> None:
        """Deliver everything up to the source's end. Raise an error if the connection is to be reset."""
        while data := await self._next(chunks):
            await self._pass_on(memoryview(data), sink, way)
        sink.shutdown(socket.SHUT_WR)

    async def _next(self, chunks: Chunks) -> bytes:
        """Return the next data when it is due."""
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
        """Return how many bytes may still pass before the cut."""
        if faults is not self._passed_under:
            self._passed_under, self._passed = faults, dict.fromkeys(self._passed, 0)
        if faults.cut_after_bytes is None or faults.cut_direction not in (None, way):
            return _CHUNK
        return faults.cut_after_bytes - (self._passed[way] if faults.cut_direction else sum(self._passed.values()))


async def _arrived(sink: socket.socket) -> None:
    """Wait until the other side's machine has received everything: a reset would drop the rest."""
    while any(fcntl.ioctl(sink, termios.TIOCOUTQ, bytes(4))):
        await asyncio.sleep(0.001)


class FaultProxy:
    """A proxy on loopback that passes everything on to `target`, as `faults` allow. Any thread may call it."""

    def __init__(self, target: str = "", port: int = 0) -> None:
        self.target = target  # may be assigned later, before somebody connects
        self.port = port
        self._wire = _Wire()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The host and port to connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def faults(self) -> Faults:
        """The present faults."""
        return self._wire.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._wire.faults = faults
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(self._wire.changed)

    def heal(self) -> None:
        """End all faults."""
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
        """Stop listening, and reset every connection."""
        self._call(self._close)

    def up(self) -> None:
        """Listen again on the same port."""
        self._call(self._listen)

    def reset(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._call(self._reset)

    def _call(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._loop is not None, "call this inside `with FaultProxy(...)`"
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(timeout=10)

    def _bound(self) -> socket.socket:
        """Bind the port, which stays ours even while nobody listens on it."""
        bound = socket.socket()
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self.port))
        self.port = bound.getsockname()[1]
        return bound

    async def _listen(self) -> None:
        self._socket.listen(512)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def _close(self) -> None:
        if asyncio.get_running_loop().remove_reader(self._socket):
            self._socket.close()
            self._socket = self._bound()
        await self._reset()

    async def _reset(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:  # the client has gone, or no file descriptor is free
            return
        connection = _Connection(self._wire, client)
        task = asyncio.get_running_loop().create_task(connection.carry(self.target))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(connection.close)
