"""The gate before every route: tokens and scopes, limits of bodies and of concurrent requests, metrics, errors.

Tokens are known by their SHA-256 and compared in constant time.
"""

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferryman.console.problems import AGAIN, problem, refusal
from ferryman.routes import CALLER, wrong
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.logs import frames
from ferryman.runtime.metrics import Named
from ferryman.runtime.settings import Api

log = structlog.get_logger(__name__)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_METERS = Named("ferryman_api_", ["route"], _SECONDS)

REQUESTS = _METERS.counter(
    "requests_total", "Answered requests; those without a route are counted as `other`.", ["route", "status"]
)
SECONDS = _METERS.histogram("request_seconds", "How long requests took, from their headers to the answer.")

BODY_SECONDS = 10.0
MOST_AT_ONCE = 200
SLOT_SECONDS = 2.0
LAST = (401, 408, 413, 503)
"""After these statuses the connection is closed."""
DROP_SECONDS, DROP_BYTES = 1.0, 65536
"""The limits of what is dropped of an unread body, after the answer."""
LARGE_SECONDS, LARGE_BYTES = 5.0, 64 << 20
"""The same after 413, which only a client with a token is answered: many read that only once they have sent all."""

MAKE_ONE = (
    "make one with `openssl rand -hex 32`, keep it with the client, and set its SHA-256 "
    "(`printf %s TOKEN | openssl sha256 -r`) as api.tokens.NAME.sha256, with api.tokens.NAME.scopes"
)

_OF_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that a token belongs to, and its scopes."""

    name: str
    scopes: frozenset[str] = frozenset()
    everything: bool = False

    def may(self, scope: str) -> bool:
        return self.everything or scope in self.scopes


@dataclass(frozen=True, slots=True)
class Keyring:
    """The tokens of the settings. An open API lets everyone do everything."""

    callers: dict[str, Caller] = field(repr=False)
    open: bool = False

    def caller(self, authorization: str | None) -> Caller | None:
        """Return the caller of an `Authorization` header. All tokens are compared: the time reveals no near match."""
        if self.open:
            return Caller("everyone", everything=True)
        kind, _, given = (authorization or "").partition(" ")
        token = given.strip()
        if kind.lower() != "bearer" or not token:
            return None
        shown = hashlib.sha256(token.encode()).hexdigest()
        found = [caller for known, caller in self.callers.items() if hmac.compare_digest(known, shown)]
        return found[0] if found else None


def keyring(api: Api) -> Keyring:
    """Build the keyring. Refuse settings without any token, and an open API that has tokens."""
    if api.open and api.tokens:
        raise Misconfigured(
            "api.open lets everyone in, but tokens are set", setting="api.open", remedy="keep one of the two"
        )
    if not api.open and not api.tokens:
        raise Misconfigured("the API has no token, so nobody could use it", setting="api.tokens", remedy=MAKE_ONE)
    callers: dict[str, Caller] = {}
    for name, token in api.tokens.items():
        if token.sha256 == _OF_NOTHING:
            raise Misconfigured(f"the token of {name} is empty", setting=f"api.tokens.{name}.sha256", remedy=MAKE_ONE)
        if twin := callers.get(token.sha256):
            raise Misconfigured(
                f"{twin.name} and {name} have the same token", setting=f"api.tokens.{name}.sha256", remedy=MAKE_ONE
            )
        callers[token.sha256] = Caller(name, frozenset(token.scopes))
    return Keyring(callers, api.open)


@dataclass(frozen=True, slots=True)
class Place:
    """A path, and the scope that each of its methods requires. A public one requires no token and has no scopes."""

    template: str
    path: re.Pattern[str]
    scopes: Mapping[str, str]
    public: bool = False


NOWHERE = Place("", re.compile(""), {})


class Slots:
    """The room for requests in progress. A token has at most half of it, so that none keeps out the others."""

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._own: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(most // 2))

    async def enter(self, stack: AsyncExitStack, caller: Caller) -> None:
        """Hold a slot until the stack is left. A short wait costs less than clients that come again."""
        try:
            async with asyncio.timeout(SLOT_SECONDS):
                await stack.enter_async_context(self._own[caller.name])
                await stack.enter_async_context(self._all)
        except TimeoutError as error:
            raise HTTPException(503, "too many requests at once: try again", AGAIN) from error


class Exchange:
    """A request and its answer. The answer is the connection's last if it refuses, or comes before the body's end.

    Otherwise the client could send its body for ever. The rest, up to a limit, is read after the answer and dropped:
    closing at once would reset the connection, and the client might never see the answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status = 0
        self.last = False
        self._receive, self._send = receive, send
        self._unread = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

    async def receive(self) -> Message:
        message = await self._receive()
        self._unread = bool(message.get("more_body"))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.last or self._unread or self.status in LAST:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif self._unread and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._drop_rest()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _drop_rest(self) -> None:
        dropped = 0
        seconds, most = (LARGE_SECONDS, LARGE_BYTES) if self.status == 413 else (DROP_SECONDS, DROP_BYTES)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._unread and dropped < most:
                    dropped += len((await self.receive()).get("body", b""))


