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
    """A port for a server: for a minute the kernel gives it to nobody else.

    It has one closed connection in TIME_WAIT, over which only those may bind who name the port, as servers do
    (SO_REUSEADDR).
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            listener.accept()[0].close()  # who closes first keeps the port in TIME_WAIT
            client.recv(1)
        return int(listener.getsockname()[1])


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
