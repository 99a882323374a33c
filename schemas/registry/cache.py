"""Remembers what a registry said: an id never changes its schema, so an outage costs nothing that was seen before."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from ferryman.schemas.registry import Registry, answers
from ferryman.schemas.registry.numbers import possible
from ferryman.schemas.registry.whole import write_whole


class CachedRegistry:
    """In memory; in a folder too where one is given, so that a process may start while the registry is away.

    A file that is not whole is asked for again, and a folder that cannot be used is done without.
    """

    def __init__(self, inner: Registry, folder: Path | None = None) -> None:
        self._inner = inner
        self._folder = folder
        self._schemas: dict[int, str] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def schema(self, number: int) -> str:
        if number not in self._schemas:
            self._schemas[number] = self._kept_schema(number) or self._asked_schema(number)
        return self._schemas[number]

    def lookup(self, subject: str, text: str) -> int | None:
        number = self._numbers.get((subject, text))
        if number is None:
            number = self._kept_number(subject, text)
        if number is None:
            number = self._inner.lookup(subject, text)
            self._keep_number(subject, text, number)
        if number is not None:
            self._numbers[subject, text] = number
        return number

    def register(self, subject: str, text: str) -> int:
        """Replaces what was kept: a registry that was made anew has given its ids anew."""
        number = self._numbers[subject, text] = self._inner.register(subject, text)
        self._schemas[number] = text
        self._keep_number(subject, text, number)
        self._keep(_schema_file(number), text)
        return number

    def objections(self, subject: str, text: str) -> list[str]:
        return self._inner.objections(subject, text)

    def insist(self, subject: str, level: str) -> None:
        self._inner.insist(subject, level)

    def _asked_schema(self, number: int) -> str:
        text = self._inner.schema(number)
        self._keep(_schema_file(number), text)
        return text

    def _kept_schema(self, number: int) -> str | None:
        text = self._kept(_schema_file(number))
        return text if text and not answers.flaws(text) else None

    def _kept_number(self, subject: str, text: str) -> int | None:
        """The subject stands beside the number, so that half a file is not taken for a smaller number."""
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(self._kept(_number_file(subject, text)) or "")
            if said["subject"] == subject and possible(said["id"]):
                return said["id"]
        return None

    def _keep_number(self, subject: str, text: str, number: int | None) -> None:
        if number is not None:
            self._keep(_number_file(subject, text), json.dumps({"subject": subject, "id": number}))

    def _kept(self, name: str) -> str | None:
        if self._folder is None:
            return None
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def _keep(self, name: str, text: str) -> None:
        if self._folder is not None:
            with suppress(OSError):  # a folder that cannot be written to is no reason to stop
                write_whole(self._folder / name, text)


def _schema_file(number: int) -> str:
    return f"{number}.avsc"


def _number_file(subject: str, text: str) -> str:
    return f"{hashlib.sha256(f'{subject} {text}'.encode()).hexdigest()[:32]}.json"
