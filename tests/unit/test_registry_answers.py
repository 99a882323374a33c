"""Whatever a registry, or what stands in its place, says: it is the right family of error, and shows no password."""

import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient, Unreachable
from ferryman.schemas.registry import Refused, UnknownSchema
from ferryman.schemas.registry.confluent import ConfluentRegistry
from support.answering import Answer, raw, says, serving
from support.registries import ASKS, CLIENTS, TEXT, Client, connecting, error_of, errors_of, with_login

PAGE = b"<html><body>We are back soon.</body></html>"


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with connecting(request.param) as connected:
        yield connected


def asked(answer: Answer, client: Client, asks: Iterable[str] = ASKS) -> Iterator[FerrymanError]:
    with serving(answer) as served:
        yield from errors_of(client(with_login(served.url)), asks)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [{"error_code": 40101, "message": "Unauthorized"}, PAGE], ids=["own", "page"])
def test_who_is_not_let_in_is_told_where_user_and_password_go(client: Client, status: int, body: Any) -> None:
    for error in asked(says(status, body), client):
        assert isinstance(error, Misconfigured)
        assert (error.setting, error.remedy) == (
            "registry_url", "give a user and password in the URL, or properties under [registry]",
        )  # fmt: skip
        assert f"answers {status}" in str(error)
        assert "html" not in str(error)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 405, 406, 415])
def test_a_server_that_is_no_registry_is_a_wrong_url(client: Client, status: int) -> None:
    for error in asked(says(status, PAGE, {"Location": "https://login.example/"}), client):
        assert isinstance(error, Misconfigured)
        assert error.setting == "registry_url"
        assert "check that the URL is that of the registry's Confluent API" in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("body", [{"error_code": 50001, "message": "the store is away"}, PAGE, None])
def test_a_registry_in_trouble_is_tried_again(client: Client, status: int, body: Any) -> None:
    for error in asked(says(status, body), client):
        assert isinstance(error, Unreachable)
        assert error.setting == "registry_url"
        assert error.remedy
        assert ("the store is away" in str(error)) == isinstance(body, dict)
        assert "html" not in str(error)


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_registrys_own_404_says_what_is_not_there(client: Client, code: int) -> None:
    with serving(says(404, {"error_code": code, "message": "not found"})) as served:
        registry = client(served.url)
        with pytest.raises(UnknownSchema, match="no schema with id 7"):
            registry.schema(7)
        assert registry.lookup("shop.Placed", TEXT) is None
        assert registry.objections("shop.Placed", TEXT) == []
        for ask in (ASKS["register"], ASKS["insist"]):
            assert isinstance(error_of(ask, registry), Transient)


@pytest.mark.parametrize(
    "body",
    [None, PAGE, [], {}, {"error_code": 404, "message": "HTTP 404 Not Found"}, {"error_code": "40403"}, {"error": "x"}],
    ids=["nothing", "page", "list", "empty", "framework", "words", "other"],
)
def test_another_servers_404_is_not_taken_for_a_registrys(client: Client, body: Any) -> None:
    """N11: a proxy that answers while its registry is away must make nothing poison."""
    for error in asked(says(404, body), client):
        assert isinstance(error, Transient)
        assert error.setting == "registry_url"
        assert "its 404 is not a registry's" in str(error)


@pytest.mark.parametrize(("status", "code"), [(409, 409), (422, 42201)])
def test_what_a_registry_refuses_is_refused_for_its_own_reason(client: Client, status: int, code: int) -> None:
    with serving(says(status, {"error_code": code, "message": "field n has no default"})) as served:
        registry = client(with_login(served.url))
        error = error_of(ASKS["register"], registry)
        assert isinstance(error, Refused)
        assert "field n has no default" in str(error)
        assert "ferryman schemas check" in str(error)
        assert "field n has no default" in registry.objections("shop.Placed", TEXT)[0]
        assert isinstance(error_of(ASKS["schema"], registry), Transient), "no id is poison for that"


NO_ANSWERS = {
    "a page": PAGE, "nothing": b"", "a list": [], "a word": "x", "null": b"null", "half of it": b'{"schema": "{\\"ty',
    "no text": b"\xff\xfe\x00", "too deep": b"[" * 100_000, "no field": {}, "other fields": {"subject": "shop.Placed"},
    "no values": {"schema": None, "id": None, "is_compatible": None},
    "other kinds": {"schema": 7, "id": "seven", "is_compatible": "yes"},
    "a truth for a number": {"schema": {}, "id": True, "is_compatible": 1},
    "an impossible id": {"schema": [], "id": 2**31, "is_compatible": []},
    "below nothing": {"schema": [], "id": -1, "is_compatible": {}},
}  # fmt: skip


@pytest.mark.parametrize("body", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_an_answer_that_is_none_is_tried_again(client: Client, body: Any) -> None:
    for error in asked(says(200, body), client, ("schema", "lookup", "register", "objections")):
        assert isinstance(error, Transient)
        assert error.setting == "registry_url"
        assert error.remedy
        assert "does not answer as a registry does" in str(error)
        assert len(str(error)) < 1000


@pytest.mark.parametrize("name", ["schema", "lookup", "register"])
def test_an_answer_that_was_none_is_not_remembered(client: Client, name: str) -> None:
    with serving(says(200, {})) as served:
        registry = client(served.url)
        assert isinstance(error_of(ASKS[name], registry), Transient)
        served.answer = says(200, {"schema": TEXT, "id": 7})
        assert ASKS[name](registry) == (TEXT if name == "schema" else 7)


def test_an_answer_larger_than_the_limit_is_not_read_to_its_end() -> None:
    """Of our own client: Confluent's takes what it gets."""

    def endless(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        while True:
            to.wfile.write(b" " * 65_536)

    with serving(endless) as served:
        error = error_of(ASKS["schema"], ConfluentRegistry(served.url))
    assert isinstance(error, Transient)
    assert "it says too much" in str(error)


def test_an_answer_that_trickles_ends_at_the_deadline() -> None:
    """Of our own client: Confluent's begins to wait anew with every byte."""

    def trickle(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        while not served.over.wait(0.02):
            to.wfile.write(b" ")

    with serving(trickle) as served:
        began = time.monotonic()
        error = error_of(ASKS["schema"], ConfluentRegistry(served.url, timeout_seconds=0.3))
        assert time.monotonic() - began < 3
    assert isinstance(error, Unreachable)
    assert "takes too long" in str(error)


BROKEN = {
    "a truncated body": says(200, {"schema": TEXT, "id": 7}, {"Content-Length": "5000"}),
    "bytes that are not HTTP": raw(b"\x15\x03\x01\x00\x02\x02" * 20 + b"\r\n"),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nContent-"),
    "a hang-up": lambda to: to.connection.close(),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_tried_again(client: Client, answer: Answer) -> None:
    for error in asked(answer, client):
        assert isinstance(error, Transient)
        assert error.setting == "registry_url"
        assert error.remedy


def test_an_id_that_no_registry_can_have_is_not_asked_for(client: Client) -> None:
    """Registries answer it with the 404 of a path that is none, for which foreign bytes would wait for ever."""
    with serving(says(404, PAGE)) as served, pytest.raises(UnknownSchema):
        client(served.url).schema(2**32 - 1)
    assert served.asked == []


def test_a_question_is_asked_once(client: Client) -> None:
    """Whoever asks decides when to ask again."""
    with serving(says(503)) as served:
        error_of(ASKS["schema"], client(served.url))
    assert len(served.asked) == 1
