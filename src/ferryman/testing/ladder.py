"""How a part is found: the first rung that holds is taken, and why the ones above did not is remembered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ferryman.runtime.errors import FerrymanError, Misconfigured

T = TypeVar("T")


class NotHere(Exception):
    """Why a rung cannot be taken on this machine."""


@dataclass(frozen=True, slots=True)
class Rung(Generic[T]):
    """One way to have a part."""

    name: str
    take: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Climb:
    """The rung that was taken, and the ones above it with why not."""

    part: str
    took: str
    passed: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        passed = "; ".join(f"{name}: {why}" for name, why in self.passed)
        return f"{self.part}: {self.took}" + (f" ({passed})" if passed else "")


def climb(part: str, rungs: Sequence[Rung[T]]) -> tuple[T, Climb]:
    """Takes the first rung that holds; a server that is there but does not start is an error, not a reason to go on."""
    passed: list[tuple[str, str]] = []
    for rung in rungs:
        try:
            return rung.take(), Climb(part, rung.name, tuple(passed))
        except NotHere as why:
            passed.append((rung.name, str(why)))
    raise Misconfigured(
        f"no {part} is to be had here: " + "; ".join(f"{name}: {why}" for name, why in passed),
        remedy="make one of these possible",
    )


def given(url: str | None, variable: str) -> str:
    """The URL rung: somebody runs the server for us."""
    if not url:
        raise NotHere(f"{variable} is not set")
    return url


class PartFailed(FerrymanError):
    """A part was found but did not come up; the message has the end of its log."""
