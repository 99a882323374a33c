"""Whatever a server answers is an outcome with a code, within bounds of time and memory (N10, N12)."""

import gc
import itertools
import resource
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected, Retry
from support.pace import in_time
from support.rawhttp import LOCAL, OK, Peer, RawServer, addresses, answers, keeps_answering, outcome_of, post, sent

QUICK = LOCAL.model_copy(update={"timeout_seconds": 1.0, "connect_timeout_seconds": 0.5})


def retried(found: Outcome) -> Code:
    assert isinstance(found, Retry), found
    return found.code


@pytest.mark.parametrize(
    "words",
    [
        b"hello\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"\0" * 5000,
        b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"HTTP/1.1 200 " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=lambda words: words[:40].decode("latin-1").strip(),
)  # fmt: skip
def test_answer_that_is_not_http_is_retried_with_its_code(words: bytes) -> None:
    with RawServer(answers(words)) as server:
        found = outcome_of(sent(post(server.url)))
    assert retried(found) == Code.ANSWER_INVALID
    assert isinstance(found, Retry)
    assert len(found.error) <= 500
    assert len(found.error.splitlines()) == 1


def test_endless_headers_are_cut_off() -> None:
    said: list[int] = []

    def serve(peer: Peer) -> None:
        peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n")
        for number in itertools.count():
            peer.say(b"X-%d: y\r\n" % number * 100)
            said.append(number)

    with RawServer(serve) as server:
        assert retried(outcome_of(sent(post(server.url)))) == Code.ANSWER_INVALID
    assert len(said) < 50_000


@pytest.mark.parametrize("framing", [b"Content-Length: 1073741824", b"Connection: close"])
def test_gigabyte_of_answer_is_read_to_four_kilobytes(framing: bytes) -> None:
    said = 0

    def serve(peer: Peer) -> None:
        nonlocal said
        peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        while said < 1 << 30:
            peer.say(b"z" * 65536)
            said += 65536

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with RawServer(serve) as server:
        began = time.monotonic()
        [found, _] = sent(post(server.url), post(server.url))
        assert in_time(time.monotonic() - began, 5)
    assert isinstance(found, Delivered)
    assert found.excerpt == "z" * 1024
    assert said < 64 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_chunked_gigabyte_is_read_to_four_kilobytes() -> None:
    def serve(peer: Peer) -> None:
        peer.request()
        peer.say(b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1 << 14):
            peer.say(b"10000\r\n" + b"z" * 65536 + b"\r\n")

    with RawServer(serve) as server:
        found = outcome_of(sent(post(server.url)))
    assert isinstance(found, Rejected)
    assert found.excerpt == "z" * 1024


def drips(head: bytes, drop: bytes) -> Callable[[Peer], None]:
    def serve(peer: Peer) -> None:
        peer.request()
        peer.say(head)
        pause = threading.Event()
        while not pause.wait(0.05):
            peer.say(drop)

    return serve


@pytest.mark.parametrize(
    ("head", "drop"),
    [(b"H", b""), (b"HTTP/1.1 200 OK\r\nX: ", b"y"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"", b"\r\n")],
)
def test_answer_that_drips_ends_at_the_timeout(head: bytes, drop: bytes) -> None:
    with RawServer(drips(head, drop)) as server:
        began = time.monotonic()
        found = outcome_of(sent(post(server.url), settings=QUICK))
        took = time.monotonic() - began
        assert took > 0.9
        assert in_time(took, 5)
    assert retried(found) in (Code.TIMED_OUT, Code.ANSWER_INVALID)


@pytest.mark.parametrize(("status", "kind"), [(200, Delivered), (503, Retry), (404, Rejected)])
def test_status_counts_although_its_body_drips(status: int, kind: type) -> None:
    with RawServer(drips(b"HTTP/1.1 %d X\r\nContent-Length: 500\r\n\r\nbegin" % status, b"y")) as server:
        began = time.monotonic()
        found = outcome_of(sent(post(server.url), settings=QUICK))
        assert in_time(time.monotonic() - began, 5)
    assert isinstance(found, kind)
    assert isinstance(found, Delivered | Retry | Rejected)
    assert (found.excerpt or "").startswith("begin")


def test_server_that_says_nothing_times_out() -> None:
    wait = threading.Event()
    with RawServer(answers(b"", wait=wait)) as server:
        found = outcome_of(sent(post(server.url), settings=QUICK))
        wait.set()
    assert found == Retry("no answer within 1 s", Code.TIMED_OUT)


def test_server_that_does_not_read_times_out() -> None:
    wait = threading.Event()
    with RawServer(lambda _: wait.wait(30)) as server:
        found = outcome_of(
            sent(post(server.url, b"x" * (1 << 20) * 8), settings=QUICK.model_copy(update={"max_body_bytes": 1 << 24}))
        )
        wait.set()
    assert retried(found) == Code.TIMED_OUT


@pytest.mark.parametrize("words", [b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 20", b"H", b""])
def test_cut_before_the_end_of_the_headers_is_retried(words: bytes) -> None:
    with RawServer(answers(words)) as server:
        assert retried(outcome_of(sent(post(server.url)))) in (Code.CONNECTION_LOST, Code.ANSWER_INVALID)
        assert server.connections == 1


@pytest.mark.parametrize("how", ["end", "reset"])
def test_status_counts_although_the_body_is_cut(how: str) -> None:
    def serve(peer: Peer) -> None:
        peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
        if how == "reset":
            peer.reset()

    with RawServer(serve) as server:
        found = outcome_of(sent(post(server.url)))
    assert isinstance(found, Delivered)


@pytest.mark.parametrize("reads_on", [True, False])
def test_early_refusal_of_a_large_body_is_seen(reads_on: bool) -> None:
    """A server may answer 413 before it has read the body. The connection ends, with its bytes unsent."""
    ended = threading.Event()

    def serve(peer: Peer) -> None:
        peer.connection.recv(1000)
        ended.wait(0.2)  # what the kernel takes is full by then
        peer.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        while reads_on and peer.connection.recv(65536):
            """Read until the client has closed."""
        ended.wait(30)

    large = LOCAL.model_copy(update={"max_body_bytes": 1 << 24})
    with RawServer(serve) as server, warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always", ResourceWarning)
        found = outcome_of(sent(post(server.url, b"x" * (1 << 24)), settings=large))
        gc.collect()
        ended.set()
    assert leaks == []
    assert isinstance(found, Rejected)
    assert found.code == Code.REFUSED


def test_body_over_the_limit_makes_no_connection() -> None:
    with RawServer(answers(OK)) as server:
        found = outcome_of(sent(post(server.url, b"x" * (LOCAL.max_body_bytes + 1))))
        assert server.connections == 0
    assert isinstance(found, Rejected)
    assert found.code == Code.BODY_TOO_LARGE


def test_closed_port_is_a_failed_connection_without_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = outcome_of(sent(post(f"http://127.0.0.1:{port}/geheim")))
    assert found == Retry("no connection: ECONNREFUSED", Code.CONNECTION_FAILED)


def test_name_that_does_not_exist_is_not_resolved() -> None:
    def lookup(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    found = outcome_of(sent(post("http://geheim.example/"), lookup=lookup))
    assert found == Retry("the name of the host is not resolved: there is no such name", Code.NAME_NOT_RESOLVED)


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_AGAIN, "x"), UnicodeError("x"), OSError("x"), MemoryError()]
)
def test_lookup_that_fails_in_any_way_is_retried(error: BaseException) -> None:
    def lookup(*_: object, **__: object) -> list[object]:
        raise error

    assert retried(outcome_of(sent(post("http://hooks.example/"), lookup=lookup))) == Code.NAME_NOT_RESOLVED


def test_name_with_no_address_is_retried() -> None:
    found = outcome_of(sent(post("http://hooks.example/"), lookup=addresses()))
    assert retried(found) == Code.NAME_NOT_RESOLVED


def test_name_that_hangs_times_out_as_a_connection() -> None:
    wait = threading.Event()

    def lookup(*_: object, **__: object) -> list[object]:
        wait.wait(30)
        return []

    found = outcome_of(sent(post("http://hooks.example/"), lookup=lookup, settings=QUICK))
    wait.set()
    assert found == Retry("no connection within 0.5 s", Code.CONNECTION_TIMED_OUT)


class Certified(NamedTuple):
    """A server's side of TLS, and the side of a client that trusts it. Nobody else does."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture
def certificate(tmp_path: Path) -> Certified:
    """Give a certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    )  # fmt: skip
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "server.pem"
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return Certified(context, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode()))


