"""uvicorn as a service: it listens where the settings say, stops when its life does, and answers what is in flight."""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.settings_api import Api

# Of the time to drain: then who still sends is hung up on, and the rest is for closing.
_SHARE = 0.8


@contextmanager
def listening(api: Api) -> Iterator[socket.socket]:
    """The port is ours, or the error says which setting is in the way."""
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    try:
        made = socket.create_server((api.host, api.port), family=family, backlog=2048)
    except OSError as error:
        raise Misconfigured(
            f"the API cannot listen on {api.host}:{api.port}: {error.strerror}",
            setting="api.port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "api.host",
            remedy="name a free port, or an address of this machine",
        ) from error
    with made:
        yield made


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Lives as its life does; signals are the service loop's."""

    def __init__(self, app: ASGIApp, life: Life, drain_seconds: float, ended: Callable[[], bool]) -> None:
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", loop="asyncio", log_config=None, log_level="warning",
            access_log=False, server_header=False, proxy_headers=False,
        )  # fmt: skip
        config.timeout_graceful_shutdown = drain_seconds * _SHARE  # type: ignore[assignment]
        super().__init__(config)
        self._life = life
        self._ended = ended

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second, by the loop that answers: it is alive as long as this is called."""
        self._life.progress()
        self.should_exit = self.should_exit or self._life.stopping.is_set() or self._ended()
        return await super().on_tick(counter)

    def capture_signals(self) -> Any:
        return nullcontext()
