"""A registry server, by Confluent's REST API: the few calls we need, each with a deadline and a bounded answer."""

import base64
import http.client
import json
import ssl
import time
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from ferryman.runtime.errors import FerrymanError
from ferryman.schemas.registry import Refused, UnknownSchema, address, answers
from ferryman.schemas.registry.numbers import LARGEST, possible

_MOST_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_MEDIA = "application/vnd.schemaregistry.v1+json"


class ConfluentRegistry:
    """A connection for each call: they are few, because what was asked once is remembered."""

    def __init__(self, url: str, timeout_seconds: float = 5.0) -> None:
        self._address = address.read(url)
        self._timeout = timeout_seconds

    def schema(self, number: int) -> str:
        if number > LARGEST:
            raise UnknownSchema(f"no registry has a schema with id {number}")
        try:
            answer = self._ask("GET", f"/schemas/ids/{number}")
        except Refused as error:
            raise self._garbage(error.message) from error
        if answer is None:
            raise UnknownSchema(f"the registry has no schema with id {number}")
        return str(self._field(answer, "schema", str))

    def lookup(self, subject: str, text: str) -> int | None:
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}", {"schema": text})
        return None if answer is None else self._number(answer)

    def register(self, subject: str, text: str) -> int:
        answers.must_be_a_schema(text)
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": text})
        if answer is None:
            raise self._garbage("it takes no schemas")
        return self._number(answer)

    def objections(self, subject: str, text: str) -> list[str]:
        if flaws := answers.flaws(text):
            return flaws
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        try:
            answer = self._ask("POST", path, {"schema": text})
        except Refused as error:
            return [error.message]
        if answer is None or self._field(answer, "is_compatible", bool):  # or nothing is there to be compatible with
            return []
        messages = answer.get("messages")
        said = [str(each) for each in messages] if isinstance(messages, list) else []
        return said or ["it breaks a version that is registered"]

    def insist(self, subject: str, level: str) -> None:
        if self._ask("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level}) is None:
            raise self._garbage("its subjects have no configuration")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer; None for a 404 of the registry's own."""
        said = json.dumps(body) if body is not None else None
        deadline = time.monotonic() + self._timeout
        connection = self._connection()
        try:
            connection.request(method, self._address.path + path, said, self._headers())
            with connection.getresponse() as answer:
                status, content = answer.status, _content(answer, deadline)
        except OSError as error:
            raise answers.unheard(self._address.host, error) from error
        except http.client.HTTPException as error:
            raise self._garbage(f"it does not speak HTTP ({type(error).__name__})") from error
        finally:
            connection.close()
        return self._understood(status, content)

    def _understood(self, status: int, content: bytes) -> dict[str, Any] | None:
        try:
            answer = json.loads(content) if len(content) <= _MOST_BYTES else None
        except (ValueError, RecursionError):
            answer = None
        fields = answer if isinstance(answer, dict) else {}
        if error := answers.failure(self._address.host, status, str(fields.get("message") or "")):
            raise error
        if status == HTTPStatus.NOT_FOUND:
            if fields.get("error_code") in answers.OWN_404:
                return None
            raise self._garbage("its 404 is not a registry's")
        if not isinstance(answer, dict):
            what = "what it says is no JSON object" if len(content) <= _MOST_BYTES else "it says too much"
            raise self._garbage(what)
        return answer

    def _number(self, answer: dict[str, Any]) -> int:
        number = self._field(answer, "id", int)
        if not possible(number):
            raise self._garbage("its id is none")
        return number

    def _field(self, answer: dict[str, Any], name: str, kind: type) -> Any:
        if not isinstance(answer.get(name), kind):
            raise self._garbage(f"its answer has no {name}")
        return answer[name]

    def _garbage(self, what: str) -> FerrymanError:
        return answers.garbage(self._address.host, what)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname, self._address.port
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._trust)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{_MEDIA}, application/json", "Content-Type": _MEDIA}
        if self._address.login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(self._address.login.encode()).decode()}"
        return headers


def _content(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """As much as may be, until the deadline: a socket's own timeout begins anew with every byte."""
    content = b""
    while len(content) <= _MOST_BYTES and (more := answer.read1(_CHUNK_BYTES)):
        content += more
        if time.monotonic() > deadline:
            raise TimeoutError("its answer takes too long")
    if len(content) <= _MOST_BYTES and answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return content