def secured(certificate: Certified, serve: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """Serve a connection with TLS."""

    def secure(peer: Peer) -> None:
        with certificate.server.wrap_socket(peer.connection, server_side=True) as connection:
            serve(Peer(connection, peer.number))

    return secure


def test_certificate_that_nobody_trusts_is_refused_before_the_body(certificate: Certified) -> None:
    heads: list[bytes | None] = []
    with RawServer(secured(certificate, lambda peer: heads.append(peer.request()))) as server:
        found = outcome_of(sent(post(server.url.replace("http://", "https://"))))
    assert retried(found) == Code.TLS_FAILED
    assert [each for each in heads if each] == []


def test_certificate_of_another_host_is_refused(certificate: Certified) -> None:
    with RawServer(secured(certificate, keeps_answering())) as server:
        url = f"https://hooks.example:{server.port}/"
        found = outcome_of(sent(post(url), lookup=addresses("127.0.0.1"), tls=certificate.client))
    assert retried(found) == Code.TLS_FAILED


def test_trusted_certificate_is_delivered_to_over_a_kept_connection(certificate: Certified) -> None:
    with RawServer(secured(certificate, keeps_answering())) as server:
        url = server.url.replace("http://", "https://")
        assert sent(*[post(url)] * 5, tls=certificate.client) == [Delivered(excerpt="ok", http_status=200)] * 5
        assert server.connections == 1


def test_gigabyte_over_tls_is_cut_off(certificate: Certified) -> None:
    """To close such a connection in order would wait for the server, and read what it goes on to say."""
    said = 0

    def serve(peer: Peer) -> None:
        nonlocal said
        peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        while said < 1 << 30:
            peer.say(b"z" * 65536)
            said += 65536

    with RawServer(secured(certificate, serve)) as server:
        url = server.url.replace("http://", "https://")
        found = sent(post(url), post(url), tls=certificate.client)
    assert found == [Delivered(excerpt="z" * 1024, http_status=200)] * 2
    assert said < 64 << 20


def test_server_without_tls_is_a_failed_handshake() -> None:
    with RawServer(lambda peer: peer.say(b"HTTP/1.1 400 Bad\r\n\r\n")) as server:
        found = outcome_of(sent(post(server.url.replace("http://", "https://"))))
    assert retried(found) == Code.TLS_FAILED
