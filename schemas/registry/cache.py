"""A cache in front of a registry: an id never changes its schema, so an outage stops only what was never seen."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from ferryman.schemas.registry import SchemaRegistry, flaws, is_id
from ferryman.schemas.registry.local import write_whole


class CachedRegistry:
    """A registry with a cache in memory, and in a folder if one is given, for processes that start during an outage.

    A file that is not whole is asked for again. A folder that cannot be used is ignored.
    """

    def __init__(self, inner: SchemaRegistry, folder: Path | None = None) -> None:
        self._inner = inner
        self._folder = folder
        self._schemas: dict[int, str] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def schema(self, number: int) -> str:
        if number not in self._schemas:
            text = self._read(_schema_file(number))
            if not text or flaws(text):
                text = self._inner.schema(number)
                self._write(_schema_file(number), text)
            self._schemas[number] = text
        return self._schemas[number]

    def lookup(self, subject: str, text: str) -> int | None:
        number = self._numbers.get((subject, text)) or self._kept_number(subject, text)
        if number is None:
            number = self._inner.lookup(subject, text)
            if number is None:
                return None
            self._keep_number(subject, text, number)
        self._numbers[subject, text] = number
        return number

    def register(self, subject: str, text: str) -> int:
        """Register, and replace what was kept: a registry that was set up again hands out its ids again."""
        number = self._numbers[subject, text] = self._inner.register(subject, text)
        self._schemas[number] = text
        self._keep_number(subject, text, number)
        self._write(_schema_file(number), text)
        return number

    def objections(self, subject: str, text: str) -> list[str]:
        return self._inner.objections(subject, text)

    def insist(self, subject: str, level: str) -> None:
        self._inner.insist(subject, level)

    def _kept_number(self, subject: str, text: str) -> int | None:
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(self._read(_number_file(subject, text)) or "")
            if said["subject"] == subject and is_id(said["id"]):
                return said["id"]
        return None

    def _keep_number(self, subject: str, text: str, number: int) -> None:
        """Keep the subject beside the number, so that half a file is not read as a smaller number."""
        self._write(_number_file(subject, text), json.dumps({"subject": subject, "id": number}))

    def _read(self, name: str) -> str | None:
        if self._folder is None:
            return None
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def _write(self, name: str, text: str) -> None:
        if self._folder is not None:
            with suppress(OSError):  # a folder that cannot be written to is not a reason to stop
                write_whole(self._folder / name, text)


def _schema_file(number: int) -> str:
    return f"{number}.avsc"


def _number_file(subject: str, text: str) -> str:
    return f"{hashlib.sha256(f'{subject} {text}'.encode()).hexdigest()[:32]}.json"
