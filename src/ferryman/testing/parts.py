"""A server for tests: the first kind that is available is taken, and it is remembered why the better ones were not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from ferryman.runtime.errors import Misconfigured
from ferryman.testing import places
from ferryman.testing.process import Process

Reach = Literal["anywhere", "machine", "wheels"]
"""The places to look for a server: anywhere (a URL, Docker), on this machine, or only in Python wheels."""

_FARTHEST_FIRST: tuple[Reach, ...] = ("anywhere", "machine", "wheels")


class Part(Protocol):
    """A running server. `close` ends it if we started it."""

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


class Given:
    """A server that somebody else runs. It is used and never stopped."""

    def __init__(self, url: str) -> None:
        self.url = url

    def close(self) -> None:
        """Do nothing."""


class Local(Process):
    """A server of our own: a process, and a folder that is removed with it."""

    url: str
    folder: Path

    def close(self) -> None:
        """Kill it, and remove its folder."""
        self.kill()
        places.discard(self.folder)


L = TypeVar("L", bound=Local)


def started(server: L) -> L:
    """Start a server and return it once it answers. Remove it if it does not start."""
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


class NotHere(Exception):
    """The reason why a kind of server is not available on this machine."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to get a server."""

    name: str
    take: Callable[[], Part]
    at: Reach = "machine"
    """The place where it is found."""


@dataclass(frozen=True, slots=True)
class Climb:
    """The way that was taken, and why each better one was not."""

    part: str
    took: str
    passed: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        passed = "; ".join(f"{name}: {why}" for name, why in self.passed)
        return f"{self.part}: {self.took}" + (f" ({passed})" if passed else "")


def climb(part: str, rungs: Sequence[Rung], reach: Reach = "anywhere") -> tuple[Part, Climb]:
    """Take the first available way within reach. A server that does not start is an error, not a reason to go on."""
    passed: list[tuple[str, str]] = []
    near = _FARTHEST_FIRST[_FARTHEST_FIRST.index(reach) :]
    for rung in (each for each in rungs if each.at in near):
        try:
            return rung.take(), Climb(part, rung.name, tuple(passed))
        except NotHere as why:
            passed.append((rung.name, str(why)))
    raise Misconfigured(
        f"no {part} is available here: " + "; ".join(f"{name}: {why}" for name, why in passed),
        remedy="make one of these possible",
    )


def given(url: str | None, variable: str) -> Given:
    """Return a server that somebody else runs. Raise `NotHere` if no URL names one."""
    if not url:
        raise NotHere(f"{variable} is not set")
    return Given(url)
