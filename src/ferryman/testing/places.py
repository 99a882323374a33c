"""Free ports, temporary folders, and the cache of downloads."""

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


def scratch(name: str) -> Path:
    """Create a temporary folder. The reaper removes it if this process dies before `discard`."""
    folder = Path(tempfile.mkdtemp(prefix=f"ferryman-{name}-"))
    reaper.watch_folder(str(folder))
    return folder


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
