"""The HTTP endpoint that orchestrators and Prometheus ask: /livez, /readyz, /metrics."""

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ferryman.runtime import metrics
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Health

Answer = tuple[HTTPStatus, str, bytes]


@contextmanager
def endpoint(settings: Health, lives: Sequence[Life]) -> Iterator[str | None]:
    """Serves while the block runs, and gives its URL; None when it is switched off."""
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


def livez(settings: Health, lives: Sequence[Life]) -> Answer:
    """Alive means that every loop made progress lately; a process that is stopping drains, and is left alone."""
    stalled = [
        f"{life.name}: no progress for {life.seconds_since_progress:.0f} s"
        for life in lives
        if life.seconds_since_progress > settings.stall_seconds and not life.stopping.is_set()
    ]
    return _verdict(stalled, "alive")


def readyz(lives: Sequence[Life]) -> Answer:
    return _verdict([f"{life.name}: {life.why_not_ready}" for life in lives if life.why_not_ready], "ready")


def _verdict(problems: Sequence[str], good: str) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, "text/plain; charset=utf-8", ("\n".join(problems or [good]) + "\n").encode()


def _listen(settings: Health, lives: Sequence[Life]) -> ThreadingHTTPServer:
    try:
        return _Server((settings.host, settings.port), partial(_Handler, settings, lives))
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise Misconfigured(
            f"the health endpoint cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            setting="health.port" if in_use else "health.host",
            remedy="choose a free port (0 takes any), or stop what uses it"
            if in_use
            else "name an address of this host",
        ) from error


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    timeout = 5
    server_version = "ferryman"
    sys_version = ""

    def __init__(self, settings: Health, lives: Sequence[Life], *args: Any) -> None:
        self._settings = settings
        self._lives = lives
        super().__init__(*args)

    def do_GET(self) -> None:
        status, kind, body = self._answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _answer(self, path: str) -> Answer:
        match path:
            case "/livez":
                return livez(self._settings, self._lives)
            case "/readyz":
                return readyz(self._lives)
            case "/metrics":
                return HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.exposition()
            case _:
                return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"ask /livez, /readyz or /metrics\n"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: they are not worth a line."""
