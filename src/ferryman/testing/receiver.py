"""An HTTP server for tests: it keeps every request, and answers as it is told."""

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request of a client. The names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Receiver:
    """An HTTP server whose answer to each request is decided by `answer`.

    `answer` may wait, which delays no other connection. If it raises, the connection closes without an answer.
    Connections stay open between requests, until the receiver ends.
    """

    def __init__(self, answer: Callable[[ReceivedRequest], Answer] = lambda _: Answer()) -> None:
        self.answer = answer
        self.requests: list[ReceivedRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are sent separately: the body would wait 40 ms

            def handle_any(self) -> None:
                receiver._handle(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: the requests are kept."""

        self._server = _ReceiverServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = ReceivedRequest(handler.command, handler.path, headers, _body(handler))
        self.requests.append(request)
        try:
            answer = self.answer(request)
        except Exception:  # this is how a test says that the server dies here
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(answer.body)


class _ReceiverServer(ThreadingHTTPServer):
    """A server with a thread for each connection. When it closes, it closes them all."""

    request_queue_size = 128  # clients of a larger burst would try again only after a second
    daemon_threads = True  # an answer that waits for ever must not block the end

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may leave without waiting for its answer
            super().handle_error(request, client_address)


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    body = b""
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        """Skip the trailers: none of our clients sends any."""
    return body
