"""Files that are there whole or not at all, also for who reads while they are written or after a power cut."""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


def write_whole(file: Path, text: str) -> None:
    """Replaces what was there. The last of several at once stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".new-{uuid4().hex}")
    try:
        with new.open("x", encoding="utf-8") as stream:  # with the rights that the umask gives, for others to read
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    finally:
        with suppress(OSError):
            new.unlink()
