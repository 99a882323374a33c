"""Free ports, folders that go away, and the cache of what was downloaded once."""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ferryman.testing import reaper


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scratch(name: str) -> Path:
    """A folder for one part's data; `discard` it, and if we die first the reaper does."""
    folder = Path(tempfile.mkdtemp(prefix=f"ferryman-{name}-"))
    reaper.watch_folder(str(folder))
    return folder


def discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferryman"
    home.mkdir(parents=True, exist_ok=True)
    return home


@contextmanager
def filled_once(name: str) -> Iterator[tuple[Path, Path | None]]:
    """(the cached folder, a new one to fill or None when it is there): complete or absent, whoever comes at once."""
    final = cache() / name
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.is_dir():
        yield final, None
        return
    with open(final.with_name(final.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            yield final, None
            return
        with tempfile.TemporaryDirectory(dir=final.parent) as folder:
            new = Path(folder, "new")
            new.mkdir()
            yield final, new
            new.rename(final)
