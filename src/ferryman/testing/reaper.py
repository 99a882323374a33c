"""Ends what a process started, even when that process is killed -9: a child that waits for the pipe to close.

As a module it is the parent's side; as a script (run by `_start`) it is the child.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading

_lock = threading.Lock()
_child: "subprocess.Popen[str] | None" = None
_owner = 0


def watch_group(pid: int) -> None:
    """The process group `pid` dies with us."""
    _tell(f"group {pid}")


def forget_group(pid: int) -> None:
    """The group has ended: its number may soon be somebody else's."""
    _tell(f"forget {pid}")


def watch_folder(path: str) -> None:
    """The folder is removed with us."""
    _tell(f"folder {path}")


def _tell(line: str) -> None:
    global _child, _owner
    with _lock:
        if _child is None or _owner != os.getpid():
            _child, _owner = _start(), os.getpid()
        assert _child.stdin is not None
        _child.stdin.write(line + "\n")
        _child.stdin.flush()


def _start() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-S", "-E", __file__],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True, cwd="/",
    )  # fmt: skip


def _wait_and_reap() -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        verb, _, rest = line.strip().partition(" ")
        if verb == "group":
            groups.add(int(rest))
        elif verb == "forget":
            groups.discard(int(rest))
        elif verb == "folder":
            folders.add(rest)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_and_reap()
