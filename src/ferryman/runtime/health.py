"""The HTTP endpoint for orchestrators and Prometheus: /livez, /readyz, /metrics."""

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.settings import Health

Answer = tuple[HTTPStatus, str, bytes]
_TEXT = "text/plain; charset=utf-8"


@contextmanager
def endpoint(settings: Health, lives: Sequence[Life]) -> Iterator[str | None]:
    """Serve while the block runs, and yield the URL; None if the endpoint is switched off."""
    if not settings.enabled:
        yield None
        return
    server = _listen(settings, lives)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="health", daemon=True)
    thread.start()
    try:
        host, port = server.server_address[:2]
        yield f"http://{host!s}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(path: str, settings: Health, lives: Sequence[Life]) -> Answer:
    match path:
        case "/livez":  # every loop made progress lately; a stopping process drains and counts as alive
            stalled = [
                f"{life.name}: no progress for {life.seconds_since_progress:.0f} s"
                for life in lives
                if life.seconds_since_progress > settings.stall_seconds and not life.stopping.is_set()
            ]
            return _verdict(stalled, "alive")
        case "/readyz":
            serving = [f"{life.name}: {life.serves}" for life in lives if life.serves]
            problems = [f"{life.name}: {life.why_not_ready}" for life in lives if life.why_not_ready]
            return _verdict(problems, "\n".join(["ready", *serving]))
        case "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
        case _:
            return HTTPStatus.NOT_FOUND, _TEXT, b"ask /livez, /readyz or /metrics\n"


def _verdict(problems: Sequence[str], good: str) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, _TEXT, ("\n".join(problems or [good]) + "\n").encode()


def _listen(settings: Health, lives: Sequence[Life]) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((settings.host, settings.port), partial(_Handler, settings, lives))
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise Misconfigured(
            f"the health endpoint cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            setting="health.port" if in_use else "health.host",
            remedy="choose a free port (0 takes any), or stop the process that uses it"
            if in_use
            else "name an address of this host",
        ) from error


class _Handler(BaseHTTPRequestHandler):
    timeout = 5
    server_version = "ferryman"
    sys_version = ""

    def __init__(self, settings: Health, lives: Sequence[Life], *args: Any) -> None:
        self._settings = settings
        self._lives = lives
        super().__init__(*args)

    def do_GET(self) -> None:
        status, kind, body = _answer(self.path.partition("?")[0], self._settings, self._lives)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""
