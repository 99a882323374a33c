"""The API on a real port, in a thread of the test, and a client for it."""

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from ferryman.cli.wiring import settings_class
from ferryman.console.service import ApiService
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Api, Settings, Token
from ferryman.services import systems

WRITE, READ, RESULTS = "payments:write", "payments:read", "internal:results"
TOKENS = {"shop": (WRITE, READ), "auditor": (READ,), "wallet": (RESULTS,)}


def token(name: str) -> str:
    return f"{name}-{'0123456789abcdef' * 3}"


def sha256(name: str) -> str:
    return hashlib.sha256(token(name).encode()).hexdigest()


def settings(url: str, **more: Any) -> Settings:
    tokens = {name: Token(sha256=sha256(name), scopes=[*scopes]) for name, scopes in TOKENS.items()}
    given = {"port": 0, "tokens": tokens} | more.pop("api", {})
    return settings_class()(database_url=url, api=Api(**given), **more)


class Answer(NamedTuple):
    """An answer of the API."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def wrong(self) -> dict[str, str]:
        """The wrong fields of an error."""
        return {each["field"]: each["problem"] for each in self.json["errors"]}


class Client:
    """A client that opens a connection for each request, so that requests do not affect one another."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    @property
    def port(self) -> int:
        assert self._url.port is not None
        return self._url.port

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        by: str | None = "shop",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request. A body that is neither bytes nor an iterator is sent as JSON."""
        said = {} if by is None else {"Authorization": f"Bearer {token(by)}"}
        if body is not None:
            said["Content-Type"] = "application/json"
            body = body if isinstance(body, bytes | Iterator) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=60)
        try:
            connection.request(method, path, body, said | dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def post(self, body: Any, **more: Any) -> Answer:
        return self.ask("POST", "/payments", body, **more)

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask("GET", path, **more)

    def tell(self, uuid: Any, body: Any, by: str = "wallet", **more: Any) -> Answer:
        return self.ask("PUT", f"/internal/requests/{uuid}", body, by=by, **more)


def payment(**more: Any) -> dict[str, Any]:
    """Return a valid body."""
    return {"uuid": str(uuid4()), "wallet_id": str(uuid4()), "amount": 500, "currency": "EUR"} | more


class Running(NamedTuple):
    """The running service, its life, and a client."""

    service: ApiService
    life: Life
    client: Client


def forget_systems(db: Any) -> None:
    """Let a database look as if no system with routes had been migrated."""
    for each in systems():
        if each.routes:
            db.execute(f"DROP TABLE IF EXISTS ferryman.version_{each.owner}")


@contextmanager
def running(found: Settings) -> Iterator[Running]:
    """Run the API until the block ends, and raise the error that ended it."""
    service, life, errors = ApiService(found), Life("api"), []

    def run() -> None:
        try:
            service.run(life)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: service.url or errors)
        if not errors:
            yield Running(service, life, Client(service.url or ""))
    finally:
        life.stopping.set()
        thread.join(20)
    if errors:
        raise errors[0]


def until(condition: Any, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return value
