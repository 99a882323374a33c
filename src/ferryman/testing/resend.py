"""A server with the part of Resend's API that Ferryman uses; its own record says what was sent."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID, uuid5

from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver

KEY = "re_123456789"
_IDS = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@dataclass(frozen=True, slots=True)
class SentMail:
    """A mail that the server sent."""

    id: str
    key: str
    content: dict[str, Any]


@dataclass(slots=True)
class _Known:
    """A key that the server knows: its request, and the answer once there is one."""

    body: bytes
    until: float
    id: str | None = None


class ResendServer:
    """A server for `POST /emails` and `GET /emails/{id}` that knows each key for `window_seconds`.

    `before` decides on each request before it is carried out: an answer refuses it, None carries it out. `after` may
    replace the answer to a mail that *was* sent. Either may wait, or raise: then there is no answer.
    """

    def __init__(
        self,
        *,
        before: Callable[[ReceivedRequest], Answer | None] = lambda _: None,
        after: Callable[[ReceivedRequest], Answer | None] = lambda _: None,
        key: str = KEY,
        window_seconds: float = 86400.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.before, self.after = before, after
        self.key = key
        self.sent: list[SentMail] = []
        self._window = window_seconds
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._guard = threading.Lock()
        self._receiver = Receiver(self._answer)

    @property
    def url(self) -> str:
        """The address of the API."""
        return self._receiver.url

    @property
    def requests(self) -> list[ReceivedRequest]:
        """Every request, also those that were refused."""
        return self._receiver.requests

    def __enter__(self) -> Self:
        self._receiver.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._receiver.__exit__(*error)

    def _answer(self, request: ReceivedRequest) -> Answer:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return refusal(403, "invalid_api_key", "API key is invalid")
        if (refused := self.before(request)) is not None:
            return refused
        if request.method == "GET":
            return self._look_up(request.path.removeprefix("/emails/"))
        if (request.method, request.path) != ("POST", "/emails"):
            return refusal(404, "not_found", "The requested endpoint does not exist.")
        return self._send(request)

    def _send(self, request: ReceivedRequest) -> Answer:
        key, now = request.headers.get("idempotency-key", ""), self._clock()
        with self._guard:
            known = self._known.get(key)
            if known is None or known.until <= now:
                known = self._known[key] = _Known(request.body, now + self._window)
            elif known.body != request.body:
                return refusal(409, "invalid_idempotent_request", "Same idempotency key, different request payload.")
            elif known.id is None:
                return refusal(409, "concurrent_idempotent_requests", "The original request is still in progress.")
            else:
                return _json(200, {"id": known.id})
            mail = SentMail(str(uuid5(_IDS, f"{key} {len(self.sent)}")), key, json.loads(request.body))
            self.sent.append(mail)
        try:
            told = self.after(request)
        finally:
            known.id = mail.id
        return told or _json(200, {"id": mail.id})

    def _look_up(self, identifier: str) -> Answer:
        if any(mail.id == identifier for mail in self.sent):
            return _json(200, {"object": "email", "id": identifier, "last_event": "delivered"})
        return refusal(404, "not_found", "Email not found")


def refusal(status: int, name: str, message: str = "", *, retry_after: int | None = None) -> Answer:
    """Return an error as the API words it."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    content = {"statusCode": status, "name": name, "message": message}
    return Answer(status, json.dumps(content).encode(), headers)


def _json(status: int, content: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})
