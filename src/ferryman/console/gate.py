"""What every request passes before its route: a token, a bound on its body, a count, and a last net below it."""

import asyncio
import time
import traceback
from collections.abc import Sequence

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferryman.console import metrics
from ferryman.console.problems import away, problem
from ferryman.console.tokens import Keyring
from ferryman.runtime.errors import FerrymanError, Misconfigured

log = structlog.get_logger(__name__)

CALLER = "ferryman.caller"
BODY_SECONDS = 10.0
MOST_AT_ONCE = 200


class _Gone(Exception):
    """The client hung up before its request was whole."""


class Gate:
    """Reads a body whole before anything looks at it, and never more of it than is allowed."""

    def __init__(self, app: ASGIApp, keyring: Keyring, max_body_bytes: int, public: Sequence[str]) -> None:
        self._app = app
        self._keyring = keyring
        self._most = max_body_bytes
        self._public = frozenset(public)
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, sending)
        except _Gone:
            pass
        except Exception as error:
            _say(scope, error)
            if not status:
                await problem(500, "a fault of the server, which its log names")(scope, receive, sending)
        finally:
            if status:
                metrics.answered(_route(scope), status, time.monotonic() - began)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.url.path in self._public:
            await self._app(scope, _given(b"", receive), send)
            return
        if refused := self._unknown(request):
            await refused(scope, receive, send)
            return
        if self._inside >= MOST_AT_ONCE:
            await away("too many requests at once: ask again")(scope, receive, send)
            return
        self._inside += 1
        try:
            body = await self._body(request, receive)
            if isinstance(body, Response):
                await body(scope, receive, send)
            else:
                await self._app(scope, _given(body, receive), send)
        finally:
            self._inside -= 1

    def _unknown(self, request: Request) -> Response | None:
        """The refusal of whoever shows no token, before anything of theirs is read or counted."""
        caller = self._keyring.caller(request.headers.get("authorization"))
        if caller is None:
            return problem(401, "a bearer token is needed that is known here", headers={"WWW-Authenticate": "Bearer"})
        request.scope[CALLER] = caller
        return None

    async def _body(self, request: Request, receive: Receive) -> bytes | Response:
        too_large = f"the body is larger than {self._most} bytes"
        if int(request.headers.get("content-length", 0)) > self._most:
            return problem(413, too_large)
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Gone
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._most:
                        return problem(413, too_large)
        except TimeoutError:
            return problem(408, f"the body did not come within {BODY_SECONDS:.0f} s", headers={"Connection": "close"})
        if body and not _is_json(request.headers.get("content-type", "")):
            return problem(415, "the body has to be JSON: send Content-Type: application/json")
        return bytes(body)


def _given(body: bytes, receive: Receive) -> Receive:
    """What stands in for the client's own: a body that is whole, and then whatever follows it."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return whole.pop() if whole else await receive()

    return receiving


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _route(scope: Scope) -> str:
    """By its template, not by what a client wrote: labels must not grow with the requests."""
    route = scope.get("route")
    taken = scope["method"] in (getattr(route, "methods", None) or ())
    return f"{scope['method']} {getattr(route, 'path', '')}" if taken else "other"


def _say(scope: Scope, error: Exception) -> None:
    """Where it happened. What it says only where the words are ours: others' may quote what they were given."""
    ours = isinstance(error, Misconfigured) or (isinstance(error, FerrymanError) and not error.__cause__)
    words = str(error)[:500] if ours else type(error).__name__
    frames = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_tb(error.__traceback__)]
    log.error("failed", route=_route(scope), error=words, where=frames[-3:])
