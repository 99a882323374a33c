"""A server with prepared answers, in place of a registry."""

import datetime as dt
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

Answer: TypeAlias = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Asked:
    """A received request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str


@dataclass
class Served:
    """The address of the server, and the requests that it received."""

    url: str
    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """The event that ends waiting answers."""


@contextmanager
def serving(answer: Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            served.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            self.close_connection = True
            served.answer(self)

        do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    scheme = "http"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    served = Served(f"{scheme}://127.0.0.1:{server.server_port}", answer)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield served
    finally:
        served.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


def says(status: int, body: Any = None, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Send bytes unchanged, and anything else as JSON."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(content)

    return answer


def raw(content: bytes) -> Answer:
    """Answer with something that is not HTTP."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(content)

    return answer


def certificate(folder: Path, *names: str) -> Path:
    """Create a self-signed certificate and its key in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a registry")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(each)) for each in names]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + made.public_bytes(serialization.Encoding.PEM)
    file = folder / "certificate.pem"
    file.write_bytes(pem)
    return file
