"""End what a process started, even if that process is killed with SIGKILL: a child waits for its pipe to close.

As a module this is the parent's side; as a script, run by `_start`, it is the child.
"""

import atexit
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

_PATIENCE_SECONDS = 10
_ENDED: str = psutil.STATUS_ZOMBIE

_lock = threading.Lock()
_child: "subprocess.Popen[bytes] | None" = None


def watch_group(pid: int) -> None:
    """Kill this process group and its descendants when this process ends."""
    _tell(f"group {pid}")


def forget_group(pid: int) -> None:
    """Forget a group that has ended: another one may soon get its id."""
    _tell(f"forget {pid}")


def watch_folder(path: str) -> None:
    """Remove the folder when this process ends."""
    _tell(f"folder {path}")


def family(leader: int) -> set[psutil.Process]:
    """Return a process, its group (even if the process itself has ended) and all their descendants.

    The group alone is not enough: PostgreSQL's backends lead groups of their own.
    """
    group = {process for process in psutil.process_iter() if leader in (process.pid, _group(process))}
    found = set(group)
    for process in group:
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return found


def pause_family(leader: int) -> set[psutil.Process]:
    """Stop the family until nobody is left to stop, since a running process may start others. Return the family."""
    paused: set[psutil.Process] = set()
    while found := family(leader) - paused:
        for process in found:
            with suppress(psutil.Error):
                process.suspend()
        _await(found, _ENDED, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        paused |= found
    return paused


def resume_family(leader: int) -> None:
    """Let a stopped family continue."""
    for process in family(leader):
        with suppress(psutil.Error):
            process.resume()


def kill_family(leader: int, known: Iterable[psutil.Process] = ()) -> None:
    """Kill the family, and processes known from when the leader lived. Return when all have ended."""
    killed = pause_family(leader).union(known)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    _await(killed, _ENDED)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return None


def _await(processes: Iterable[psutil.Process], *states: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not all(_state(each) in states for each in processes) and time.monotonic() < deadline:
        time.sleep(0.002)


def _state(process: psutil.Process) -> str:
    """Return the state of a process. A zombie has ended: its parent, which may not be us, has yet to reap it."""
    try:
        return str(process.status()) if process.is_running() else _ENDED
    except psutil.Error:
        return _ENDED


def _tell(line: str) -> None:
    global _child
    with _lock:
        if _child is None:
            _child = _start()
        assert _child.stdin is not None
        _child.stdin.write(f"{line}\n".encode())


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", __file__],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        bufsize=0, start_new_session=True, cwd="/",
    )  # fmt: skip


@atexit.register
def _end() -> None:
    """Wait at an orderly exit until everything has ended."""
    global _child
    child, _child = _child, None
    if child is not None:
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_PATIENCE_SECONDS)


def _forked() -> None:
    """Give a fork a reaper of its own: it would keep our pipe open after our end."""
    global _child, _lock
    _lock = threading.Lock()
    child, _child = _child, None
    if child is not None:
        assert child.stdin is not None
        child.stdin.close()
        child.poll()  # not the fork's child: this makes Popen see it, and not warn of it


os.register_at_fork(after_in_child=_forked)


def _wait_and_reap() -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "group":
            groups.add(int(rest))
        elif verb == "forget":
            groups.discard(int(rest))
        elif verb == "folder":
            folders.add(rest)
    for group in groups:
        kill_family(group)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_and_reap()
