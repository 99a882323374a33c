"""Mails as files in a folder, one for each key: to try things out, and for tests."""

import asyncio
import math
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ferryman.channels.email.mail import Letter
from ferryman.channels.email.provider import Absent, Found
from ferryman.channels.outcome import Code, Delivered, Outcome, Unavailable
from ferryman.runtime.errors import Misconfigured


class FileProvider:
    """A folder. A mail is there as a whole or not at all, and never twice."""

    window_seconds = math.inf
    settling_seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Misconfigured(
                f"cannot make the folder {self._folder}: {error.strerror}", setting="email.path",
                remedy="name a folder that this process may write to",
            ) from error  # fmt: skip

    async def close(self) -> None: ...

    def can_find(self, reference: str | None) -> bool:
        return True

    async def find(self, letter: Letter, reference: str | None) -> Found | Absent:
        name = _name(letter)
        return Found(name) if (self._folder / name).exists() else Absent()

    async def send(self, letter: Letter) -> Outcome:
        try:
            await asyncio.to_thread(self._write, _name(letter), letter)
        except OSError as error:
            return Unavailable(f"cannot write to the folder in email.path: {error.strerror}", Code.CONNECTION_FAILED)
        return Delivered(_name(letter))

    def _write(self, name: str, letter: Letter) -> None:
        """Write a file that is complete as soon as it has its name, also after a power cut."""
        unfinished = self._folder / f".{name}.{os.getpid()}"
        try:
            with open(unfinished, "wb", opener=_private) as file:
                file.write(letter.mime(datetime.now(UTC)))
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._folder / name)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _name(letter: Letter) -> str:
    return f"{letter.key}.eml"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