class Gate:
    """A middleware that checks the token and its scope, then reads the whole body up to its limit, for the route."""

    def __init__(self, app: ASGIApp, keyring: Keyring, max_body_bytes: int, places: Sequence[Place]) -> None:
        self._app = app
        self._keyring = keyring
        self._most = max_body_bytes
        self._places = places
        self._slots = Slots(MOST_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        exchange = Exchange(scope, receive, send)
        place = next((each for each in self._places if each.path.match(scope["path"])), NOWHERE)
        # Labels must stay bounded: they have the template of the route, not the path that a client wrote.
        route = f"{scope['method']} {place.template}" if scope["method"] in place.scopes else "other"
        try:
            await self._pass(place, scope, exchange)
        except ClientDisconnect:  # before its request was complete
            pass
        except Exception as error:
            _say(route, error)
            if not exchange.status:
                fault = problem(500, "an error of the server, which its log describes")
                await fault(scope, exchange.receive, exchange.send)
        finally:
            if exchange.status:
                REQUESTS.labels(route, str(exchange.status)).inc()
                SECONDS.labels(route).observe(time.monotonic() - began)

    async def _pass(self, place: Place, scope: Scope, exchange: Exchange) -> None:
        request = Request(scope, exchange.receive)
        try:
            async with AsyncExitStack() as slot:
                body = b""
                if place.public:
                    exchange.last = True  # without a token, nobody keeps a connection
                else:
                    caller = self._admitted(place, request)
                    scope.setdefault("state", {})[CALLER] = caller.name
                    await self._slots.enter(slot, caller)
                    body = await self._body(request)
                await self._app(scope, _given(body, exchange.receive), exchange.send)
                return
        except HTTPException as error:
            refused = refusal(error)
        await refused(scope, exchange.receive, exchange.send)

    def _admitted(self, place: Place, request: Request) -> Caller:
        """Return the caller, or refuse the request before any of its body is read."""
        caller = self._keyring.caller(request.headers.get("authorization"))
        if caller is None:
            raise HTTPException(401, "a known bearer token is required", {"WWW-Authenticate": "Bearer"})
        if not place.scopes:
            raise HTTPException(404, "there is nothing at this path")
        if request.method not in place.scopes:
            raise HTTPException(405, "this path has other methods", {"Allow": ", ".join(sorted(place.scopes))})
        if not caller.may(scope := place.scopes[request.method]):
            raise HTTPException(403, f"this token lacks the scope {scope}")
        if {"content-length", "transfer-encoding"} <= set(request.headers.keys()):  # RFC 9112, 6.1
            raise HTTPException(400, "send Content-Length or Transfer-Encoding, not both")
        if twice := _repeated(name for name, _ in request.query_params.multi_items()):
            raise wrong(422, "parameters are repeated", dict.fromkeys(twice, "it is given more than once"))
        return caller

    async def _body(self, request: Request) -> bytes:
        too_large = f"the body is larger than {self._most} bytes"
        if int(request.headers.get("content-length", 0)) > self._most:
            raise HTTPException(413, too_large)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > self._most:
                        raise HTTPException(413, too_large)
        except TimeoutError as error:
            raise HTTPException(408, f"the body did not come within {BODY_SECONDS:.0f} s") from error
        if body:
            if not _is_json(request.headers.get("content-type", "")):
                raise HTTPException(415, "the body must be JSON: send Content-Type: application/json")
            _check_json(body)
        return bytes(body)


def _check_json(body: bytearray) -> None:
    """Refuse bodies that two readers could understand differently: not in UTF-8, or with a repeated key."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if twice := _repeated(name for name, _ in pairs):
            raise wrong(400, "the body repeats a key", dict.fromkeys(twice, "it is there more than once"))

    try:
        json.loads(body.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise wrong(400, "the body is not JSON in UTF-8", {"body": "it cannot be parsed"}) from error


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _given(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the complete body, and then what the client sends."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return whole.pop() if whole else await receive()

    return receiving


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _say(route: str, error: Exception) -> None:
    """Log the place of an error. The message is logged only if it is ours: others may quote values."""
    ours = isinstance(error, Misconfigured) or (isinstance(error, FerrymanError) and not error.__cause__)
    words = str(error)[:500] if ours else type(error).__name__
    log.error("failed", route=route, error=words, where=frames(error)[-3:])
