"""The HTTP channel: one attempt to deliver a post, within bounds of time and memory, whatever the other side does."""

import asyncio
import io
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import structlog
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from ferryman.channels.http.failure import is_before_any_answer, no_answer
from ferryman.channels.http.guard import CONNECTS, AddressGuard, Connects
from ferryman.channels.http.request import HttpRequest, request_of
from ferryman.channels.http.resolver import DaemonResolver
from ferryman.channels.http.verdict import verdict
from ferryman.channels.lookup import Lookup
from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Outcome, Rejected, Retry
from ferryman.runtime.redaction import MASK, redact
from ferryman.runtime.settings_http import Http
from ferryman.runtime.version import __version__

log = structlog.get_logger(__name__)

_KEPT_SECONDS = 4.0
"""The time that an idle connection is kept: many servers close theirs after 5 s, and a new one is judged again."""
_MOST_KEPT_ORIGINS = 256
"""Connections are kept to so many origins at once, so that thousands of destinations do not use up the open files."""
_MOST_ANSWER_BYTES = 4096
_MOST_EXCERPT_CHARACTERS = 1024
_MOST_INTERIM_ANSWERS = 20
"""More answers such as `100 Continue` before the real one are not read: a server could send them for ever."""
_LARGE_BYTES = 1 << 20
"""aiohttp sends a larger body in parts if it is a file, so that the other sends go on meanwhile."""
_THREADS_PER_SLOT = 8
"""A lookup that hangs outlasts the request that asked for it: libc gives up after half a minute."""
_HEADERS = {"User-Agent": f"Ferryman/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}


@dataclass(slots=True)
class HttpAnswer:
    """The answer as far as it was read. The status counts once it is there, whatever happens to the body."""

    status: int = 0
    retry_after: str | None = None
    body: bytearray = field(default_factory=bytearray)

    def excerpt(self, secrets: Iterable[str]) -> str | None:
        """Return the beginning of the body as the database may hold it, also if it repeats the request's secrets."""
        if not self.body:
            return None
        text = self.body.decode("utf-8", "replace").replace("\0", "�")
        for each in secrets:
            text = text.replace(each, MASK)
        return redact(text[:_MOST_EXCERPT_CHARACTERS])[:_MOST_EXCERPT_CHARACTERS] or None


class HttpChannel:
    """A channel that sends `Post` values. It follows no redirects, keeps no cookies, and asks no proxy."""

    def __init__(
        self,
        settings: Http,
        *,
        slots: int = 64,
        lookup: Lookup = socket.getaddrinfo,
        clock: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._lookup = lookup
        self._clock = clock
        self._tls = tls
        self._guard = AddressGuard(settings.allow)
        self._origins = KeptOrigins(_MOST_KEPT_ORIGINS, _KEPT_SECONDS)
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        resolver = DaemonResolver(self._slots * _THREADS_PER_SLOT, self._lookup)
        self._kept = self._session(resolver, keep=True)
        self._fresh = self._session(resolver, keep=False)

    async def close(self) -> None:
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()

    async def send(self, item: Post) -> Outcome:
        """Send a post once, and return what became of it. Nothing that the other side does raises an error."""
        answer = await self.ask(item)
        if not isinstance(answer, HttpAnswer):
            return answer
        return verdict(
            answer.status,
            retry_after=answer.retry_after,
            now=self._clock(),
            cap_seconds=self._settings.retry_after_cap_seconds,
            excerpt=answer.excerpt([*item.secrets, *([item.bearer] if item.bearer else [])]),
        )

    async def ask(self, item: Post, method: str = "POST") -> HttpAnswer | Outcome:
        """Make one request, and return its answer, or why there is none."""
        request = request_of(item, most_body_bytes=self._settings.max_body_bytes, at=int(self._clock()), method=method)
        if isinstance(request, Rejected):
            return request
        seen, connects = HttpAnswer(), Connects()
        CONNECTS.set(connects)
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                await self._exchange(request, item.body, seen, connects)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            if not seen.status:
                return self._unanswered(error, item, request, connects)
        return seen

    async def _exchange(self, request: HttpRequest, body: bytes, seen: HttpAnswer, connects: Connects) -> None:
        """Make the exchange, and once more on a new connection if a kept one turns out to be closed.

        A server may close an idle connection at any time, also while the request is on its way. That is no failure of
        the post, and without the second try half of all requests to such a server would fail.
        """
        assert self._kept is not None
        assert self._fresh is not None
        keep = self._origins.keeps(request.url.origin(), time.monotonic())
        try:
            await self._once(self._kept if keep else self._fresh, request, body, seen, connects)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError) as error:
            if connects.asked or seen.status or not is_before_any_answer(error):
                raise
            await self._once(self._fresh, request, body, seen, connects)

    async def _once(
        self, session: aiohttp.ClientSession, request: HttpRequest, body: bytes, seen: HttpAnswer, connects: Connects
    ) -> None:
        """Send the request and read the beginning of the answer. A connection that is not kept is aborted.

        To close it would wait for a server that does not read, or does not answer the end of TLS. aiohttp closes one
        itself if the answer came before all of the request was sent.
        """
        data = body if len(body) <= _LARGE_BYTES else io.BytesIO(body)
        done, connects.transport = False, None
        try:
            async with session.request(
                request.method, request.url, data=data, headers=request.headers, allow_redirects=False
            ) as response:
                done = await _read(response, seen)
        finally:
            transport = connects.transport
            if transport is not None and (transport.is_closing() or not (done and session is self._kept)):
                transport.abort()

    def _unanswered(self, error: Exception, post: Post, request: HttpRequest, connects: Connects) -> Outcome:
        if connects.refused:
            host = request.url.host
            log.warning("addresses refused", id=post.id, host=host, addresses=connects.refused)
        if connects.all_refused:
            return Retry("every address of the host is refused: see http.allow", Code.ADDRESS_NOT_ALLOWED)
        return no_answer(error, self._settings)

    def _session(self, resolver: DaemonResolver, *, keep: bool) -> aiohttp.ClientSession:
        connector = _Connector(
            resolver=resolver,
            socket_factory=self._guard.make_socket,
            ssl=self._tls or True,  # without one of ours, certificates are checked as the system does
            limit=0,  # the slots are the limit
            force_close=not keep,
            keepalive_timeout=_KEPT_SECONDS if keep else None,
        )
        connect_seconds = self._settings.connect_timeout_seconds
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(connect=connect_seconds, ceil_threshold=connect_seconds + 1),
            headers=_HEADERS,
            trust_env=False,
            auto_decompress=False,
            read_bufsize=_MOST_ANSWER_BYTES,
            request_class=_Request,
        )


