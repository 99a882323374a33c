"""Answers of a registry, or of a server in its place: each raises the right error, which shows no password."""

import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient, Unreachable
from ferryman.schemas.registry import SchemaRefused, UnknownSchema
from ferryman.schemas.registry.confluent import ConfluentRegistry
from support.answering import Answer, raw, says, serving
from support.pace import in_time
from support.registries import ASKS, TEXT, error_of, errors_of, with_login

PAGE = b"<html><body>We are back soon.</body></html>"


def asked(answer: Answer, asks: Iterable[str] = ASKS) -> Iterator[FerrymanError]:
    with serving(answer) as served:
        yield from errors_of(ConfluentRegistry(with_login(served.url)), asks)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [{"error_code": 40101, "message": "Unauthorized"}, PAGE], ids=["own", "page"])
def test_rejected_credentials_name_where_user_and_password_go(status: int, body: Any) -> None:
    for error in asked(says(status, body)):
        assert isinstance(error, Misconfigured)
        assert (error.setting, error.remedy) == (
            "registry_url", "give a user and password in the URL, or properties under [registry]",
        )  # fmt: skip
        assert f"answers {status}" in str(error)
        assert "html" not in str(error)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 405, 406, 415])
def test_a_server_that_is_not_a_registry_means_a_wrong_url(status: int) -> None:
    for error in asked(says(status, PAGE, {"Location": "https://login.example/"})):
        assert isinstance(error, Misconfigured)
        assert error.setting == "registry_url"
        assert "check that the URL is that of the registry's Confluent API" in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("body", [{"error_code": 50001, "message": "the store is away"}, PAGE, None])
def test_a_failing_registry_is_a_transient_error(status: int, body: Any) -> None:
    for error in asked(says(status, body)):
        assert isinstance(error, Unreachable)
        assert error.setting == "registry_url"
        assert error.remedy
        assert ("the store is away" in str(error)) == isinstance(body, dict)
        assert "html" not in str(error)


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_404_of_the_registry_itself_means_unknown(code: int) -> None:
    with serving(says(404, {"error_code": code, "message": "not found"})) as served:
        registry = ConfluentRegistry(served.url)
        with pytest.raises(UnknownSchema, match="no schema with id 7"):
            registry.schema(7)
        assert registry.lookup("shop.Placed", TEXT) is None
        assert registry.objections("shop.Placed", TEXT) == []
        for ask in (ASKS["register"], ASKS["insist"]):
            assert isinstance(error_of(ask, registry), Transient)


@pytest.mark.parametrize(
    "body",
    [
        None,
        PAGE,
        [],
        {},
        {"error_code": 404, "message": "HTTP 404 Not Found"},
        {"error_code": "40403"},
        {"error_code": [40403]},
        {"error": "x"},
    ],
    ids=["nothing", "page", "list", "empty", "framework", "words", "list of codes", "other"],
)
def test_a_404_of_another_server_is_transient(body: Any) -> None:
    """Recovery needs no hand edit (N11): a proxy that answers for its registry must not reject messages."""
    for error in asked(says(404, body)):
        assert isinstance(error, Transient)
        assert error.setting == "registry_url"
        assert "its 404 is not a registry's" in str(error)


@pytest.mark.parametrize(("status", "code"), [(409, 409), (422, 42201)])
def test_a_refused_schema_gives_the_reason_of_the_registry(status: int, code: int) -> None:
    with serving(says(status, {"error_code": code, "message": "field n has no default"})) as served:
        registry = ConfluentRegistry(with_login(served.url))
        error = error_of(ASKS["register"], registry)
        assert isinstance(error, SchemaRefused)
        assert "field n has no default" in str(error)
        assert "ferryman schemas check" in str(error)
        assert "field n has no default" in registry.objections("shop.Placed", TEXT)[0]
        assert isinstance(error_of(ASKS["schema"], registry), Transient), "an id must not be rejected for that"


BAD_ANSWERS = {
    "a page": PAGE, "nothing": b"", "a list": [], "a word": "x", "null": b"null", "a half": b'{"schema": "{\\"ty',
    "not text": b"\xff\xfe\x00", "too deep": b"[" * 100_000, "no field": {}, "other fields": {"subject": "shop.Placed"},
    "nulls": {"schema": None, "id": None, "is_compatible": None},
    "other types": {"schema": 7, "id": "seven", "is_compatible": "yes"},
    "a bool for a number": {"schema": {}, "id": True, "is_compatible": 1},
    "an impossible id": {"schema": [], "id": 2**31, "is_compatible": []},
    "a negative id": {"schema": [], "id": -1, "is_compatible": {}},
}  # fmt: skip


@pytest.mark.parametrize("body", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_malformed_answer_is_a_transient_error(body: Any) -> None:
    for error in asked(says(200, body), ("schema", "lookup", "register", "objections")):
        assert isinstance(error, Transient)
        assert error.setting == "registry_url"
        assert error.remedy
        assert "does not answer as a registry does" in str(error)
        assert len(str(error)) < 1000


@pytest.mark.parametrize("name", ["schema", "lookup", "register"])
def test_a_malformed_answer_is_not_remembered(name: str) -> None:
    with serving(says(200, {})) as served:
        registry = ConfluentRegistry(served.url)
        assert isinstance(error_of(ASKS[name], registry), Transient)
        served.answer = says(200, {"schema": TEXT, "id": 7})
        assert ASKS[name](registry) == (TEXT if name == "schema" else 7)


def test_an_answer_larger_than_the_limit_is_not_read_to_its_end() -> None:
    def endless(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        while True:
            to.wfile.write(b" " * 65_536)

    with serving(endless) as served:
        error = error_of(ASKS["schema"], ConfluentRegistry(served.url))
    assert isinstance(error, Transient)
    assert "its answer is too large" in str(error)


def test_an_answer_that_trickles_ends_at_the_deadline() -> None:
    def trickle(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        while not served.over.wait(0.02):
            to.wfile.write(b" ")

    with serving(trickle) as served:
        began = time.monotonic()
        error = error_of(ASKS["schema"], ConfluentRegistry(served.url, timeout_seconds=0.3))
        assert in_time(time.monotonic() - began, 3)
    assert isinstance(error, Unreachable)
    assert "takes too long" in str(error)


BROKEN = {
    "a truncated body": says(200, {"schema": TEXT, "id": 7}, {"Content-Length": "5000"}),
    "bytes that are not HTTP": raw(b"\x15\x03\x01\x00\x02\x02" * 20 + b"\r\n"),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nContent-"),
    "a hang-up": lambda to: to.connection.close(),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_a_transient_error(answer: Answer) -> None:
    for error in asked(answer):
        assert isinstance(error, Transient)
        assert error.setting == "registry_url"
        assert error.remedy


def test_an_id_that_is_too_large_is_not_asked_for() -> None:
    """Registries answer it with the 404 of an unknown path, and foreign bytes would wait for ever."""
    with serving(says(404, PAGE)) as served, pytest.raises(UnknownSchema):
        ConfluentRegistry(served.url).schema(2**32 - 1)
    assert served.asked == []


def test_a_request_is_not_retried() -> None:
    """The caller decides when to ask again."""
    with serving(says(503)) as served:
        error_of(ASKS["schema"], ConfluentRegistry(served.url))
    assert len(served.asked) == 1
