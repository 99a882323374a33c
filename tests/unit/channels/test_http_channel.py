"""The parts of the HTTP channel that need no server: failures without an answer, kept origins, the extra, settings."""

import asyncio
import errno
import socket
import sys
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError
from yarl import URL

from ferryman.channels.http import http_channel
from ferryman.channels.http.client import HttpAnswer, HttpChannel, KeptOrigins
from ferryman.channels.http.failure import is_before_any_answer, no_answer
from ferryman.channels.model import Post
from ferryman.channels.outcome import Code, Outcome, Rejected, Retry, Unavailable
from ferryman.cli.app import EXTRAS
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_http import Http

PLACE: Any = SimpleNamespace(host="10.1.2.3", port=80, ssl=True, is_ssl=False)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_limits_of_this_process_are_not_the_items_failure(number: int) -> None:
    found = no_answer(aiohttp.ClientConnectorError(PLACE, OSError(number, "x")), Http())
    assert isinstance(found, Unavailable)
    assert found.code == Code.CONNECTION_FAILED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (aiohttp.ConnectionTimeoutError("to 10.1.2.3"), Code.CONNECTION_TIMED_OUT),
        (TimeoutError(), Code.TIMED_OUT),
        (aiohttp.ClientConnectorDNSError(PLACE, socket.gaierror(socket.EAI_AGAIN, "x")), Code.NAME_NOT_RESOLVED),
        (aiohttp.ClientConnectorError(PLACE, OSError(errno.EHOSTUNREACH, "10.1.2.3")), Code.CONNECTION_FAILED),
        (aiohttp.ClientConnectorError(PLACE, OSError("10.1.2.3")), Code.CONNECTION_FAILED),
        (aiohttp.ServerDisconnectedError(), Code.CONNECTION_LOST),
        (aiohttp.ClientOSError(errno.ECONNRESET, "10.1.2.3"), Code.CONNECTION_LOST),
        (aiohttp.ClientPayloadError("10.1.2.3"), Code.CONNECTION_LOST),
        (OSError(errno.EPIPE, "10.1.2.3"), Code.CONNECTION_LOST),
    ],
)
def test_error_without_an_answer_is_retried_and_names_no_address(error: Exception, code: Code) -> None:
    found = no_answer(error, Http())
    assert isinstance(found, Retry)
    assert found.code == code
    assert "10.1.2.3" not in found.error


def test_host_that_is_not_valid_is_rejected() -> None:
    found = no_answer(aiohttp.InvalidURL("http://127.1/"), Http())
    assert isinstance(found, Rejected)
    assert found.code == Code.URL_INVALID


def test_second_try_is_only_for_a_connection_that_said_nothing() -> None:
    began: Any = SimpleNamespace(code=200)
    assert is_before_any_answer(aiohttp.ServerDisconnectedError())
    assert is_before_any_answer(aiohttp.ClientOSError(errno.ECONNRESET, "x"))
    assert not is_before_any_answer(aiohttp.ServerDisconnectedError(began))
    assert not is_before_any_answer(aiohttp.ClientConnectorError(PLACE, OSError(errno.ECONNREFUSED, "x")))


class EchoChannel(HttpChannel):
    """A channel whose receiver answers 401 with these words."""

    words = b""

    async def ask(self, item: Post, method: str = "POST") -> HttpAnswer | Outcome:
        return HttpAnswer(401, body=bytearray(self.words))


@pytest.mark.parametrize("secret", ["geheim-7", "geheim.8"])
def test_excerpt_of_an_answer_hides_the_secrets_and_the_token_of_its_request(secret: str) -> None:
    """N14: also where no word before it says what it is."""
    channel = EchoChannel(Http())
    channel.words = f"unknown: {secret} (as given)".encode()
    post = Post("http://here", b"", "an-id", secrets=("geheim.8",), bearer="geheim-7")
    outcome: Any = asyncio.run(channel.send(post))
    assert outcome.excerpt == "unknown: *** (as given)"


def test_connections_are_kept_to_the_origins_of_the_last_seconds() -> None:
    a, b, c = (URL(f"http://{name}.example") for name in "abc")
    origins = KeptOrigins(most=2, seconds=4)
    assert [origins.keeps(each, 0) for each in (a, b, c, a)] == [True, True, False, True]
    assert origins.keeps(a, 3)
    assert not origins.keeps(c, 4)
    assert origins.keeps(c, 4.1), "b was used more than 4 s ago"
    assert not origins.keeps(b, 4.1)


@pytest.mark.parametrize("missing", ["aiohttp", "yarl"])
def test_missing_package_is_misconfigured_and_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("ferryman.channels.http.", "aiohttp", "yarl"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Misconfigured, match=r"ferryman\[http\]"):
        http_channel(Http(), 64)


def test_command_line_names_the_extra_too() -> None:
    assert EXTRAS["aiohttp"] == "http"


@pytest.mark.parametrize(
    "wrong",
    [
        {"allow": ["10.0.0.1/8"]}, {"allow": ["shop.example"]}, {"allow": [""]}, {"slots": 0}, {"max_body_bytes": 0},
        {"connect_timeout_seconds": 20, "timeout_seconds": 10}, {"timeout_seconds": 0}, {"proxy": "x"},
    ],
)  # fmt: skip
def test_setting_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Http(**wrong)


def test_nothing_is_allowed_by_default() -> None:
    assert Http().allow == []
    assert Http(allow=["10.0.0.0/8", "::1"]).allow == ["10.0.0.0/8", "::1"]
