"""Free ports, temporary folders, and the cache of downloads."""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ferryman.testing import reaper

_MEMORY = "/dev/shm"  # noqa: S108
_ROOM_IN_MEMORY = 4 * 1024**3


def free_port() -> int:
    """Return a port that the kernel gives to nobody else for a minute.

    A closed connection on it is in TIME_WAIT. Only a server that names the port and sets SO_REUSEADDR can bind it.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            listener.accept()[0].close()  # the side that closes first has the port in TIME_WAIT
            client.recv(1)
        return int(listener.getsockname()[1])


def scratch(name: str, *, in_memory: bool = False) -> Path:
    """Create a temporary folder. The reaper removes it if this process dies before `discard`.

    `in_memory` places it in memory, if there is plenty: a disk takes ten times as long for thousands of small files.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"ferryman-{name}-", dir=_memory() if in_memory else None))
    reaper.watch_folder(str(folder))
    return folder


def _memory() -> str | None:
    """Return a folder in memory that holds data and programs, or None: containers often have a tiny one."""
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return None
    room = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
    usable = os.access(_MEMORY, os.W_OK) and not found.f_flag & os.ST_NOEXEC
    return _MEMORY if usable and room > _ROOM_IN_MEMORY else None


def discard(folder: Path) -> None:
    """Remove a folder, if it exists."""
    shutil.rmtree(folder, ignore_errors=True)


def cache() -> Path:
    """Return the folder of the downloads, in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferryman"
    home.mkdir(parents=True, exist_ok=True)
    return home


@contextmanager
def filled_once(name: str) -> Iterator[tuple[Path, Path | None]]:
    """Give a cached folder, and a new folder to fill, or None if the cached one is complete.

    Only one process fills it; others wait. If that fails, the cached folder stays absent.
    """
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
