"""A user's functions and names: what is wrong with one is said where it is given, or where it answers."""

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ferryman.runtime.errors import Misconfigured

# Kafka takes these names for groups, and as parts of names of topics.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class WrongAnswer(TypeError):
    """A user's function that returned something else than it must."""

    def __init__(self, words: str, function: Callable[..., Any] | None = None) -> None:
        super().__init__(words)
        code = getattr(inspect.unwrap(function), "__code__", None) if function else None
        self.line = f"{short_path(code.co_filename)}:{code.co_firstlineno} {code.co_name}" if code else None


def check_name(what: str, name: Any) -> None:
    """Refuse a name that could not be a label, a group or the name of a connection."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misconfigured(
            f"{name!r} is not a valid name for a {what}",
            remedy="use ASCII letters, digits, dots, underscores and hyphens, 100 at most",
        )


def check_function(what: str, function: Any) -> None:
    """Refuse something that is not a function, or that would only return a coroutine."""
    if not callable(function):
        raise Misconfigured(f"{what} was given {function!r}, which is not a function")
    if inspect.iscoroutinefunction(function):
        raise Misconfigured(f"{what} was given an `async def`: its database side is synchronous", remedy="write `def`")


def named(value: object) -> str:
    """Return the words for a value that is not what it must be."""
    return "None" if value is None else f"a {type(value).__name__}"


def short_path(file: str) -> str:
    """Return the file's path as seen from the current folder, if it is below it."""
    with suppress(OSError, ValueError):  # the folder may be gone
        return str(Path(file).relative_to(Path.cwd()))
    return file