class _Protocol(ResponseHandler):
    """A connection that takes so many interim answers of one request."""

    interim = 0

    async def read(self) -> Any:
        found = message, _ = await super().read()
        self.interim = self.interim + 1 if message.code < 200 else 0
        if self.interim > _MOST_INTERIM_ANSWERS:
            raise HttpProcessingError(message="too many interim answers")
        return found


class _Connector(aiohttp.TCPConnector):
    """A connector whose connections are bounded. aiohttp has no public name for what makes them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        make: Callable[..., ResponseHandler] = _Protocol
        self._factory = partial(make, loop=self._loop)


class _Request(aiohttp.ClientRequest):
    """A request that tells its send which connection it got."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        if (connects := CONNECTS.get(None)) is not None:
            connects.transport = conn.transport
        return await super().send(conn)


async def _read(response: aiohttp.ClientResponse, seen: HttpAnswer) -> bool:
    """Read the beginning of an answer. Return True if that was all of it."""
    seen.status = response.status
    seen.retry_after = response.headers.get("Retry-After")
    while chunk := await response.content.read(_MOST_ANSWER_BYTES - len(seen.body)):
        seen.body += chunk
        if len(seen.body) >= _MOST_ANSWER_BYTES:
            return False
    return True


class KeptOrigins:
    """The origins to which connections are kept: those of the last seconds, up to a limit."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._used: OrderedDict[URL, float] = OrderedDict()

    def keeps(self, origin: URL, now: float) -> bool:
        """Return True if a connection to this origin is to be kept."""
        while self._used and next(iter(self._used.values())) < now - self._seconds:
            self._used.popitem(last=False)
        if origin not in self._used and len(self._used) >= self._most:
            return False
        self._used[origin] = now
        self._used.move_to_end(origin)
        return True
