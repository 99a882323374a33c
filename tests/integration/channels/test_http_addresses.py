"""No request reaches an address that is not allowed, whatever name or form it has (N15)."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from ferryman.channels.outcome import Code, Delivered, Rejected, Retry
from ferryman.runtime.settings_http import Http
from support.rawhttp import LOCAL, RawServer, addresses, keeps_answering, outcome_of, post, sent

STRICT = Http()
REFUSED = Retry("every address of the host is refused: see http.allow", Code.ADDRESS_NOT_ALLOWED)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "0x7f.1", "0x7f.0.0.1", "[::1]",
    "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "0.0.0.0", "[::]"])  # fmt: skip # noqa: S104
def test_own_host_is_refused_in_every_form(host: str) -> None:
    with RawServer(keeps_answering()) as server:
        found = outcome_of(sent(post(f"http://{host}:{server.port}/"), settings=STRICT))
        assert server.connections == 0
    assert found == REFUSED


@pytest.mark.parametrize("host", ["2130706433", "127.1", "127.0.1", "0", "0177.0.0.1", "localhost."])
def test_odd_forms_of_addresses_reach_nothing(host: str) -> None:
    with RawServer(keeps_answering()) as server:
        found = outcome_of(sent(post(f"http://{host}:{server.port}/"), settings=STRICT))
        assert server.connections == 0
    assert isinstance(found, Retry | Rejected)
    assert found.code in (Code.ADDRESS_NOT_ALLOWED, Code.URL_INVALID, Code.NAME_NOT_RESOLVED)


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "168.63.129.16", "[fd00:ec2::254]", "100.100.100.200", "192.0.0.192"]
)
def test_metadata_servers_of_clouds_are_refused(host: str) -> None:
    assert sent(post(f"http://{host}/latest/meta-data/"), settings=STRICT) == [REFUSED]


def test_name_that_resolves_to_a_private_address_is_refused() -> None:
    with RawServer(keeps_answering()) as server:
        given = post(f"http://hooks.example:{server.port}/")
        assert sent(given, settings=STRICT, lookup=addresses("127.0.0.1")) == [REFUSED]
        assert sent(given, settings=STRICT, lookup=addresses("10.0.0.1", "127.0.0.1", "192.168.0.1")) == [REFUSED]
        assert server.connections == 0
        assert sent(given, settings=LOCAL, lookup=addresses("127.0.0.1")) == [Delivered(excerpt="ok", http_status=200)]


def test_name_that_means_another_address_at_the_connect_is_judged_there() -> None:
    """A check at the time of registration would have seen the first answer only."""
    answers_of_dns = iter(["1.1.1.1", "127.0.0.1"])
    first = next(answers_of_dns)
    assert first == "1.1.1.1"

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        return addresses(next(answers_of_dns))(host, port, **more)

    with RawServer(keeps_answering()) as server:
        assert sent(post(f"http://hooks.example:{server.port}/"), settings=STRICT, lookup=lookup) == [REFUSED]
        assert server.connections == 0


@pytest.mark.parametrize("hosts", [("10.9.9.9", "127.0.0.1"), ("127.0.0.1", "10.9.9.9")])
def test_allowed_address_of_a_name_is_used_beside_a_refused_one(hosts: tuple[str, ...]) -> None:
    with RawServer(keeps_answering()) as server:
        found = sent(post(f"http://hooks.example:{server.port}/"), lookup=addresses(*hosts))
    assert found == [Delivered(excerpt="ok", http_status=200)]


@pytest.mark.parametrize("hosts", [("10.9.9.9", "127.0.0.1"), ("127.0.0.1", "10.9.9.9")])
def test_refused_and_closed_address_of_a_name_are_a_failed_connection(hosts: tuple[str, ...]) -> None:
    """The exception is that of the last address, in either order."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = outcome_of(sent(post(f"http://hooks.example:{port}/"), lookup=addresses(*hosts)))
    assert isinstance(found, Retry)
    assert found.code == Code.CONNECTION_FAILED


def test_refused_address_is_in_the_log_and_not_in_the_outcome() -> None:
    with structlog.testing.capture_logs() as logs:
        found = outcome_of(sent(post("http://hooks.example/geheim"), settings=STRICT, lookup=addresses("10.1.2.3")))
    assert "10.1.2.3" not in str(found)
    [logged] = logs
    assert logged["id"] == "evt-1"
    assert logged["host"] == "hooks.example"
    assert set(logged["addresses"]) == {"10.1.2.3: private"}
    assert "geheim" not in str(logged)


def test_range_that_is_opened_is_reached() -> None:
    with RawServer(keeps_answering()) as server:
        given = post(f"http://[::ffff:127.0.0.1]:{server.port}/")
        assert sent(given, settings=LOCAL) == [Delivered(excerpt="ok", http_status=200)]
        assert sent(given, settings=Http(allow=["10.0.0.0/8"])) == [REFUSED]


def test_second_try_is_judged_like_the_first() -> None:
    """The kept connection was allowed; the name means another address when a new one is made."""
    closing = threading.Event()
    hosts = ["127.0.0.1"]

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        return addresses(*hosts)(host, port, **more)

    def serve(peer: Any) -> None:
        peer.request()
        hosts[:] = ["10.9.9.9"]
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        peer.request()
        closing.set()

    with RawServer(serve) as server:
        first, second = sent(*[post(f"http://hooks.example:{server.port}/")] * 2, lookup=lookup)
    assert first == Delivered(excerpt="ok", http_status=200)
    assert closing.is_set()
    assert second == REFUSED


def test_lookup_has_the_signature_of_getaddrinfo() -> None:
    seen: list[tuple[Any, ...]] = []

    def lookup(*arguments: Any, **named: Any) -> list[Any]:
        seen.append((arguments, named))
        real: Callable[..., list[Any]] = socket.getaddrinfo
        return real(*arguments, **named)

    with RawServer(keeps_answering()) as server:
        sent(post(f"http://localhost:{server.port}/"), lookup=lookup)
        [(arguments, named)] = seen
        assert arguments == ("localhost", server.port)
    assert named["type"] == socket.SOCK_STREAM
