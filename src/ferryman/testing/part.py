"""What every part can do, and the kinds there are: one that was given, one of our own, one in a container."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from ferryman.testing import places
from ferryman.testing.ladder import PartFailed
from ferryman.testing.process import Process

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer


class Part(Protocol):
    """A server that is there: `url` says where, the verbs break it and bring it back, `close` ends it."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class Given:
    """A server that somebody else runs: used, and never stopped."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _not_ours(self) -> NoReturn:
        raise PartFailed(f"the server at {self.url.rpartition('@')[2]} was given by its URL: it is not ours to stop")

    def start(self) -> None:
        self._not_ours()

    stop = kill = pause = resume = restart = start

    def close(self) -> None:
        """Nothing of it is ours."""


class Local:
    """A server of our own: one process, and a folder that goes away with it."""

    url: str
    process: Process

    def __init__(self, name: str) -> None:
        self.folder = places.scratch(name)

    def start(self) -> None:
        self.process.start()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.kill()
        places.discard(self.folder)


L = TypeVar("L", bound=Local)


def started(server: L) -> L:
    """The server once it answers; when it does not come up, nothing of it stays."""
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


class Container:
    """A server in a container; its port stays the same across restarts."""

    def __init__(self, container: "DockerContainer", url: str, ready: Callable[[], bool], seconds: float = 120) -> None:
        self.url = url
        self._container = container
        self._ready = ready
        self._seconds = seconds
        container.start()
        self._await_ready()

    def start(self) -> None:
        self._container.get_wrapped_container().start()
        self._await_ready()

    def stop(self) -> None:
        self._container.get_wrapped_container().stop()

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self._container.stop()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self._seconds
        while not self._ready():
            if time.monotonic() > deadline:
                raise PartFailed(f"the container {self._container.image} did not answer within {self._seconds:.0f} s")
            time.sleep(0.1)
