"""The HTTP server: bounded connections, each with a deadline at all times, whoever the client is."""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from math import inf
from typing import Any

import anyio.to_thread
import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ferryman.console.gate import REQUESTS
from ferryman.console.problems import problem
from ferryman.runtime.life import Life

log = structlog.get_logger(__name__)

HEADER_SECONDS = 10.0
EXCHANGE_SECONDS = 60.0
"""From a request's headers until the client has taken its answer: longer than a statement may run."""
IDLE_SECONDS = 75
"""Longer than the proxies in front of us keep a connection, so that they close it, and never while they send."""
CROWDED_IDLE_SECONDS = 5.0
ACCEPT_AGAIN_SECONDS = 1.0
OTHER_DESCRIPTORS = 128
"""The descriptors that a process needs beside the connections of its clients."""

# This share of the time to drain is for open requests; then connections are closed in the rest.
_SHARE = 0.8


class BoundedConnection(H11Protocol):
    """A connection that is cut if its headers, or a whole exchange, take too long."""

    def __init__(self, closed: Callable[[], None], **named: Any) -> None:
        super().__init__(**named)
        self._closed = closed
        self._deadline = inf
        self._idle_since = inf
        self._answering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so writing is paused while any byte waits for the client
        self._finish_within(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()

    def data_received(self, data: bytes) -> None:
        if self._idle_since != inf:
            self._finish_within(HEADER_SECONDS)
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._finish_within(EXCHANGE_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, but not before the client has taken this answer."""
        self._answering = self.flow.write_paused
        if self._answering:
            return
        super().on_response_complete()
        if self.cycle.response_complete:
            self._deadline, self._idle_since = inf, self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering:
            self.on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, unless an answer has begun; then only the connection ends."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = problem(400, "the request is not valid HTTP", headers={"Connection": "close"})
            head = h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request")
            for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            REQUESTS.labels("other", "400").inc()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def expire(self, now: float, *, crowded: bool) -> None:
        """Cut the connection if it is late; if others need the room, close it if it is idle."""
        if now > self._deadline:
            self.transport.abort()
        elif crowded and now > self._idle_since + CROWDED_IDLE_SECONDS:
            self.timeout_keep_alive_handler()

    def _finish_within(self, seconds: float) -> None:
        self._deadline, self._idle_since = self.loop.time() + seconds, inf


class Server(uvicorn.Server):
    """A uvicorn server that follows a Life and bounds its connections; the service loop handles signals."""

    def __init__(
        self, app: ASGIApp, life: Life, *, connections: int, threads: int, drain_seconds: float,
        ended: Callable[[], bool],
    ) -> None:  # fmt: skip
        config = uvicorn.Config(
            app, interface="asgi3", http="h11", ws="none", lifespan="off", loop="asyncio", log_config=None,
            log_level="error", access_log=False, server_header=False, proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
        )  # fmt: skip
        config.timeout_graceful_shutdown = drain_seconds * _SHARE  # type: ignore[assignment]
        super().__init__(config)
        self._life = life
        self._ended = ended
        self._threads = threads
        self._most = within_descriptors(connections)
        self._room = asyncio.Semaphore(self._most)
        self._unable: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why clients cannot connect, if they cannot."""
        if not self.started:
            return "it does not listen yet"
        return f"all of its {self._most} connections are in use" if self._crowded else self._unable

    @property
    def _crowded(self) -> bool:
        return len(self.server_state.connections) >= self._most

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, as many as there is room for: asyncio's server would accept, and log, without bounds."""
        [listener] = sockets or []
        listener.setblocking(False)
        # While one thread waits for the database, another may prepare; more only compete for Python's lock.
        anyio.to_thread.current_default_thread_limiter().total_tokens = self._threads
        self.servers = []
        self._accepting = asyncio.create_task(self._accept(listener))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Report progress and look for the end: the loop that answers requests calls this ten times a second."""
        self._life.progress()
        if self._accepting.done():
            self._accepting.result()
        if counter % 10 == 0:
            now, crowded = asyncio.get_running_loop().time(), self._crowded
            for each in list(self.server_state.connections):
                assert isinstance(each, BoundedConnection)
                each.expire(now, crowded=crowded)
        self.should_exit = self.should_exit or self._life.stopping.is_set() or self._ended()
        return await super().on_tick(counter)

    def capture_signals(self) -> Any:
        return nullcontext()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                self._room.release()
                self._unable = f"no connection can be accepted: {error.strerror}"
                log.warning("no connection can be accepted", error=error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            self._unable = None
            task = loop.create_task(self._serve_client(client))
            self.server_state.tasks.add(task)
            task.add_done_callback(self.server_state.tasks.discard)

    async def _serve_client(self, client: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: BoundedConnection(
                self._room.release, config=self.config, server_state=self.server_state, app_state={}
            ),
            client,
        )


def within_descriptors(connections: int) -> int:
    """Return how many connections the process may hold; raise its limit of open files for them if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_DESCRIPTORS
    if 0 <= soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        log.info("the limit of open files was raised", to=soft)
    if 0 <= soft < needed:
        log.warning("the limit of open files allows fewer connections", open_files=soft, setting="api.max_connections")
        return max(1, soft - OTHER_DESCRIPTORS)
    return connections
