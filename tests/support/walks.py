"""The walks through the code that docs/architecture.md describes, and the files that a run really reaches.

A walk is a section that names its files in order, as in `relay/lanes.py`. The first file has the function that the walk
is about: everything called by it belongs to the walk.
"""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg

from ferryman import Consumer, Done, Outcome, Received
from support.sources import ROOT

PAGE = ROOT / "docs" / "architecture.md"


class Walk(NamedTuple):
    """A section of the page, and what it may say."""

    heading: str
    room: str
    functions: tuple[str, ...]
    """The names that the function of the walk may have in the first file."""
    most_files: int


WALKS = (
    Walk("One relay turn", "relay", ("run_once", "turn"), 8),
    Walk("One consumer batch", "consumer", ("turn", "run_once"), 12),
)

TOPIC = f"documented-walk-{uuid4().hex[:8]}"
consumer = Consumer(TOPIC, [TOPIC], connection=psycopg.Connection)


@consumer.handles("walk.taken")
def handle(_db: psycopg.Connection[Any], _message: Received) -> Outcome:
    return Done()


def documented(page: str, walk: Walk) -> list[str]:
    """Return the files that the walk's section names, in order, each once. Without the section there are none."""
    section = re.search(rf"^(#+) {walk.heading}\s*$(.*?)(?=^#{{1,3}} |\Z)", page, re.MULTILINE | re.DOTALL)
    return list(dict.fromkeys(re.findall(r"`([\w./-]+\.(?:py|sql))`", section[2]))) if section else []


@contextmanager
def traced(walk: Walk, first_file: str) -> Iterator[set[str]]:
    """Collect the files of the walk's room in which functions are called within the walk's function, in any thread."""
    reached: set[str] = set()
    inside = threading.local()

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        file = _relative(code.co_filename)
        if file == first_file and code.co_name in walk.functions:
            inside.depth = getattr(inside, "depth", 0) + (1 if event == "call" else -1)
        if event == "call" and file.startswith(f"{walk.room}/") and getattr(inside, "depth", 0) > 0:
            reached.add(file)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield reached
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


_known: dict[str, str] = {}


def _relative(filename: str) -> str:
    """Return a file's path in the repository; the package reaches its rooms through links."""
    if filename not in _known:
        path = Path(filename).resolve()
        _known[filename] = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else filename
    return _known[filename]
